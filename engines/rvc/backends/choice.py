"""Which backend is taken: the fastest that passes a check against torch."""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from ...base import BackendUnavailable, Placement
from ..networks import AnyArray, Network, Shape
from .backend import Array, Backend, Stage, examples
from .cpu import has_amx, has_bf16
from .onnxruntime import PROVIDERS, OnnxRuntime
from .openvino import OpenVino

# What a backend must reach against torch eager, in dB, to be taken. bf16 keeps 8 bits of mantissa: 26–49 dB were
# measured over the networks of full size; f32 only sums in another order.
LEAST_SNR_DB: Final = {"bf16": 20.0, "fp16": 30.0, "fp32": 60.0, "int8": 20.0}
# How long a network is timed.
_LEAST_CALLS, _MOST_CALLS, _LEAST_S = 3, 50, 0.1


@dataclass(frozen=True, slots=True)
class Choice:
    """The backend taken, and in words what was tried before it."""

    backend: Backend
    device: str
    fallbacks: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A backend that may be taken, with its precision and the device that it would compute on."""

    kind: type[OpenVino] | type[OnnxRuntime]
    precision: str
    device: str = "cpu"

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.kind.name} {self.precision}" + ("" if self.device == "cpu" else f" on {self.device}")

    def opened(self, placement: Placement) -> Backend:
        """The backend, with the placement's threads and cache.

        Raises:
            BackendUnavailable: it is not here, or not in this precision.
        """
        if issubclass(self.kind, OnnxRuntime):
            return self.kind(self.precision, placement.threads, placement.cache_dir, self.device)
        return self.kind(self.precision, placement.threads, placement.cache_dir)


def choose(
    placement: Placement,
    networks: Sequence[tuple[Network, Sequence[Shape]]],
    prepare: Callable[[], None] | None = None,
) -> Choice:
    """The backend that a placement asks for; for `auto` the fastest that passes the check against eager.

    On an accelerator that is torch; where torch has no way to it (DirectML), or the user names onnxruntime, it is
    onnxruntime's provider, and the CPU where that fails.

    On the CPU, precision `auto` weighs bf16 (where the CPU has it), then fp32, then torch; a precision named by the
    user is tried alone, and fp32 where it cannot be had, with its reason. A backend named by the user is taken even
    where torch is faster.

    Args:
        placement: What was asked.
        networks: What is to run, with the shapes to try.
        prepare: Exports and checks into the cache, in another process; called at most once, and only if that has
            not been done before. None: done here.
    """
    provided = _by_provider(placement)
    if not provided and (placement.backend == "eager" or placement.device != "cpu"):
        return Choice(_eager(placement), placement.device, (), ())
    reference = replace(placement, device="cpu") if provided else placement
    fallbacks: list[str] = []
    prepared = False
    for candidate in _candidates(placement):
        try:
            backend = candidate.opened(placement)
            known = _verdict(backend, networks, placement.cache_dir)
            if known is None and prepare is not None:
                if not prepared:
                    prepared = True
                    prepare()
                known = _verdict(backend, networks, placement.cache_dir)
                if known is None:
                    raise BackendUnavailable("its exports could not be kept on disk")
            worst, faster = known or _checked(backend, _eager(reference), networks, placement.cache_dir)
        except BackendUnavailable as error:
            fallbacks.append(f"not {candidate.name}: {error}")
            continue
        wanted = LEAST_SNR_DB[candidate.precision]
        if worst < wanted:
            fallbacks.append(f"not {candidate.name}: {worst:.0f} dB against torch, {wanted:.0f} wanted")
            continue
        # What a card saves is not the CPU's.
        if placement.backend == "auto" and candidate.device == "cpu" and faster < 1.0:
            fallbacks.append(f"not {candidate.name}: slower than torch here")
            continue
        return Choice(backend, candidate.device, tuple(fallbacks), (f"{candidate.name}: {worst:.0f} dB against torch",))
    last = placement if _is_torchs(placement.device) else reference
    return Choice(_eager(last), last.device, tuple(fallbacks), ())


def _is_torchs(device: str) -> bool:
    """Whether torch computes there by itself."""
    return device != "dml"


def _by_provider(placement: Placement) -> bool:
    """Whether one of onnxruntime's providers is to be tried on the placement's device."""
    kind = placement.device.split(":")[0]
    return kind in PROVIDERS and (not _is_torchs(placement.device) or placement.backend == "onnxruntime")


def _eager(placement: Placement) -> Backend:
    """torch where the placement says; imported only now, for it takes 200 MB that compiled networks do without."""
    from .eager import Eager

    return Eager(placement.device, placement.precision, placement.threads)


def _candidates(placement: Placement) -> list[_Candidate]:
    """The backends to try, best first."""
    if placement.device != "cpu":
        here = _Candidate(OnnxRuntime, "fp32", placement.device)
        if _is_torchs(placement.device):
            return [here]
        named = placement.backend if placement.backend != "eager" else "auto"
        return [here, *_candidates(replace(placement, device="cpu", precision="auto", backend=named))]
    kinds: dict[str, type[OpenVino] | type[OnnxRuntime]] = {
        "auto": OpenVino,
        "openvino": OpenVino,
        "onnxruntime": OnnxRuntime,
    }
    if placement.backend not in kinds:
        raise BackendUnavailable(
            f"there is no backend {placement.backend!r}; auto, eager, openvino and onnxruntime are known",
            backend=placement.backend,
        )
    kind = kinds[placement.backend]
    first = placement.precision
    if first == "auto":
        first = "fp32" if placement.backend == "onnxruntime" else "bf16"
    precisions = [first] if first == "fp32" else [first, "fp32"]
    return [_Candidate(kind, precision) for precision in precisions]


def _verdict_path(backend: Backend, networks: Sequence[tuple[Network, Sequence[Shape]]], cache_dir: Path) -> Path:
    """Where the verdict over these networks on this machine is kept."""
    machine = [
        "cpu-s 2",  # what was timed, and how the networks were laid out
        backend.name,
        backend.precision,
        *backend.providers,
        has_amx(),
        has_bf16(),
        os.cpu_count(),
        importlib.metadata.version("torch"),
        _version(backend),
    ]
    text = json.dumps(machine) + "".join(n.key + n.role for n, _ in networks)
    return cache_dir / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.verdict.json"


def _verdict(
    backend: Backend, networks: Sequence[tuple[Network, Sequence[Shape]]], cache_dir: Path | None
) -> tuple[float, float] | None:
    """Worst SNR and speed against torch as found earlier, if the exports are still there too."""
    if cache_dir is None:
        return None
    suffix = ".bin" if backend.name == "openvino" else ".onnx"
    for network, _ in networks:
        rounded = backend.precision == "int8" and network.role == "content"
        if not (cache_dir / f"{network.key}-{network.role}{'-int8.onnx' if rounded else suffix}").is_file():
            return None
    try:
        told = json.loads(_verdict_path(backend, networks, cache_dir).read_text("utf-8"))
        return float(told["snr_db"]), float(told["speed"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _checked(
    backend: Backend, eager: Backend, networks: Sequence[tuple[Network, Sequence[Shape]]], cache_dir: Path | None
) -> tuple[float, float]:
    """Measure the worst SNR over all networks and the speed against torch, and keep the verdict."""
    worst, ours, theirs = float("inf"), 0.0, 0.0
    for network, shapes in networks:
        inputs = examples(network, shapes)
        stage, reference = backend.stage(network, shapes), eager.stage(network, shapes)
        worst = min(worst, snr_db(reference(*inputs), stage(*inputs)))
        ours += _cost(stage, inputs)
        theirs += _cost(reference, inputs)
    speed = theirs / max(ours, 1e-9)
    if cache_dir is not None:
        path = _verdict_path(backend, networks, cache_dir)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_suffix(f".{os.getpid()}.part")
            beside.write_text(json.dumps({"snr_db": max(min(worst, 999.0), -999.0), "speed": speed}), "utf-8")
            os.replace(beside, path)
    return worst, speed


def _version(backend: Backend) -> str:
    if backend.name == "openvino":
        import openvino

        return str(openvino.__version__)
    import onnxruntime

    return str(onnxruntime.__version__)


def _cost(stage: Stage, inputs: tuple[AnyArray, ...]) -> float:
    """Processor seconds of a call, of all threads: a busy neighbour changes the clock's more than these.

    Called until the processor's clock, which has steps of 16 ms on some systems, has moved well on.
    """
    stage(*inputs)
    began, calls, spent = time.process_time(), 0, 0.0
    while calls < _LEAST_CALLS or (spent < _LEAST_S and calls < _MOST_CALLS):
        stage(*inputs)
        calls += 1
        spent = time.process_time() - began
    return spent / calls


def snr_db(reference: Array, other: Array) -> float:
    """How far `other` is from `reference`, in dB; −inf where it is not finite or of another shape."""
    if reference.shape != other.shape or not np.isfinite(other).all():
        return float("-inf")
    signal = float(np.square(reference.astype(np.float64)).sum())
    noise = float(np.square(reference.astype(np.float64) - other).sum())
    return float("inf") if noise == 0 else 10.0 * float(np.log10(max(signal, 1e-30) / noise))
