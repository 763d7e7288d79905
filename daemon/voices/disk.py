"""Files that are whole or not there, and what is said of a disk that takes none."""

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tomlkit

from myna.control.errors import MynaError
from myna.daemon.voices.names import printable


def stamp(path: Path) -> str:
    """Size and time of a file in one word; `gone` for none."""
    try:
        found = path.stat()
    except OSError:
        return "gone"
    return f"{found.st_size}:{found.st_mtime_ns}"


def sha256_of(path: Path) -> str:
    """Digest of a file's content. MynaError("not_found") if it can't be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise MynaError(
            "not_found", f"{printable(path.name)} could not be read: {error.strerror}.", path=str(path)
        ) from error


def copy_synced(source: Path, target: Path) -> None:
    """Copy to a name that is not there yet, down to the disk."""
    with source.open("rb") as reading, target.open("xb") as writing:
        shutil.copyfileobj(reading, writing, 1 << 20)
        writing.flush()
        os.fsync(writing.fileno())


def write_toml(path: Path, told: Mapping[str, Any]) -> None:
    """Make or replace a file, by one rename."""
    part = path.with_name(f".new-{secrets.token_hex(8)}")
    try:
        with part.open("x", encoding="utf-8") as file:
            file.write(tomlkit.dumps(told))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def state_errors(folder: Path) -> Iterator[None]:
    """A state directory that can't be written is the world's fault, and told as such."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        cure = "Free some space" if full else "Check the permissions of the state directory"
        raise MynaError(
            "state_unwritable", f"{folder} can't be written: {error.strerror}. {cure}.", path=str(folder)
        ) from error


def remove_quietly(path: Path) -> None:
    """Remove a file or a folder; what can't be removed stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
