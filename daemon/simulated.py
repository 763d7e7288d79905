"""A compute device that is not there: it runs on the CPU, counts every byte, and fails when told."""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from myna.daemon.compute.cards import Capability, Card, Kind

Act = Literal["allocation", "copy", "kernel"]

_ERRORS: dict[Act, str] = {
    "allocation": "CUDA out of memory (simulated failure).",
    "copy": "CUDA error: an illegal memory access was encountered (simulated failure)",
    "kernel": "CUDA error: unspecified launch failure (simulated failure)",
}


def _out_of_memory(message: str) -> Exception:
    """torch's own error where torch is installed, so that code meets the very class it has to catch."""
    try:
        import torch
    except ImportError:
        return MemoryError(message)
    error: Exception = torch.OutOfMemoryError(message)
    return error


@dataclass(slots=True, eq=False)
class Held:
    """Bytes on a simulated device, until `free`."""

    device: "SimulatedDevice"
    size: int

    def free(self) -> None:
        """Give the bytes back; harmless a second time."""
        self.device._release(self.size)
        self.size = 0


class SimulatedDevice:
    """Memory of a fixed size, with three acts that are counted: allocation, copy, kernel.

    Used by hand (`allocate`, `copy`, `kernel`), or around real torch code (`running`): every tensor made
    inside is counted for as long as anything holds its storage, and every operation is a kernel. Results are
    those of the CPU, bit for bit. Single-threaded, like the stream of a real device.
    """

    def __init__(
        self,
        memory_mb: int,
        *,
        capability: Capability = (8, 6),
        name: str = "Simulated",
        kind: Kind = "cuda",
        index: int = 0,
        kernel_us: float = 5.0,
        copy_gb_per_s: float = 12.0,
    ) -> None:
        """A device.

        Args:
            memory_mb: Its size in MiB, >= 1.
            capability: As `decision.judge` weighs it.
            name: As a tool would tell it.
            kind: Of which vendor.
            index: Its number.
            kernel_us: Simulated time of one kernel, in microseconds.
            copy_gb_per_s: Simulated speed of copies to and from it, in 10⁹ bytes a second.
        """
        if memory_mb < 1 or kernel_us < 0 or copy_gb_per_s <= 0:
            raise ValueError("a simulated device has memory and a finite speed")
        self.size = memory_mb << 20
        self.allocated = 0
        self.peak = 0
        self.busy_s = 0.0  # simulated, never slept
        self.counts: dict[Act, int] = {"allocation": 0, "copy": 0, "kernel": 0}
        self._capability, self._name, self._kind, self._index = capability, name, kind, index
        self._kernel_s, self._bytes_per_s = kernel_us / 1e6, copy_gb_per_s * 1e9
        self._failures: dict[tuple[Act, int], Callable[[str], Exception]] = {}

    @property
    def free(self) -> int:
        """Bytes not allocated."""
        return self.size - self.allocated

    def card(self) -> Card:
        """The device as discovery would tell it."""
        return Card(
            kind=self._kind,
            index=self._index,
            name=self._name,
            memory_mb=self.size >> 20,
            free_mb=self.free >> 20,
            capability=self._capability if self._kind == "cuda" else None,
        )

    def fail(self, act: Act, nth: int = 1, error: Callable[[str], Exception] | None = None) -> None:
        """Let the n-th act of a kind from now fail, once.

        Args:
            act: allocation, copy or kernel.
            nth: 1 is the next one.
            error: Makes the exception from its message; None: what the real device raises (out of memory for
                an allocation, RuntimeError otherwise).
        """
        if nth < 1:
            raise ValueError("the first act is number 1")
        made = error or (_out_of_memory if act == "allocation" else RuntimeError)
        self._failures[act, self.counts[act] + nth] = made

    def _count(self, act: Act) -> None:
        self.counts[act] += 1
        made = self._failures.pop((act, self.counts[act]), None)
        if made is not None:
            raise made(_ERRORS[act])

    def allocate(self, size: int) -> Held:
        """Take `size` bytes. The real out-of-memory error (torch's, else MemoryError) if they are not there."""
        self._count("allocation")
        if size > self.free:
            raise _out_of_memory(
                f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB. {self._name} has a total capacity of "
                f"{self.size / 2**20:.2f} MiB of which {self.free / 2**20:.2f} MiB is free."
            )
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        return Held(self, size)

    def _release(self, size: int) -> None:
        self.allocated -= size

    def copy(self, size: int) -> None:
        """Move `size` bytes to or from the device."""
        self._count("copy")
        self.busy_s += size / self._bytes_per_s

    def kernel(self) -> None:
        """Run one operation."""
        self._count("kernel")
        self.busy_s += self._kernel_s

    def place(self, module: Any) -> Held:
        """Put the parameters and buffers of a torch module on the device: one allocation and copy for each.

        Half-done work is undone: if one fails, nothing stays allocated.
        """
        held: list[Held] = []
        seen: set[int] = set()
        try:
            for tensor in (*module.parameters(), *module.buffers()):
                storage = tensor.untyped_storage()
                if storage.data_ptr() in seen:  # tied weights lie there once
                    continue
                seen.add(storage.data_ptr())
                held.append(self.allocate(storage.nbytes()))
                self.copy(storage.nbytes())
        except BaseException:
            for part in held:
                part.free()
            raise
        return Held(self, sum(part.size for part in held))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count what torch does inside: results are allocations, operations kernels, `to` and `copy_` copies too."""
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils._pytree import tree_iter

        device = self

        class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                device.kernel()
                given = {t.untyped_storage()._cdata for t in tree_iter((args, kwargs)) if _is_tensor(t)}
                result = func(*args, **(kwargs or {}))
                name = func.overloadpacket.__name__
                for tensor in tree_iter(result):
                    if _is_tensor(tensor):
                        if name in ("_to_copy", "copy_"):
                            device.copy(tensor.nbytes)
                        if tensor.untyped_storage()._cdata not in given:
                            device._follow(tensor.untyped_storage())
                return result

        with Counting():  # type: ignore[no-untyped-call]
            yield

    def _follow(self, storage: Any) -> None:
        """Count a storage until nothing holds it."""
        weakref.finalize(storage, self.allocate(storage.nbytes()).free).atexit = False


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.device.type == "cpu"
