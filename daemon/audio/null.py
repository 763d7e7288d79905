"""Silence in, nowhere out, at the clock's pace: a live session without any device."""

from myna.daemon.audio.backend import AudioStream, DeviceError, StreamFacts, StreamRequest
from myna.daemon.audio.clocked import ClockedStream
from myna.daemon.audio.ring import make_core

NAME = "null"
DEFAULT_RATE_HZ = 48000


class NullBackend:
    """`null` as input is silence, as output nowhere. `fast`: as fast as the reader asks."""

    name = "null"

    def __init__(self, *, fast: bool = False) -> None:
        self._fast = fast

    def open(self, request: StreamRequest) -> AudioStream:
        """Open the asked directions on one clock. DeviceError if none is asked for."""
        rate_hz = request.rate_hz or DEFAULT_RATE_HZ
        facts = clocked_facts(request, rate_hz, "null")
        core = make_core(
            rate_hz,
            request.capacity_ms,
            in_channels=int(request.want_input),
            out_channels=int(request.want_output),
            paced=not self._fast,
        )
        period = period_frames(request, rate_hz)
        return ClockedStream(core, facts, period, rate_hz, None, None, self._fast)


def period_frames(request: StreamRequest, rate_hz: int) -> int:
    """The asked period in frames, at least 1."""
    return max(1, round(request.period_ms * rate_hz / 1000))


def clocked_facts(request: StreamRequest, rate_hz: int, host_api: str) -> StreamFacts:
    """The facts of a stream that a clock drives. DeviceError if no direction is asked for."""
    if not (request.want_input or request.want_output):
        raise DeviceError("failed", "A stream needs an input or an output.")
    period = period_frames(request, rate_hz)
    period_ms = 1000 * period / rate_hz
    return StreamFacts(
        input=request.input if request.want_input else None,
        output=request.output if request.want_output else None,
        host_api=host_api,
        rate_in_hz=rate_hz if request.want_input else None,
        rate_out_hz=rate_hz if request.want_output else None,
        period_in_frames=period if request.want_input else None,
        period_out_frames=period if request.want_output else None,
        device_in_ms=period_ms if request.want_input else None,
        device_out_ms=0.0 if request.want_output else None,
        duplex=request.want_input and request.want_output,
        realtime="not needed: no device",
    )
