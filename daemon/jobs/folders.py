"""The queue's folder on disk: what jobs leave there while they are at work, and whether there is room for more."""

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from myna.daemon.jobs.store import Row, job_id, job_number

LEFTOVERS_KEPT_S = 24 * 3600.0  # finished segments of failed and cancelled jobs, for a retry
ROOM_BYTES = 1 << 20  # that a disk must take before it counts as having room again


class WorkFolders:
    """One folder for each job that is, or was, at work."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, n: int) -> Path:
        """Where a job keeps its finished segments."""
        return self._folder / "work" / job_id(n)

    def clear(self, row: Row, whole: bool) -> None:
        """Remove what a job left on the way: its hidden output, and once it is done its segments."""
        if row.attempts:
            part = Path(row.output).parent / f".myna-{row.id}.part"
            with suppress(OSError, ValueError):
                part.unlink(missing_ok=True)
        if whole:
            shutil.rmtree(self.of(row.n), ignore_errors=True)

    def sweep(self, waiting: set[int], row_of: Callable[[int], Row | None]) -> None:
        """Remove work folders that nobody will ask for any more."""
        try:
            folders = list((self._folder / "work").iterdir())
        except FileNotFoundError:
            return
        for folder in folders:
            n = job_number(folder.name)
            if n is not None and n in waiting:
                continue
            row = row_of(n) if n is not None else None
            retryable = row is not None and row.state in ("failed", "cancelled")
            if row is not None and retryable and time.time() - (row.finished_at or 0.0) < LEFTOVERS_KEPT_S:
                continue
            shutil.rmtree(folder, ignore_errors=True)

    def has_room(self) -> bool:
        """Whether the state folder can be written, found out by writing to it."""
        probe = self._folder / "room.part"
        try:
            with probe.open("wb") as file:
                file.write(bytes(ROOM_BYTES))
                file.flush()
                os.fsync(file.fileno())
            return True
        except OSError:
            return False
        finally:
            with suppress(OSError):
                probe.unlink(missing_ok=True)
