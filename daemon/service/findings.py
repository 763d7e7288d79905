"""What `myna doctor` says about the autostart."""

import os
import platform
from pathlib import Path

from myna.control.contract import Finding
from myna.daemon.service.managers import MANAGERS
from myna.daemon.service.plan import plan_for
from myna.daemon.service.report import ServiceReport

AREA = "service"


def findings(state_dir: Path) -> tuple[Finding, ...]:
    """Look and judge. Runs the service manager's program: seconds at worst, so not in a loop."""
    manager = MANAGERS.get(platform.system())
    if manager is None:
        return ()
    return judge(manager.status(plan_for(os.environ, state_dir=state_dir)))


def judge(report: ServiceReport) -> tuple[Finding, ...]:
    """The findings from a report; pure. No autostart is no fault."""
    if not report.installed:
        words = "The daemon does not start with the session."
        return (Finding(area=AREA, name="autostart", level="info", message=words, cure="myna service install"),)
    if report.healthy:
        words = f"{report.manager} starts the daemon with the session."
        return (Finding(area=AREA, name="autostart", level="ok", message=words),)
    return tuple(
        Finding(area=AREA, name="autostart", level="warning", message=problem, cure="myna service install")
        for problem in report.problems
    )
