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
