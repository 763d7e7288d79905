"""The daemon's log: a rotating file, and the terminal in the foreground."""

import logging
import logging.handlers
import sys
from pathlib import Path

from myna.control.errors import MynaError
from myna.daemon.settings import LogSettings

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
STORM_LINES = 5  # equal lines in a row that are written; the rest of a storm is only counted


class StormFilter(logging.Filter):
    """Lets a few equal lines through, then counts the rest until another line comes."""

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[str, str] | None = None
        self._seen = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write the line."""
        key = (record.name, record.getMessage())
        if key == self._last:
            self._seen += 1
            return self._seen < STORM_LINES
        if self._seen >= STORM_LINES:
            record.msg = f"[the line before came {self._seen - STORM_LINES + 1} times more] {record.getMessage()}"
            record.args = ()
        self._last, self._seen = key, 0
        return True


def open_log(folder: Path, settings: LogSettings, terminal: bool) -> None:
    """Send our logging to `folder`/mynad.log, and to standard error if that is a terminal or asked for.

    Raises MynaError("state_unwritable").
    """
    root = logging.getLogger()
    root.setLevel(settings.level.upper())
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = logging.handlers.RotatingFileHandler(
            folder / "mynad.log",
            maxBytes=int(settings.max_mb * 1e6),
            backupCount=settings.keep,
            encoding="utf-8",
        )
    except OSError as error:
        raise MynaError(
            "state_unwritable", f"The log in {folder} can't be written: {error.strerror or error}.", path=str(folder)
        ) from error
    handlers: list[logging.Handler] = [file]
    if terminal and sys.stderr.isatty():
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(logging.Formatter(FORMAT))
        handler.addFilter(StormFilter())
        root.addHandler(handler)
