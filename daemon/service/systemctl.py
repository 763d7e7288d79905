"""The autostart under systemd: the unit's file, its link into the session's start, and the running manager."""

import os
from collections.abc import Mapping
from pathlib import Path

from myna.daemon.route.files import remove_file, write_whole
from myna.daemon.service.commands import Outcome, run
from myna.daemon.service.plan import NAME, Plan
from myna.daemon.service.report import ServiceError, ServiceReport
from myna.daemon.service.systemd import unit

UNIT = f"{NAME}.service"
NO_BUS = "systemd's user manager does not answer here ({words}); it will start Myna at the next login."


def config_home(environment: Mapping[str, str]) -> Path:
    """The user's configuration folder."""
    return Path(environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME") or Path.home()) / ".config")


def unit_path(environment: Mapping[str, str]) -> Path:
    """Where the unit lies."""
    return config_home(environment) / "systemd/user" / UNIT


def link_path(environment: Mapping[str, str]) -> Path:
    """The link by which it starts with the session: what `systemctl enable` makes, made without needing a bus."""
    return config_home(environment) / "systemd/user/default.target.wants" / UNIT


def install(plan: Plan) -> ServiceReport:
    """Write, enable and start it; an older one is brought up to date and restarted only if it changed."""
    path, link = unit_path(os.environ), link_path(os.environ)
    try:
        changed = write_whole(path, unit(plan))
        link.parent.mkdir(parents=True, exist_ok=True)
        if not (link.is_symlink() and link.resolve() == path.resolve()):
            link.unlink(missing_ok=True)
            link.symlink_to(path)
    except OSError as error:
        raise ServiceError(
            "state_unwritable", f"{error.filename or path} can't be written: {error.strerror}."
        ) from error
    if _user("daemon-reload").ok:
        started = _user("restart" if changed else "start", UNIT)
        if not started.ok:
            raise ServiceError(
                "failed", f"{UNIT} did not start ({started.words}). Its last lines: journalctl --user -u {NAME} -n 20"
            )
    return status(plan)


def uninstall() -> bool:
    """Stop it and remove every trace; True if there was any."""
    path, link = unit_path(os.environ), link_path(os.environ)
    there = path.exists() or link.is_symlink()
    stopped = _user("stop", UNIT) if there else None
    root = config_home(os.environ)
    try:
        remove_file(link, root)
        remove_file(path, root)
    except OSError as error:
        raise ServiceError(
            "state_unwritable", f"{error.filename or path} can't be removed: {error.strerror}."
        ) from error
    if stopped is not None and stopped.ok:
        _user("daemon-reload")
        _user("reset-failed", UNIT)
    return there


def status(plan: Plan) -> ServiceReport:
    """Compare what would be written with what lies there and with what the manager has."""
    path, link = unit_path(os.environ), link_path(os.environ)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return ServiceReport(manager="systemd", path=None, installed=False, current=False)
    shown = _user("show", UNIT, "--property=ActiveState,SubState,MainPID,NeedDaemonReload,Result")
    facts = properties(shown.output) if shown.ok else {}
    enabled = link.is_symlink() and link.resolve() == path.resolve()
    current = text == unit(plan)
    pid = facts.get("MainPID", "0")
    return ServiceReport(
        manager="systemd",
        path=str(path),
        installed=True,
        current=current,
        enabled=enabled,
        loaded=facts["NeedDaemonReload"] == "no" if "NeedDaemonReload" in facts else None,
        state=f"{facts['ActiveState']} ({facts.get('SubState', '')})" if "ActiveState" in facts else None,
        pid=int(pid) if pid.isdigit() and pid != "0" else None,
        problems=tuple(problems(current, enabled, facts, "" if shown.ok else shown.words)),
    )


def properties(text: str) -> dict[str, str]:
    """`systemctl show`'s lines as a mapping."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def problems(current: bool, enabled: bool, facts: Mapping[str, str], silent: str) -> list[str]:
    """What is not as it should be, each with its cure; `silent` says why the manager could not be asked."""
    found = []
    if not current:
        found.append("The unit is not what this version would write: run `myna service install`.")
    if not enabled:
        found.append("It does not start with the session: run `myna service install`.")
    if silent:
        found.append(NO_BUS.format(words=silent))
    if facts.get("NeedDaemonReload") == "yes":
        found.append("The unit changed since systemd read it: run `systemctl --user daemon-reload`.")
    if facts.get("ActiveState") == "failed":
        found.append(f"It failed ({facts.get('Result', 'unknown')}): journalctl --user -u {NAME} -n 20 tells why.")
    return found


def _user(*arguments: str) -> Outcome:
    return run("systemctl", "--user", "--no-pager", *arguments)
