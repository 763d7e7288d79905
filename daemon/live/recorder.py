"""Recording a session to a file without ever holding the block loop up."""

import os
import threading
from collections import deque
from pathlib import Path

import numpy as np
import soundfile

from myna.control.contract import RecordReply
from myna.dsp.stage import Block

QUEUE_BLOCKS = 512  # at 20 ms about ten seconds of a stalled disk


class Recorder:
    """Takes blocks from the loop, writes them from a thread of its own.

    `source` is `input`, `converted` or `both` (two channels: input left, converted right, aligned in time). A full
    queue drops the block and counts its frames: the file is shorter, the session goes on.
    """

    def __init__(self, path: Path, rate_hz: int, source: str) -> None:
        """Open the file (WAV, or FLAC by its suffix); OSError or soundfile's error if that can't be done."""
        self.path, self.source = path, source
        self._part = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
        self.rate_hz = rate_hz
        self.dropped_frames = 0
        self.frames = 0
        self.failed: Exception | None = None
        channels = 2 if source == "both" else 1
        self._file = soundfile.SoundFile(
            self._part,
            "w",
            rate_hz,
            channels,
            subtype="PCM_24",
            format="FLAC" if path.suffix.lower() == ".flac" else "WAV",
        )
        self._queue: deque[np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = deque()
        self._ready = threading.Semaphore(0)
        self._closing = False
        self._thread = threading.Thread(target=self._write, name="recorder", daemon=True)
        self._thread.start()

    def put(self, aligned_input: Block, converted: Block) -> None:
        """Take one block of each, shape (frames,). Called by the loop; never waits."""
        if len(self._queue) >= QUEUE_BLOCKS or self.failed is not None:
            self.dropped_frames += len(converted)
            return
        if self.source == "both":
            self._queue.append(np.stack([aligned_input, converted], axis=1))
        else:
            self._queue.append((aligned_input if self.source == "input" else converted).copy())
        self._ready.release()

    def close(self) -> RecordReply:
        """Write what is queued, finish the file (whole, under its own name), and tell."""
        self._closing = True
        self._ready.release()
        self._thread.join()
        self._file.close()
        if self.failed is not None:
            self._part.unlink(missing_ok=True)
            raise self.failed
        os.replace(self._part, self.path)
        return RecordReply(
            path=str(self.path), seconds=self.frames / self.rate_hz, dropped_frames=self.dropped_frames
        )

    def _write(self) -> None:
        while True:
            self._ready.acquire()
            while self._queue:
                block = self._queue.popleft()
                try:
                    self._file.write(block)
                except Exception as error:  # told at close; the session goes on
                    self.failed = error
                    self._queue.clear()
                    return
                self.frames += len(block)
            if self._closing:
                return
