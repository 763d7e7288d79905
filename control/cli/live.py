"""`myna live`: control of the live session."""

from typing import Annotated, Literal

import typer

from myna.control import codec
from myna.control.cli import onekey, output, values
from myna.control.cli.options import (
    Bypass,
    Channels,
    Fast,
    HostApi,
    Input,
    Json,
    Monitor,
    Output,
    Pairs,
    Period,
    Rate,
    Session,
    Switch,
    Voice,
    Wait,
    absolute,
    connect,
)
from myna.control.cli.up import named_devices, start_request
from myna.control.contract import (
    CheckReply,
    CheckRequest,
    LatencyReply,
    LatencyRequest,
    LiveRecord,
    Message,
    RecordReply,
    SessionRef,
    SessionStatus,
)

app = typer.Typer(help="Control the live session.", no_args_is_help=True, add_completion=False, rich_markup_mode=None)
record = typer.Typer(help="Record the session.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(record, name="record")

Plot = Annotated[str | None, typer.Option("--plot", metavar="F.png", help="Also draw it into a file.")]


def _status(method: str, request: Message, as_json: bool) -> None:
    with connect() as client:
        onekey.tell(client.call(method, request, SessionStatus), as_json)


@app.command()
def start(
    voice: Voice = None,
    input_: Input = None,
    output_: Output = None,
    monitor: Monitor = None,
    host_api: HostApi = None,
    rate_hz: Rate = None,
    period_ms: Period = 10.0,
    channels: Channels = None,
    fast: Fast = False,
    settings: Pairs = None,
    bypass: Bypass = False,
    session: Session = "main",
    wait: Wait = True,
    as_json: Json = False,
) -> None:
    """Go live, or go on with other devices."""
    request = start_request(
        session=session,
        voice=voice,
        devices=named_devices(input_, output_, monitor, host_api, rate_hz, period_ms, channels, fast),
        settings=values.live_settings(settings or ()),
        bypass=bypass,
        wait=wait,
    )
    _status("live.start", request, as_json)


@app.command()
def stop(session: Session = "main", as_json: Json = False) -> None:
    """End the session; the daemon goes on."""
    _status("live.stop", SessionRef(session=session), as_json)


@app.command()
def state(session: Session = "main", as_json: Json = False) -> None:
    """Show the session."""
    _status("live.state", SessionRef(session=session), as_json)


@app.command("set")
def set_(
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE…", help="Such as pitch=4 formant=-1.")],
    consent: Annotated[
        bool, typer.Option("--consent", help="Needed for monitor_source=input or both: your own voice is heard.")
    ] = False,
    session: Session = "main",
    as_json: Json = False,
) -> None:
    """Change settings while it runs; all are checked before any counts."""
    onekey.set_(settings, consent, session, as_json)


@app.command()
def voice(
    voice: Annotated[str, typer.Argument(metavar="V", help="Its id; `myna voices list` shows all.")],
    session: Session = "main",
    as_json: Json = False,
) -> None:
    """Swap the voice, without a gap."""
    onekey.voice(voice, session, as_json)


@app.command()
def bypass(to: Switch, session: Session = "main", as_json: Json = False) -> None:
    """Let your own voice through, or not."""
    onekey.switch("bypass", to, session, as_json)


@app.command()
def mute(to: Switch, session: Session = "main", as_json: Json = False) -> None:
    """Be silent, or not."""
    onekey.switch("mute", to, session, as_json)


@record.command("start")
def record_start(
    path: Annotated[str, typer.Argument(metavar="FILE", help="Where to.")],
    source: Annotated[
        str, typer.Option("--source", metavar="input|converted|both", help="What to record.")
    ] = "converted",
    session: Session = "main",
    as_json: Json = False,
) -> None:
    """Begin to record into a file."""
    _record(
        codec.validate(LiveRecord, {"session": session, "path": absolute(path), "source": source}, what="command line"),
        as_json,
    )


@record.command("stop")
def record_stop(session: Session = "main", as_json: Json = False) -> None:
    """End the recording."""
    _record(LiveRecord(session=session), as_json)


def _record(request: LiveRecord, as_json: bool) -> None:
    with connect() as client:
        reply = client.call("live.record", request, RecordReply)
    if as_json:
        output.print_json(reply)
    elif request.path is not None:
        output.line(f"recording into {reply.path}")
    else:
        seconds = "" if reply.seconds is None else f", {reply.seconds:.1f} s"
        lost = f", {reply.dropped_frames} frames lost" if reply.dropped_frames else ""
        output.line(f"{reply.path or 'nothing was recorded'}{seconds}{lost}")


@app.command()
def latency(
    bursts: Annotated[int, typer.Option("--bursts", min=3, max=50, help="Noise bursts to play.")] = 7,
    through: Annotated[
        str, typer.Option("--through", metavar="devices|engine", help="Past the voice, or through it.")
    ] = "devices",
    plot: Plot = None,
    session: Session = "main",
    as_json: Json = False,
) -> None:
    """Measure the real delay: the output must be audible at the input. Says so if it can't."""
    request = codec.validate(
        LatencyRequest, {"session": session, "bursts": bursts, "through": through}, what="command line"
    )
    if plot is not None:
        from myna.control.cli import plots

        plots.require()
    with connect() as client:
        reply = client.call("live.latency", request, LatencyReply)
    if plot is not None:
        plots.latency(reply, plot)
    if as_json:
        output.print_json(reply)
        return
    parts = reply.latency
    output.pairs(
        [
            ("loopback", output.milliseconds(parts.loopback_ms)),
            ("result", _REASONS[reply.reason]),
            ("estimated", output.milliseconds(parts.estimated_ms)),
            ("usual formula", output.milliseconds(parts.peers_estimated_ms)),
            ("compute p99", output.milliseconds(parts.compute_ms)),
            ("algorithmic", output.milliseconds(parts.algorithmic_ms)),
            ("prefill", output.milliseconds(parts.prefill_ms)),
            ("device in", output.milliseconds(parts.device_in_ms)),
            ("device out", output.milliseconds(parts.device_out_ms)),
            ("bursts", ", ".join(f"{each:.1f}" for each in reply.delays_ms) or None),
            ("plot", plot),
        ]
    )


_REASONS: dict[Literal["ok", "no_signal", "inconsistent", "not_measured"], str] = {
    "ok": "measured",
    "no_signal": "not measured: the bursts did not come back; connect the output to the input",
    "inconsistent": "not measured: the bursts came back at different times",
    "not_measured": "not measured",
}


@app.command()
def check(
    voice: Annotated[str | None, typer.Option("--voice", metavar="V", help="By default the session's.")] = None,
    plot: Plot = None,
    session: Session = "main",
    as_json: Json = False,
) -> None:
    """Time a voice over block lengths, and name the smallest that holds."""
    if plot is not None:
        from myna.control.cli import plots

        plots.require()
    with connect() as client:
        reply = client.call("live.check", CheckRequest(voice=voice, session=session), CheckReply)
    if plot is not None:
        plots.check(reply, plot)
    if as_json:
        output.print_json(reply)
        return
    output.table(
        ("block ms", "median ms", "p95 ms", "load %", "holds"),
        [(row.block_ms, row.median_ms, row.p95_ms, round(100 * row.load, 1), row.holds) for row in reply.rows],
        "nothing was timed",
    )
    if reply.smallest_ms is None:
        output.line(f"{reply.voice}: no block length holds here; use a lighter voice or another device")
    else:
        output.line(f"{reply.voice}: {reply.smallest_ms:g} ms is the smallest block that holds")
    if plot is not None:
        output.line(f"plot {plot}")
