"""The autostart under Windows: a task of the user's at logon."""

import getpass
import os
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from myna.daemon.service.commands import run
from myna.daemon.service.plan import TASK, Plan
from myna.daemon.service.report import ServiceError, ServiceReport
from myna.daemon.service.scheduler import SCHEMA, task


def user() -> str:
    """The user as the scheduler names them."""
    machine = os.environ.get("USERDOMAIN")
    return f"{machine}\\{getpass.getuser()}" if machine else getpass.getuser()


def install(plan: Plan) -> ServiceReport:
    """Register the task, replacing an older one, and run it."""
    handle, name = tempfile.mkstemp(suffix=".xml")
    try:
        with os.fdopen(handle, "w", encoding="utf-16") as file:
            file.write(task(plan, user()))
        made = run("schtasks", "/Create", "/TN", TASK, "/XML", name, "/F")
    finally:
        Path(name).unlink(missing_ok=True)
    if not made.ok:
        raise ServiceError("failed", f"Task Scheduler refused it ({made.words}).")
    started = run("schtasks", "/Run", "/TN", TASK)
    if not started.ok:
        raise ServiceError("failed", f"The task is registered but did not start ({started.words}).")
    return status(plan)


def uninstall() -> bool:
    """End and remove the task; True if it was there."""
    if not run("schtasks", "/Query", "/TN", TASK).ok:
        return False
    run("schtasks", "/End", "/TN", TASK)
    gone = run("schtasks", "/Delete", "/TN", TASK, "/F")
    if not gone.ok:
        raise ServiceError("failed", f"Task Scheduler did not remove it ({gone.words}).")
    return True


def status(plan: Plan) -> ServiceReport:
    """Compare the task that would be registered with the one that is."""
    shown = run("schtasks", "/Query", "/TN", TASK, "/XML")
    if not shown.ok:
        return ServiceReport(manager="task scheduler", path=None, installed=False, current=False)
    current = action(shown.output) == action(task(plan, user()))
    state = run("schtasks", "/Query", "/TN", TASK, "/FO", "CSV", "/NH")
    columns = [column.strip('"') for column in state.output.strip().split(",")] if state.ok else []
    return ServiceReport(
        manager="task scheduler",
        path=f"\\{TASK}",
        installed=True,
        current=current,
        enabled=True,
        loaded=True,  # the scheduler keeps the definition itself
        state=columns[-1] if columns else None,
        problems=() if current else ("The task is not what this version would register: run `myna service install`.",),
    )


def action(text: str) -> tuple[str | None, str | None]:
    """Command and arguments of a task's XML; the scheduler rewrites the rest in its own way."""
    body = text[text.index("<Task") :] if "<Task" in text else "<Task/>"
    root = ElementTree.fromstring(body)
    names = {"t": SCHEMA}
    return (
        root.findtext("t:Actions/t:Exec/t:Command", namespaces=names),
        root.findtext("t:Actions/t:Exec/t:Arguments", namespaces=names),
    )
