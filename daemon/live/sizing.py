"""Choosing the block and the prefill from a voice's measured compute."""

from dataclasses import dataclass

from myna.control.contract import LiveSettings
from myna.daemon.live.delay import BLOCK_CHOICES_MS, fixed_prefill_ms, jitter_ms
from myna.daemon.live.warmup import Stopwatch, whole_hops

LEAST_ROOM_MS = 150.0  # that the prefill may grow by when blocks come late
LONGER = 4.0  # the second length that is timed, in blocks
LONGER_BLOCKS = 3


@dataclass(frozen=True, slots=True)
class Sizing:
    """What a voice's compute asks for. Compute is taken as a fixed part and one that grows with the block."""

    block_ms: float
    choices_ms: tuple[float, ...] | None  # for `block = auto`, the smallest that holds first; None: fixed by the user
    hop_ms: float
    p99_ms: float  # of compute at `block_ms`
    fixed_ms: float  # of the median
    per_ms: float  # of the median, for each ms of block

    def compute_ms(self, block_ms: float) -> float:
        """Median compute of a block length."""
        return self.fixed_ms + self.per_ms * block_ms

    def load(self, block_ms: float) -> float:
        """Median compute over block length."""
        return self.compute_ms(block_ms) / block_ms

    def prefill_ms(self, block_ms: float, settings: LiveSettings, period_ms: float, duplex: bool) -> float:
        """The nominal prefill of a block length."""
        spread_ms = self.p99_ms - self.compute_ms(self.block_ms)
        nominal_ms = max(0.0, self.compute_ms(block_ms) + spread_ms) + jitter_ms(block_ms, period_ms, duplex)
        if settings.prefill_ms == "auto":
            return nominal_ms
        return max(nominal_ms, fixed_prefill_ms(settings.prefill_ms, block_ms, period_ms))

    def auto_choices(self, from_ms: float) -> tuple[float, ...]:
        """Lengths for `block = auto`, from the running one upwards, when no measured ones are known."""
        return tuple(sorted({whole_hops(c, self.hop_ms) for c in BLOCK_CHOICES_MS if c > from_ms} | {from_ms}))


def size(watch: Stopwatch, hop_ms: float, wanted: float | str) -> Sizing:
    """Time a voice; `wanted` is a block length in ms or `auto`. Leaves the voice prepared and with sound in it."""
    choices = tuple(watch.choices_that_hold(hop_ms)) if isinstance(wanted, str) else None
    block_ms = choices[0] if choices is not None else whole_hops(float(wanted), hop_ms)
    longer_ms = whole_hops(LONGER * block_ms, hop_ms)
    longer = watch.blocks(longer_ms, LONGER_BLOCKS).median_ms
    measured = watch.for_prefill(block_ms)
    per_ms = max(0.0, (longer - measured.median_ms) / (longer_ms - block_ms))
    per_ms = min(per_ms, measured.median_ms / block_ms)
    return Sizing(
        block_ms=block_ms,
        choices_ms=choices,
        hop_ms=hop_ms,
        p99_ms=measured.p99_ms,
        fixed_ms=measured.median_ms - per_ms * block_ms,
        per_ms=per_ms,
    )


def ceiling_ms(nominal_ms: float, block_ms: float) -> float:
    """How far the prefill may grow while blocks come late: bounded delay."""
    return nominal_ms + max(block_ms, LEAST_ROOM_MS)
