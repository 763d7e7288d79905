"""The monitor: a third, independent sink whose loss never stops a session."""

import contextlib
import threading
from collections.abc import Callable

from myna.control.contract import LiveDevices
from myna.daemon.audio.backend import AudioStream, DeviceError, StreamRequest
from myna.daemon.audio.open import open_stream
from myna.daemon.live.outlet import DriftingOutlet
from myna.daemon.restarts import Backoff
from myna.dsp.stage import Block

PREFILL_MS = 40.0  # it may lag the main output a little; it must not run dry


class Monitor:
    """Plays the monitor's mix on a device of its own, on that device's clock; reopens it for ever when lost."""

    def __init__(
        self, name: str, open_sink: Callable[[], AudioStream], source: AudioStream, rate_hz: int, delay_frames: int,
        log: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self.wanted = name
        self._open, self._source, self._rate, self._log = open_sink, source, rate_hz, log
        self._delay_frames = delay_frames
        self._position = 0
        self._stream: AudioStream | None = None
        self._outlet: DriftingOutlet | None = None
        self._stopping = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="monitor", daemon=True)

    @classmethod
    def open(
        cls, devices: LiveDevices, source: AudioStream, rate_hz: int, log: Callable[[str, str], None]
    ) -> "Monitor | None":
        """The monitor that a session asks for, or None. It is opened by its own thread: it delays nothing."""
        if devices.monitor is None:
            return None
        request = StreamRequest(
            input=None, output=devices.monitor, host_api=devices.host_api, want_input=False, rate_hz=None,
            period_ms=devices.period_ms,
        )  # fmt: skip
        return cls(
            devices.monitor, lambda: open_stream(request, devices.fast), source, rate_hz,
            round((PREFILL_MS + 2 * devices.period_ms) * rate_hz / 1000), log,
        )  # fmt: skip

    @property
    def name(self) -> str | None:
        """The device that plays, None while there is none."""
        stream = self._stream
        return stream.facts.output if stream is not None else None

    def start(self) -> None:
        """Begin to play, as soon as the device can be opened."""
        self._keeper.start()

    def write(self, position: int, block: Block) -> None:
        """Play a block; called by the loop, never waits, never raises."""
        outlet = self._outlet
        if outlet is not None:
            outlet.delay_frames = max(outlet.delay_frames, len(block) + self._delay_frames)
            outlet.write(position, block)

    def close(self) -> None:
        """Stop for good."""
        self._stopping.set()
        self._let_go()
        if self._keeper.is_alive():
            self._keeper.join(2.0)

    def _keep(self) -> None:
        backoff = Backoff()
        told = False
        while not self._stopping.is_set():
            if self._stream is not None:
                if self._stream.ended() is None:
                    self._stopping.wait(0.2)
                    continue
                self._log("warning", f"monitor {self.wanted!r} was lost; the session goes on")
                self._let_go()
            try:
                self._bring_up()
                backoff.reset()
                told = False
            except DeviceError as error:
                if not told:
                    self._log("warning", f"monitor {self.wanted!r} can't be opened: {error}")
                    told = True
                self._stopping.wait(backoff.next())

    def _bring_up(self) -> None:
        stream = self._open()
        if stream.sink is None or self._source.source is None:
            stream.close()
            raise DeviceError("failed", "it has no output")
        rate_out = stream.facts.rate_out_hz or self._rate
        rate_in = self._source.facts.rate_in_hz or self._rate
        stream.start()
        self._stream = stream
        self._outlet = DriftingOutlet(
            self._source.source, stream.sink, rate_in, self._rate, rate_out, self._delay_frames
        )

    def _let_go(self) -> None:
        stream, self._stream, self._outlet = self._stream, None, None
        if stream is not None:
            with contextlib.suppress(Exception):  # a dead device may fail in any way while it is closed
                stream.close()
