"""Configuration files, whole or not at all, and without a trace when they go."""

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, text: str) -> bool:
    """Write a file by atomic rename unless it holds `text` already; True if it was written. OSError passes.

    A link is followed: configuration kept elsewhere stays a link.
    """
    path = Path(os.path.realpath(path))
    try:
        if path.read_text(encoding="utf-8") == text:
            return False
        mode = path.stat().st_mode & 0o777
    except (FileNotFoundError, UnicodeDecodeError):
        mode = 0o644
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return True


def remove_file(path: Path, root: Path) -> bool:
    """Remove a file and the folders above it that are left empty, below `root`; True if it was there."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    for folder in path.parents:
        if folder == root or root not in folder.parents:
            break
        try:
            folder.rmdir()
        except OSError:  # not empty: others keep their files there
            break
    return True
