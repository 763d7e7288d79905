"""Encoders that give equal bytes for equal sound."""

import contextlib
import io
import os
import struct
import zlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import soundfile
from numpy.typing import NDArray

from myna.daemon.media.faults import Guarded
from myna.daemon.media.formats import FAILURES, Block, Format, Subtype


class Encoder(Protocol):
    """Writes frames into an open file; nothing counts before `finish`."""

    def write(self, block: Block) -> None: ...

    def finish(self) -> None: ...

    def discard(self) -> None: ...


class WavEncoder:
    """WAV by hand: libsndfile stamps float files with the time of day, and equal jobs must give equal bytes.

    Room for a `ds64` chunk is kept at the front, so that a file which outgrows 32-bit sizes becomes RF64
    (EBU Tech 3306) in place.
    """

    def __init__(
        self,
        file: Guarded,
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


class SoundfileEncoder:
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
        with contextlib.suppress(*FAILURES):
            self._file.close()


_REVERSED_BITS = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def _ogg_checksum(page: bytes) -> int:
    """CRC-32 as Ogg has it (polynomial 04c11db7, not reflected, from 0), by way of zlib's reflected one."""
    raw = zlib.crc32(page.translate(_REVERSED_BITS), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{raw:032b}"[::-1], 2)


class SteadyOgg(io.RawIOBase):
    """Gives every Ogg page one serial: libsndfile draws it at random, and equal jobs must give equal bytes.

    A page is 27 bytes with the serial at 14 and the checksum at 22, a table of segment lengths (its length at
    26), and the segments (RFC 3533). libsndfile writes pages in order and never goes back.
    """

    SERIAL = 0x4D796E61

    def __init__(self, file: Guarded) -> None:
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
