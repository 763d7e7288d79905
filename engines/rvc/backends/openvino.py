"""OpenVINO on the CPU."""

import contextlib
import ctypes
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...base import BackendUnavailable
from ..networks import AnyArray, Network, Shape
from .backend import Array, Stage, last_line, memory_for
from .convolved import convolved
from .cpu import has_amx, has_bf16
from .onnxruntime import OnnxRuntime

_MADV_DONTNEED: Final = 4
_SHORT_SAMPLES: Final = 16000  # of a content encoder, at 16 kHz
_SHORT_FRAMES: Final = 24  # of a decoder, 10 ms each: a block of 100 ms has 20


class OpenVino:
    """OpenVINO on the CPU, at static shapes; bf16 where the CPU multiplies it natively, in tiles or in vectors.

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
        if precision == "bf16" and not ("BF16" in able and has_bf16()):
            raise BackendUnavailable("this CPU does not multiply bf16 natively")
        if precision not in ("bf16", "fp32", "int8"):
            raise BackendUnavailable(f"OpenVINO computes in bf16, fp32 or int8 here, not {precision}")
        self._features = OnnxRuntime("int8", max(1, threads - 1), cache_dir) if precision == "int8" else None
        if self._features is not None:
            self.providers += self._features.providers
        self.precision = precision
        self._tiles = precision == "bf16" and has_amx()
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
        with memory_for(network.role):
            try:
                model = self._model(network)
                model.reshape({port: list(shape) for port, shape in zip(model.inputs, shapes, strict=True)})
                if self._tiles:
                    convolved(model)
                options = {**self._options, "INFERENCE_NUM_THREADS": self._threads_for(network, shapes)}
                request = self._core.compile_model(model, "CPU", options).create_infer_request()
                self._let_pages_go(network)
            except BackendUnavailable:
                raise
            except Exception as error:  # OpenVINO raises RuntimeError and kinds of its own
                raise BackendUnavailable(
                    f"OpenVINO cannot run the {network.role} network: {last_line(error)}"
                ) from error

        def run(*inputs: AnyArray) -> Array:
            results = request.infer(dict(enumerate(inputs)), share_inputs=True)
            return np.array(results[0], dtype=np.float32, copy=True)

        return run

    def _threads_for(self, network: Network, shapes: Sequence[Shape]) -> int:
        """All that are allowed for a decoder without tiles, one for what is short, and for the content encoder all but
        the one on which the pitch is found meanwhile. For blocks of about 100 ms encoder and decoder take all: there
        the clock is short, not the processor.

        Threads wait for each other on the processor after each layer, for longer than short layers take. CPU-ms and ms
        on two threads, then on one: content encoder of 2.8 s in tiles 118 and 50, 80 and 75, beside which RMVPE takes
        35; decoder of 36 frames in tiles 50 and 29, 43 and 43. Held to AVX2: decoder 539 and 276, 438 and 438; pitch
        102 and 51, 84 and 84; latent 52 and 26, 43 and 43. In bf16 without tiles, a block of 100 ms: 165 and 87, with
        one for the encoder 165 and 111.
        """
        if network.role == "content":
            return self._threads if shapes[0][-1] <= _SHORT_SAMPLES else max(1, self._threads - 1)
        if network.role == "audio" and (not self._tiles or shapes[0][-1] <= _SHORT_FRAMES):
            return self._threads
        return 1

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
