"""What a simulated soak has seen, and whether every law held in it: figures in, verdicts out."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from myna.dsp.stage import Block
from tools.soak.table import Table

# Of the signature, against what bypass lets through: 3 ms of it in a period of 100 ms. The edges of another tone's gaps
# leave −40 there.
TRACE_DB = -30.0
AUDIBLE_DB = -12.0  # that bypass must let through, or the ear is deaf
ERROR_MS = 2.0
STALE_MS = 60.0  # beyond the longest delay that was held: a period, and the length of a fade
LONGEST_MS = 1300.0
BACK_S = 70.0  # a failing voice is loaded again after a minute at most
MEMORY_MIB = 8.0
LINES_PER_EVENT = 12
ALIKE = 0.6  # correlation from which a stretch is that of the microphone


@dataclass
class Record:
    """Everything that was measured in a soak."""

    title: str = ""
    silent_peak: float = 0.0  # largest sample that output or monitor played while the voice said nothing
    silent_s: float = 0.0
    trace_db: float = -200.0  # the signature in what a speaking voice let out, at its largest
    traces: int = 0  # stretches looked at
    bypass_db: list[float] = field(default_factory=list)  # and under bypass
    delays_ms: list[tuple[float, float]] = field(default_factory=list)  # (declared, measured)
    starts_ms: list[float] = field(default_factory=list)  # measured, without what settings, voice and prefill add
    period_ms: float = 0.0
    old_ms: list[tuple[float, float]] = field(default_factory=list)  # (age of a heard stretch, longest delay held)
    held_ms: list[float] = field(default_factory=list)  # declared delays, at every moment looked at
    back_s: list[float] = field(default_factory=list)  # from the end of an event to a running session
    nonfinite: int = 0  # callbacks that played NaN or infinity
    fed: int = 0  # times that NaN or infinity was fed
    hot_gaps: int = 0  # dry rings in hot changes
    hot: int = 0
    orders: int = 0
    unanswered: int = 0
    refused: int = 0
    voices_open: int = 0
    voices_loaded: int = 0
    streams_open: int = 0
    streams_opened: int = 0
    memory_mib: list[float] = field(default_factory=list)  # after every event
    log_lines: int = 0
    events: Counter[str] = field(default_factory=Counter)


def level_db(sound: Block, hz: float, rate_hz: int) -> float:
    """Level of a tone in dB of full scale, through a window whose skirts lie below −90 dB; −200 where there is none."""
    if not sound.any():
        return -200.0
    turn, weight = _probe(len(sound), hz, rate_hz)
    return float(20.0 * np.log10(2.0 * abs(np.dot(sound, turn)) / weight + 1e-10))


_PROBES: dict[tuple[int, float, int], tuple[NDArray[np.complex128], float]] = {}


def _probe(frames: int, hz: float, rate_hz: int) -> tuple[NDArray[np.complex128], float]:
    key = (frames, hz, rate_hz)
    if key not in _PROBES:
        n = np.arange(frames)
        shape = (0.35875, -0.48829, 0.14128, -0.01168)
        window = np.sum([a * np.cos(2.0 * np.pi * k * (n + 0.5) / frames) for k, a in enumerate(shape)], axis=0)
        _PROBES[key] = window * np.exp(-2j * np.pi * hz / rate_hz * n), float(np.sum(window))
    return _PROBES[key]


def find(sound: Block, source: Block) -> tuple[int, float]:
    """Where in `source` a shorter `sound` was taken from, and the normalised correlation there."""
    size = 1 << (len(source) + len(sound)).bit_length()
    scores = np.fft.irfft(np.fft.rfft(source, size) * np.conj(np.fft.rfft(sound, size)), size)
    scores = np.abs(scores[: len(source) - len(sound) + 1])
    at = int(np.argmax(scores))
    part = source[at : at + len(sound)].astype(np.float64)
    return at, float(scores[at] / np.sqrt(np.sum(part**2) * np.sum(sound.astype(np.float64) ** 2) + 1e-30))


def judge(record: Record) -> Table:
    """The table of laws. What was never looked at does not hold."""
    table = Table(record.title)
    table.add(
        "1 fail closed: a silent voice, silent outputs",
        record.silent_peak == 0.0 and record.silent_s > 0.0,
        f"largest sample {record.silent_peak:.1e} in {record.silent_s:.0f} s of output and monitor",
    )
    bypass = float(np.median(record.bypass_db)) if record.bypass_db else -200.0
    worst = record.trace_db - bypass
    table.add(
        "1 fail closed: the signature tone, a speaking voice",
        record.traces > 0 and worst < TRACE_DB,
        f"largest {worst:.0f} dB of its level under bypass, {record.traces} stretches",
    )
    table.add(
        "1 the ear is not deaf: the signature under bypass",
        bool(record.bypass_db) and min(record.bypass_db) > AUDIBLE_DB,
        f"{bypass:.1f} dBFS, least {min(record.bypass_db, default=-200.0):.1f}, {len(record.bypass_db)} times",
    )
    over = max((age - held for age, held in record.old_ms), default=np.inf)
    table.add(
        "2 no stale sound: age of what is heard",
        over < STALE_MS,
        f"at most {over:+.1f} ms beside the delay held, {len(record.old_ms)} stretches",
    )
    errors = [abs(declared - measured) for declared, measured in record.delays_ms]
    table.add(
        "3, 7 the delay is the one told, after every event",
        max(errors, default=np.inf) < ERROR_MS,
        f"largest error {max(errors, default=np.inf):.2f} ms, {len(errors)} measured",
    )
    longest = max(record.held_ms, default=np.inf)
    table.add("3 bounded delay, under overload too", longest < LONGEST_MS, f"largest {longest:.0f} ms")
    table.add(
        "3 back after every event",
        max(record.back_s, default=np.inf) < BACK_S,
        f"median {np.median(record.back_s or [np.inf]):.1f} s, longest {max(record.back_s, default=np.inf):.1f} s",
    )
    table.add(
        "4 finite",
        record.nonfinite == 0 and record.fed > 0,
        f"{record.nonfinite} periods with NaN or infinity; {record.fed} times fed",
    )
    spread = max(record.starts_ms, default=np.inf) - min(record.starts_ms, default=0.0)
    table.add(
        "5 equal settings, equal delay",
        spread <= record.period_ms,
        f"spread {spread:.2f} ms over {len(record.starts_ms)} measured, one period is {record.period_ms:.0f} ms",
    )
    table.add(
        "7 every order answered, none refused",
        record.orders > 0 and record.unanswered == record.refused == 0,
        f"{record.orders} orders, {record.unanswered} unanswered, {record.refused} refused",
    )
    table.add(
        "8 hot is hot", record.hot > 0 and record.hot_gaps == 0, f"{record.hot_gaps} gaps in {record.hot} changes"
    )
    table.add(
        "voices let go of",
        record.voices_open == 1,
        f"{record.voices_loaded} loaded, {record.voices_open} open at the end",
    )
    table.add(
        "streams let go of",
        record.streams_open == 2,
        f"{record.streams_opened} opened, {record.streams_open} open at the end",
    )
    slope = growth(record.memory_mib)
    table.add("memory is flat", slope < MEMORY_MIB, f"{slope:+.1f} MiB over the last three quarters")
    events = sum(record.events.values())
    table.add("the log is no storm", record.log_lines < LINES_PER_EVENT * events, f"{record.log_lines} lines")
    table.add("events", events > 0, ", ".join(f"{name} {count}" for name, count in sorted(record.events.items())))
    return table


def growth(figures: list[float]) -> float:
    """By how much figures grow over their last three quarters, by the straight line through them; 0 for under four."""
    late = figures[len(figures) // 4 :]
    if len(late) < 4:
        return 0.0
    return float(np.polyfit(np.arange(len(late)), late, 1)[0] * len(late))
