"""The four networks of a voice as backends see them: a name, a key, typical inputs, and how to load them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import nn  # a network that was exported before runs without torch, which takes 200 MB

AnyArray = NDArray[np.generic]
Shape = tuple[int, ...]


# Torch modules that are in memory, by role and key: voices of one process that need the same weights hold them
# together, and they go with the last holder. Modules are only read, so threads may run them side by side.
_TOGETHER: WeakValueDictionary[tuple[str, str], nn.Module] = WeakValueDictionary()


@dataclass(slots=True)
class Network:
    """One network. Its weights are loaded at most once and let go of by `release`."""

    role: str  # content, pitch, latent, audio
    key: str  # of its weights and of this code's revision; names its exports on disk
    make: Callable[[], nn.Module]
    example: tuple[AnyArray, ...]  # small inputs of the true ranks and types
    run: Callable[..., NDArray[np.float32]] | None = None  # what computes it where it is no torch module
    together: bool = False  # hold it with others; not where a device takes modules to itself, which moves them
    _module: nn.Module | None = field(default=None, repr=False)

    @property
    def module(self) -> nn.Module:
        """The torch module, loaded at first use."""
        if self._module is None:
            name = self.role, self.key
            found = _TOGETHER.get(name) if self.together else None
            self._module = self.make().eval().requires_grad_(False) if found is None else found
            if self.together:
                _TOGETHER[name] = self._module
        return self._module

    @property
    def bytes(self) -> int | None:
        """Of the torch module's weights; None while it is not in memory."""
        if self._module is None:
            return None
        return sum(t.nbytes for t in (*self._module.parameters(), *self._module.buffers()))

    @property
    def loaded(self) -> bool:
        """Whether the torch module is in memory."""
        return self._module is not None

    def release(self) -> None:
        """Let go of the torch module; it is loaded again when needed."""
        self._module = None
