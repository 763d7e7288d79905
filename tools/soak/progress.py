"""How far a soak has come, told while it runs."""

import sys
import time

BAR = 30  # characters
LINE_S = 10.0  # between two lines where there is no terminal


class Progress:
    """A bar on a terminal, a line every ten seconds elsewhere; on stderr, so that stdout holds the result alone."""

    def __init__(self, whole: float) -> None:
        self._whole = whole
        self._bar = sys.stderr.isatty()
        self._told_s = time.monotonic()

    def at(self, done: float, words: str) -> None:
        """So much of the whole is done."""
        share = min(1.0, done / self._whole) if self._whole > 0 else 1.0
        if self._bar:
            full = round(BAR * share)
            print(
                f"\r{'█' * full}{'░' * (BAR - full)} {share:4.0%}  {words}\x1b[K", end="", file=sys.stderr, flush=True
            )
        elif time.monotonic() - self._told_s > LINE_S:
            self._told_s = time.monotonic()
            print(f"{share:4.0%}  {words}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the bar's line."""
        if self._bar:
            print(file=sys.stderr)
