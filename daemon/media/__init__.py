"""Sound files: read as mono float32 block by block, written whole or not at all."""

from myna.daemon.media.faults import MediaError, name_for_humans
from myna.daemon.media.formats import (
    FORMATS,
    Block,
    Exists,
    Format,
    Subtype,
    format_of,
    writable_rate_hz,
)
from myna.daemon.media.reading import Reader, open_reader
from myna.daemon.media.writing import PART_PREFIX, PART_SUFFIX, Writer, sweep_parts, target_path

__all__ = [
    "FORMATS",
    "PART_PREFIX",
    "PART_SUFFIX",
    "Block",
    "Exists",
    "Format",
    "MediaError",
    "Reader",
    "Subtype",
    "Writer",
    "format_of",
    "name_for_humans",
    "open_reader",
    "sweep_parts",
    "target_path",
    "writable_rate_hz",
]
