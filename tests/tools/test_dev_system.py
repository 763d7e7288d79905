"""What dev.py asks of the system, and what it says where it may not install."""

import subprocess
import sys
from pathlib import Path

import dev_system as system
import pytest

DEV = Path(system.__file__).with_name("dev.py")


def missing(**packages: tuple[str, ...]) -> system.Need:
    names = {name.replace("_", "-"): value for name, value in packages.items()}
    return system.Need("a thing", "it is used", lambda: False, names)


def test_every_need_names_debian_packages() -> None:
    for need in [*system.base_needs(), *system.audio_needs(), system.browser_need()]:
        assert need.packages["apt-get"], need.name
        assert isinstance(need.present(), bool)


def test_only_what_building_takes_is_required() -> None:
    assert {need.name for need in system.base_needs() if need.required} == {
        "a C compiler",
        "Python's C headers",
        "the venv module",
    }


def test_sound_servers_are_kept_off_desktops(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [need.touches_sound for need in system.audio_needs()] == [True, True, False]
    monkeypatch.setenv("SUDO_USER", "somebody")
    assert not system.is_own_machine()


@pytest.mark.parametrize("manager", ["apt-get", "dnf", "pacman"])
def test_the_advice_is_the_exact_command(manager: str) -> None:
    need = system.Need("a thing", "it is used", lambda: False, {manager: ("one", "two")})
    lines = system.advice([need], "Linux", manager)
    assert lines[0] == "missing: a thing (it is used)"
    for command in system.install_commands(manager, ["one", "two"]):
        assert "sudo " + " ".join(command) in lines[1]


def test_the_advice_of_systems_without_a_manager() -> None:
    assert "xcode-select --install" in system.advice([missing()], "Darwin", None)[1]
    assert "Build Tools" in system.advice([missing()], "Windows", None)[1]
    assert "package manager" in system.advice([missing()], "Linux", None)[1]


def test_an_unknown_manager_is_refused() -> None:
    with pytest.raises(ValueError, match="zypper"):
        system.install_commands("zypper", ["x"])


def test_a_failing_mirror_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system.time, "sleep", lambda _: None)
    count = tmp_path / "count"
    script = f"echo x >> {count}; test $(wc -l < {count}) -ge 3"
    assert system.run_install([["sh", "-c", script]], [])
    assert count.read_text().count("x") == 3
    assert not system.run_install([["sh", "-c", "exit 1"]], [], tries=2)


def test_an_old_python_is_told_so() -> None:
    code = (
        "import sys, os, runpy\n"
        "sys.version_info = (3, 9, 0)\n"
        "os.execvp = lambda name, command: sys.exit('went on with ' + name)\n"
        f"sys.argv = [{str(DEV)!r}, 'setup']\n"
        f"runpy.run_path({str(DEV)!r}, run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PATH": "/nowhere"})
    assert done.returncode == 1
    assert "needs Python 3.11, 3.12 or 3.13; this is 3.9" in done.stderr


def test_the_help_names_every_command() -> None:
    done = subprocess.run([sys.executable, str(DEV), "--help"], capture_output=True, text=True, check=True)
    for command in ("setup", "demo", "test", "check", "bench", "soak", "quality"):
        assert f"    {command} " in done.stdout
