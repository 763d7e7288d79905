"""Whether a process lives, and when it began, without any package.

ctypes and subprocess are loaded only where a platform needs them: every `myna` command comes by here.
"""

import os
import sys
from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether a process of that id exists (a zombie does not count)."""
    if pid <= 0:
        return False
    if sys.platform == "win32":
        return _windows_start(pid) is not None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it lives, and is somebody else's
        return True
    return _linux_fields(pid)[:1] != ["Z"]


def started_at(pid: int) -> str | None:
    """When that process began, as an opaque text; None where the platform does not tell.

    Linux counts clock ticks since boot, so the boot's id is part of it.
    """
    if sys.platform == "win32":
        return _windows_start(pid)
    if sys.platform == "darwin":
        import subprocess

        shown = subprocess.run(
            ["/bin/ps", "-o", "lstart=", "-p", str(pid)],
            capture_output=True,
            text=True,
            check=False,
            env={"LC_ALL": "C"},
        )
        return shown.stdout.strip() or None
    fields = _linux_fields(pid)
    if len(fields) < 20:
        return None
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{boot}:{fields[19]}"


def _linux_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third (state) on; the second may hold spaces and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _windows_start(pid: int) -> str | None:
    """Creation time in 100 ns of a process that has not ended; os.kill(pid, 0) would end it there."""
    import ctypes

    kernel = ctypes.windll.kernel32  # type: ignore[attr-defined]
    handle = kernel.OpenProcess(0x1000, False, pid)  # PROCESS_QUERY_LIMITED_INFORMATION
    if not handle:
        return None
    try:
        times = [ctypes.c_uint64() for _ in range(4)]  # creation, exit, kernel, user
        if not kernel.GetProcessTimes(handle, *(ctypes.byref(each) for each in times)):
            return None
        return None if times[1].value else str(times[0].value)
    finally:
        kernel.CloseHandle(handle)
