"""onnxruntime on the CPU, and on cards that it has a provider for."""

import contextlib
import io
import os
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...base import BackendUnavailable
from ..networks import AnyArray, Network, Shape
from .backend import Array, Stage, last_line, memory_for
from .cpu import has_vnni

# By a device's kind: what computes there, and the package that brings it.
PROVIDERS: Final = {
    "dml": ("DmlExecutionProvider", "onnxruntime-directml"),
    "mps": ("CoreMLExecutionProvider", "onnxruntime"),
    "cuda": ("CUDAExecutionProvider", "onnxruntime-gpu"),
}


def provider_for(runtime: Any, device: str) -> tuple[str, dict[str, str]]:
    """The provider of a device such as `cuda:0`, with its options.

    Raises:
        BackendUnavailable: the installed onnxruntime has none, or not that one.
    """
    kind, _, index = device.partition(":")
    if kind not in PROVIDERS:
        raise BackendUnavailable(f"onnxruntime has nothing for {device}", device=device)
    provider, package = PROVIDERS[kind]
    if provider not in runtime.get_available_providers():
        raise BackendUnavailable(f"the installed onnxruntime has no {provider}: pip install {package}", device=device)
    return provider, {"device_id": index or "0"} if kind != "mps" else {}


class OnnxRuntime:
    """onnxruntime, from a graph that torch exports: on the CPU, or on a device of `PROVIDERS`.

    In int8 the content encoder's matrices are whole numbers, and what meets them is rounded in every call; all else
    stays in fp32, for rounding is heard in a pitch and in a decoder.
    """

    name = "onnxruntime"

    def __init__(self, precision: str, threads: int, cache_dir: Path | None, device: str = "cpu") -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise BackendUnavailable("the package onnxruntime is not installed") from error
        if precision not in ("fp32", "int8"):
            raise BackendUnavailable(f"onnxruntime computes in fp32 or int8 here, not {precision}")
        self._runtime = onnxruntime
        self.precision = precision
        self._accelerator = None if device == "cpu" else provider_for(onnxruntime, device)
        accelerators = (self._accelerator[0],) if self._accelerator else ()
        self.providers: tuple[str, ...] = (*accelerators, "CPUExecutionProvider")
        self._threads = max(1, threads)
        self._cache = cache_dir
        self._graphs: dict[str, bytes] = {}

    def stage(self, network: Network, shapes: Sequence[Shape]) -> Stage:
        """A session for the network; its graph takes any shape, and on a card is told the one that it will get."""
        options = self._runtime.SessionOptions()
        if self._accelerator is not None:
            options.enable_mem_pattern = False  # DirectML's condition; the memory is the card's anyway
            for at, shape in enumerate(shapes):
                for axis, size in enumerate(shape):
                    options.add_free_dimension_override_by_name(f"input_{at}_{axis}", size)
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        with memory_for(network.role):
            try:
                graph = self._quantised(network) if self._in_int8(network) else self._graph(network)
                session = self._runtime.InferenceSession(graph, options, providers=self._asked())
            except BackendUnavailable:
                raise
            except Exception as error:  # onnxruntime's errors share no base class of their own
                raise BackendUnavailable(
                    f"onnxruntime cannot run the {network.role} network: {last_line(error)}"
                ) from error
        if self._accelerator is not None and self._accelerator[0] not in session.get_providers():
            raise BackendUnavailable(f"onnxruntime left {self._accelerator[0]} for the CPU by itself")
        names = [i.name for i in session.get_inputs()]

        def run(*inputs: AnyArray) -> Array:
            out = session.run(None, dict(zip(names, inputs, strict=True)))[0]
            return np.asarray(out, np.float32)

        return run

    def _asked(self) -> list[Any]:
        """The providers of a session, the one preferred first."""
        return ["CPUExecutionProvider"] if self._accelerator is None else [self._accelerator, "CPUExecutionProvider"]

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
                raise BackendUnavailable(
                    f"the {network.role} network cannot be exported: {last_line(error)}"
                ) from error
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
                    f"the {network.role} network cannot be put in int8: {last_line(error)}"
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
