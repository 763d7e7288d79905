"""`myna service`: start with the session; the work is done by the daemon's package."""

from typing import Annotated

import typer

from myna.control.cli.delegate import delegate
from myna.control.cli.options import Json

MODULE = "myna.daemon.service"

app = typer.Typer(
    help="Start the daemon with the session.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)
Config = Annotated[str | None, typer.Option("--config", metavar="F", help="Settings file of the daemon.")]


@app.command()
def install(config: Config = None, as_json: Json = False) -> None:
    """Start the daemon now and at every login; brings an older installation up to date."""
    delegate(MODULE, ["install", *_flags(config, as_json)])


@app.command()
def status(config: Config = None, as_json: Json = False) -> None:
    """Show what was asked of the service manager, and what it has."""
    delegate(MODULE, ["status", *_flags(config, as_json)])


@app.command()
def uninstall(as_json: Json = False) -> None:
    """Stop the daemon and remove the autostart without a trace."""
    delegate(MODULE, ["uninstall", *_flags(None, as_json)])


def _flags(config: str | None, as_json: bool) -> list[str]:
    return [*(["--config", config] if config else []), *(["--json"] if as_json else [])]
