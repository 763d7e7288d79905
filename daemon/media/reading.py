"""Sound files read as mono float32, block by block."""

import errno
import os
import stat
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO, Protocol, Self

import numpy as np
import soundfile
from numpy.typing import NDArray

from myna.daemon.media.faults import Guarded, MediaError, fault, reading_error
from myna.daemon.media.formats import (
    CHUNK_FRAMES,
    FAILURES,
    MAX_CHANNELS,
    MAX_RATE_HZ,
    MAX_SECONDS,
    MIN_RATE_HZ,
    TAG_NAMES,
    Block,
    clean_tag,
)

# Containers that are only ever sound or video in one file. Playlists (hls, concat, dash) stay out: they name
# other files and hosts, which a file given to us must not be able to open.
_CONTAINERS = (
    "aac,ac3,eac3,aiff,amr,ape,asf,au,avi,caf,dts,dsf,flac,flv,matroska,webm,mov,mp4,m4a,3gp,mp3,mpeg,mpegts,"
    "mpc,mpc8,ogg,rm,tak,tta,w64,wav,wv"
)
_MAGIC = (
    b"RIFF", b"RF64", b"RIFX", b"fLaC", b"OggS", b"ID3", b"\x1aE\xdf\xa3", b"FORM", b"caff", b"riff", b".snd",
    b"\xff\xfb", b"\xff\xf1", b"\xff\xf9", b"#!AMR", b"0&\xb2u", b"FLV",
)  # fmt: skip


class Reader(Protocol):
    """An open sound file, mono. Not thread-safe.

    Truncated and damaged files give what they hold: the loss is told in `problems` once it was met.
    """

    rate_hz: int
    frames: int | None  # exact, or None where only decoding tells
    duration_s: float | None  # as declared; may be off for compressed files
    channels: int  # of the file, before the mix
    tags: dict[str, str]  # of TAG_NAMES, those it has
    problems: list[str]  # what is wrong with the file, in words, as far as it was met
    nonfinite_samples: int  # NaN or infinity met so far, replaced by 0

    def read(self, frames: int) -> Block:
        """Up to `frames` more frames, shape (n,), n <= frames; n < frames only at the end. MediaError."""
        ...

    def skip(self, frames: int) -> int:
        """Move on without returning sound: exact, by decoding where a seek would not be. Returns frames."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def _open_regular(path: Path) -> BinaryIO:
    """Open a plain file. Non-blocking, because opening a pipe without a writer would wait for ever."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        if isinstance(error, ValueError):
            raise MediaError("vanished", "A file name can't hold a NUL character.", path=str(path)) from error
        if sys.platform == "win32" and path.is_dir():
            error = OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        raise reading_error(path, error) from error
    kind = os.fstat(handle)
    if not stat.S_ISREG(kind.st_mode):
        os.close(handle)
        raise fault("not_a_file", path, "is not a plain file.")
    if kind.st_size == 0:
        os.close(handle)
        raise fault("empty", path, "is empty (0 bytes).")
    return os.fdopen(handle, "rb", buffering=1 << 16)


def open_reader(path: str | os.PathLike[str]) -> Reader:
    """Open any sound file: libsndfile's formats first, then what FFmpeg's libraries decode.

    Raises:
        MediaError: see its codes; all that can be known without reading to the end is found here.
    """
    path = Path(path)
    raw = _open_regular(path)
    try:
        head = raw.read(64)
        raw.seek(0)
        first: MediaError | None = None
        if not (head[:4] == b"RIFF" and head[8:12] == b"AVI "):
            try:
                return SoundfileReader(path, raw)
            except MediaError as error:
                if error.code in ("empty", "unsupported", "unreadable", "vanished"):
                    raise
                first = error
            raw.seek(0)
        try:
            return AvReader(path, raw)
        except MediaError as error:
            if error.code != "not_audio":
                raise
            known = head.startswith(_MAGIC) or head[4:8] == b"ftyp"
            if known:
                raise fault("corrupt", path, "is damaged: nothing in it can be decoded.") from (first or error)
            raise
    except BaseException:
        raw.close()
        raise


def _check_sane(path: Path, rate_hz: float, channels: int, seconds: float | None) -> None:
    if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        text = f"claims {rate_hz:g} samples a second; {MIN_RATE_HZ} to {MAX_RATE_HZ} are taken."
        raise fault("unsupported", path, text, rate_hz=rate_hz)
    if not 1 <= channels <= MAX_CHANNELS:
        text = f"claims {channels} channels; 1 to {MAX_CHANNELS} are taken."
        raise fault("unsupported", path, text, channels=channels)
    if seconds is not None and seconds > MAX_SECONDS:
        text = f"claims to last {seconds / 3600:.0f} hours; up to a week is taken."
        raise fault("unsupported", path, text, seconds=seconds)


def _mono(samples: NDArray[Any], axis: int) -> Block:
    """The mean over channels, summed in float64 so that a channel order cannot change the result."""
    if samples.shape[axis] == 1:
        return np.ascontiguousarray(samples.take(0, axis=axis), dtype=np.float32)
    mixed: Block = samples.mean(axis=axis, dtype=np.float64).astype(np.float32)
    return mixed


def _missing_bytes(raw: IO[bytes]) -> int:
    """How many bytes of its declared sound a RIFF or RF64 file lacks; 0 for others, or with none declared."""
    size = raw.seek(0, os.SEEK_END)
    raw.seek(0)
    head = raw.read(12)
    missing, at, wide = 0, 12, 0
    if head[:4] in (b"RIFF", b"RF64") and head[8:] == b"WAVE":
        while at + 8 <= size:
            raw.seek(at)
            name, length = struct.unpack("<4sI", raw.read(8))
            if name == b"ds64":
                wide = struct.unpack("<Q", raw.read(16)[8:16])[0] if length >= 16 else 0
            if name == b"data":
                if length == 0xFFFFFFFF:
                    length = wide  # 0 without ds64: a streaming writer's "unknown"
                missing = max(0, at + 8 + length - size)
                break
            at += 8 + length + length % 2
    raw.seek(0)
    return missing


class _Base(ABC):
    """What both readers share: counting, finiteness, the context manager."""

    rate_hz: int
    frames: int | None
    duration_s: float | None
    channels: int

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tags: dict[str, str] = {}
        self.problems: list[str] = []
        self.nonfinite_samples = 0

    def _finite(self, samples: NDArray[Any]) -> NDArray[Any]:
        finite = np.isfinite(samples)
        if finite.all():
            return samples
        self.nonfinite_samples += int(finite.size - np.count_nonzero(finite))
        return np.where(finite, samples, samples.dtype.type(0))

    @abstractmethod
    def close(self) -> None:
        """Close the file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Straight(soundfile.SoundFile):  # type: ignore[misc]
    """A file read from front to back.

    soundfile seeks after every read of a file that says it can seek, and libsndfile's seeks in an MP3 land
    elsewhere: read in blocks, the sound would jump at each of them.
    """

    def seekable(self) -> bool:
        return False


class SoundfileReader(_Base):
    """WAV of any width, RF64, W64, AIFF, CAF, AU, FLAC, Ogg (Vorbis, Opus), MP3: through libsndfile."""

    def __init__(self, path: Path, raw: BinaryIO) -> None:
        super().__init__(path)
        missing = _missing_bytes(raw)
        self._raw = Guarded(raw)
        try:
            self._file = _Straight(self._raw)
        except (soundfile.SoundFileError, RuntimeError, ValueError, TypeError) as error:
            if self._raw.error is not None:
                raise reading_error(path, self._raw.error) from error
            raise fault("not_audio", path, "is not a sound file that is known here.") from error
        try:
            self._start(missing)
        except BaseException:
            self._file.close()
            raise

    def _start(self, missing: int) -> None:
        path = self.path
        # libsndfile says 2^63-1 where it cannot know.
        known = 0 <= self._file.frames < 1 << 62
        self.rate_hz = int(self._file.samplerate)
        self.channels = int(self._file.channels)
        self.frames = int(self._file.frames) if known else None
        self.duration_s = self.frames / self.rate_hz if self.frames is not None and self.rate_hz else None
        _check_sane(path, self.rate_hz, self.channels, self.duration_s)
        if self.frames == 0:
            code = "corrupt" if missing else "empty"
            raise fault(code, path, "holds no sound.")
        for name, value in self._file.copy_metadata().items():
            if name in TAG_NAMES and clean_tag(value):
                self.tags[name] = clean_tag(value)
        if missing:
            self.problems.append(f"truncated: {missing} bytes of sound are missing at its end")
        # A lossy decoder's state depends on what came before: only the others seek and give equal bytes.
        self._seeks = known and self._file.format not in ("OGG", "MP3", "MPEG")
        self._at = 0
        self._ended = False

    def read(self, frames: int) -> Block:
        """See Reader.read."""
        parts: list[Block] = []
        wanted = frames
        while wanted > 0 and not self._ended:
            ask = min(wanted, CHUNK_FRAMES)
            try:
                samples = self._file.read(ask, dtype="float32", always_2d=True)
            except FAILURES as error:
                samples = np.zeros((0, self.channels), np.float32)
                self._end(str(error))
            if self._raw.error is not None:
                raise reading_error(self.path, self._raw.error)
            if len(samples):
                parts.append(_mono(self._finite(samples), 1))
            self._at += len(samples)
            wanted -= len(samples)
            if len(samples) < ask:
                self._end(None)
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def _end(self, failure: str | None) -> None:
        if self._ended:
            return
        self._ended = True
        short = self.frames is not None and self._at < self.frames
        if failure is None and not short:
            return
        if self._at == 0:
            raise fault("corrupt", self.path, "is damaged: no frame can be decoded.")
        declared = "" if self.frames is None else f" of {self.frames} declared"
        self.problems.append(f"truncated or damaged: only {self._at} frames{declared} could be decoded")

    def skip(self, frames: int) -> int:
        """See Reader.skip."""
        if self._seeks and self.frames is not None:
            count = max(0, min(frames, self.frames - self._at))
            try:
                self._file.seek(self._at + count)
            except FAILURES:
                self._end("seek")
                return 0
            if self._raw.error is not None:
                raise reading_error(self.path, self._raw.error)
            self._at += count
            return count
        return _skip_by_reading(self, frames)

    def close(self) -> None:
        """See Reader.close."""
        self._file.close()
        self._raw.close()


def _skip_by_reading(reader: Reader, frames: int) -> int:
    done = 0
    while done < frames:
        got = len(reader.read(min(frames - done, CHUNK_FRAMES)))
        if got == 0:
            break
        done += got
    return done


class AvReader(_Base):
    """M4A, WebM, the sound track of a video and the rest: through FFmpeg's libraries."""

    def __init__(self, path: Path, raw: BinaryIO) -> None:
        import av

        super().__init__(path)
        self._av = av
        self._raw = Guarded(raw)
        self._damaged = 0
        self._left = np.zeros(0, np.float32)
        self._ended = False
        options = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "none"}
        try:
            self._container = av.open(self._raw, "r", options=options, metadata_errors="replace")
        except (av.error.FFmpegError, OSError, ValueError) as error:
            if self._raw.error is not None:
                raise reading_error(path, self._raw.error) from error
            raise fault("not_audio", path, "is not a sound file that is known here.") from error
        try:
            self._start()
        except BaseException:
            self._container.close()
            raise

    def _start(self) -> None:
        if not self._container.streams.audio:
            raise fault("no_audio", self.path, "has no sound track.")
        stream = self._container.streams.audio[0]
        self.duration_s = None
        if stream.duration is not None and stream.time_base is not None:
            self.duration_s = float(stream.duration * stream.time_base)
        elif self._container.duration is not None:
            self.duration_s = self._container.duration / 1e6
        self.frames = None
        for metadata in (self._container.metadata, stream.metadata):
            for key, value in metadata.items():
                key = {"track": "tracknumber", "year": "date"}.get(key.lower(), key.lower())
                if key in TAG_NAMES and clean_tag(value):
                    self.tags.setdefault(key, clean_tag(value))
        self._decoded = self._decode(stream)
        # The rate is only sure once a frame was decoded: HE-AAC declares half of it.
        self.rate_hz = 0
        self.channels = 0
        first = next(self._decoded, None)
        if first is None:
            if self._damaged:
                raise fault("corrupt", self.path, "is damaged: no frame can be decoded.")
            raise fault("empty", self.path, "holds no sound.")
        self._left = first
        _check_sane(self.path, self.rate_hz, self.channels, self.duration_s)

    def _decode(self, stream: Any) -> Iterator[Block]:
        packets = self._container.demux(stream)
        while True:
            try:
                packet = next(packets)
                frames = packet.decode()
            except StopIteration:
                return
            except self._av.error.EOFError:
                return
            except (self._av.error.FFmpegError, OSError) as error:
                if self._raw.error is not None:
                    raise reading_error(self.path, self._raw.error) from error
                self._damaged += 1
                if not isinstance(error, self._av.error.InvalidDataError):
                    return
                continue
            if self._raw.error is not None:
                raise reading_error(self.path, self._raw.error)
            for frame in frames:
                if frame.samples:
                    yield self._samples(frame)

    def _samples(self, frame: Any) -> Block:
        channels = len(frame.layout.channels)
        if not self.rate_hz:
            self.rate_hz, self.channels = int(frame.sample_rate), channels
            if channels > MAX_CHANNELS:
                _check_sane(self.path, self.rate_hz, channels, None)
        if frame.sample_rate != self.rate_hz:
            text = f"changes its sample rate from {self.rate_hz} to {frame.sample_rate} Hz midway."
            raise fault("unsupported", self.path, text)
        samples = frame.to_ndarray()
        if not frame.format.is_planar:
            samples = samples.reshape(-1, channels).T
        if samples.dtype.kind == "f":
            samples = self._finite(samples)
        else:
            bits = samples.dtype.itemsize * 8
            samples = samples.astype(np.float64)
            samples = (samples - 128.0) / 128.0 if bits == 8 else samples / float(1 << (bits - 1))
        return _mono(samples, 0)

    def read(self, frames: int) -> Block:
        """See Reader.read."""
        parts = [self._left]
        have = len(self._left)
        while have < frames and not self._ended:
            block = next(self._decoded, None)
            if block is None:
                self._ended = True
                if self._damaged:
                    self.problems.append(f"damaged: {self._damaged} stretches can't be decoded, left out")
                break
            parts.append(block)
            have += len(block)
        joined = np.concatenate(parts) if len(parts) > 1 else parts[0]
        self._left = joined[frames:].copy()
        return joined[:frames].copy()

    def skip(self, frames: int) -> int:
        """See Reader.skip."""
        return _skip_by_reading(self, frames)

    def close(self) -> None:
        """See Reader.close."""
        self._container.close()
        self._raw.close()
