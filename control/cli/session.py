"""How one session is told in words."""

from myna.control.cli import output
from myna.control.contract import SessionStatus


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
            + ("" if session.seconds is None else f", live for {duration(session.seconds)}"),
        ),
    ]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Seconds as days, hours, minutes and seconds."""
    whole = int(seconds)
    days, rest = divmod(whole, 86400)
    return (f"{days} d " if days else "") + f"{rest // 3600}:{rest // 60 % 60:02d}:{rest % 60:02d}"
