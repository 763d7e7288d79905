"""A session that was live is live again after the daemon's end, and waits for a device that is not there yet."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.private_daemon import LIVE, PrivateDaemon, first

WITHIN_S = 30.0


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[PrivateDaemon]:
    """Without any sound device."""
    with PrivateDaemon(tmp_path) as made:
        yield made


def test_what_was_live_is_live_again_with_its_settings(daemon: PrivateDaemon) -> None:
    daemon.start()
    daemon.myna("live", "start", "--voice", "deep", "--set", "pitch=-3", "--input", "null", "--output", "null")
    daemon.until(lambda s: s["state"] in LIVE, WITHIN_S)
    assert daemon.stop() == 0
    daemon.start("--resume")
    status = daemon.until(lambda s: s["state"] in LIVE, WITHIN_S)
    assert (status["voice"], status["settings"]["pitch"], status["input"]) == ("deep", -3.0, "null")
    daemon.myna("live", "stop")
    assert daemon.stop() == 0
    daemon.start("--resume")  # it was stopped before the end, so it stays stopped
    assert daemon.myna("live", "state")["state"] == "stopped"
    assert daemon.stop() == 0


def test_a_resumed_session_waits_for_its_device(daemon: PrivateDaemon, tmp_path: Path) -> None:
    daemon.start()
    daemon.myna("live", "start", "--input", "null", "--output", "null")
    daemon.until(lambda s: s["state"] in LIVE, WITHIN_S)
    assert daemon.stop() == 0
    kept = tmp_path / "state" / "sessions" / "main.json"
    session = json.loads(kept.read_text())
    session["devices"]["input"] = "a microphone that is unplugged"
    kept.write_text(json.dumps(session))
    daemon.start("--resume")
    status = daemon.until(lambda s: s["state"] == "reconnecting", WITHIN_S)
    assert "a microphone that is unplugged" in status["stop_reason"]
    assert daemon.stop() == 0


def test_a_start_that_fails_is_not_what_the_next_one_goes_by(daemon: PrivateDaemon, tmp_path: Path) -> None:
    daemon.start()
    daemon.myna("live", "start", "--set", "pitch=2", "--input", "null", "--output", "null")
    daemon.myna("live", "stop")
    gone = f"file:{tmp_path / 'gone.wav'}"
    answer = daemon.myna("live", "start", "--set", "pitch=5", "--input", gone, "--output", "null", code=8)
    told = answer["error"]
    assert (told["code"], told["facts"]["reason"]) == ("device_unavailable", "not_found")
    assert "gone.wav" in told["message"]
    status = daemon.myna("live", "start")
    assert (status["state"], status["input"], status["settings"]["pitch"]) == ("running", "null", 2.0)
    assert daemon.stop() == 0


def test_a_second_daemon_is_refused(daemon: PrivateDaemon) -> None:
    daemon.start()
    second = subprocess.run(
        [sys.executable, "-m", "myna.daemon", "--foreground", "--json"],
        env=daemon.env,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode == 5
    assert json.loads(second.stdout)["error"]["code"] == "already_running"
    assert daemon.myna("status")["pid"] > 0
    assert daemon.stop() == 0


@pytest.mark.parametrize("damage", ["gone", "junk"])
def test_a_connection_file_that_is_tidied_away_is_written_again(daemon: PrivateDaemon, damage: str) -> None:
    daemon.start()
    before = daemon.myna("status")["pid"]
    path = daemon.state_dir / "connection.json"
    path.unlink()
    if damage == "junk":
        path.write_bytes(b"junk")
    first(path.is_file, bool, WITHIN_S)
    first(lambda: daemon.run("status").returncode, lambda code: code == 0, WITHIN_S)
    assert daemon.myna("status")["pid"] == before
    assert daemon.stop() == 0


def test_a_damaged_connection_file_of_a_dead_daemon_is_in_nobodys_way(daemon: PrivateDaemon) -> None:
    daemon.state_dir.mkdir(mode=0o700)
    (daemon.state_dir / "connection.json").write_bytes(b"junk")
    assert daemon.myna("up", "--input", "null", "--output", "null")["session"]["state"] == "running"
    daemon.myna("down")
