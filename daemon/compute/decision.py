"""Which card is used, in which precision and in what chunks: pure decisions over told facts."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from myna.daemon.compute.cards import Capability, Card, TorchBuild, dotted

# A card sold with 4 GB tells a little less, because part of it is reserved.
ENOUGH_MEMORY_MB = 3_840
SMALL_MEMORY_MB = 4_096 + 256
CHUNK_SMALL_S, CHUNK_MIDDLE_S, CHUNK_LARGE_S = 30.0, 38.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeSettings:
    """What the user asked of computing."""

    device: str = "auto"  # auto, cpu, cuda:N, xpu:N, dml, mps
    precision: str = "auto"  # auto, fp32, fp16, bf16; int8: the features of a voice on the CPU
    allow_cpu_fallback: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether `auto` may use a card, in which precision, and why, in words."""

    card: Card
    usable: bool
    precision: str
    reason: str
    runs: bool = True  # False: not even if the user names it


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Where to compute. `fallbacks` says in words what was asked and could not be had."""

    device: str
    precision: str  # `auto` on the CPU: the fastest in which a voice passes its own check, told after its load
    chunk_s: float
    reason: str
    card: Card | None = None
    verdicts: tuple[Verdict, ...] = ()
    fallbacks: tuple[str, ...] = ()
    live_allowed: bool = True  # False: a named device is missing and a live session refuses the CPU
    double_on_cpu: bool = False  # the device lacks float64
    gpu_left_idle: bool = False  # on the CPU though the machine has a GPU


def covers(archs: Sequence[str], card: Card) -> bool:
    """Whether a torch build has code for a card.

    CUDA: `sm_XY` of the same major version and a minor not above the card's, or PTX (`compute_XY`) of anything
    not newer. `sm_90a` and the like run on exactly that card. ROCm: the very gfx name, features aside.

    Example: a card of 8.6 runs on sm_80 and on compute_75, not on sm_87, sm_90 or sm_75.
    """
    if card.kind == "rocm":
        return card.arch is None or card.arch.split(":")[0] in {a.split(":")[0] for a in archs}
    if card.kind != "cuda" or card.capability is None:
        return True
    major, minor = card.capability
    for arch in archs:
        found = re.match(r"^(sm|compute)_(\d+)(\d)([a-z]?)$", arch)
        if found is None:
            continue
        has = int(found[2]), int(found[3])
        if found[4]:
            if has == (major, minor):
                return True
        elif found[1] == "sm":
            if has[0] == major and has[1] <= minor:
                return True
        elif has <= (major, minor):
            return True
    return False


def _gib(memory_mb: int) -> str:
    return f"{memory_mb / 1024:.1f} GiB"


def judge(card: Card, build: TorchBuild | None) -> Verdict:
    """The verdict on one card, as `auto` sees it."""

    def no(reason: str, *, runs: bool = True) -> Verdict:
        return Verdict(card=card, usable=False, precision="fp32", reason=reason, runs=runs)

    def yes(precision: str, reason: str) -> Verdict:
        return Verdict(card=card, usable=True, precision=precision, reason=reason)

    if card.hidden is not None:
        return no(f"not used: {card.hidden}", runs=False)
    if card.mig and not (card.uuid or "").startswith("MIG-"):
        return no("not used: it is set to be divided (MIG), but holds no instance", runs=False)
    if card.kind == "mps":
        return no("not used by itself: Apple's GPU is used only when named, in fp32")
    if card.kind == "dml":
        return yes("fp32", "used in fp32, after any card that torch drives itself")
    if build is not None and build.kind != card.kind:
        return no(f"not used: the installed torch {build.version} is built for {build.kind}", runs=False)
    if build is not None and build.archs is not None and not covers(build.archs, card):
        what = card.arch or f"compute capability {dotted(card.capability)}"
        return no(f"not used: the installed torch {build.version} has no code for {what}", runs=False)
    if card.memory_mb is not None and card.memory_mb < ENOUGH_MEMORY_MB:
        return no(f"not used: {_gib(card.memory_mb)} of memory, 4 GiB are needed")
    if card.kind == "rocm":
        return yes("fp16", "used in fp16")
    if card.kind == "xpu":
        return yes("fp16", "used in fp16") if card.fp16 else yes("fp32", "used in fp32: it reports no fp16")
    return _judge_cuda(card, yes, no)


def _judge_cuda(card: Card, yes: Callable[[str, str], Verdict], no: Callable[[str], Verdict]) -> Verdict:
    level = card.capability
    if level is None:
        return no("not used: its compute capability is not told")
    if level < (5, 3):
        return no(f"not used: compute capability {dotted(level)}, 5.3 is needed")
    if level < (6, 1):
        return no(f"not used: compute capability {dotted(level)} is too slow in fp32 and in fp16")
    if re.search(r"\bGTX 16\d\d", card.name):
        return yes("fp32", "used in fp32: cards of the GTX 16 series compute wrongly in fp16")
    if level == (6, 1):
        return yes("fp32", "used in fp32: compute capability 6.1 is slow in fp16")
    return yes("fp16", f"used in fp16: compute capability {dotted(level)}")


_KIND_ORDER = {"cuda": 3, "rocm": 2, "xpu": 1, "dml": 0, "mps": -1}


def _rank(verdict: Verdict) -> tuple[int, Capability, int, int]:
    card = verdict.card
    return _KIND_ORDER[card.kind], card.capability or (0, 0), card.memory_mb or 0, -card.index


def decide(cards: Sequence[Card], settings: ComputeSettings, build: TorchBuild | None = None) -> Decision:
    """Where to compute, in which precision, in what chunks, and why.

    `auto` takes the best usable card: CUDA, ROCm or XPU, by capability and then memory, else DirectML, else the
    CPU. A named device that is not there means the CPU, and that is told and keeps a live session from starting
    unless `allow_cpu_fallback`.
    """
    verdicts = tuple(judge(card, build) for card in cards)
    asked = settings.device.strip().lower()
    if asked == "cpu":
        return _on_cpu(verdicts, settings, "as asked", ())
    if asked == "auto":
        usable = [v for v in verdicts if v.usable]
        if not usable:
            reason = "no accelerator was found" if not cards else "none of the accelerators found is used"
            return _on_cpu(verdicts, settings, reason, ())
        best = max(usable, key=_rank)
        others = sum(v.usable for v in verdicts) - 1
        why = "the best of those found" if others else "the only usable accelerator"
        return _on_card(best, verdicts, settings, why)
    named = _asked_for(verdicts, asked)
    if named is None or not named.runs:
        why = f"{settings.device} is not there" if named is None else f"{settings.device}: {named.reason}"
        fallback = f"computing on the CPU instead of {settings.device}: {why}"
        return replace(_on_cpu(verdicts, settings, why, (fallback,)), live_allowed=settings.allow_cpu_fallback)
    return _on_card(named, verdicts, settings, "as asked")


def _asked_for(verdicts: Sequence[Verdict], asked: str) -> Verdict | None:
    """A device by name; a kind without a number is its best card."""
    exact = [v for v in verdicts if v.card.device == asked and v.card.hidden is None]
    if exact:
        return max(exact, key=_rank)
    of_kind = [v for v in verdicts if v.card.device.split(":")[0] == asked and v.card.hidden is None]
    return max(of_kind, key=lambda v: (v.runs, v.usable, _rank(v)), default=None)


def _on_cpu(
    verdicts: tuple[Verdict, ...], settings: ComputeSettings, reason: str, fallbacks: tuple[str, ...]
) -> Decision:
    precision = settings.precision
    if precision == "fp16":
        fallbacks += ("fp32 instead of fp16: the CPU computes in fp32, and in bf16 where it multiplies that natively",)
        precision = "fp32"
    return Decision(
        device="cpu",
        precision=precision,
        chunk_s=CHUNK_MIDDLE_S,
        reason=reason,
        verdicts=verdicts,
        fallbacks=fallbacks,
        gpu_left_idle=bool(verdicts),
    )


def _on_card(verdict: Verdict, verdicts: tuple[Verdict, ...], settings: ComputeSettings, reason: str) -> Decision:
    card = verdict.card
    precision = verdict.precision
    fallbacks: tuple[str, ...] = ()
    if settings.precision == "int8":
        fallbacks = (f"{precision} instead of int8: only the CPU computes in it",)
    elif settings.precision != "auto":
        if card.kind in ("cuda", "rocm", "xpu"):
            precision = settings.precision
        elif settings.precision != "fp32":
            fallbacks = (f"fp32 instead of {settings.precision}: {card.device} computes in fp32 only",)
    return Decision(
        device=card.device,
        precision=precision,
        chunk_s=chunk_s(card.memory_mb, precision),
        reason=f"{reason}; {verdict.reason}" if verdict.usable else f"{reason}, though {verdict.reason}",
        card=card,
        verdicts=verdicts,
        fallbacks=fallbacks,
        double_on_cpu=card.kind in ("mps", "dml", "xpu"),
    )


def chunk_s(memory_mb: int | None, precision: str) -> float:
    """Length of an offline chunk: shortest on cards of up to 4 GiB, longest in half precision."""
    if memory_mb is not None and memory_mb <= SMALL_MEMORY_MB:
        return CHUNK_SMALL_S
    return CHUNK_LARGE_S if precision in ("fp16", "bf16") else CHUNK_MIDDLE_S
