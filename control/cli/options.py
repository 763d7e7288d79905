"""Options that many commands share, and the connection they lead to."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from myna.control.client import Client

Json = Annotated[bool, typer.Option("--json", help="Print the result, or the error, as JSON.")]
Session = Annotated[str, typer.Option("--session", metavar="NAME", help="Which live session.")]
Pairs = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting; may be given several times."),
]


# Of `up` and `live start` alike.
Voice = Annotated[str | None, typer.Option("--voice", metavar="V", help="Which voice.")]
Input = Annotated[str | None, typer.Option("--input", metavar="D", help="Device name, `file:PATH` or `null`.")]
Output = Annotated[str | None, typer.Option("--output", metavar="D", help="Device name, `file:PATH` or `null`.")]
Monitor = Annotated[str | None, typer.Option("--monitor", metavar="D", help="Where you hear it too.")]
HostApi = Annotated[str | None, typer.Option("--host-api", metavar="NAME", help="Which host API.")]
Rate = Annotated[int | None, typer.Option("--rate", metavar="HZ", help="Device rate.")]
Period = Annotated[float, typer.Option("--period", metavar="MS", help="Device period.")]
Channels = Annotated[str | None, typer.Option("--channels", metavar="1,2", help="Input channels to mix, from 1.")]
Fast = Annotated[bool, typer.Option("--fast", help="Files: as fast as it computes.")]
Bypass = Annotated[bool, typer.Option("--bypass", help="Let your own voice through.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Return when it runs, or at once.")]


class Switch(StrEnum):
    """On, off, or the other of the two."""

    on = "on"
    off = "off"
    toggle = "toggle"


def connect(timeout_s: float | None = None) -> Client:
    """A client of the daemon that the environment names."""
    return Client(name="myna", timeout_s=timeout_s)


def device_name(given: str | None) -> str | None:
    """A device as the daemon takes it: `file:` paths are made absolute, for the daemon runs elsewhere."""
    if given is not None and given.startswith("file:") and len(given) > 5:
        return f"file:{absolute(given[5:])}"
    return given


def absolute(path: str) -> str:
    """A path as the daemon takes it."""
    return str(Path(os.path.abspath(Path(path).expanduser())))
