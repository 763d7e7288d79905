"""Accelerators, the machine around them, and the installed torch, as they were told."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["cuda", "rocm", "xpu", "dml", "mps"]
Capability = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One accelerator as told by a tool. `index` is what torch calls it: after filters, in their order."""

    kind: Kind
    index: int
    name: str
    memory_mb: int | None = None  # None: not told
    free_mb: int | None = None
    capability: Capability | None = None  # CUDA only
    uuid: str | None = None
    driver: str | None = None
    arch: str | None = None  # ROCm: gfx1100
    fp16: bool | None = None  # XPU: whether the device reports it
    mig: bool = False
    hidden: str | None = None  # why this process can't see it

    @property
    def device(self) -> str:
        """Its name in settings: `cuda:0` (ROCm too, as torch calls it), `xpu:0`, `mps`, `dml`."""
        if self.kind in ("mps", "dml"):
            return self.kind
        return f"{'cuda' if self.kind == 'rocm' else self.kind}:{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """The installed torch, by its version file; `archs` only where a child was asked (None: not known)."""

    version: str
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None
    archs: tuple[str, ...] | None = None

    @property
    def kind(self) -> Literal["cuda", "rocm", "xpu", "cpu"]:
        """What it was built for."""
        if self.hip:
            return "rocm"
        if self.cuda:
            return "cuda"
        return "xpu" if self.xpu else "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the platform tells without any tool."""

    system: Literal["linux", "darwin", "windows"]
    arch: str = "x86_64"
    memory_mb: int | None = None
    wsl: bool = False
    container: bool = False
    gpu_nodes: tuple[str, ...] = ()  # /dev/nvidia0, /dev/kfd, /dev/dxg, /dev/dri/renderD128
    chip: str | None = None  # Apple
    directml: bool = False  # the package onnxruntime-directml is installed
    torch: TorchBuild | None = None  # None: no torch
    environment: Mapping[str, str] = field(default_factory=dict)  # variables named *_VISIBLE_DEVICES


def dotted(capability: Capability | None) -> str:
    """(8, 6) as 8.6; `unknown` for one that was not told."""
    return "unknown" if capability is None else f"{capability[0]}.{capability[1]}"
