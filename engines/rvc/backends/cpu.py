"""What this processor can, and memory given back to its system."""

import contextlib
import ctypes
import gc
import os
from pathlib import Path
from typing import Final

# What oneDNN may be held to and still multiply bf16, in tiles and at all; empty: to nothing.
_TILED: Final = {"", "AVX512_CORE_AMX", "AVX512_CORE_AMX_FP16", "AVX10_1_512_AMX", "AVX10_1_512_AMX_FP16"}
_BF16: Final = _TILED | {"AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX10_1_512"}


def has_vnni() -> bool:
    """Whether this CPU sums int8 products without overflow; without it weights keep 7 bits."""
    flags = _flags()
    return "avx512_vnni" in flags or "avx_vnni" in flags or "asimddp" in flags


def has_amx() -> bool:
    """Whether this CPU has tiles that multiply bf16; False where the system doesn't tell."""
    return _held_to() in _TILED and "amx_bf16" in _flags()


def has_bf16() -> bool:
    """Whether this CPU multiplies bf16 by itself, in tiles or in vectors (Zen 4 and later, Cooper Lake)."""
    return has_amx() or (_held_to() in _BF16 and "avx512_bf16" in _flags())


def _held_to() -> str:
    """The instructions that oneDNN is held to by its variable; empty: all."""
    held = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    return "" if held in ("ALL", "DEFAULT") else held


def _flags() -> str:
    """The instructions that the system tells of; none where it doesn't."""
    try:
        return Path("/proc/cpuinfo").read_text("ascii", "replace")
    except OSError:
        return ""


def give_memory_back() -> None:
    """Return what loading and checking left behind to the system; never called in the audio path."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
