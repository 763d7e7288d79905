"""The monitor: a third, independent sink whose loss never stops a session."""

import contextlib
from collections.abc import Callable

from myna.control.contract import LiveDevices
from myna.daemon.audio.backend import AudioStream, DeviceError, StreamRequest
from myna.daemon.live.builder import Builder
from myna.daemon.live.outlet import DriftingOutlet
from myna.daemon.restarts import Backoff
from myna.dsp.stage import Block

PREFILL_MS = 40.0  # it may lag the main output a little; it must not run dry
WATCH_S = 0.2  # between two looks at whether it still plays


def monitor_request(devices: LiveDevices) -> StreamRequest | None:
    """What a session asks of the monitor's device; None: no monitor."""
    if devices.monitor is None:
        return None
    return StreamRequest(
        input=None, output=devices.monitor, host_api=devices.host_api, want_input=False, period_ms=devices.period_ms
    )


class Monitor:
    """Plays the monitor's mix on a device of its own, on that device's clock; reopens it for ever when lost.

    It is opened and watched by a builder of its own: it delays nothing.
    """

    def __init__(
        self,
        request: StreamRequest,
        open_sink: Callable[[StreamRequest], AudioStream],
        builder: Builder,
        source: AudioStream,
        rate_hz: int,
        log: Callable[[str, str], None],
    ) -> None:
        self.wanted = request.output
        self._request, self._open, self._builder = request, open_sink, builder
        self._source, self._rate, self._log = source, rate_hz, log
        self._delay_frames = round((PREFILL_MS + 2 * request.period_ms) * rate_hz / 1000)
        self._stream: AudioStream | None = None
        self._outlet: DriftingOutlet | None = None
        self._backoff = Backoff()
        self._told = self._closing = False

    @property
    def name(self) -> str | None:
        """The device that plays, None while there is none."""
        stream = self._stream
        return stream.facts.output if stream is not None else None

    def start(self) -> None:
        """Begin to play, as soon as the device can be opened."""
        self._builder.submit(self._tend)

    def write(self, position: int, block: Block) -> None:
        """Play a block; called by the loop, never waits."""
        outlet = self._outlet
        if outlet is not None:
            outlet.delay_frames = len(block) + self._delay_frames
            outlet.write(position, block)

    def close(self) -> None:
        """Stop for good."""
        self._closing = True
        stream = self._stream
        if stream is not None and stream.sink is not None:
            stream.sink.silence(True)
        self._builder.submit(self._let_go)
        self._builder.close(2.0)

    def _tend(self) -> None:
        if self._closing:
            return
        if self._stream is not None:
            if self._stream.ended() is None:
                self._builder.later(WATCH_S, self._tend)
                return
            self._log("warning", f"monitor {self.wanted!r} was lost; the session goes on")
            self._let_go()
        try:
            self._bring_up()
        except Exception as error:  # whatever it is, it is the monitor's alone
            if not self._told:
                self._log("warning", f"monitor {self.wanted!r} can't be opened: {error}")
                self._told = True
            self._builder.later(self._backoff.next(), self._tend)
            return
        self._backoff.reset()
        self._told = False
        self._builder.later(WATCH_S, self._tend)

    def _bring_up(self) -> None:
        stream = self._open(self._request)
        try:
            if stream.sink is None or self._source.source is None:
                raise DeviceError("failed", "it has no output")
            rate_out = stream.facts.rate_out_hz or self._rate
            rate_in = self._source.facts.rate_in_hz or self._rate
            stream.start()
            outlet = DriftingOutlet(self._source.source, stream.sink, rate_in, self._rate, rate_out, self._delay_frames)
        except BaseException:  # whatever it is, the device is let go of
            stream.close()
            raise
        self._stream, self._outlet = stream, outlet

    def _let_go(self) -> None:
        stream, self._stream, self._outlet = self._stream, None, None
        if stream is not None:
            with contextlib.suppress(Exception):  # a dead device may fail in any way while it is closed
                stream.close()
