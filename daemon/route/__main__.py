"""`python -m myna.daemon.route create | status | remove [--json]`: the command behind `myna route`."""

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from myna.control.errors import Exit
from myna.daemon.printing import fail, show
from myna.daemon.route.errors import RouteError
from myna.daemon.route.route import PROOFS, RouteReport, create, remove, status


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="myna route", description="The virtual microphone.")
    parser.add_argument("action", choices=("create", "status", "remove"))
    parser.add_argument("--no-tone", action="store_true", help="status: do not send a tone through")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    try:
        if options.action == "remove":
            removed = remove()
            show({"removed": removed}, ["Removed." if removed else "There was none."], options.json)
            return Exit.OK
        report = create() if options.action == "create" else status(proof=not options.no_tone)
    except RouteError as error:
        return fail(error, options.json)
    show(_plain(report), lines(report), options.json)
    return exit_code(report, made=options.action == "create")


def exit_code(report: RouteReport, *, made: bool) -> Exit:
    """0 if it is there and works, 1 if it does not, 4 if there is none; one just made is good if it is there."""
    if report.healthy or (made and report.present):
        return Exit.OK
    return Exit.FAILED if report.present or report.sink or report.microphone else Exit.NOT_FOUND


def lines(report: RouteReport) -> list[str]:
    """The report in words."""
    if report.server:
        version = f" {report.server_version}" if report.server_version else ""
        text = [f"sound server  {report.server}{version}"]
    else:
        text = []
    text.append(f"microphone    {report.microphone or 'none'}")
    if report.output:
        text.append(f"plays into    {report.output}" + (f" ({report.host_api})" if report.host_api else ""))
    if report.persistent is not None:
        text.append(f"after restart {'back by itself' if report.persistent else 'gone'}")
    if report.in_use_by:
        text.append(f"recorded by   {report.in_use_by} application{'s' if report.in_use_by > 1 else ''}")
    if report.proof is not None:
        level = f" at {report.level_db:g} dBFS" if report.level_db is not None else ""
        text.append(f"proof         {PROOFS[report.proof]}{level}")
    text += [f"problem       {problem}" for problem in report.problems]
    text += [f"note          {warning}" for warning in report.warnings]
    text += [f"next          {step}" for step in report.steps]
    return text


def _plain(report: RouteReport) -> dict[str, object]:
    return {**dataclasses.asdict(report), "healthy": report.healthy}


if __name__ == "__main__":
    sys.exit(main())
