"""`myna route`: the virtual microphone; the work is done by the daemon's package."""

import json
import subprocess
import sys
from typing import Annotated

import typer

from myna.control.cli.delegate import delegate
from myna.control.cli.launch import require_daemon_package
from myna.control.cli.options import Json
from myna.control.errors import CODES, MynaError

MODULE = "myna.daemon.route"

app = typer.Typer(
    help="Create, find and remove the virtual microphone.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.command()
def create(as_json: Json = False) -> None:
    """Make the microphone `Myna`, now and after every restart of the sound server."""
    delegate(MODULE, ["create", *_flags(as_json)])


@app.command()
def status(
    no_tone: Annotated[bool, typer.Option("--no-tone", help="Do not prove it with a tone.")] = False,
    as_json: Json = False,
) -> None:
    """Show whether it is there, and prove it with a quiet tone sent through."""
    delegate(MODULE, ["status", *(["--no-tone"] if no_tone else []), *_flags(as_json)])


@app.command()
def remove(as_json: Json = False) -> None:
    """Remove it without a trace."""
    delegate(MODULE, ["remove", *_flags(as_json)])


def created_output() -> tuple[str, str]:
    """Make the virtual microphone; returns the device that plays into it, with its host API (for `myna up --route`).

    Raises MynaError with the code and words of whatever stood in the way.
    """
    require_daemon_package()
    done = subprocess.run(
        [sys.executable, "-m", MODULE, "create", "--json"], capture_output=True, text=True, check=False
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        words = done.stderr.strip().splitlines()
        raise MynaError(
            "failed", f"The virtual microphone could not be made: {words[-1] if words else error}"
        ) from error
    problem = answer.get("error")
    if problem is not None:
        code = problem.get("code")
        raise MynaError(code if code in CODES else "failed", problem.get("message", ""))
    return answer["output"], answer["host_api"]


def _flags(as_json: bool) -> list[str]:
    return ["--json"] if as_json else []
