"""Where the networks run: torch eager, OpenVINO or onnxruntime, behind one call, each checked against eager."""

import contextlib
import ctypes
import gc
import hashlib
import importlib.metadata
import io
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ..base import BackendUnavailable, OutOfMemory, Placement
from .convolved import convolved
from .networks import AnyArray, Network, Shape

Array = NDArray[np.float32]
Stage = Callable[..., Array]

# What a backend must reach against torch eager, in dB, to be taken. bf16 keeps 8 bits of mantissa: 26–49 dB were
# measured over the networks of full size; f32 only sums in another order.
LEAST_SNR_DB: Final = {"bf16": 20.0, "fp16": 30.0, "fp32": 60.0, "int8": 20.0}
_MADV_DONTNEED: Final = 4
# How long a network is timed.
_LEAST_CALLS, _MOST_CALLS, _LEAST_S = 3, 50, 0.1


class Backend(Protocol):
    """Runs networks at fixed shapes."""

    @property
    def name(self) -> str:
        """eager, openvino or onnxruntime."""
        ...

    @property
    def precision(self) -> str:
        """What it computes in."""
        ...

    @property
    def providers(self) -> tuple[str, ...]:
        """Execution providers or the like."""
        ...

    def stage(self, network: Network, shapes: Sequence[Shape]) -> Stage:
        """`network` ready to be called with inputs of these shapes.

        Raises:
            BackendUnavailable: this backend cannot run it.
            OutOfMemory: there is no room.
        """
        ...


@contextlib.contextmanager
def _memory(what: str) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise OutOfMemory(f"no room in memory for {what}") from error


class Closed:
    """Stands in a voice that was closed: it runs nothing."""

    name = "eager"
    precision = "fp32"
    providers: tuple[str, ...] = ()

    def stage(self, network: Network, shapes: Sequence[Shape]) -> Stage:
        """Refuses."""
        raise BackendUnavailable("the voice is closed")


def examples(network: Network, shapes: Sequence[Shape], seed: int = 1) -> tuple[AnyArray, ...]:
    """Inputs of these shapes, like true ones: noise for floats, small valid numbers for integers."""
    random = np.random.default_rng(seed)
    made: list[AnyArray] = []
    for example, shape in zip(network.example, shapes, strict=True):
        if example.dtype.kind == "f":
            made.append((0.3 * random.standard_normal(shape)).astype(example.dtype))
        else:
            made.append(np.full(shape, int(example.reshape(-1)[0]), example.dtype))
    return tuple(made)


class OpenVino:
    """OpenVINO on the CPU, at static shapes; bf16 where the CPU multiplies it natively.

    In int8 the content encoder runs on onnxruntime, which rounds as it goes; all else stays here, in fp32.
    """

    name = "openvino"

    def __init__(self, precision: str, threads: int, cache_dir: Path | None) -> None:
        try:
            import openvino
        except ImportError as error:
            raise BackendUnavailable("the package openvino is not installed: pip install openvino") from error
        self._openvino = openvino
        self._core = openvino.Core()
        self.providers: tuple[str, ...] = ("CPU",)
        able = self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if precision == "bf16" and not ("BF16" in able and has_amx()):
            raise BackendUnavailable("this CPU does not multiply bf16 natively")
        if precision not in ("bf16", "fp32", "int8"):
            raise BackendUnavailable(f"OpenVINO computes in bf16, fp32 or int8 here, not {precision}")
        self._features = OnnxRuntime("int8", threads, cache_dir) if precision == "int8" else None
        if self._features is not None:
            self.providers += self._features.providers
        self.precision = precision
        self._options: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32",
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "ENABLE_HYPER_THREADING": False,
            # A thread that is bound to a processor waits for whoever else is on it; the caller would be bound too.
            "ENABLE_CPU_PINNING": False,
        }
        self._threads = max(1, threads)
        self._cache = cache_dir
        self._models: dict[str, Any] = {}

    def stage(self, network: Network, shapes: Sequence[Shape]) -> Stage:
        """Compile the network for these shapes."""
        if self._features is not None and network.role == "content":
            return self._features.stage(network, shapes)
        with _memory(network.role):
            try:
                model = self._model(network)
                model.reshape({port: list(shape) for port, shape in zip(model.inputs, shapes, strict=True)})
                if self.precision == "bf16":
                    convolved(model)
                options = {**self._options, "INFERENCE_NUM_THREADS": self._threads_for(network)}
                request = self._core.compile_model(model, "CPU", options).create_infer_request()
                self._let_pages_go(network)
            except BackendUnavailable:
                raise
            except Exception as error:  # OpenVINO raises RuntimeError and kinds of its own
                raise BackendUnavailable(f"OpenVINO cannot run the {network.role} network: {_first(error)}") from error

        def run(*inputs: AnyArray) -> Array:
            results = request.infer(dict(enumerate(inputs)), share_inputs=True)
            return np.array(results[0], dtype=np.float32, copy=True)

        return run

    def _threads_for(self, network: Network) -> int:
        """All that are allowed for the content encoder, and for everything where tiles do not multiply.

        The layers of the others are done in less than a millisecond in bf16; threads then wait for each other, on the
        processor, for longer than they help. A decoder of 36 frames took 87 CPU-ms and 64 ms on two threads of a busy
        machine, 46 and 48 ms on one; 50 and 29, 43 and 43 on an idle one.
        """
        return self._threads if network.role == "content" or self.precision != "bf16" else 1

    def _let_pages_go(self, network: Network) -> None:
        """Give back the memory that the exported weights took while they were repacked.

        The compiled model keeps the file mapped, and its pages would count as ours: 850 MB for all networks.
        Pages of a read-only mapping come back from the file if they are ever read again.
        """
        if self._cache is None or not sys.platform.startswith("linux"):
            return
        name = str(self._cache / f"{network.key}-{network.role}.bin")
        with contextlib.suppress(OSError, ValueError, AttributeError):
            libc = ctypes.CDLL(None)
            for line in Path("/proc/self/maps").read_text("utf-8", "replace").splitlines():
                if line.endswith(name):
                    start, end = (int(x, 16) for x in line.split(" ", 1)[0].split("-"))
                    libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)

    def _model(self, network: Network) -> Any:
        """The network as exported once for all shapes, from disk if it is there."""
        path = None if self._cache is None else self._cache / f"{network.key}-{network.role}.xml"
        if path is not None and path.is_file() and path.with_suffix(".bin").is_file():
            return self._core.read_model(path)  # its weights stay mapped from the file
        known = self._models.get(network.key + network.role)
        if known is not None:
            return known.clone()
        import torch

        tensors = tuple(torch.from_numpy(e.copy()) for e in network.example)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tracing warns of every size that it takes for a constant
            trace: Any = torch.jit.trace
            traced = trace(network.module, tensors, check_trace=False)
            model = self._openvino.convert_model(traced, example_input=tensors)
        if path is None:
            self._models[network.key + network.role] = model
            return model.clone()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # The weights first: a description without them is never found.
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                made = Path(folder) / path.name
                self._openvino.save_model(model, made, compress_to_fp16=False)
                os.replace(made.with_suffix(".bin"), path.with_suffix(".bin"))
                os.replace(made, path)
        except OSError:
            return model.clone()  # a full or read-only disk costs time at the next start, nothing else
        return self._core.read_model(path)


class OnnxRuntime:
    """onnxruntime on the CPU, from a graph that torch exports.

    In int8 the content encoder's matrices are whole numbers, and what meets them is rounded in every call; all else
    stays in fp32, for rounding is heard in a pitch and in a decoder.
    """

    name = "onnxruntime"

    def __init__(self, precision: str, threads: int, cache_dir: Path | None) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise BackendUnavailable("the package onnxruntime is not installed") from error
        if precision not in ("fp32", "int8"):
            raise BackendUnavailable(f"onnxruntime computes in fp32 or int8 here, not {precision}")
        self._runtime = onnxruntime
        self.precision = precision
        self.providers: tuple[str, ...] = ("CPUExecutionProvider",)
        self._threads = max(1, threads)
        self._cache = cache_dir
        self._graphs: dict[str, bytes] = {}

    def stage(self, network: Network, shapes: Sequence[Shape]) -> Stage:
        """A session for the network; its graph takes any shape."""
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        with _memory(network.role):
            try:
                graph = self._quantised(network) if self._in_int8(network) else self._graph(network)
                session = self._runtime.InferenceSession(graph, options, providers=list(self.providers))
            except BackendUnavailable:
                raise
            except Exception as error:  # onnxruntime's errors share no base class of their own
                raise BackendUnavailable(
                    f"onnxruntime cannot run the {network.role} network: {_first(error)}"
                ) from error
        names = [i.name for i in session.get_inputs()]

        def run(*inputs: AnyArray) -> Array:
            out = session.run(None, dict(zip(names, inputs, strict=True)))[0]
            return np.asarray(out, np.float32)

        return run

    def _graph(self, network: Network) -> bytes | str:
        path = None if self._cache is None else self._cache / f"{network.key}-{network.role}.onnx"
        if path is not None and path.is_file():
            return str(path)
        known = self._graphs.get(network.key + network.role)
        if known is not None:
            return known
        import torch

        names = [f"input_{i}" for i in range(len(network.example))]
        axes = {
            name: {axis: f"{name}_{axis}" for axis in range(1, example.ndim)}
            for name, example in zip(names, network.example, strict=True)
        }
        quiet = contextlib.redirect_stdout(io.StringIO())  # the exporter prints the whole graph when it fails
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), quiet:
            warnings.simplefilter("ignore")
            made = Path(folder) / "network.onnx"
            try:
                torch.onnx.export(
                    network.module,
                    tuple(torch.from_numpy(e.copy()) for e in network.example),
                    str(made),
                    input_names=names,
                    output_names=["output"],
                    dynamic_axes=axes,
                    opset_version=17,
                    dynamo=False,
                )
            except Exception as error:  # the exporter needs the package onnx, and has limits of its own
                raise BackendUnavailable(f"the {network.role} network cannot be exported: {_first(error)}") from error
            graph = made.read_bytes()
        return self._kept(network.key + network.role, path, graph)

    def _in_int8(self, network: Network) -> bool:
        return self.precision == "int8" and network.role == "content"

    def _quantised(self, network: Network) -> bytes | str:
        """The graph with its matrices in int8, made once; convolutions gain nothing from it."""
        path = None if self._cache is None else self._cache / f"{network.key}-{network.role}-int8.onnx"
        if path is not None and path.is_file():
            return str(path)
        known = self._graphs.get(f"{network.key}{network.role}-int8")
        if known is not None:
            return known
        graph = self._graph(network)
        with tempfile.TemporaryDirectory() as folder:
            source, made = Path(folder) / "network.onnx", Path(folder) / "int8.onnx"
            try:
                import onnx
                from onnxruntime.quantization import QuantType, quantize_dynamic
                from onnxruntime.quantization.shape_inference import quant_pre_process

                # It folds the constants that exporters leave between a matrix and its product.
                plain = onnx.load(graph) if isinstance(graph, str) else onnx.load_from_string(graph)
                quant_pre_process(plain, str(source), skip_symbolic_shape=True)
                quantize_dynamic(
                    str(source), str(made), op_types_to_quantize=["MatMul"], per_channel=True,
                    weight_type=QuantType.QInt8, reduce_range=not has_vnni(),
                )  # fmt: skip
            except ImportError as error:
                raise BackendUnavailable("int8 needs the package onnx: pip install onnx") from error
            except Exception as error:  # whatever the tool raises for a graph that it cannot treat
                raise BackendUnavailable(
                    f"the {network.role} network cannot be put in int8: {_first(error)}"
                ) from error
            quantised = made.read_bytes()
        return self._kept(f"{network.key}{network.role}-int8", path, quantised)

    def _kept(self, name: str, path: Path | None, graph: bytes) -> bytes | str:
        """A graph where it will be found again: on disk, else in memory."""
        if path is None:
            self._graphs[name] = graph
            return graph
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_suffix(f".{os.getpid()}.part")
            beside.write_bytes(graph)
            os.replace(beside, path)
        except OSError:
            return graph
        return str(path)


def give_memory_back() -> None:
    """Return what loading and checking left behind to the system; never called in the audio path."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def has_vnni() -> bool:
    """Whether this CPU sums int8 products without overflow; without it weights keep 7 bits."""
    try:
        flags = Path("/proc/cpuinfo").read_text("ascii", "replace")
    except OSError:
        return False
    return "avx512_vnni" in flags or "avx_vnni" in flags or "asimddp" in flags


def has_amx() -> bool:
    """Whether this CPU has tiles that multiply bf16; False where the system doesn't tell."""
    if os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in ("AVX2", "AVX2_VNNI", "SSE41", "AVX", "AVX512_CORE"):
        return False
    try:
        return "amx_bf16" in Path("/proc/cpuinfo").read_text("ascii", "replace")
    except OSError:
        return False


def _first(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


def snr_db(reference: Array, other: Array) -> float:
    """How far `other` is from `reference`, in dB; −inf where it is not finite or of another shape."""
    if reference.shape != other.shape or not np.isfinite(other).all():
        return float("-inf")
    signal = float(np.square(reference.astype(np.float64)).sum())
    noise = float(np.square(reference.astype(np.float64) - other).sum())
    return float("inf") if noise == 0 else 10.0 * float(np.log10(max(signal, 1e-30) / noise))


@dataclass(frozen=True, slots=True)
class Choice:
    """The backend taken, and in words what was tried before it."""

    backend: Backend
    fallbacks: tuple[str, ...]
    notes: tuple[str, ...]


def choose(
    placement: Placement,
    networks: Sequence[tuple[Network, Sequence[Shape]]],
    prepare: Callable[[], None] | None = None,
) -> Choice:
    """The backend that a placement asks for; for `auto` the fastest that passes the check against eager.

    On an accelerator that is torch. On the CPU, precision `auto` weighs bf16 (where the CPU has it), then fp32, then
    torch; a precision named by the user is tried alone, and fp32 where it cannot be had, with its reason. A backend
    named by the user is taken even where torch is faster.

    Args:
        placement: What was asked.
        networks: What is to run, with the shapes to try.
        prepare: Exports and checks into the cache, in another process; called at most once, and only if that has
            not been done before. None: done here.
    """
    device = placement.device
    if device != "cpu":
        return Choice(_eager(placement), (), ())
    if placement.backend == "eager":
        return Choice(_eager(placement), (), ())
    candidates = _candidates(placement)
    fallbacks: list[str] = []
    prepared = False
    for kind, precision in candidates:
        try:
            backend = kind(precision, placement.threads, placement.cache_dir)
            known = _verdict(backend, networks, placement.cache_dir)
            if known is None and prepare is not None:
                if not prepared:
                    prepared = True
                    prepare()
                known = _verdict(backend, networks, placement.cache_dir)
                if known is None:
                    raise BackendUnavailable("its exports could not be kept on disk")
            worst, faster = known or _checked(backend, _eager(placement), networks, placement.cache_dir)
        except BackendUnavailable as error:
            fallbacks.append(f"not {kind.name} {precision}: {error}")
            continue
        if worst < LEAST_SNR_DB[precision]:
            fallbacks.append(
                f"not {kind.name} {precision}: {worst:.0f} dB against torch, {LEAST_SNR_DB[precision]:.0f} wanted"
            )
            continue
        if placement.backend == "auto" and faster < 1.0:
            fallbacks.append(f"not {kind.name} {precision}: slower than torch here")
            continue
        return Choice(backend, tuple(fallbacks), (f"{kind.name} {precision}: {worst:.0f} dB against torch",))
    return Choice(_eager(placement), tuple(fallbacks), ())


def _eager(placement: Placement) -> Backend:
    """torch where the placement says; imported only now, for it takes 200 MB that compiled networks do without."""
    from .eager import Eager

    return Eager(placement.device, placement.precision, placement.threads)


def _candidates(placement: Placement) -> list[tuple[type[OpenVino] | type[OnnxRuntime], str]]:
    """The backends to try on the CPU, best first, each with its precision."""
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
    return [(kind, first)] if first == "fp32" else [(kind, first), (kind, "fp32")]


def _verdict_path(backend: Backend, networks: Sequence[tuple[Network, Sequence[Shape]]], cache_dir: Path) -> Path:
    """Where the verdict over these networks on this machine is kept."""
    machine = [
        "cpu-s 2",  # what was timed, and how the networks were laid out
        backend.name,
        backend.precision,
        has_amx(),
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
