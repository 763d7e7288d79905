"""`myna up`: the daemon, then the live session."""

import os
from typing import Annotated

import msgspec
import typer

from myna.control import codec
from myna.control.cli import launch, output, values
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
    Voice,
    Wait,
    connect,
    device_name,
)
from myna.control.cli.session import session_lines
from myna.control.contract import LiveDevices, LiveStart, ParamValue, SessionStatus
from myna.control.errors import MynaError


def up(
    voice: Voice = None,
    input_: Input = None,
    output_: Output = None,
    monitor: Monitor = None,
    host_api: HostApi = None,
    rate_hz: Rate = None,
    period_ms: Period = 10.0,
    channels: Channels = None,
    fast: Fast = False,
    pitch: Annotated[float | None, typer.Option("--pitch", help="Semitones.")] = None,
    formant: Annotated[float | None, typer.Option("--formant", help="Semitones.")] = None,
    settings: Pairs = None,
    bypass: Bypass = False,
    session: Session = "main",
    wait: Wait = True,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="E", help="For a daemon started here: its endpoint.")
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", metavar="F", help="For a daemon started here: its settings.")
    ] = None,
    route: Annotated[bool, typer.Option("--route", help="Make the virtual microphone and play into it.")] = False,
    as_json: Json = False,
) -> None:
    """Start the daemon if it is not running, then go live."""
    if route:
        output_, host_api = _routed(output_, host_api)
    request = start_request(
        session=session,
        voice=voice,
        devices=named_devices(input_, output_, monitor, host_api, rate_hz, period_ms, channels, fast),
        settings=values.live_settings(settings or (), {"pitch": pitch, "formant": formant}),
        bypass=bypass,
        wait=wait,
    )
    started = False
    with connect() as client:
        daemon = launch.running_daemon(client)
        if daemon is None and os.environ.get("MYNA_CONNECTION"):
            raise MynaError(
                "unreachable",
                "The daemon that MYNA_CONNECTION names does not answer; start it on its own machine, or unset that.",
            )
        if daemon is None:
            arguments = [*(["--listen", listen] if listen else []), *(["--config", config] if config else [])]
            launch.start_daemon(arguments)
            daemon, started = client.hello(), True
        elif listen or config:
            output.note("The daemon runs already; --listen and --config count at its next start.")
        if not as_json:
            output.note(f"daemon {'started' if started else 'running'} (process {daemon.pid})")
        status = client.call("live.start", request, SessionStatus)
    if as_json:
        output.print_json({"daemon": daemon, "started": started, "session": status})
    else:
        output.pairs(session_lines(status))


def named_devices(
    input_: str | None,
    output_: str | None,
    monitor: str | None,
    host_api: str | None,
    rate_hz: int | None,
    period_ms: float,
    channels: str | None,
    fast: bool,
) -> LiveDevices | None:
    """What a command line says of devices; None if it says nothing, so that the last used stay.

    MynaError `bad_request` with every problem.
    """
    said: dict[str, object] = {
        "input": device_name(input_),
        "output": device_name(output_),
        "monitor": device_name(monitor),
        "host_api": host_api,
        "rate_hz": rate_hz,
        "period_ms": period_ms,
        "input_channels": _channels(channels),
        "fast": fast,
    }
    found = codec.validate(LiveDevices, said, what="command line")
    return None if found == LiveDevices() else found


def _routed(output_: str | None, host_api: str | None) -> tuple[str, str]:
    """The virtual microphone's device and host API, made if need be. MynaError if another output was named too."""
    if output_ is not None or host_api is not None:
        raise MynaError("bad_request", "--route chooses the output itself; leave out --output and --host-api.")
    from myna.control.cli.route import created_output

    return created_output()


def start_request(
    *,
    session: str,
    voice: str | None,
    devices: LiveDevices | None,
    settings: dict[str, ParamValue],
    bypass: bool,
    wait: bool,
) -> LiveStart:
    """The message of `live.start`. MynaError `bad_request` with every problem."""
    said = {"session": session, "voice": voice, "settings": settings, "bypass": bypass, "wait": wait}
    return codec.validate(LiveStart, {**said, "devices": msgspec.to_builtins(devices)}, what="command line")


def _channels(text: str | None) -> list[int | str] | None:
    """`1,2` as numbers; what is none stays text for the check to name."""
    if text is None:
        return None
    return [int(each) if each.strip().isdigit() else each for each in text.split(",")]
