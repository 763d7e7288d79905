"""What a voice engine is: the interface that every voice, live or from files, stands behind."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:  # the supervisor knows engines by name only, and stays small
    import numpy as np
    from numpy.typing import NDArray

Block: TypeAlias = "NDArray[np.float32]"


class EngineError(Exception):
    """Base of all that engines/ raises on purpose.

    EngineError               engine.failed
    ├─ ModelUnusable          engine.model_unusable    file missing, damaged or of another kind
    ├─ MissingAsset           engine.missing_asset     a model the voice needs is not on this machine
    ├─ ParameterRefused       engine.parameter_refused a value this voice cannot take
    ├─ BackendUnavailable     engine.backend           the asked device or backend is not here
    └─ OutOfMemory            engine.out_of_memory     retry after unloading

    `facts` holds what a program needs to react (names, numbers, limits); the message says what to do.
    """

    code = "engine.failed"

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.facts: dict[str, object] = facts


class ModelUnusable(EngineError):
    """A model file is missing, damaged or of another kind."""

    code = "engine.model_unusable"


class MissingAsset(EngineError):
    """A model that the voice needs (say ContentVec) is not on this machine; facts: asset, where."""

    code = "engine.missing_asset"


class ParameterRefused(EngineError):
    """A value this voice cannot take; facts: parameter, value, allowed."""

    code = "engine.parameter_refused"


class BackendUnavailable(EngineError):
    """The asked device or compute backend is not here."""

    code = "engine.backend"


class OutOfMemory(EngineError):
    """An allocation failed, on the device or in RAM."""

    code = "engine.out_of_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where and how an engine computes. Decided by the daemon, never by the engine."""

    device: str = "cpu"  # cpu, cuda:N, xpu:N, mps, dml
    precision: str = "fp32"  # fp32, fp16, bf16, int8; auto (on the CPU): the engine's fastest that passes its checks
    threads: int = 1
    backend: str = "auto"  # auto, eager, openvino, onnxruntime
    cache_dir: Path | None = None  # exported graphs, keyed by content hash


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceParameters:
    """How a voice sounds. Frozen: a change is a new value, given to `LiveVoice.set` at a block boundary.

    An engine ignores what is not in its `Capabilities.parameters`; ranges were checked by the daemon.
    """

    pitch: float = 0.0  # semitones, ±24
    formant: float = 0.0  # semitones, ±12 (rvc: ±2)
    f0_method: str = "auto"
    index_rate: float = 0.0  # 0..1
    protect: float = 0.33  # 0..0.5
    rms_mix: float = 1.0  # 0..1; 1 keeps the voice's own loudness
    speaker_id: int = 0
    autotune: float = 0.0  # 0..1
    unvoiced: str = "protect"  # protect, zero, original
    crossfade_ms: float = 50.0
    context_ms: float | None = None  # None: the engine's best


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceAsset:
    """One voice: which engine speaks it, its files, and its own defaults."""

    id: str
    engine: str
    files: Mapping[str, Path] = field(default_factory=dict)  # e.g. {"model": …, "index": …, "embedder": …}
    defaults: Mapping[str, object] = field(default_factory=dict)  # VoiceParameters by name; also a preset's style
    description: str = ""
    unchanged: bool = False  # the voice is the input by definition (preset `neutral`); status says so


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedModel:
    """A model that voices of one process hold together, such as a content encoder: it goes with its last voice."""

    id: str
    model_bytes: int | None = None  # bytes of weights, None where not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceFacts:
    """The truth after load: what runs, not what was asked."""

    engine: str
    device: str
    precision: str
    backend: str
    providers: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()  # each with its reason, in words
    model_bytes: int | None = None  # bytes of its own weights, None where not measured
    shared: tuple[SharedModel, ...] = ()  # what it holds beside them
    notes: tuple[str, ...] = ()


class LiveVoice(Protocol):
    """A loaded voice in a live session, at one sample rate.

    Not thread-safe: all calls come from the block loop, but `prepare`, which may run elsewhere *before* the
    first `process` of a new block size.
    """

    @property
    def latency_frames(self) -> int:
        """Algorithmic delay from input to output in frames at the session rate (crossfade and search included)."""
        ...

    @property
    def tail_frames(self) -> int:
        """Frames of input silence after which the output is silent too."""
        ...

    @property
    def facts(self) -> VoiceFacts:
        """What runs."""
        ...

    def prepare(self, block_frames: int) -> None:
        """Load, capture or compile whatever a block of this many frames (a multiple of hop_frames) needs."""
        ...

    def process(self, block: Block) -> Block:
        """Convert one block, shape (frames,), float32; returns as many frames. Finite in, finite out.

        Exact zeros longer than `tail_frames` cost no inference, but still move every context on in time.
        """
        ...

    def set(self, parameters: VoiceParameters) -> None:
        """Take new parameters from the next block on, ramped where a step would click."""
        ...

    def reset(self) -> None:
        """Forget all audio heard so far; keeps models and parameters."""
        ...

    def close(self) -> None:
        """Let go of memory. The voice is not used afterwards."""
        ...


class FileVoice(Protocol):
    """A loaded voice for offline work. Deterministic: same input and parameters, same bytes."""

    @property
    def rate_hz(self) -> int | None:
        """Rate of what `convert` returns; None: that of its input."""
        ...

    @property
    def context_ms(self) -> float:
        """Audio wanted before and after a segment so that its inside does not depend on where it was cut."""
        ...

    @property
    def facts(self) -> VoiceFacts:
        """What runs."""
        ...

    def convert(self, audio: Block, rate_hz: int) -> Block:
        """Convert a whole stretch, shape (frames,); delay-compensated: output starts where the input starts.

        Returns round(frames × out_rate / rate_hz) frames.
        """
        ...

    def close(self) -> None:
        """Let go of memory."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine can do, known before anything heavy is imported."""

    live: bool
    file: bool
    hop_ms: float  # live blocks are whole multiples of this
    parameters: frozenset[str]  # names of VoiceParameters it honours
    added: frozenset[str] = frozenset()  # those of them that it adds to the asset's own, by itself
    cuda_graph: bool = False
    devices: frozenset[str] = frozenset({"cpu"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """An engine as found through the `myna.engines` entry points."""

    name: str
    capabilities: Capabilities
    built_in: tuple[VoiceAsset, ...]  # voices that need no file
    check: Callable[[VoiceAsset], tuple[str, ...]]  # problems of a voice, without loading it
    open_live: Callable[[VoiceAsset, Placement, VoiceParameters, int], LiveVoice]  # …, rate_hz
    open_file: Callable[[VoiceAsset, Placement, VoiceParameters], FileVoice]
