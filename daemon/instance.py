"""One daemon for a state directory."""

import os
import sys
from pathlib import Path

from myna.control.errors import MynaError


class InstanceLock:
    """Held from start to end; the system lets go of it whatever kills the daemon."""

    def __init__(self, state: Path) -> None:
        """Take the lock.

        Raises MynaError: `already_running` if another process holds it, `state_unwritable` if it can't be made.
        """
        path = state / "lock"
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise MynaError(
                "state_unwritable", f"{path} can't be written: {error.strerror}. Free space or permissions there.",
                path=str(path),
            ) from error  # fmt: skip
        if not self._take():
            os.close(self._handle)
            raise MynaError(
                "already_running",
                f"A daemon already runs on {state}: control it with `myna status`, or give --state-dir another place.",
                state_dir=str(state),
            )

    def _take(self) -> bool:
        try:
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(self._handle, msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Let go."""
        os.close(self._handle)
