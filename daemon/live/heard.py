"""The chain as the loop sees it: with the monitor beside it, and the latency probe in its place while one measures."""

import numpy as np

from myna.daemon.live.monitor import Monitor
from myna.daemon.live.pipeline import SWITCH_MS, LivePipeline
from myna.daemon.live.probe import LatencyProbe
from myna.dsp.fades import Switch
from myna.dsp.stage import Block


class Heard:
    """Implements BlockPipeline. `probe` and `monitor` are exchanged whole, by any thread."""

    def __init__(self, pipeline: LivePipeline) -> None:
        self.pipeline = pipeline
        self.probe: LatencyProbe | None = None
        self.monitor: Monitor | None = None
        self.monitor_faults = 0
        turn = max(1, round(pipeline.rate_hz * SWITCH_MS / 1000))
        self._voice = Switch(turn, turn, on=True)  # gives way to the probe

    def process(self, position: int, block: Block) -> Block:
        """See BlockPipeline."""
        out = self.pipeline.process(block)
        monitor = self.monitor
        if monitor is not None and self.pipeline.monitor is not None:
            try:
                monitor.write(position, self.pipeline.monitor)
            except Exception:  # the monitor never stops the session
                self.monitor_faults += 1
        probe = self.probe
        if probe is None and self._voice.phase == 1.0:
            return out
        mixed = np.array(out, np.float32)
        self._voice.apply(mixed, probe is None)
        return mixed if probe is None else mixed + probe.exchange(block)

    def reset(self) -> None:
        """See BlockPipeline."""
        self.pipeline.reset()
