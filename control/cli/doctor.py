"""`myna doctor`: what is wrong, and how to mend it."""

from typing import Annotated, NoReturn

import typer

from myna.control.cli import launch, output
from myna.control.cli.options import Json, connect
from myna.control.connection import private_dir, state_dir
from myna.control.contract import DoctorReply, DoctorRequest, Finding
from myna.control.errors import Exit, MynaError

_MARKS = {"ok": "ok  ", "info": "info", "warning": "warn", "error": "FAIL"}


def doctor(
    simulate: Annotated[
        str | None,
        typer.Option("--simulate", metavar="CASE", help="What would be said of computing on a recorded machine."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find what is wrong and how to mend it; exit code 1 if something needed fails. Works without a daemon."""
    findings = [] if simulate else list(_own())
    try:
        with connect() as client:
            reply = client.call("doctor", DoctorRequest(simulate=simulate), DoctorReply)
        findings += reply.findings
    except MynaError as error:
        if simulate:
            raise
        findings.append(
            Finding(
                area="daemon",
                name="answers",
                level="error",
                message=error.message,
                cure="myna up" if error.code == "unreachable" else None,
            )
        )
    healthy = all(each.level != "error" for each in findings)
    if as_json:
        output.print_json(DoctorReply(findings=tuple(findings), healthy=healthy))
    else:
        for each in findings:
            output.line(f"{_MARKS[each.level]}  {each.area}: {each.name}: {each.message}")
            if each.cure and each.level != "ok":
                output.line(f"      cure: {each.cure}")
    if not healthy:
        _fail()


def _fail() -> NoReturn:
    raise typer.Exit(int(Exit.FAILED))


def _own() -> list[Finding]:
    """What the client itself can see."""
    found: list[Finding] = []
    for name, check in (("state directory", _state), ("daemon package", launch.require_daemon_package)):
        try:
            check()
            found.append(Finding(area="client", name=name, level="ok", message="usable"))
        except MynaError as error:
            found.append(Finding(area="client", name=name, level="error", message=error.message))
    return found


def _state() -> None:
    private_dir(state_dir())
