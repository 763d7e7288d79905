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
from myna.engines.base import FileVoice, SharedModel

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
        """What is loaded, the least recently used first, then what voices hold together. Unknown bytes are None."""
        with self._lock:
            residents = list(self._loaded.values())
        together: dict[str, tuple[SharedModel, list[_Resident]]] = {}
        for resident in residents:
            for model in resident.voice.facts.shared:
                together.setdefault(model.id, (model, []))[1].append(resident)
        return [
            *(_row(each.id, each.voice.facts.model_bytes, [each]) for each in residents),
            *(_row(model.id, model.model_bytes, holders) for model, holders in together.values()),
        ]

    def unload(self, name: str | None) -> bool:
        """Close idle voices: of that id, or those that hold the shared model of that id, or all (None).

        Nothing is closed while a voice that it concerns is lent. Returns whether any was.
        """
        with self._lock:
            keys = [key for key, resident in self._loaded.items() if name is None or name in _names(resident)]
            if name is not None and any(self._loaded[key].leases for key in keys):
                return False
        return self._close([key for key in keys if self._loaded[key].leases == 0])

    def retire(self, idle_s: float) -> bool:
        """Close voices whose last use ended `idle_s` seconds ago or earlier; whether any was."""
        oldest = self._clock() - idle_s
        with self._lock:
            keys = [key for key, each in self._loaded.items() if each.leases == 0 and each.last_used <= oldest]
        return self._close(keys)

    def _close(self, keys: list[bytes]) -> bool:
        with self._lock:
            gone = [self._loaded.pop(key) for key in keys]
        for resident in gone:
            resident.voice.close()
        return bool(gone)


def _names(resident: _Resident) -> set[str]:
    return {resident.id, *(model.id for model in resident.voice.facts.shared)}


def _row(name: str, size: int | None, holders: list[_Resident]) -> ModelInfo:
    """One thing in memory: a voice, its only holder, or what several hold together."""
    facts = holders[0].voice.facts
    on_device = facts.device != "cpu"
    busy = "busy:job" if any(each.leases for each in holders) else None
    return ModelInfo(
        id=name,
        engine=holders[0].engine,
        worker="",
        device=facts.device,
        dtype=facts.precision,
        device_bytes=size if on_device else None,
        ram_bytes=None if on_device else size,
        loaded_at=min(each.loaded_at for each in holders),
        last_used=max(each.last_used for each in holders),
        busy=busy,
        unloadable=busy is None,
        why_not="busy:job: wait for the job, or cancel it" if busy else None,
    )


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
