"""Every stage of this room holds the stage laws."""

import numpy as np
import pytest
from laws import MakeStage, check_stage_laws

from myna.dsp.chain import Chain
from myna.dsp.delay import DelayLine
from myna.dsp.fades import Ramp
from myna.dsp.fifo import Reblocker
from myna.dsp.finite import Finite
from myna.dsp.gate import Gate
from myna.dsp.limiter import Limiter
from myna.dsp.stage import Stage
from myna.dsp.swap import Swap

RATES = (16000, 44100, 48000)


def _moving_ramp(rate: int) -> Stage:
    ramp = Ramp(rate, gain_db=-6.0, ramp_ms=50.0)
    ramp.reset()
    return ramp


def _stages(rate: int) -> dict[str, MakeStage]:
    return {
        "chain": lambda: Chain([DelayLine(100), Ramp(rate, gain_db=-3.0), DelayLine(7)]),
        "chain-empty": lambda: Chain([]),
        "delay-0": lambda: DelayLine(0),
        "delay": lambda: DelayLine(1234),
        "delay-long": lambda: DelayLine(9001, max_frames=20000),
        "finite": Finite,
        "gate": lambda: Gate(rate, -40.0),
        "gate-lookahead": lambda: Gate(rate, -40.0, lookahead_ms=3.0),
        "gate-off": lambda: Gate(rate, lookahead_ms=3.0),
        "limiter": lambda: Limiter(rate, ceiling_db=-20.0),
        "limiter-default": lambda: Limiter(rate),
        "ramp": lambda: _moving_ramp(rate),
        "reblocker": lambda: Reblocker(rate // 100, lambda hop: hop * np.float32(0.5)),
        "reblocker-1": lambda: Reblocker(1, lambda hop: hop.copy()),
        "swap": lambda: Swap(DelayLine(55), 480),
    }


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", sorted(_stages(48000)))
def test_stage_laws(name: str, rate: int) -> None:
    check_stage_laws(_stages(rate)[name], rate)
