"""`myna status`: what runs, measured, and what to do if something is wrong."""

import sys
import time
from collections.abc import Iterator
from typing import Annotated

import typer

from myna.control.cli import output
from myna.control.cli.options import Json, connect
from myna.control.cli.session import duration, session_lines
from myna.control.client import Client
from myna.control.contract import Empty, SessionStatus, StatusReply


def status(
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every second, until Ctrl-C.")] = False,
    interval_s: Annotated[
        float, typer.Option("--interval", metavar="S", min=0.1, max=3600, help="How often to look.")
    ] = 1.0,
    as_json: Json = False,
) -> None:
    """Show what runs, and what to do if something is wrong."""
    with connect() as client:
        reply = client.call("status", Empty(), StatusReply)
        if not watch:
            if as_json:
                output.print_json(reply)
            else:
                for text in lines(reply):
                    output.line(text)
            return
        _watch(client, reply, interval_s, as_json)


def _watch(client: Client, reply: StatusReply, interval_s: float, as_json: bool) -> None:
    if as_json or not sys.stdout.isatty():
        while True:
            if as_json:
                output.print_json(reply)
            else:
                output.line(" | ".join(_short(each) for each in reply.sessions) or "no session")
            time.sleep(interval_s)
            reply = client.call("status", Empty(), StatusReply)
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, screen=False) as screen:
        while True:
            screen.update(Text(output.printable("\n".join(lines(reply)))), refresh=True)
            time.sleep(interval_s)
            reply = client.call("status", Empty(), StatusReply)


def _short(session: SessionStatus) -> str:
    load = "–" if session.load is None else f"{session.load:.0%}"
    return f"{session.session} {session.state} {session.voice or '–'} load {load} xruns {session.xruns}"


def lines(reply: StatusReply) -> Iterator[str]:
    """The whole status in lines."""
    memory = output.mebibytes(reply.rss_bytes)
    yield (
        f"myna {reply.version}, process {reply.pid}, up {duration(reply.uptime_s)}" + (f", {memory}" if memory else "")
    )
    yield f"state {reply.state_dir}, {reply.endpoint}"
    for session in reply.sessions:
        yield ""
        rows = [(name, value) for name, value in session_lines(session) if value is not None]
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            yield f"{name:<{width}}  {value}"
    if not reply.sessions:
        yield "no live session; `myna up` starts one"
    yield ""
    jobs = ", ".join(f"{count} {state}" for state, count in reply.jobs.items() if count) or "none"
    yield f"jobs {jobs}; models in memory {reply.models}"
    if not reply.settings_saved:
        yield "settings are not yet on disk"
    for warning in reply.warnings:
        told = warning.action in warning.message  # a session's advice is both
        yield f"warning: {warning.message}" + (f" {warning.action}" if warning.action and not told else "")
