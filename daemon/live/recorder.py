"""Recording a session to a file without ever holding the block loop up."""

import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from myna.control.contract import RecordReply
from myna.dsp.stage import Block

QUEUE_BLOCKS = 512  # at 20 ms about ten seconds of a stalled disk

OpenFile = Callable[..., Any]
"""As soundfile.SoundFile: (path, mode, rate_hz, channels, subtype=, format=) to something with write and close."""


class Recorder:
    """Takes blocks from the loop, writes them from a thread of its own.

    `source` is `input`, `converted` or `both` (two channels: input left, converted right, aligned in time). A full
    queue drops the block and counts its frames: the file is shorter, the session goes on.
    """

    def __init__(self, path: Path, rate_hz: int, source: str, open_file: OpenFile = soundfile.SoundFile) -> None:
        """Open the file (WAV, or FLAC by its suffix); OSError or soundfile's error if that can't be done."""
        self.path, self.source = path, source
        self._part = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
        self.rate_hz = rate_hz
        self.dropped_frames = 0
        self.frames = 0
        self.failed: Exception | None = None
        self._file = open_file(
            self._part,
            "w",
            rate_hz,
            2 if source == "both" else 1,
            subtype="PCM_24",
            format="FLAC" if path.suffix.lower() == ".flac" else "WAV",
        )
        self._queue: deque[NDArray[np.float32]] = deque()
        self._ready = threading.Semaphore(0)
        self._finished: Callable[[RecordReply | Exception], None] | None = None
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def put(self, aligned_input: Block, converted: Block) -> None:
        """Take one block of each, shape (frames,). Called by the loop; never waits."""
        if len(self._queue) >= QUEUE_BLOCKS or self.failed is not None or self._finished is not None:
            self.dropped_frames += len(converted)
            return
        if self.source == "both":
            self._queue.append(np.stack([aligned_input, converted], axis=1))
        else:
            self._queue.append((aligned_input if self.source == "input" else converted).copy())
        self._ready.release()

    def finish(self, finished: Callable[[RecordReply | Exception], None]) -> None:
        """Write what is queued, and the file is there whole, under its own name. `finished` hears it from the
        recorder's thread: a slow disk holds nobody else up."""
        self._finished = finished
        self._ready.release()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of `finish`."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        self._write()
        finished = self._finished
        try:
            self._file.close()
            if self.failed is None:
                os.replace(self._part, self.path)
        except Exception as error:  # told to who asked: a disk must not end the session
            self.failed = error
        if self.failed is not None:
            self._part.unlink(missing_ok=True)
        if finished is not None:
            finished(self.failed or self._reply())

    def _reply(self) -> RecordReply:
        return RecordReply(path=str(self.path), seconds=self.frames / self.rate_hz, dropped_frames=self.dropped_frames)

    def _write(self) -> None:
        """Until `finish` was called and all is written."""
        while True:
            self._ready.acquire()
            while self._queue:
                block = self._queue.popleft()
                if self.failed is not None:
                    continue
                try:
                    self._file.write(block)
                except Exception as error:  # told at the end; the session goes on
                    self.failed = error
                else:
                    self.frames += len(block)
            if self._finished is not None:
                return
