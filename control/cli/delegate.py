"""Runs a part of the daemon's package in a process of its own, and ends as it ended."""

import subprocess
import sys
from collections.abc import Sequence

import typer

from myna.control.cli.launch import require_daemon_package


def delegate(module: str, arguments: Sequence[str]) -> None:
    """Run `python -m MODULE ARGUMENTS` with this terminal, and exit with its code.

    The client's room does not import the daemon's; this is the way around that keeps it so.

    Raises:
        MynaError: `missing_asset` if `myna[daemon]` is not installed.
        typer.Exit: With the process's exit code.
    """
    require_daemon_package()
    sys.stdout.flush()
    ended = subprocess.run([sys.executable, "-m", module, *arguments], check=False).returncode
    if ended:
        raise typer.Exit(ended if ended > 0 else 128 - ended)  # a signal, as shells tell it
