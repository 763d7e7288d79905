"""The table that a soak ends with."""

from dataclasses import dataclass, field


@dataclass
class Table:
    """Laws, each with whether it held and its figure."""

    title: str
    rows: list[tuple[str, bool, str]] = field(default_factory=list)

    def add(self, law: str, held: bool, figure: str) -> None:
        """One row."""
        self.rows.append((law, held, figure))

    def tell(self) -> bool:
        """Print it; whether every law held."""
        width = max(len(law) for law, _, _ in self.rows)
        print(f"\n{self.title}")
        for law, held, figure in self.rows:
            print(f"  {'holds' if held else 'FAILS'}  {law:<{width}}  {figure}")
        return all(held for _, held, _ in self.rows)
