"""Sound files written whole or not at all."""

import errno
import io
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self, cast

import numpy as np

from myna.daemon.media.encoders import Encoder, SoundfileEncoder, SteadyOgg, WavEncoder
from myna.daemon.media.faults import Guarded, MediaError, fault, writing_error
from myna.daemon.media.formats import (
    CHUNK_FRAMES,
    FAILURES,
    TAG_NAMES,
    Block,
    Exists,
    Format,
    Subtype,
    clean_tag,
    writable_rate_hz,
)

PART_PREFIX = ".myna-"
PART_SUFFIX = ".part"


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
        raise fault("unwritable", output, "is a folder.")
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
    return fault("exists", path, text)


def sweep_parts(folder: Path, token: str | None = None) -> int:
    """Remove what killed writers left in a folder: one token's file, or all of them. Returns how many."""
    pattern = f"{PART_PREFIX}{token or '*'}{PART_SUFFIX}"
    removed = 0
    for part in folder.glob(pattern):
        part.unlink(missing_ok=True)
        removed += 1
    return removed


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
            raise fault("unsupported", self.path, f"as {format} can't hold {rate_hz} Hz.", rate_hz=rate_hz)
        if token is not None and not all(c.isalnum() or c in "-_" for c in token):
            raise ValueError(f"token {token!r}")
        if os.path.isdir(self.path):
            raise fault("unwritable", self.path, "is a folder.")
        if len(os.fsencode(self.path.name)) > 255:
            # Told now, not after an hour of work at the rename.
            raise writing_error(self.path, OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG)))
        self._part = self.path.with_name(f"{PART_PREFIX}{token or secrets.token_hex(8)}{PART_SUFFIX}")
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._part, flags, 0o666)
        except OSError as error:
            raise writing_error(self.path, error) from error
        self._raw: io.FileIO | None = io.FileIO(handle, "r+b")
        self._file = Guarded(cast(IO[bytes], self._raw))
        self._encoder: Encoder | None = None
        kept = {k: clean_tag(v) for k, v in (tags or {}).items() if k in TAG_NAMES and clean_tag(v)}
        try:
            self._encoder = self._make_encoder(rate_hz, subtype, kept)
            self._check()
        except BaseException:
            self.abort()
            raise

    def _make_encoder(self, rate_hz: int, subtype: Subtype, tags: Mapping[str, str]) -> Encoder:
        if self.format == "wav":
            return WavEncoder(self._file, rate_hz, subtype, tags)
        target = SteadyOgg(self._file) if self.format == "ogg" else self._file
        try:
            return SoundfileEncoder(target, rate_hz, self.format, tags)
        except FAILURES as error:
            self._check()
            raise fault("unsupported", self.path, f"can't be {self.format} at {rate_hz} Hz: {error}") from error

    def _check(self) -> None:
        if self._file.error is not None:
            raise writing_error(self.path, self._file.error)

    def write(self, block: Block) -> None:
        """Append mono frames, shape (frames,), frames >= 0. A MediaError leaves nothing behind."""
        if self._raw is None or self._encoder is None:
            raise ValueError("the writer is closed")
        encoder = self._encoder
        try:
            for start in range(0, len(block), CHUNK_FRAMES):
                self._write(encoder, block[start : start + CHUNK_FRAMES])
        except BaseException:
            self.abort()
            raise

    def _write(self, encoder: Encoder, block: Block) -> None:
        finite = np.isfinite(block)
        bad = int(block.size - np.count_nonzero(finite))
        if bad:
            self.nonfinite_samples += bad
            block = np.where(finite, block, np.float32(0))
        if not self._floating:
            self.clipped_samples += int(np.count_nonzero(np.abs(block) > 1.0))
        try:
            encoder.write(block)
        except FAILURES as error:
            self._check()
            raise fault("unwritable", self.path, f"can't be encoded: {error}") from error
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
            except FAILURES as error:
                self._check()
                raise fault("unwritable", self.path, f"can't be encoded: {error}") from error
            self._check()
            try:
                os.fsync(self._raw.fileno())
                self._raw.close()
                published = self._publish()
                _sync_folder(self.path.parent)
            except OSError as error:
                raise writing_error(self.path, error) from error
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
