"""The table that a soak ends with, and how far it has come meanwhile."""

import json
import sys
import time
from dataclasses import dataclass, field

BAR = 30  # characters
LINE_S = 10.0  # between two lines where there is no terminal


@dataclass
class Table:
    """Laws, each with whether it held and its figure."""

    title: str
    rows: list[tuple[str, bool, str]] = field(default_factory=list)

    def add(self, law: str, held: bool, figure: str) -> None:
        """One row."""
        self.rows.append((law, bool(held), figure))

    @property
    def held(self) -> bool:
        """Whether every law held."""
        return all(held for _, held, _ in self.rows)

    @property
    def failed(self) -> list[str]:
        """The laws that did not hold."""
        return [law for law, held, _ in self.rows if not held]

    def tell(self, *, as_json: bool = False) -> bool:
        """Print it, as one line of JSON if that is wanted; whether every law held."""
        if as_json:
            rows = [{"law": law, "held": held, "figure": figure} for law, held, figure in self.rows]
            print(json.dumps({"title": self.title, "held": self.held, "rows": rows}, ensure_ascii=False))
            return self.held
        width = max(len(law) for law, _, _ in self.rows)
        print(f"\n{self.title}")
        for law, held, figure in self.rows:
            print(f"  {'holds' if held else 'FAILS'}  {law:<{width}}  {figure}")
        return self.held


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
