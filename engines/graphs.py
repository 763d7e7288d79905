"""Replay of captured work: steady shapes run as one recorded graph instead of hundreds of launches.

NVIDIA only. What is captured, and when it is given up, is decided here; how, is the capturer's affair, so that the
rules are tested without a GPU.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

LIMIT = 8
WARM_UP = 3
LEAST_CAPABILITY = (8, 0)  # below, a failed capture can abort the process


class Tensorlike(Protocol):
    """What of a tensor makes a graph's key."""

    @property
    def shape(self) -> Sequence[int]:
        """Sizes."""
        ...

    @property
    def dtype(self) -> object:
        """Type of its values."""
        ...

    @property
    def device(self) -> object:
        """Where it lies."""
        ...


class Captured(Protocol):
    """A recorded call."""

    def replay(self, inputs: Sequence[Any]) -> Any:
        """Copy `inputs` into the recorded places, run, and return a copy of the output."""
        ...


class Capturer(Protocol):
    """Records calls."""

    def warm_up(self, call: Callable[..., Any], inputs: Sequence[Any], runs: int) -> None:
        """Run `call` a few times aside from the main stream, so that nothing is allocated while recording."""
        ...

    def capture(self, call: Callable[..., Any], inputs: Sequence[Any]) -> Captured:
        """Record one run. Raises whatever the device raises."""
        ...


@dataclass(slots=True)
class Counts:
    """What became of the calls."""

    captures: int = 0
    replays: int = 0
    eager: int = 0
    evictions: int = 0
    failures: dict[str, str] = field(default_factory=dict)  # shapes: reason


def limit_from_environment() -> int:
    """Graphs kept per call site: MYNA_CUDA_GRAPH_CACHE, 8 where it is not a number above 0."""
    text = os.environ.get("MYNA_CUDA_GRAPH_CACHE", "")
    return int(text) if text.isdigit() and int(text) > 0 else LIMIT


def allowed(capability: tuple[int, int], override: bool = False) -> bool:
    """Whether a card of this compute capability may capture at all."""
    return override or capability >= LEAST_CAPABILITY


class GraphReplay:
    """A call that is captured per shape, type and device of its inputs, and replayed from then on.

    `prepare` captures; `__call__` never does, so that no capture happens in the audio path. A value such as a
    formant is an input, never part of the key. Captured and replayed on one thread: another one runs eagerly.
    """

    def __init__(self, call: Callable[..., Any], capturer: Capturer, limit: int | None = None) -> None:
        self._call = call
        self._capturer = capturer
        self._limit = limit_from_environment() if limit is None else limit
        self._graphs: OrderedDict[object, Captured] = OrderedDict()
        self._refused: set[object] = set()
        self._thread: int | None = None
        self.counts = Counts()

    @staticmethod
    def key(inputs: Sequence[Tensorlike]) -> object:
        """What decides which graph serves a call."""
        return tuple((tuple(i.shape), str(i.dtype), str(i.device)) for i in inputs)

    def prepare(self, *inputs: Any) -> bool:
        """Capture for inputs like these, unless that is done or has failed before. True if a graph is there."""
        key = self.key(inputs)
        if key in self._refused:
            return False
        if self._thread is None:
            self._thread = threading.get_ident()
        if self._thread != threading.get_ident():
            return False
        if key not in self._graphs:
            try:
                self._capturer.warm_up(self._call, inputs, WARM_UP)
                graph = self._capturer.capture(self._call, inputs)
            except Exception as error:  # whatever the driver raises, the block must not fail for it
                self._refused.add(key)
                self.counts.failures[str(key)] = str(error) or type(error).__name__
                return False
            self._graphs[key] = graph
            self.counts.captures += 1
            while len(self._graphs) > self._limit:
                self._graphs.popitem(last=False)
                self.counts.evictions += 1
        return True

    def __call__(self, *inputs: Any) -> Any:
        """Replay if there is a graph for these inputs on this thread, else run eagerly."""
        key = self.key(inputs)
        graph = self._graphs.get(key) if self._thread == threading.get_ident() else None
        if graph is None:
            self.counts.eager += 1
            return self._call(*inputs)
        self._graphs.move_to_end(key)
        try:
            out = graph.replay(inputs)
        except Exception as error:
            del self._graphs[key]
            self._refused.add(key)
            self.counts.failures[str(key)] = str(error) or type(error).__name__
            self.counts.eager += 1
            return self._call(*inputs)
        self.counts.replays += 1
        return out

    def drop(self) -> None:
        """Let go of all graphs, as weights that move take their addresses with them."""
        self._graphs.clear()


class CudaCapturer:
    """Captures with torch's CUDA graphs."""

    def __init__(self, device: str) -> None:
        import torch

        self._torch = torch
        self._device = torch.device(device)

    def warm_up(self, call: Callable[..., Any], inputs: Sequence[Any], runs: int) -> None:
        """Run on a side stream, and wait for it."""
        torch = self._torch
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(runs):
                call(*inputs)
        torch.cuda.current_stream(self._device).wait_stream(stream)
        torch.cuda.synchronize(self._device)

    def capture(self, call: Callable[..., Any], inputs: Sequence[Any]) -> Captured:
        """Record one run on places of its own."""
        torch = self._torch
        places = [i.clone() for i in inputs]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = call(*places)
        return _CudaGraph(graph, places, out)


class _CudaGraph:
    def __init__(self, graph: Any, places: list[Any], out: Any) -> None:
        self._graph, self._places, self._out = graph, places, out

    def replay(self, inputs: Sequence[Any]) -> Any:
        for place, value in zip(self._places, inputs, strict=True):
            place.copy_(value)
        self._graph.replay()
        return self._out.clone()
