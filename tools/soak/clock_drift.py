"""Hours of two clocks that run apart, with steps and jitter on top: the delay and the pitch must not notice."""

from typing import Any

import numpy as np

from myna.daemon.audio.fake import tone
from tools.live_rig import Rig, declared_ms, delay_ms, frequency_hz
from tools.soak.progress import Progress
from tools.soak.simulated_session import RATE, noise_that_never_repeats
from tools.soak.table import Table

MOST_PPM = 300.0
ERROR_MS = 2.0
CENTS = 2.0
UNLIKE_MS = 1.0  # jitter of one device over the other's
LOOK_S = 7.0  # between two looks at the delay
HZ = 997.0
PERIOD_MS = 25.0


def drift(seconds: float, seed: int, most_ppm: float = MOST_PPM) -> Table:
    """So many simulated seconds; what the clocks' difference (at most `most_ppm`) came to."""
    dice = np.random.default_rng(seed)
    device: dict[str, Any] = {"rate_hz": RATE, "keep_s": 4.0}
    rig = Rig(mic={**device, "signal": noise_that_never_repeats(), "ppm": most_ppm}, out=device, idle_s=0.1)
    rig.start(settings={"block_ms": 100.0, "limiter": False, "prefill_ms": 60.0}, devices={"period_ms": PERIOD_MS})
    rig.run(15.0)  # clocks are learned
    errors: list[float] = []
    alike: list[float] = []
    cents: list[float] = []
    steps, apart = 0, 0.0
    progress, began_s = Progress(seconds), rig.clock()
    while (lived_s := rig.clock() - began_s) < seconds:
        progress.at(lived_s, f"{lived_s / 3600:.2f} h, {steps} steps")
        steps += 1
        step = float(dice.uniform(-most_ppm, most_ppm))
        apart = float(np.clip(apart + step, -most_ppm, most_ppm))  # one from the other
        common = float(dice.uniform(-100, 100))  # both from true time
        rig.mic.ppm, rig.out.ppm = common + apart / 2, common - apart / 2
        # A busy machine calls both devices late. On average by half of it, which no stamp tells: only what one of them
        # is later by than the other moves the delay.
        rig.mic.jitter_ms = float(dice.choice([0.0, 1.0, 3.0, 6.0]))
        rig.out.jitter_ms = rig.mic.jitter_ms + float(dice.uniform(0.0, UNLIKE_MS))
        rig.out.partial = () if dice.integers(2) else (200, 100, 300)
        until_s = rig.clock() + float(dice.uniform(20.0, 300.0))
        while rig.clock() < until_s:
            rig.run(LOOK_S)
            measured, peak = delay_ms(rig, 1024, 1500.0)
            errors.append(measured - declared_ms(rig))
            alike.append(peak)
        speech, rig.mic.signal = rig.mic.signal, tone(HZ, RATE)
        rig.run(4.0)
        true = HZ * (1 + 1e-6 * rig.mic.ppm) / (1 + 1e-6 * rig.out.ppm)
        cents.append(1200.0 * abs(np.log2(frequency_hz(rig.played(2.0), HZ, RATE) / true)))
        rig.mic.signal = speech
        rig.run(4.0)
    progress.end()
    status = rig.status
    table = Table(
        f"{(rig.clock() - began_s) / 3600:.2f} h of clocks up to ±{most_ppm:.0f} ppm apart, {steps} steps, "
        f"jitter up to 6 ms, seed {seed}"
    )
    worst, likeness = max(map(abs, errors)), min(alike)
    table.add(
        f"the delay is held within ±{ERROR_MS:.0f} ms",
        worst < ERROR_MS and likeness > 0.9,
        f"worst {worst:.2f} ms, 99 % within {np.percentile(np.abs(errors), 99):.2f}, {len(errors)} measured, "
        f"correlation at least {likeness:.3f}",
    )
    table.add(f"pitch within {CENTS:.0f} cents", max(cents) < CENTS, f"worst {max(cents):.3f}, {len(cents)} measured")
    gaps = (status.xruns, status.late_frames, status.dropped_frames)
    table.add(
        "no gap, nothing late, nothing dropped", not any(gaps), "{} gaps, {} late, {} dropped frames".format(*gaps)
    )
    resyncs = getattr(rig.running.outlet, "resyncs", None)
    table.add("followed by resampling alone", resyncs == 0, f"{resyncs} jumps")
    table.add("one stream all the time", rig.audio.opened == 1, f"{rig.audio.opened} opened")
    return table
