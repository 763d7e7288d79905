"""What a job worker holds in memory: the one owner of its loaded voices."""

import ctypes
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

from myna.control.contract import ModelInfo
from myna.engines.base import FileVoice

VOICES_KEPT = 3


@dataclass(slots=True)
class _Resident:
    """One loaded voice."""

    id: str
    engine: str
    voice: FileVoice
    loaded_at: float
    last_used: float
    leases: int = field(default=0)


class ResidentVoices:
    """Loads voices on first use, keeps the most recent ones, lets go of them when asked.

    A voice that is lent is never closed: unloading it is refused with `busy:job`. The clock of idleness starts when
    the last lease ends. `lend` and `unload` come from the worker's main thread; `rows` from any.
    """

    def __init__(self, keep: int = VOICES_KEPT, clock: Callable[[], float] = time.time) -> None:
        self._keep, self._clock = keep, clock
        self._loaded: dict[bytes, _Resident] = {}  # the least recently used first
        self._lock = threading.Lock()

    @contextmanager
    def lend(
        self, key: bytes, name: str, engine: str, load: Callable[[], FileVoice], spared: tuple[type[Exception], ...]
    ) -> Iterator[FileVoice]:
        """The voice of `key`, loaded if it is not. An error inside lets go of it, unless it is one of `spared`."""
        with self._lock:
            resident = self._loaded.pop(key, None)
        if resident is None:
            self._make_room()
            now = self._clock()
            resident = _Resident(name, engine, load(), now, now)
        resident.leases += 1
        with self._lock:
            self._loaded[key] = resident
        broken = True
        try:
            yield resident.voice
            broken = False
        except spared:
            broken = False
            raise
        finally:
            resident.leases -= 1
            resident.last_used = self._clock()
            if broken:  # its state is not to be trusted any more
                with self._lock:
                    self._loaded.pop(key, None)
                resident.voice.close()

    def _make_room(self) -> None:
        while True:
            with self._lock:
                idle = [key for key, resident in self._loaded.items() if resident.leases == 0]
                if len(self._loaded) < self._keep or not idle:
                    return
                oldest = self._loaded.pop(idle[0])
            oldest.voice.close()

    def rows(self) -> list[ModelInfo]:
        """What is loaded, the least recently used first. Bytes that nobody counted are None."""
        with self._lock:
            residents = list(self._loaded.values())
        found = []
        for resident in residents:
            facts = resident.voice.facts
            on_device = facts.device != "cpu"
            busy = "busy:job" if resident.leases else None
            found.append(
                ModelInfo(
                    id=resident.id,
                    engine=resident.engine,
                    worker="",
                    device=facts.device,
                    dtype=facts.precision,
                    device_bytes=facts.model_bytes if on_device else None,
                    ram_bytes=None if on_device else facts.model_bytes,
                    loaded_at=resident.loaded_at,
                    last_used=resident.last_used,
                    busy=busy,
                    unloadable=busy is None,
                    why_not="busy:job: wait for the job, or cancel it" if busy else None,
                )
            )
        return found

    def unload(self, name: str | None) -> bool:
        """Close the idle voices of that id (None: all idle ones); whether any was closed."""
        with self._lock:
            keys = [
                key for key, resident in self._loaded.items() if resident.leases == 0 and name in (None, resident.id)
            ]
            gone = [self._loaded.pop(key) for key in keys]
        for resident in gone:
            resident.voice.close()
        return bool(gone)


def memory_figures() -> dict[str, int | None]:
    """This process's memory as measured, in bytes; None where there is nothing to ask."""
    figures: dict[str, int | None] = {
        "allocated": None,
        "reserved": None,
        "process": int(psutil.Process().memory_info().rss),
        "driver_free": None,
    }
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        figures["allocated"] = int(torch.cuda.memory_allocated())
        figures["reserved"] = int(torch.cuda.memory_reserved())
        figures["driver_free"] = int(torch.cuda.mem_get_info()[0])
    return figures


def let_go() -> None:
    """Collect, then give freed memory back: the device's allocator cache, then the C library's heap."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
        if trim is not None:
            trim(0)
