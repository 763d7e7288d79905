"""Installing, upgrading and removing the autostart, with programs that stand for each system's own."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from myna.daemon.service import __main__ as command
from myna.daemon.service import launchctl, schtasks, systemctl
from myna.daemon.service.plan import LABEL, plan_for
from myna.daemon.service.report import ServiceError
from myna.daemon.service.systemd import unit

PLAN = plan_for({}, state_dir=Path("/state"))
NEWER = plan_for({"MYNA_CONFIG": "/c.toml"}, state_dir=Path("/state"))


class Stand:
    """A program on the path that writes down how it was called and answers from a table of shell words."""

    def __init__(self, folder: Path, name: str) -> None:
        self.log = folder / f"{name}.log"
        self.answers = folder / f"{name}.sh"
        self.answers.write_text("")
        program = folder / name
        program.write_text(f'#!/bin/sh\necho "$*" >> {self.log}\n. {self.answers}\nexit 0\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def answer(self, script: str) -> None:
        self.answers.write_text(script)

    def calls(self) -> list[str]:
        """How it was called since the last look."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    (folder / "bin").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("MYNA_STATE_DIR", str(folder / "state"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{folder}/bin:/usr/bin:/bin")
    return folder


def files(home: Path) -> list[str]:
    return sorted(
        p.relative_to(home).as_posix()
        for p in home.rglob("*")
        if p.name != ".config" and p.relative_to(home).parts[0] != "bin"
    )


# --- systemd --------------------------------------------------------------------------------------------

SHOWN = (
    'case "$*" in *show*) printf "ActiveState=active\\nSubState=running\\nMainPID=42\\nNeedDaemonReload=no\\n";; esac'
)


def test_a_unit_is_installed_upgraded_in_place_and_removed(home: Path) -> None:
    systemd = Stand(home / "bin", "systemctl")
    systemd.answer(SHOWN)
    assert not systemctl.status(PLAN).installed

    report = systemctl.install(PLAN)
    assert report.healthy
    assert (report.enabled, report.loaded, report.state, report.pid) == (True, True, "active (running)", 42)
    assert "--user --no-pager restart myna.service" in systemd.calls()

    systemctl.install(PLAN)  # nothing changed: a running daemon is not disturbed
    assert [call.split()[2] for call in systemd.calls()] == ["daemon-reload", "start", "show"]

    assert not systemctl.status(NEWER).current
    systemd.calls()
    assert systemctl.install(NEWER).current
    assert [call.split()[2] for call in systemd.calls()] == ["daemon-reload", "restart", "show"]

    assert systemctl.uninstall()
    assert [call.split()[2] for call in systemd.calls()] == ["stop", "daemon-reload", "reset-failed"]
    assert files(home) == []
    assert not systemctl.uninstall()


def test_without_a_bus_the_next_login_will_do_it(home: Path) -> None:
    systemd = Stand(home / "bin", "systemctl")
    systemd.answer("echo 'Failed to connect to bus: No medium found' >&2; exit 1")
    report = systemctl.install(PLAN)
    assert (report.installed, report.enabled, report.loaded, report.state) == (True, True, None, None)
    assert "No medium found" in report.problems[0]
    link = home / ".config/systemd/user/default.target.wants/myna.service"
    assert link.resolve().read_text() == unit(PLAN)
    assert systemctl.uninstall()
    assert files(home) == []


def test_a_daemon_that_does_not_start_is_told_with_where_to_look(home: Path) -> None:
    Stand(home / "bin", "systemctl").answer('case "$*" in *restart*) echo "Job failed" >&2; exit 1;; esac')
    with pytest.raises(ServiceError, match=r"Job failed.*journalctl --user -u myna"):
        systemctl.install(PLAN)


def test_status_tells_a_changed_a_disabled_and_a_failed_unit(home: Path) -> None:
    systemd = Stand(home / "bin", "systemctl")
    systemctl.install(PLAN)
    systemctl.unit_path(os.environ).write_text("[Service]\n")
    systemctl.link_path(os.environ).unlink()
    systemd.answer(
        'case "$*" in *show*) printf "ActiveState=failed\\nResult=watchdog\\nNeedDaemonReload=yes\\n";; esac'
    )
    report = systemctl.status(PLAN)
    assert (report.current, report.enabled, report.loaded) == (False, False, False)
    assert len(report.problems) == 4
    assert "watchdog" in report.problems[-1]
    Stand(home / "bin", "systemctl").answer(SHOWN)
    assert systemctl.install(PLAN).healthy


def test_other_units_of_the_user_stay(home: Path) -> None:
    Stand(home / "bin", "systemctl")
    theirs = home / ".config/systemd/user/theirs.service"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("[Service]\n")
    systemctl.install(PLAN)
    systemctl.uninstall()
    assert files(home)[-1] == ".config/systemd/user/theirs.service"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_told(home: Path) -> None:
    home.chmod(0o500)
    try:
        with pytest.raises(ServiceError, match="can't be written"):
            systemctl.install(PLAN)
    finally:
        home.chmod(0o700)


# --- launchd --------------------------------------------------------------------------------------------


def test_an_agent_is_loaded_reloaded_and_removed(home: Path, tmp_path: Path) -> None:
    launchd = Stand(home / "bin", "launchctl")
    plan = plan_for({}, state_dir=tmp_path / "state")
    newer = plan_for({"MYNA_CONFIG": "/c"}, state_dir=tmp_path / "state")
    launchd.answer('case "$1" in print) exit 113;; esac')
    launchctl.install(plan)
    assert [call.split()[0] for call in launchd.calls()] == ["print", "bootstrap", "print"]
    launchd.answer('case "$1" in print) printf "\\tstate = running\\n\\tpid = 77\\n";; esac')
    report = launchctl.status(plan)
    assert (report.healthy, report.state, report.pid) == (True, "running", 77)
    launchd.calls()
    launchctl.install(plan)
    assert [call.split()[0] for call in launchd.calls()] == ["print", "print"]
    assert launchctl.install(newer).current
    assert [call.split()[0] for call in launchd.calls()] == ["print", "bootout", "bootstrap", "print"]
    assert launchctl.uninstall()
    assert not (home / "Library/LaunchAgents" / f"{LABEL}.plist").exists()
    assert not launchctl.status(plan).installed


# --- Task Scheduler -------------------------------------------------------------------------------------


def test_a_task_is_registered_compared_and_removed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USERDOMAIN", "PC")
    kept = home / "bin/kept.xml"
    scheduler = Stand(home / "bin", "schtasks")
    scheduler.answer(
        f'case "$*" in */Create*) iconv -f utf-16 -t utf-8 "$5" > {kept};; */Delete*) rm {kept};; '
        f'*/XML*) cat {kept} || exit 1;; *CSV*) printf "%s" \'"Myna","N/A","Running"\';; '
        f"*/Query*) test -e {kept} || exit 1;; esac"
    )
    assert not schtasks.status(PLAN).installed
    report = schtasks.install(PLAN)
    assert (report.healthy, report.state) == (True, "Running")
    assert not schtasks.status(NEWER).current
    assert schtasks.install(NEWER).current
    assert schtasks.uninstall()
    assert not schtasks.uninstall()


def test_a_refusal_is_told(home: Path) -> None:
    Stand(home / "bin", "schtasks").answer("echo 'ERROR: Access is denied.' >&2; exit 1")
    with pytest.raises(ServiceError, match="Access is denied"):
        schtasks.install(PLAN)


# --- the command ----------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="asks this system's own manager")
def test_the_command_ends_with_the_right_codes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Stand(home / "bin", "systemctl").answer(SHOWN)
    assert command.main(["status", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["installed"] is False
    assert command.main(["install", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["healthy"], answer["pid"]) == (True, 42)
    assert f'"--state-dir" "{home}/state"' in Path(answer["path"]).read_text()
    assert command.main(["status"]) == 0
    assert "active (running), process 42" in capsys.readouterr().out
    assert command.main(["uninstall"]) == 0
    assert command.main(["status"]) == 4
