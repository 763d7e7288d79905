"""The four networks of a voice as backends see them: a name, a key, typical inputs, and how to load them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .synthesizer import NOISE_SCALE, Back, Front

AnyArray = NDArray[np.generic]
Shape = tuple[int, ...]


class LatentOf(nn.Module):
    """`Front` for a whole context that sounds throughout; the noise's length tells where the flow starts."""

    def __init__(self, front: Front) -> None:
        super().__init__()
        self.front = front

    def forward(self, phone: Tensor, noise: Tensor, sid: Tensor, pitch: Tensor | None = None) -> Tensor:
        """(1, frames, width), (1, channels, n), (1,), (1, frames) → latent of the last n frames."""
        mask = torch.ones_like(phone[:, :, :1]).transpose(1, 2)
        front = self.front
        speaker = front.emb_g(sid).unsqueeze(-1)
        head = phone.shape[1] - noise.shape[2]
        mean, log_deviation = front.enc_p(phone, pitch, mask, head)
        z = mean + torch.exp(log_deviation) * noise * NOISE_SCALE
        out: Tensor = front.flow(z, torch.ones_like(z[:, :1]), speaker)
        return out


class AudioOf(nn.Module):
    """`Back` with its inputs in the order of the export."""

    def __init__(self, back: Back) -> None:
        super().__init__()
        self.back = back

    def forward(self, z: Tensor, sid: Tensor, source: Tensor | None = None) -> Tensor:
        """(1, channels, frames), (1,), (1, 1, samples) → (1, 1, samples)."""
        out: Tensor = self.back(z, sid, source)
        return out


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
