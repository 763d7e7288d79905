"""Running a function that wants whole hops at its own rate, in a session of any rate and any blocks."""

import math
from collections.abc import Callable

import numpy as np

from myna.dsp.fifo import Fifo
from myna.dsp.resample import FractionalResampler, least_delay_in_frames
from myna.dsp.stage import Block

_MOST = 4.0  # +12 dB: what lies beyond is clipped, so that nothing overflows in a filter or a model's state


class HopsAtRate:
    """A stage of `rate_hz` whose inside takes and returns hops at `inner_rate_hz`.

    Like `Reblocker`, with resampling on the way in and out when the rates differ; what lies above 0.42 of the
    lower rate is lost then. The way out is delayed by the fraction of a frame that makes the whole delay an
    exact number of frames. The filters run once a hop, over stretches that don't depend on the blocks: a
    recurrent model inside would make much of a difference in the last bit. Input is clipped at ±4.
    Should the inside make NaN or infinity, that hop is silence, and the inside is reset.
    """

    def __init__(
        self,
        rate_hz: int,
        inner_rate_hz: int,
        hop_frames: int,
        inner: Callable[[Block], Block],
        *,
        inner_latency_frames: int = 0,
        inner_reset: Callable[[], None] | None = None,
    ) -> None:
        self._rates = rate_hz, inner_rate_hz
        self._hop, self._inner, self._inner_reset = hop_frames, inner, inner_reset
        # When the frame that ends a hop comes in, so must the output that is due before the next hop ends.
        self._wait = (hop_frames - 1) * rate_hz // inner_rate_hz
        self._in: FractionalResampler | None = None
        self._out: FractionalResampler | None = None
        delay = inner_latency_frames
        if rate_hz != inner_rate_hz:
            self._in = FractionalResampler(rate_hz, inner_rate_hz)
            # 44.1 kHz around 48 kHz: 1000 inner frames of delay and at least 38 for the way out are 953.66
            # frames; 954 are 1038.37 inner ones, so the way out takes 38.37.
            inside = self._in.latency_frames + inner_latency_frames
            least = least_delay_in_frames(inner_rate_hz, rate_hz)
            delay = math.ceil((inside + least) * rate_hz / inner_rate_hz)
            self._out = FractionalResampler(
                inner_rate_hz, rate_hz, delay_in_frames=delay * inner_rate_hz / rate_hz - inside
            )
        self._latency = self._wait + delay
        self._waiting, self._hops_in, self._ready = Fifo(), Fifo(), Fifo()
        self._start()

    @property
    def latency_frames(self) -> int:
        """Re-blocking, the inside's delay and the two filters', exactly."""
        return self._latency

    def process(self, block: Block) -> Block:
        """Process a block, shape (frames,)."""
        self._waiting.push(np.clip(block, -_MOST, _MOST))
        while len(self._waiting) >= (wanted := self._ends() - self._taken):
            heard = self._waiting.pop(wanted)
            self._taken += wanted
            self._done += 1
            self._hops_in.push(heard if self._in is None else self._in.process(heard))
            made = self._inner(self._hops_in.pop(self._hop))
            if not np.isfinite(made).all():  # must neither leave it nor stay in its state
                made = np.zeros(self._hop, np.float32)
                if self._inner_reset is not None:
                    self._inner_reset()
            self._ready.push(made if self._out is None else self._out.process(made))
        return self._ready.pop(len(block))

    def reset(self) -> None:
        """Forget all frames, and have the inner state reset too."""
        for fifo in (self._waiting, self._hops_in, self._ready):
            fifo.clear()
        for resampler in (self._in, self._out):
            if resampler is not None:
                resampler.reset()
        if self._inner_reset is not None:
            self._inner_reset()
        self._start()

    def _start(self) -> None:
        self._taken = self._done = 0  # frames and hops
        self._ready.push_silence(self._wait)

    def _ends(self) -> int:
        """Frames that must be in for the next hop: N make ceil(N × inner rate / rate) inner frames.

        44.1 kHz around 48 kHz: the first hop of 480 ends with its frame 479, which comes when 441 are in.
        """
        rate_hz, inner_rate_hz = self._rates
        return ((self._done + 1) * self._hop - 1) * rate_hz // inner_rate_hz + 1
