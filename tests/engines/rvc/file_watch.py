"""Hears of every file, import and process that Python is asked for while it looks."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TOUCHING = ("open", "import", "os.listdir", "os.scandir", "subprocess.Popen", "socket.connect", "pickle.find_class")


class Watch:
    """What was asked for in `seen`, in words. Made once: the hook cannot be taken back."""

    def __init__(self) -> None:
        self.looking = False
        self.seen: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.looking and event in TOUCHING:
            self.seen.append(f"{event} {arguments[:1]}")

    @contextmanager
    def over(self) -> Iterator[None]:
        self.seen.clear()
        self.looking = True
        try:
            yield
        finally:
            self.looking = False
