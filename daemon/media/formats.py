"""Formats, rates, tags and limits of sound files."""

from pathlib import Path
from typing import Literal

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
TAG_NAMES = ("title", "artist", "album", "date", "tracknumber", "genre", "comment", "copyright")
MIN_RATE_HZ = 1_000
MAX_RATE_HZ = 768_000
MAX_CHANNELS = 64
MAX_SECONDS = 7 * 86_400.0
MP3_RATES_HZ = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
MAX_TAG_CHARACTERS = 4096
CHUNK_FRAMES = 16_384  # also keeps libsndfile's vorbis encoder away from its stack limit

# A short write is an `assert` inside soundfile.
FAILURES = (soundfile.SoundFileError, RuntimeError, AssertionError)


def clean_tag(value: object) -> str:
    """A tag as it is kept: text without NUL, of a sane length."""
    text = str(value).replace("\0", "").encode("utf-8", "replace").decode("utf-8")
    return text.strip()[:MAX_TAG_CHARACTERS]


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
