"""The autostart under macOS: the LaunchAgent's file and the session's launchd."""

import os
import re
from pathlib import Path

from myna.daemon.route.files import remove_file, write_whole
from myna.daemon.service.commands import run
from myna.daemon.service.launchd import agent
from myna.daemon.service.plan import LABEL, Plan
from myna.daemon.service.report import ServiceError, ServiceReport


def agent_path() -> Path:
    """Where the agent lies."""
    return Path.home() / "Library/LaunchAgents" / f"{LABEL}.plist"


def domain() -> str:
    """The user's desktop session, as launchd names it. Only macOS has one."""
    return f"gui/{os.getuid()}"


def install(plan: Plan) -> ServiceReport:
    """Write and load it; a loaded one is reloaded only if it changed."""
    path = agent_path()
    try:
        plan.log.parent.mkdir(parents=True, exist_ok=True)
        changed = write_whole(path, agent(plan).decode())
    except OSError as error:
        raise ServiceError("state_unwritable", f"{path} can't be written: {error.strerror}.") from error
    loaded = run("launchctl", "print", f"{domain()}/{LABEL}").ok
    if loaded and changed:
        run("launchctl", "bootout", f"{domain()}/{LABEL}")
        loaded = False
    if not loaded:
        started = run("launchctl", "bootstrap", domain(), str(path))
        if not started.ok:
            raise ServiceError("failed", f"launchd did not load it ({started.words}). Its words: {plan.log}")
    return status(plan)


def uninstall() -> bool:
    """Unload and remove it; True if it was there."""
    path = agent_path()
    run("launchctl", "bootout", f"{domain()}/{LABEL}")
    try:
        return remove_file(path, Path.home() / "Library")
    except OSError as error:
        raise ServiceError("state_unwritable", f"{path} can't be removed: {error.strerror}.") from error


def status(plan: Plan) -> ServiceReport:
    """Compare what would be written with what lies there and with what launchd has."""
    path = agent_path()
    try:
        current = path.read_bytes() == agent(plan)
    except OSError:
        return ServiceReport(manager="launchd", path=None, installed=False, current=False)
    shown = run("launchctl", "print", f"{domain()}/{LABEL}")
    state, pid = printed(shown.output) if shown.ok else (None, None)
    found = []
    if not current:
        found.append("The agent is not what this version would write: run `myna service install`.")
    if not shown.ok:
        found.append("launchd has not loaded it: run `myna service install` from the desktop session.")
    return ServiceReport(
        manager="launchd",
        path=str(path),
        installed=True,
        current=current,
        enabled=True,  # RunAtLoad, from a folder that every login loads
        loaded=shown.ok,
        state=state,
        pid=pid,
        problems=tuple(found),
    )


def printed(text: str) -> tuple[str | None, int | None]:
    """State and process id from what `launchctl print` says."""
    state = re.search(r"^\s*state = (.+)$", text, re.MULTILINE)
    pid = re.search(r"^\s*pid = (\d+)$", text, re.MULTILINE)
    return (state[1].strip() if state else None, int(pid[1]) if pid else None)
