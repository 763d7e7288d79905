"""What a backend is, and what all of them share."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...base import BackendUnavailable, OutOfMemory
from ..networks import AnyArray, Network, Shape

Array = NDArray[np.float32]
Stage = Callable[..., Array]


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


@contextlib.contextmanager
def memory_for(what: str) -> Iterator[None]:
    """Tell a MemoryError as OutOfMemory for `what`."""
    try:
        yield
    except MemoryError as error:
        raise OutOfMemory(f"no room in memory for {what}") from error


def last_line(error: BaseException) -> str:
    """What a library says last of an error: the cause, below its trace."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
