"""Sound files as devices: `file:PATH` as input is heard once, as output appears whole at the end."""

import queue
import threading
from pathlib import Path

import numpy as np

from myna.daemon.audio.backend import AudioStream, DeviceError, StreamRequest
from myna.daemon.audio.clocked import ClockedStream
from myna.daemon.audio.null import DEFAULT_RATE_HZ, clocked_facts, period_frames
from myna.daemon.audio.null import NAME as NULL
from myna.daemon.audio.ring import make_core
from myna.daemon.media import MediaError, Reader, Writer, format_of, open_reader, writable_rate_hz
from myna.dsp.stage import Block

PREFIX = "file:"
READ_AHEAD = 8  # chunks
CHUNK_S = 0.25
WRITE_BEHIND_S = 30.0  # a disk that is stuck for longer ends the session; it must not eat the memory
REASONS = {"vanished": "not_found", "unreadable": "permission", "unwritable": "permission"}


def path_of(name: str | None) -> Path | None:
    """The path in `file:PATH`; None for any other name. DeviceError on an empty path."""
    if name is None or not name.startswith(PREFIX):
        return None
    if not name[len(PREFIX) :]:
        raise DeviceError("not_found", "file: needs a path, as in file:speech.wav.")
    return Path(name[len(PREFIX) :]).expanduser()


class FileBackend:
    """Files (or `null`) on both sides of one clock. `fast`: as fast as the reader asks, nothing ever dropped.

    The input's own rate is the stream's; `rate_hz` of the request counts only where the input is no file. Input is
    mixed to mono. Output is mono, in the format of its suffix (WAV: 24 bit), written on a thread of its own.
    """

    name = "file"

    def __init__(self, *, fast: bool = False) -> None:
        self._fast = fast

    def open(self, request: StreamRequest) -> AudioStream:
        """Open the files. DeviceError: not_found, permission, format or rate."""
        heard = path_of(request.input) if request.want_input else None
        played = path_of(request.output) if request.want_output else None
        for wanted, path, name in (
            (request.want_input, heard, request.input),
            (request.want_output, played, request.output),
        ):
            if wanted and path is None and name != NULL:
                raise DeviceError("not_found", f"{name!r} is no file: name it as file:PATH.")
        reader = _reading(heard) if heard is not None else None
        rate_hz = reader.rate_hz if reader is not None else request.rate_hz or DEFAULT_RATE_HZ
        try:
            keep = _writing(played, rate_hz) if played is not None else None
        except DeviceError:
            if reader is not None:
                reader.close()
            raise
        feed = FileFeed(reader) if reader is not None else None
        core = make_core(
            rate_hz,
            request.capacity_ms,
            in_channels=int(request.want_input),
            out_channels=int(request.want_output),
            paced=not self._fast,
        )
        facts = clocked_facts(request, rate_hz, self.name)
        period = period_frames(request, rate_hz)
        return ClockedStream(core, facts, period, rate_hz, feed, keep, self._fast)


def _device_error(error: MediaError) -> DeviceError:
    return DeviceError(REASONS.get(error.code, "format"), str(error), media_code=error.code, **error.facts)


def _reading(path: Path) -> Reader:
    try:
        return open_reader(path)
    except MediaError as error:
        raise _device_error(error) from error


def _writing(path: Path, rate_hz: int) -> "FileKeep":
    try:
        kind = format_of(path)
        if writable_rate_hz(kind, rate_hz) != rate_hz:
            raise DeviceError("rate", f"{kind} can't hold {rate_hz} Hz: write {path.stem}.wav instead.")
        return FileKeep(Writer(path, rate_hz, kind), rate_hz)
    except MediaError as error:
        raise _device_error(error) from error


class FileFeed:
    """Reads ahead on a thread of its own, so that the clock need not wait for a disk."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._ahead: queue.Queue[Block | MediaError] = queue.Queue(READ_AHEAD)
        self._rest: Block = np.zeros(0, np.float32)
        self._at_end = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name="file input", daemon=True)
        self._thread.start()

    def next(self, frames: int, stop: threading.Event) -> Block:
        """The next frames, fewer at the end of the file. MediaError if it can't be read."""
        parts, missing = [], frames
        while missing:
            if not len(self._rest) and not self._refill(stop):
                break
            parts.append(self._rest[:missing])
            self._rest = self._rest[missing:]
            missing -= len(parts[-1])
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()

    def _refill(self, stop: threading.Event) -> bool:
        while not (self._at_end or stop.is_set()):
            try:
                chunk = self._ahead.get(timeout=0.05)
            except queue.Empty:
                continue
            if isinstance(chunk, MediaError):
                raise chunk
            self._at_end = not len(chunk)
            self._rest = chunk
            return not self._at_end
        return False

    def _read(self) -> None:
        chunk = max(1, round(CHUNK_S * self._reader.rate_hz))
        try:
            while not self._stop.is_set():
                block = self._reader.read(chunk)
                self._offer(block)
                if not len(block):
                    return
        except MediaError as error:
            self._offer(error)
        finally:
            self._reader.close()

    def _offer(self, item: Block | MediaError) -> None:
        while not self._stop.is_set():
            try:
                self._ahead.put(item, timeout=0.05)
            except queue.Full:
                continue
            return


class FileKeep:
    """Writes behind on a thread of its own; the file appears whole at `finish`."""

    def __init__(self, writer: Writer, rate_hz: int) -> None:
        self._writer, self._rate = writer, rate_hz
        self._behind: queue.SimpleQueue[Block | None] = queue.SimpleQueue()
        self._put_frames = self._written_frames = 0
        self._problem: str | None = None
        self._finished = False
        self._thread = threading.Thread(target=self._write, name="file output")
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """Why it can't be written, None while it can."""
        return self._problem

    def put(self, block: Block, wait: bool) -> None:
        """Take a block. A disk that is too far behind is a problem, or is waited for."""
        self._put_frames += len(block)
        self._behind.put(block)
        limit = WRITE_BEHIND_S * self._rate
        while self._put_frames - self._written_frames > limit and self._problem is None:
            if not wait:
                self._problem = f"{self._writer.path.name}: the disk is {WRITE_BEHIND_S:.0f} s behind."
                return
            self._thread.join(0.01)

    def finish(self) -> None:
        """Return when the file is there whole, or there is a problem."""
        if not self._finished:
            self._finished = True
            self._behind.put(None)
        self._thread.join()

    def _write(self) -> None:
        try:
            with self._writer as writer:
                while (block := self._behind.get()) is not None:
                    writer.write(block)
                    self._written_frames += len(block)
                writer.commit()
        except MediaError as error:
            self._problem = str(error)
