"""The table that a soak ends with."""

import json
from dataclasses import dataclass, field


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
