"""A worker dies with the process that started it."""

import ctypes
import os
import signal
import sys
import threading

PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int, poll_s: float = 0.5) -> None:
    """Make this process end when `parent_pid` does.

    Linux asks the kernel (SIGKILL at the parent's death); everywhere a watching thread covers the race before that
    call, and systems that have no such thing.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)

    def watch() -> None:
        wait = threading.Event()
        while not wait.wait(poll_s):
            if os.getppid() != parent_pid:
                os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
