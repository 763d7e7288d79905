"""Which recordings a command line means, and where each one's result goes."""

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from myna.control.errors import MynaError

AUDIO = frozenset(
    {
        ".3gp", ".aac", ".ac3", ".aif", ".aifc", ".aiff", ".amr", ".ape", ".au", ".avi", ".caf", ".flac", ".flv",
        ".m4a", ".m4b", ".mka", ".mkv", ".mov", ".mp2", ".mp3", ".mp4", ".mpeg", ".mpg", ".oga", ".ogg", ".opus",
        ".rf64", ".snd", ".tta", ".w64", ".wav", ".wave", ".weba", ".webm", ".wma", ".wmv", ".wv",
    }
)  # fmt: skip
"""Suffixes worth trying when a folder or a glob is searched; a file that is named is tried whatever its name."""
_WRITTEN = {".wav": "wav", ".flac": "flac", ".mp3": "mp3", ".ogg": "ogg"}


class Item(NamedTuple):
    """One recording and its result, both absolute."""

    source: Path
    target: Path


def plan(inputs: Iterable[str], out: str, file_format: str = "auto") -> list[Item]:
    """Expand files, folders and globs; the tree below a folder or a glob is mirrored under `out`.

    `takes/a/b.mp3` of folder `takes` goes to `out/a/b.mp3`; with several folders each keeps its own name in
    between. A single file goes to `out` itself if that has a sound file's suffix. What lies under `out` is
    never an input, so that a second run does not convert the results of the first.

    Raises:
        MynaError: `not_found` for an input that matches nothing, `bad_request` if `out` can't hold them all.
    """
    target = Path(os.path.abspath(Path(out).expanduser()))
    given = list(inputs)
    roots = [Path(each).expanduser() for each in given]
    several = sum(root.is_dir() for root in roots) > 1
    found: dict[Path, Path] = {}  # source: its place below `out`
    for text, root in zip(given, roots, strict=True):
        for source, place in _expand(text, root, target):
            prefix = Path(root.absolute().name) if several and root.is_dir() else Path()
            found.setdefault(source, prefix / place)
    if not found:
        if any(Path(os.path.abspath(root)).is_relative_to(target) for root in roots):
            raise MynaError(
                "bad_request", f"{', '.join(given)} lies in the output folder {out}: name another one.", inputs=given
            )
        raise MynaError("not_found", f"No sound file in {', '.join(given)}.", inputs=given)
    if target.suffix.lower() in _WRITTEN and not target.is_dir():
        if len(found) > 1:
            raise MynaError("bad_request", f"{len(found)} recordings can't all go to the file {out}; name a folder.")
        return [Item(next(iter(found)), target)]
    return list(_named(found, target, file_format))


def _expand(text: str, root: Path, out: Path) -> Iterator[tuple[Path, Path]]:
    """Absolute paths and their places below the output folder."""
    if root.is_dir():
        for path in sorted(root.rglob("*")):
            absolute = Path(os.path.abspath(path))
            if path.suffix.lower() in AUDIO and path.is_file() and not absolute.is_relative_to(out):
                yield absolute, path.relative_to(root)
        return
    if root.exists():
        yield Path(os.path.abspath(root)), Path(root.name)
        return
    if not glob.has_magic(text):
        raise MynaError("not_found", f"There is no file {text}.", path=text)
    pattern = str(root)
    fixed = Path(*_fixed_parts(root))
    matches = [Path(each) for each in sorted(glob.glob(pattern, recursive=True))]
    files = [path for path in matches if path.is_file() and path.suffix.lower() in AUDIO]
    if not files:
        raise MynaError("not_found", f"No sound file matches {text}.", path=text)
    for path in files:
        absolute = Path(os.path.abspath(path))
        if not absolute.is_relative_to(out):
            yield absolute, path.relative_to(fixed)


def _fixed_parts(pattern: Path) -> list[str]:
    """The parts before the first with a wildcard."""
    fixed: list[str] = []
    for part in pattern.parts[:-1]:
        if glob.has_magic(part):
            break
        fixed.append(part)
    return fixed


def _named(found: dict[Path, Path], out: Path, file_format: str) -> Iterator[Item]:
    """Give each result its suffix; `a.wav` and `a.mp3` in one place become `a.wav.flac` and `a.mp3.flac`."""
    wanted: dict[Path, list[Path]] = {}
    for source, place in found.items():
        wanted.setdefault(place.with_suffix(_suffix(place, file_format)), []).append(source)
    taken: set[Path] = set()
    for source, place in found.items():
        suffix = _suffix(place, file_format)
        name = place.with_suffix(suffix)
        if len(wanted[name]) > 1:
            name = place.with_name(place.name + suffix)
        number = 1
        free = name
        while free in taken:  # the same name from two places
            number += 1
            free = name.with_name(f"{name.stem} ({number}){name.suffix}")
        taken.add(free)
        yield Item(source, out / free)


def _suffix(place: Path, file_format: str) -> str:
    if file_format != "auto":
        return f".{file_format}"
    return place.suffix.lower() if place.suffix.lower() in _WRITTEN else ".wav"
