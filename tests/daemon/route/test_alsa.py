"""ALSA's name for the virtual microphone's sink."""

from pathlib import Path

import pytest

from myna.daemon.route import OUTPUT_DEVICE, alsa
from myna.daemon.route.alsa import alsa_text, config_path, find_plugin, worker_environment
from myna.daemon.route.files import remove_file, write_whole
from myna.daemon.route.names import SINK


@pytest.mark.parametrize("plugin", ["pulse", "pipewire"])
def test_the_name_leads_to_the_sink_and_is_listed(plugin: str) -> None:
    text = alsa_text(plugin)
    assert f"pcm.{OUTPUT_DEVICE} {{ type {plugin} " in text
    assert f'"{SINK}"' in text
    assert "hint { show on" in text


def test_a_users_own_configuration_stays_in_force() -> None:
    ours = Path("/state/asound.conf")
    assert config_path(None, ours) == "/usr/share/alsa/alsa.conf:/state/asound.conf"
    assert config_path("/a:/b", ours) == "/a:/b:/state/asound.conf"
    assert config_path("/a:/state/asound.conf", ours) == "/a:/state/asound.conf"


def test_the_environment_names_a_file_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alsa, "find_plugin", lambda: "pulse")
    monkeypatch.setattr(alsa.sys, "platform", "linux")
    environment = worker_environment(tmp_path, {"ALSA_CONFIG_PATH": "/own.conf"})
    first, second = environment["ALSA_CONFIG_PATH"].split(":")
    assert first == "/own.conf"
    assert Path(second).read_text() == alsa_text("pulse")


def test_nothing_is_set_where_nothing_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"ALSA_CONFIG_PATH": "/own.conf"}
    monkeypatch.setattr(alsa, "find_plugin", lambda: None)
    assert worker_environment(tmp_path, known) == {}
    monkeypatch.setattr(alsa, "find_plugin", lambda: "pulse")
    (tmp_path / "file").touch()
    assert worker_environment(tmp_path / "file", known) == {}
    monkeypatch.setattr(alsa.sys, "platform", "darwin")
    assert worker_environment(tmp_path, known) == {}


def test_the_pulse_plugin_is_preferred(tmp_path: Path) -> None:
    assert find_plugin([str(tmp_path)]) is None
    (tmp_path / "libasound_module_pcm_pipewire.so").touch()
    assert find_plugin([str(tmp_path)]) == "pipewire"
    (tmp_path / "libasound_module_pcm_pulse.so").touch()
    assert find_plugin([str(tmp_path)]) == "pulse"


def test_a_file_is_written_once_keeps_its_mode_and_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.conf", tmp_path / "link.conf"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    assert write_whole(link, "new")
    assert not write_whole(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert real.stat().st_mode & 0o777 == 0o600


def test_removing_takes_empty_folders_and_leaves_others(tmp_path: Path) -> None:
    path = tmp_path / "a/b/c.conf"
    write_whole(path, "x")
    assert remove_file(path, tmp_path)
    assert not (tmp_path / "a").exists()
    assert not remove_file(path, tmp_path)
    write_whole(path, "x")
    write_whole(tmp_path / "a/theirs", "y")
    assert remove_file(path, tmp_path)
    assert (tmp_path / "a/theirs").exists()
    assert not (tmp_path / "a/b").exists()
