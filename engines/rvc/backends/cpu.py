"""What this processor can, and memory given back to its system."""

import contextlib
import ctypes
import gc
import os
from pathlib import Path


def has_vnni() -> bool:
    """Whether this CPU sums int8 products without overflow; without it weights keep 7 bits."""
    try:
        flags = Path("/proc/cpuinfo").read_text("ascii", "replace")
    except OSError:
        return False
    return "avx512_vnni" in flags or "avx_vnni" in flags or "asimddp" in flags


def has_amx() -> bool:
    """Whether this CPU has tiles that multiply bf16; False where the system doesn't tell."""
    if os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in ("AVX2", "AVX2_VNNI", "SSE41", "AVX", "AVX512_CORE"):
        return False
    try:
        return "amx_bf16" in Path("/proc/cpuinfo").read_text("ascii", "replace")
    except OSError:
        return False


def give_memory_back() -> None:
    """Return what loading and checking left behind to the system; never called in the audio path."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
