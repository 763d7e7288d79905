"""Sound files: read as mono float32 block by block, written whole or not at all."""

import contextlib
import errno
import io
import os
import secrets
import stat
import struct
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO, Literal, Protocol, Self, cast

import numpy as np
import soundfile
from numpy.typing import NDArray

Block = NDArray[np.float32]
Exists = Literal["skip", "overwrite", "rename", "fail"]
Format = Literal["wav", "flac", "mp3", "ogg"]
Subtype = Literal["pcm16", "pcm24", "float"]

FORMATS: tuple[Format, ...] = ("wav", "flac", "mp3", "ogg")
SUFFIXES: dict[str, Format] = {
    ".wav": "wav", ".wave": "wav", ".rf64": "wav", ".flac": "flac", ".mp3": "mp3", ".ogg": "ogg",
    ".oga": "ogg",
}  # fmt: skip
READABLE_SUFFIXES = frozenset(SUFFIXES) | {
    ".aac", ".ac3", ".aif", ".aifc", ".aiff", ".amr", ".ape", ".au", ".avi", ".caf", ".flv", ".m4a", ".m4b",
    ".mka", ".mkv", ".mov", ".mp2", ".mp4", ".mpg", ".mpeg", ".opus", ".snd", ".ts", ".tta", ".w64", ".weba",
    ".webm", ".wma", ".wmv", ".wv", ".3gp",
}  # fmt: skip
"""Suffixes worth trying when a folder is searched; an explicitly named file is tried whatever its name."""

TAG_NAMES = ("title", "artist", "album", "date", "tracknumber", "genre", "comment", "copyright")
MIN_RATE_HZ = 1_000
MAX_RATE_HZ = 768_000
MAX_CHANNELS = 64
MAX_SECONDS = 7 * 86_400.0
MP3_RATES_HZ = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
PART_PREFIX = ".myna-"
PART_SUFFIX = ".part"

_CHUNK_FRAMES = 16_384  # also keeps libsndfile's vorbis encoder away from its stack limit
_MAX_TAG_CHARACTERS = 4096
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


# A short write is an `assert` inside soundfile.
_FAILURES = (soundfile.SoundFileError, RuntimeError, AssertionError)


class MediaError(Exception):
    """A sound file could not be read or written, for the reason in `code`.

    reading   empty         no bytes, or no sound in them
              not_audio     something else than sound
              no_audio      a video without a sound track
              corrupt       damaged before its first frame
              unsupported   sound, but with a rate, channel count or length outside what is sane
              not_a_file    a folder, pipe, socket or device
              vanished      not there, or gone while it was read
              unreadable    no permission, or the disk fails
    writing   exists        the target is there, and the policy is to fail
              disk_full     no room, over quota, or over what the file system can hold
              unwritable    no permission, a read-only disk, a folder in the way
              unsupported   the format cannot hold this rate

    `facts` holds what a program needs; a message names the file and the cure.
    """

    def __init__(self, code: str, message: str, **facts: object) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.facts: dict[str, object] = facts


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


def name_for_humans(path: Path) -> str:
    """The file's name as it can be printed: undecodable bytes and line breaks are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in path.name)


def _fault(code: str, path: Path, text: str, **facts: object) -> MediaError:
    return MediaError(code, f"{name_for_humans(path)} {text}", path=str(path), **facts)


class _Guarded(io.RawIOBase):
    """A file under a C library: an OSError is kept for us to raise instead of being lost in a callback."""

    def __init__(self, raw: IO[bytes]) -> None:
        super().__init__()
        self._raw = raw
        self.error: OSError | None = None

    def readable(self) -> bool:
        return self._raw.readable()

    def writable(self) -> bool:
        return self._raw.writable()

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return cast(io.BufferedReader, self._raw).readinto(buffer)
        except OSError as error:
            self.error = self.error or error
            return 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view) and self.error is None:
            try:
                done += self._raw.write(view[done:])
            except OSError as error:
                self.error = error
        return done

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        try:
            return self._raw.seek(offset, whence)
        except OSError as error:
            self.error = self.error or error
            return 0

    def tell(self) -> int:
        return self._raw.tell()

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


def _reading_error(path: Path, error: OSError) -> MediaError:
    number = error.errno
    if number in (errno.ENOENT, errno.ESTALE, errno.ENOTDIR):
        return _fault("vanished", path, "is not there (any more). Check the path.", errno=number)
    if number in (errno.EISDIR, errno.ENXIO, errno.ELOOP):
        return _fault("not_a_file", path, "is not a plain file.", errno=number)
    if number in (errno.EACCES, errno.EPERM):
        return _fault("unreadable", path, "may not be read by this user. Change its permissions.", errno=number)
    return _fault("unreadable", path, f"could not be read: {error.strerror}.", errno=number)


def _writing_error(path: Path, error: OSError) -> MediaError:
    number = error.errno
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        text = f"does not fit on the disk: {error.strerror}. Free some space and retry."
        return _fault("disk_full", path, text, errno=number)
    return _fault("unwritable", path, f"can't be written: {error.strerror}.", errno=number)


def _open_regular(path: Path) -> BinaryIO:
    """Open a plain file. Non-blocking, because opening a pipe without a writer would wait for ever."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        if isinstance(error, ValueError):
            raise MediaError("vanished", "A file name can't hold a NUL character.", path=str(path)) from error
        if sys.platform == "win32" and path.is_dir():
            error = OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        raise _reading_error(path, error) from error
    kind = os.fstat(handle)
    if not stat.S_ISREG(kind.st_mode):
        os.close(handle)
        raise _fault("not_a_file", path, "is not a plain file.")
    if kind.st_size == 0:
        os.close(handle)
        raise _fault("empty", path, "is empty (0 bytes).")
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
                return _SoundfileReader(path, raw)
            except MediaError as error:
                if error.code in ("empty", "unsupported", "unreadable", "vanished"):
                    raise
                first = error
            raw.seek(0)
        try:
            return _AvReader(path, raw)
        except MediaError as error:
            if error.code != "not_audio":
                raise
            known = head.startswith(_MAGIC) or head[4:8] == b"ftyp"
            if known:
                raise _fault("corrupt", path, "is damaged: nothing in it can be decoded.") from (first or error)
            raise
    except BaseException:
        raw.close()
        raise


def _check_sane(path: Path, rate_hz: float, channels: int, seconds: float | None) -> None:
    if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        text = f"claims {rate_hz:g} samples a second; {MIN_RATE_HZ} to {MAX_RATE_HZ} are taken."
        raise _fault("unsupported", path, text, rate_hz=rate_hz)
    if not 1 <= channels <= MAX_CHANNELS:
        text = f"claims {channels} channels; 1 to {MAX_CHANNELS} are taken."
        raise _fault("unsupported", path, text, channels=channels)
    if seconds is not None and seconds > MAX_SECONDS:
        text = f"claims to last {seconds / 3600:.0f} hours; up to a week is taken."
        raise _fault("unsupported", path, text, seconds=seconds)


def _clean_tag(value: object) -> str:
    text = str(value).replace("\0", "").encode("utf-8", "replace").decode("utf-8")
    return text.strip()[:_MAX_TAG_CHARACTERS]


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


class _Base:
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

    def close(self) -> None:
        raise NotImplementedError

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


class _SoundfileReader(_Base):
    """WAV of any width, RF64, W64, AIFF, CAF, AU, FLAC, Ogg (Vorbis, Opus), MP3: through libsndfile."""

    def __init__(self, path: Path, raw: BinaryIO) -> None:
        super().__init__(path)
        missing = _missing_bytes(raw)
        self._raw = _Guarded(raw)
        try:
            self._file = _Straight(self._raw)
        except (soundfile.SoundFileError, RuntimeError, ValueError, TypeError) as error:
            if self._raw.error is not None:
                raise _reading_error(path, self._raw.error) from error
            raise _fault("not_audio", path, "is not a sound file that is known here.") from error
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
            raise _fault(code, path, "holds no sound.")
        for name, value in self._file.copy_metadata().items():
            if name in TAG_NAMES and _clean_tag(value):
                self.tags[name] = _clean_tag(value)
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
            ask = min(wanted, _CHUNK_FRAMES)
            try:
                samples = self._file.read(ask, dtype="float32", always_2d=True)
            except _FAILURES as error:
                samples = np.zeros((0, self.channels), np.float32)
                self._end(str(error))
            if self._raw.error is not None:
                raise _reading_error(self.path, self._raw.error)
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
            raise _fault("corrupt", self.path, "is damaged: no frame can be decoded.")
        declared = "" if self.frames is None else f" of {self.frames} declared"
        self.problems.append(f"truncated or damaged: only {self._at} frames{declared} could be decoded")

    def skip(self, frames: int) -> int:
        """See Reader.skip."""
        if self._seeks and self.frames is not None:
            count = max(0, min(frames, self.frames - self._at))
            try:
                self._file.seek(self._at + count)
            except _FAILURES:
                self._end("seek")
                return 0
            if self._raw.error is not None:
                raise _reading_error(self.path, self._raw.error)
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
        got = len(reader.read(min(frames - done, _CHUNK_FRAMES)))
        if got == 0:
            break
        done += got
    return done


class _AvReader(_Base):
    """M4A, WebM, the sound track of a video and the rest: through FFmpeg's libraries."""

    def __init__(self, path: Path, raw: BinaryIO) -> None:
        import av

        super().__init__(path)
        self._av = av
        self._raw = _Guarded(raw)
        self._damaged = 0
        self._left = np.zeros(0, np.float32)
        self._ended = False
        options = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "none"}
        try:
            self._container = av.open(self._raw, "r", options=options, metadata_errors="replace")
        except (av.error.FFmpegError, OSError, ValueError) as error:
            if self._raw.error is not None:
                raise _reading_error(path, self._raw.error) from error
            raise _fault("not_audio", path, "is not a sound file that is known here.") from error
        try:
            self._start()
        except BaseException:
            self._container.close()
            raise

    def _start(self) -> None:
        if not self._container.streams.audio:
            raise _fault("no_audio", self.path, "has no sound track.")
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
                if key in TAG_NAMES and _clean_tag(value):
                    self.tags.setdefault(key, _clean_tag(value))
        self._decoded = self._decode(stream)
        # The rate is only sure once a frame was decoded: HE-AAC declares half of it.
        self.rate_hz = 0
        self.channels = 0
        first = next(self._decoded, None)
        if first is None:
            if self._damaged:
                raise _fault("corrupt", self.path, "is damaged: no frame can be decoded.")
            raise _fault("empty", self.path, "holds no sound.")
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
                    raise _reading_error(self.path, self._raw.error) from error
                self._damaged += 1
                if not isinstance(error, self._av.error.InvalidDataError):
                    return
                continue
            if self._raw.error is not None:
                raise _reading_error(self.path, self._raw.error)
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
            raise _fault("unsupported", self.path, text)
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


# --- writing --------------------------------------------------------------------------------------------


def format_of(path: Path, asked: Literal["auto", "wav", "flac", "mp3", "ogg"] = "auto") -> Format:
    """The format to write: as asked, else by the suffix, else WAV."""
    if asked != "auto":
        return asked
    return SUFFIXES.get(path.suffix.lower(), "wav")


def writable_rate_hz(format: Format, rate_hz: int) -> int:  # noqa: A002
    """The rate closest from above (else the highest) that the format holds; the caller resamples to it."""
    if format == "mp3":
        return next((rate for rate in MP3_RATES_HZ if rate >= rate_hz), MP3_RATES_HZ[-1])
    ceiling = {"wav": MAX_RATE_HZ, "flac": 655_350, "ogg": 192_000}[format]
    return max(MIN_RATE_HZ, min(rate_hz, ceiling))


def _numbered(path: Path, number: int) -> Path:
    """`voice.wav` → `voice (2).wav`, the stem shortened where the name would pass 255 bytes."""
    tail = f" ({number}){path.suffix}"
    stem = path.stem
    while stem and len(os.fsencode(stem + tail)) > 255:
        stem = stem[:-1]
    return path.with_name(stem + tail)


def target_path(output: Path, exists: Exists) -> Path | None:
    """Where output will go under a policy, as things stand now; None: leave it out, it is there already.

    A plan only: `Writer.commit` applies the same policy atomically.

    Raises:
        MediaError: `exists` under the policy `fail`; `unwritable` where a folder is in the way.
    """
    if os.path.isdir(output):
        raise _fault("unwritable", output, "is a folder.")
    if exists == "overwrite" or not os.path.lexists(output):
        return output
    if exists == "skip":
        return None
    if exists == "fail":
        raise _exists_error(output)
    number = 2
    while os.path.lexists(_numbered(output, number)):
        number += 1
    return _numbered(output, number)


def _exists_error(path: Path) -> MediaError:
    text = "is there already. Choose another name, or the policy overwrite, rename or skip."
    return _fault("exists", path, text)


def sweep_parts(folder: Path, token: str | None = None) -> int:
    """Remove what killed writers left in a folder: one token's file, or all of them. Returns how many."""
    pattern = f"{PART_PREFIX}{token or '*'}{PART_SUFFIX}"
    removed = 0
    for part in folder.glob(pattern):
        part.unlink(missing_ok=True)
        removed += 1
    return removed


class _Encoder(Protocol):
    def write(self, block: Block) -> None: ...

    def finish(self) -> None: ...

    def discard(self) -> None: ...


class _WavEncoder:
    """WAV by hand: libsndfile stamps float files with the time of day, and equal jobs must give equal bytes.

    Room for a `ds64` chunk is kept at the front, so that a file which outgrows 32-bit sizes becomes RF64
    (EBU Tech 3306) in place.
    """

    def __init__(
        self,
        file: _Guarded,
        rate_hz: int,
        subtype: Subtype,
        tags: Mapping[str, str],
        limit_bytes: int = 0xFFFFFFFF,
    ) -> None:
        self._file = file
        self._subtype = subtype
        self._limit = limit_bytes
        self._width = {"pcm16": 2, "pcm24": 3, "float": 4}[subtype]
        self._frames = 0
        floating = subtype == "float"
        shape = struct.pack(
            "<HHIIHH", 3 if floating else 1, 1, rate_hz, rate_hz * self._width, self._width, self._width * 8
        )
        head = b"RIFF\0\0\0\0WAVE" + _chunk(b"JUNK", bytes(28)) + _chunk(b"fmt ", shape)
        self._fact_at = len(head) + 8
        if floating:
            head += _chunk(b"fact", bytes(4))
        head += _info(tags)
        head += b"data\0\0\0\0"
        self._data_at = len(head)
        file.write(head)

    def write(self, block: Block) -> None:
        if self._subtype == "float":
            data = block.astype("<f4").tobytes()
        elif self._subtype == "pcm16":
            data = _integers(block, 16).astype("<i2").tobytes()
        else:
            wide = _integers(block, 24).astype("<i4").view(np.uint8).reshape(-1, 4)
            data = wide[:, :3].tobytes()
        self._file.write(data)
        self._frames += len(block)

    def finish(self) -> None:
        size = self._frames * self._width
        if size % 2:
            self._file.write(b"\0")
        total = self._data_at + size + size % 2
        big = total - 8 > self._limit
        self._file.seek(0)
        self._file.write(struct.pack("<4sI", b"RF64" if big else b"RIFF", 0xFFFFFFFF if big else total - 8))
        if big:
            self._file.seek(12)
            self._file.write(struct.pack("<4sIQQQI", b"ds64", 28, total - 8, size, self._frames, 0))
        if self._subtype == "float":
            self._file.seek(self._fact_at)
            self._file.write(struct.pack("<I", min(self._frames, 0xFFFFFFFF)))
        self._file.seek(self._data_at - 4)
        self._file.write(struct.pack("<I", 0xFFFFFFFF if big else size))
        self._file.seek(0, os.SEEK_END)

    def discard(self) -> None:
        """Nothing is held back here."""


def _chunk(name: bytes, body: bytes) -> bytes:
    return name + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def _info(tags: Mapping[str, str]) -> bytes:
    names = {"title": b"INAM", "artist": b"IART", "album": b"IPRD", "date": b"ICRD", "tracknumber": b"ITRK",
             "genre": b"IGNR", "comment": b"ICMT", "copyright": b"ICOP"}  # fmt: skip
    body = b"".join(_chunk(names[k], v.encode() + b"\0") for k, v in tags.items())
    return _chunk(b"LIST", b"INFO" + body) if body else b""


def _integers(block: Block, bits: int) -> NDArray[np.int32]:
    """Samples in -1..1 as whole numbers of `bits` bits: rounded, and held at the ends instead of wrapping."""
    top = float(1 << (bits - 1))
    return np.clip(np.rint(block.astype(np.float64) * top), -top, top - 1).astype(np.int32)


class _SoundfileEncoder:
    """FLAC (24 bit), MP3 and Ogg Vorbis through libsndfile."""

    def __init__(self, file: Any, rate_hz: int, format: Format, tags: Mapping[str, str]) -> None:  # noqa: A002
        kind, subtype, level, mode = {
            "flac": ("FLAC", "PCM_24", None, None),
            "mp3": ("MP3", "MPEG_LAYER_III", 0.1, "VARIABLE"),
            "ogg": ("OGG", "VORBIS", 0.3, None),
        }[format]
        self._whole_numbers = format == "flac"
        self._file = soundfile.SoundFile(
            file, "w", rate_hz, 1, subtype, format=kind, compression_level=level, bitrate_mode=mode
        )
        for name, value in tags.items():
            setattr(self._file, name, value)

    def write(self, block: Block) -> None:
        if self._whole_numbers:
            self._file.write(_integers(block, 24) << 8)
        else:
            self._file.write(np.clip(block, -1.0, 1.0))

    def finish(self) -> None:
        self._file.close()

    def discard(self) -> None:
        # It writes its last pages even so: into a file that is removed next, or that failed already.
        with contextlib.suppress(*_FAILURES):
            self._file.close()


_REVERSED_BITS = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def _ogg_checksum(page: bytes) -> int:
    """CRC-32 as Ogg has it (polynomial 04c11db7, not reflected, from 0), by way of zlib's reflected one."""
    raw = zlib.crc32(page.translate(_REVERSED_BITS), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{raw:032b}"[::-1], 2)


class _SteadyOgg(io.RawIOBase):
    """Gives every Ogg page one serial: libsndfile draws it at random, and equal jobs must give equal bytes.

    A page is 27 bytes with the serial at 14 and the checksum at 22, a table of segment lengths (its length at
    26), and the segments (RFC 3533). libsndfile writes pages in order and never goes back.
    """

    SERIAL = 0x4D796E61

    def __init__(self, file: _Guarded) -> None:
        super().__init__()
        self._file = file
        self._held = bytearray()
        self._taken = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return 0

    def write(self, data: Any) -> int:
        self._held += data
        self._taken += len(data)
        while len(self._held) >= 27:
            segments = self._held[26]
            length = 27 + segments
            if len(self._held) < length:
                break
            length += sum(self._held[27:length])
            if len(self._held) < length:
                break
            page = self._held[:length]
            del self._held[:length]
            page[14:18] = struct.pack("<I", self.SERIAL)
            page[22:26] = bytes(4)
            page[22:26] = struct.pack("<I", _ogg_checksum(bytes(page)))
            if self._file.write(page) < length:
                return 0
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return self._taken

    def tell(self) -> int:
        return self._taken


class Writer:
    """Writes one mono sound file that appears whole, under its name, at `commit()`, or not at all.

    Until then it is a hidden file in the same folder (`.myna-TOKEN.part`). Leaving the context without a
    commit, or an error, removes it. Equal sound gives equal bytes. NaN and infinity are written as 0; beyond
    ±1 is held at the ends, but in float WAV, which keeps it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        rate_hz: int,
        format: Format,  # noqa: A002
        tags: Mapping[str, str] | None = None,
        *,
        subtype: Subtype = "pcm24",
        exists: Exists = "overwrite",
        token: str | None = None,
    ) -> None:
        """Begin the file.

        Args:
            path: Where it shall appear; missing folders are made.
            rate_hz: See `writable_rate_hz`.
            format: wav, flac, mp3 or ogg, whatever the suffix says.
            tags: Of TAG_NAMES; others are left out.
            subtype: Of WAV only.
            exists: What `commit` does if the name is taken.
            token: Part of the hidden name, so that a second attempt takes the place of a killed first one;
                None: random. Letters, digits, `-` and `_`.

        Raises:
            MediaError: `unwritable`, `disk_full`, `unsupported`.
        """
        self.path = Path(path)
        self.format: Format = format
        self.frames = 0
        self.clipped_samples = 0
        self.nonfinite_samples = 0
        self._exists: Exists = exists
        self._floating = format == "wav" and subtype == "float"
        if writable_rate_hz(format, rate_hz) != rate_hz:
            raise _fault("unsupported", self.path, f"as {format} can't hold {rate_hz} Hz.", rate_hz=rate_hz)
        if token is not None and not all(c.isalnum() or c in "-_" for c in token):
            raise ValueError(f"token {token!r}")
        if os.path.isdir(self.path):
            raise _fault("unwritable", self.path, "is a folder.")
        if len(os.fsencode(self.path.name)) > 255:
            # Told now, not after an hour of work at the rename.
            raise _writing_error(self.path, OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG)))
        self._part = self.path.with_name(f"{PART_PREFIX}{token or secrets.token_hex(8)}{PART_SUFFIX}")
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._part, flags, 0o666)
        except OSError as error:
            raise _writing_error(self.path, error) from error
        self._raw: io.FileIO | None = io.FileIO(handle, "r+b")
        self._file = _Guarded(cast(IO[bytes], self._raw))
        self._encoder: _Encoder | None = None
        kept = {k: _clean_tag(v) for k, v in (tags or {}).items() if k in TAG_NAMES and _clean_tag(v)}
        try:
            self._encoder = self._make_encoder(rate_hz, subtype, kept)
            self._check()
        except BaseException:
            self.abort()
            raise

    def _make_encoder(self, rate_hz: int, subtype: Subtype, tags: Mapping[str, str]) -> _Encoder:
        if self.format == "wav":
            return _WavEncoder(self._file, rate_hz, subtype, tags)
        target = _SteadyOgg(self._file) if self.format == "ogg" else self._file
        try:
            return _SoundfileEncoder(target, rate_hz, self.format, tags)
        except _FAILURES as error:
            self._check()
            raise _fault("unsupported", self.path, f"can't be {self.format} at {rate_hz} Hz: {error}") from error

    def _check(self) -> None:
        if self._file.error is not None:
            raise _writing_error(self.path, self._file.error)

    def write(self, block: Block) -> None:
        """Append mono frames, shape (frames,), frames >= 0. A MediaError leaves nothing behind."""
        if self._raw is None or self._encoder is None:
            raise ValueError("the writer is closed")
        encoder = self._encoder
        try:
            for start in range(0, len(block), _CHUNK_FRAMES):
                self._write(encoder, block[start : start + _CHUNK_FRAMES])
        except BaseException:
            self.abort()
            raise

    def _write(self, encoder: _Encoder, block: Block) -> None:
        finite = np.isfinite(block)
        bad = int(block.size - np.count_nonzero(finite))
        if bad:
            self.nonfinite_samples += bad
            block = np.where(finite, block, np.float32(0))
        if not self._floating:
            self.clipped_samples += int(np.count_nonzero(np.abs(block) > 1.0))
        try:
            encoder.write(block)
        except _FAILURES as error:
            self._check()
            raise _fault("unwritable", self.path, f"can't be encoded: {error}") from error
        self._check()
        self.frames += len(block)

    def commit(self) -> Path | None:
        """Finish, sync, and let the file appear.

        Returns:
            The path it has; None if the policy is `skip` and another file came first.

        Raises:
            MediaError: nothing is left behind. `exists` under the policy `fail`.
        """
        if self._raw is None or self._encoder is None:
            raise ValueError("the writer is closed")
        try:
            try:
                self._encoder.finish()
            except _FAILURES as error:
                self._check()
                raise _fault("unwritable", self.path, f"can't be encoded: {error}") from error
            self._check()
            try:
                os.fsync(self._raw.fileno())
                self._raw.close()
                published = self._publish()
                _sync_folder(self.path.parent)
            except OSError as error:
                raise _writing_error(self.path, error) from error
        finally:
            self.abort()
        return published

    def _publish(self) -> Path | None:
        if self._exists == "overwrite":
            os.replace(self._part, self.path)
            return self.path
        candidate, number = self.path, 1
        while True:
            try:
                _rename_to_free(self._part, candidate)
                return candidate
            except FileExistsError as error:
                if self._exists == "skip":
                    return None
                if self._exists == "fail":
                    raise _exists_error(candidate) from error
                number += 1
                candidate = _numbered(self.path, number)

    def abort(self) -> None:
        """Remove what was written. Harmless when committed or aborted already."""
        if self._raw is None:
            return
        raw, self._raw = self._raw, None
        if self._encoder is not None and not raw.closed:
            self._encoder.discard()
        try:
            raw.close()
            self._part.unlink(missing_ok=True)
        except OSError as error:
            # The disk is failing, and the error that brought us here says so; the part is swept later.
            self._file.error = self._file.error or error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


def _rename_to_free(part: Path, target: Path) -> None:
    """Rename without ever taking another file's place. FileExistsError if the name is taken."""
    if sys.platform == "win32":
        os.rename(part, target)  # refuses an existing target there
        return
    try:
        os.link(part, target, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        # A file system without hard links (FAT, some network shares): a gap of microseconds is the best here.
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        os.replace(part, target)
    else:
        part.unlink()


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot sync a folder
            raise
    finally:
        os.close(handle)
