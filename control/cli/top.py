"""`myna top`: the live session on a full screen, with meters and keys."""

from importlib.util import find_spec
from typing import Annotated

import typer

from myna.control.cli.options import Session
from myna.control.errors import MynaError


def top(
    session: Session = "main",
    interval_s: Annotated[
        float, typer.Option("--interval", metavar="S", min=0.1, max=60, help="How often to ask for the status.")
    ] = 1.0,
) -> None:
    """Watch and steer the live session: b bypass, m mute, arrows pitch and formant, s stop, q quit."""
    if find_spec("textual") is None:
        raise MynaError("missing_asset", "The full screen needs textual; run `pip install 'myna[monitor]'`.")
    from myna.control.cli.options import connect
    from myna.control.cli.screen import Monitor

    with connect() as client:
        client.hello()  # no screen for nothing
        Monitor(client, session, interval_s).run()
