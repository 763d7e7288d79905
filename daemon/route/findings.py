"""What `myna doctor` says about the sound server and the virtual microphone."""

import platform

from myna.control.contract import Finding
from myna.daemon.route.errors import RouteError
from myna.daemon.route.route import RouteReport, status

AREA = "route"


def findings() -> tuple[Finding, ...]:
    """Look (without sending a tone) and judge. Runs the sound server's programs: seconds at worst, so not in a loop.

    A missing virtual microphone is no fault: files and loudspeakers work without.
    """
    try:
        report = status(proof=False)
    except RouteError as error:
        cure = "Start or install it as the message says, then `myna route create`."
        return (Finding(area=AREA, name="sound server", level="warning", message=error.message, cure=cure),)
    return judge(report, platform.system())


def judge(report: RouteReport, system: str) -> tuple[Finding, ...]:
    """The findings from a report; pure."""
    found = []
    if report.server is not None:
        version = f" {report.server_version}" if report.server_version else ""
        found.append(Finding(area=AREA, name="sound server", level="ok", message=f"{report.server}{version} answers."))
    if not report.present and not report.problems:
        cure = "myna route create" if system == "Linux" else " ".join(report.steps)
        words = "There is none: applications can't hear Myna yet."
        return (*found, Finding(area=AREA, name="virtual microphone", level="info", message=words, cure=cure))
    if not report.problems:
        words = f"Applications list it as {report.microphone!r}."
        found.append(Finding(area=AREA, name="virtual microphone", level="ok", message=words))
    for problem in report.problems:
        found.append(
            Finding(area=AREA, name="virtual microphone", level="warning", message=problem, cure="myna route create")
        )
    for warning in report.warnings:
        cure = "myna up --input NAME"
        found.append(Finding(area=AREA, name="default microphone", level="warning", message=warning, cure=cure))
    return tuple(found)
