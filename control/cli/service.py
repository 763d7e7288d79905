"""`myna service`: start with the session; the work is done by the daemon's package."""

import typer

from myna.control.cli.delegate import delegate
from myna.control.cli.options import Json

MODULE = "myna.daemon.service"

app = typer.Typer(
    help="Start the daemon with the session.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)


@app.command()
def install(as_json: Json = False) -> None:
    """Start the daemon now and at every login; brings an older installation up to date."""
    delegate(MODULE, ["install", *_flags(as_json)])


@app.command()
def status(as_json: Json = False) -> None:
    """Show what was asked of the service manager, and what it has."""
    delegate(MODULE, ["status", *_flags(as_json)])


@app.command()
def uninstall(as_json: Json = False) -> None:
    """Stop the daemon and remove the autostart without a trace."""
    delegate(MODULE, ["uninstall", *_flags(as_json)])


def _flags(as_json: bool) -> list[str]:
    return ["--json"] if as_json else []
