"""`python -m myna.daemon.service install | uninstall | status [--json]`: the command behind `myna service`."""

import argparse
import dataclasses
import os
import platform
import sys
from collections.abc import Sequence

from myna.control.connection import state_dir
from myna.control.errors import Exit
from myna.daemon.printing import fail, show
from myna.daemon.service.managers import MANAGERS
from myna.daemon.service.plan import plan_for
from myna.daemon.service.report import ServiceError, ServiceReport


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="myna service", description="Start the daemon with the session.")
    parser.add_argument("action", choices=("install", "uninstall", "status"))
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    try:
        manager = MANAGERS.get(platform.system())
        if manager is None:
            raise ServiceError("missing_asset", f"There is no autostart for {platform.system()} yet.")
        if options.action == "uninstall":
            removed = manager.uninstall()
            show({"removed": removed}, ["Removed." if removed else "There was none."], options.json)
            return Exit.OK
        plan = plan_for(os.environ, state_dir=state_dir())
        report = manager.install(plan) if options.action == "install" else manager.status(plan)
    except ServiceError as error:
        return fail(error, options.json)
    show({**dataclasses.asdict(report), "healthy": report.healthy}, lines(report), options.json)
    return exit_code(report, made=options.action == "install")


def exit_code(report: ServiceReport, *, made: bool) -> Exit:
    """0 if it is as it should be, 1 if not, 4 if there is none; one just made is good once it is written."""
    if report.healthy or (made and report.current and report.enabled):
        return Exit.OK
    return Exit.FAILED if report.installed else Exit.NOT_FOUND


def lines(report: ServiceReport) -> list[str]:
    """The report in words."""
    if not report.installed:
        return ["Not installed. Start with the session from now on: myna service install"]
    text = [f"{report.manager:<14}{report.path}"]
    text.append(f"at login      {'starts' if report.enabled else 'does not start'}")
    if report.state is not None:
        text.append(f"now           {report.state}" + (f", process {report.pid}" if report.pid else ""))
    text += [f"problem       {problem}" for problem in report.problems]
    return text


if __name__ == "__main__":
    sys.exit(main())
