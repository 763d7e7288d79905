"""`myna status`: what runs, measured, and what to do if something is wrong."""

import sys
import time
from collections.abc import Iterator
from typing import Annotated

import typer

from myna.control.cli import output
from myna.control.cli.options import Json, connect
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
        f"myna {reply.version}, process {reply.pid}, up {_duration(reply.uptime_s)}" + (f", {memory}" if memory else "")
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
        yield f"warning: {warning.message} {warning.action}".rstrip()
    if reply.next_action:
        yield f"next: {reply.next_action}"


def session_lines(session: SessionStatus) -> list[tuple[str, str | None]]:
    """A session in names and values; None where there is nothing to tell."""
    delay = session.latency
    state = session.state + (f" ({session.stop_reason})" if session.stop_reason else "")
    flags = [name for name, on in (("BYPASS: your own voice is heard", session.bypass), ("muted", session.muted)) if on]
    if session.voice_unchanged:
        flags.append("voice unchanged")
    running = session.state not in ("stopped", "failed")
    compute = " ".join(each for each in (session.device, session.precision, session.backend) if each)
    return [
        (session.session, ", ".join([state, *flags])),
        ("voice", f"{session.voice or '–'}" + (f" ({session.engine})" if session.engine else "")),
        ("compute", compute or None),
        ("fallbacks", "; ".join(session.fallbacks) or None),
        ("input", session.input),
        ("output", session.output),
        ("monitor", session.monitor),
        (
            "stream",
            None
            if session.rate_hz is None
            else f"{session.rate_hz} Hz, period {_number(session.period_ms)} ms"
            + (f", {session.host_api}" if session.host_api else "")
            + ("" if session.duplex is None else ", duplex" if session.duplex else ", two clocks"),
        ),
        (
            "block",
            None
            if session.block_ms is None
            else f"{_number(session.block_ms)} ms{' (auto)' if session.block_auto else ''}",
        ),
        ("load", None if session.load is None else f"{session.load:.0%} of the block"),
        ("advice", session.advice),
        (
            "latency",
            f"compute {output.milliseconds(delay.compute_ms)}, algorithmic "
            f"{output.milliseconds(delay.algorithmic_ms)}, loopback {output.milliseconds(delay.loopback_ms)}"
            if running
            else None,
        ),
        (
            "estimated",
            None
            if delay.estimated_ms is None
            else f"{delay.estimated_ms:.1f} ms"
            + (
                "" if delay.peers_estimated_ms is None else f" (by the usual formula {delay.peers_estimated_ms:.0f} ms)"
            ),
        ),
        (
            "blocks",
            f"{session.blocks}, xruns {session.xruns}, late {session.late_frames} and dropped "
            f"{session.dropped_frames} frames, non-finite {session.nonfinite_blocks}, faults {session.faults}"
            if running
            else None,
        ),
        ("restarts", f"{session.restarts}, {session.restart_budget} left" if session.restarts else None),
        ("drift", None if session.drift_ppm is None else f"{session.drift_ppm:+.0f} ppm"),
        ("real time", session.realtime),
        (
            "levels",
            None
            if session.input_db is None and session.output_db is None
            else f"in {_number(session.input_db)} dB, out {_number(session.output_db)} dB",
        ),
        ("recording", session.recording),
        (
            "worker",
            None
            if session.pid is None
            else f"process {session.pid}"
            + ("" if session.rss_bytes is None else f", {output.mebibytes(session.rss_bytes)}")
            + ("" if session.seconds is None else f", live for {_duration(session.seconds)}"),
        ),
    ]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _duration(seconds: float) -> str:
    whole = int(seconds)
    days, rest = divmod(whole, 86400)
    return (f"{days} d " if days else "") + f"{rest // 3600}:{rest // 60 % 60:02d}:{rest % 60:02d}"
