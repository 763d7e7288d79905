"""Timing a loaded voice over block lengths, before it is heard."""

from dataclasses import dataclass

import numpy as np

from myna.control.contract import CheckReply, CheckRow
from myna.daemon.audio.backend import Clock
from myna.daemon.live.delay import BLOCK_CHOICES_MS, TARGET_LOAD
from myna.daemon.live.realtime import BESIDE, realtime
from myna.dsp.stage import Block
from myna.engines.base import LiveVoice

BLOCKS = 24  # timed for each length, after a few that only warm
MOST_BLOCKS, LONGEST_S = 120, 1.5  # timed for the prefill, whose p99 wants many
WARM_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class BlockTimes:
    """Compute of one block length, in ms."""

    median_ms: float
    p95_ms: float
    p99_ms: float


def whole_hops(block_ms: float, hop_ms: float) -> float:
    """The block length rounded to whole hops of the engine, at least one."""
    return max(1, round(block_ms / hop_ms)) * hop_ms


def hum(frames: int, rate_hz: int) -> Block:
    """Something like speech to time a voice with: a 140 Hz pulse train in noise, shape (frames,)."""
    t = np.arange(frames) / rate_hz
    noise = np.random.default_rng(7).standard_normal(frames)
    voice = np.sum([np.sin(2 * np.pi * 140 * k * t) / k for k in range(1, 20)], axis=0)
    return np.asarray(0.08 * voice + 0.01 * noise, np.float32)


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Times a voice at one rate."""

    voice: LiveVoice
    rate_hz: int
    clock: Clock

    def blocks(self, block_ms: float, blocks: int = BLOCKS) -> BlockTimes:
        """Prepare the voice for a block length and time it."""
        frames = max(1, round(block_ms * self.rate_hz / 1000))
        self.voice.prepare(frames)
        sound = hum(frames * (WARM_BLOCKS + blocks), self.rate_hz).reshape(-1, frames)
        taken = []
        with realtime(BESIDE):  # nearly as the loop will run: other programs' noise is not the voice's compute
            for block in sound:
                started_s = self.clock()
                self.voice.process(block)
                taken.append(1e3 * (self.clock() - started_s))
        median, p95, p99 = np.percentile(taken[WARM_BLOCKS:], (50, 95, 99))
        return BlockTimes(float(median), float(p95), float(p99))

    def for_prefill(self, block_ms: float) -> BlockTimes:
        """Time the chosen block length on as many blocks as a second and a half has room for."""
        median_ms = self.blocks(block_ms, 4).median_ms
        blocks = int(min(MOST_BLOCKS, max(BLOCKS, 1e3 * LONGEST_S / max(median_ms, 0.1))))
        return self.blocks(block_ms, blocks)

    def choices_that_hold(self, hop_ms: float) -> list[float]:
        """Block lengths from the smallest that holds (p95 ≤ 70 % of it) upwards; the longest alone if none does."""
        choices = sorted({whole_hops(choice, hop_ms) for choice in BLOCK_CHOICES_MS})
        for n, block_ms in enumerate(choices):
            if self.blocks(block_ms, BLOCKS // 2).p95_ms <= TARGET_LOAD * block_ms:
                return choices[n:]
        return choices[-1:]

    def check(self, name: str, hop_ms: float) -> CheckReply:
        """The table of compute against block length, up to the third length that holds."""
        rows: list[CheckRow] = []
        for block_ms in sorted({whole_hops(choice, hop_ms) for choice in BLOCK_CHOICES_MS}):
            times = self.blocks(block_ms)
            holds = times.p95_ms <= TARGET_LOAD * block_ms
            rows.append(
                CheckRow(
                    block_ms=block_ms,
                    median_ms=times.median_ms,
                    p95_ms=times.p95_ms,
                    load=times.p95_ms / block_ms,
                    holds=holds,
                )
            )
            if sum(row.holds for row in rows) == 3:
                break
        smallest = next((row.block_ms for row in rows if row.holds), None)
        return CheckReply(voice=name, rows=tuple(rows), smallest_ms=smallest)
