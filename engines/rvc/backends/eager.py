"""Networks in torch as they are, on any device: what every other backend is checked against."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from ...base import BackendUnavailable, OutOfMemory
from ...graphs import CudaCapturer, GraphReplay, allowed
from ..networks import AnyArray, Network, Shape
from .backend import Array, Stage, examples, memory_for


@contextlib.contextmanager
def _memory(what: str) -> Iterator[None]:
    try:
        with memory_for(what):
            yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(f"no room on the device for {what}") from error


class Eager:
    """Torch as it is; on a CUDA card of capability 8.0 and above by graph replay."""

    name = "eager"

    def __init__(self, device: str = "cpu", precision: str = "fp32", threads: int = 1) -> None:
        self.precision = precision if device != "cpu" and precision in ("fp16", "bf16") else "fp32"
        self.providers: tuple[str, ...] = ()
        self._type = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(self.precision, torch.float32)
        try:
            self._device = torch.device("cpu" if device == "cpu" else device)
            torch.zeros(1, device=self._device)
        except (RuntimeError, AssertionError) as error:
            raise BackendUnavailable(f"the device {device} cannot be used: {error}", device=device) from error
        self._graphs = self._device.type == "cuda" and allowed(torch.cuda.get_device_capability(self._device))
        # A graph is captured and replayed on one thread, while a voice is opened, prepared and run on others.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="graphs") if self._graphs else None
        if self._device.type == "cpu":
            torch.set_num_threads(max(1, threads))

    def stage(self, network: Network, shapes: Sequence[Shape]) -> Stage:
        """The module itself; on a card that replays graphs, one is captured for these shapes."""
        if self._thread is not None:
            made = self._thread.submit(self._stage, network, shapes).result()
            thread = self._thread
            return lambda *inputs: thread.submit(made, *inputs).result()
        return self._stage(network, shapes)

    def _stage(self, network: Network, shapes: Sequence[Shape]) -> Stage:
        with _memory(network.role):
            module = network.module.to(self._device)
            if self._type != torch.float32:
                module = module.to(self._type)
        call: Callable[..., Any] = module
        if self._graphs:
            call = replay = GraphReplay(module, CudaCapturer(str(self._device)))
            with torch.no_grad():
                replay.prepare(*(self._moved(a) for a in examples(network, shapes)))

        def run(*inputs: AnyArray) -> Array:
            # Inference mode would make tensors that a graph cannot be replayed into.
            with _memory(network.role), torch.no_grad():
                out = call(*(self._moved(i) for i in inputs))
                return np.ascontiguousarray(out.float().cpu().numpy())

        return run

    def _moved(self, values: AnyArray) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(values)).to(self._device)
        return tensor.to(self._type) if tensor.is_floating_point() else tensor
