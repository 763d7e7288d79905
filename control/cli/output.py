"""How results and errors are shown: JSON, tables on a terminal, plain lines elsewhere."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from myna.control.errors import MynaError


def print_json(value: object) -> None:
    """`value` as JSON: indented on a terminal, one line elsewhere. What is not a number becomes null."""
    try:
        data = msgspec.json.encode(value, enc_hook=str)
    except UnicodeEncodeError:  # names of files that are no UTF-8 are escaped
        data = json.dumps(msgspec.to_builtins(value, enc_hook=str)).encode()
    if sys.stdout.isatty():
        data = msgspec.json.format(data)
    sys.stdout.write(data.decode() + "\n")
    sys.stdout.flush()


def print_error(error: MynaError, as_json: bool) -> None:
    """An error as the contract has it: JSON on stdout, or words on stderr."""
    if as_json:
        print_json(
            {
                "ok": False,
                "error": {"code": error.code, "message": error.message, "facts": error.facts},
            }
        )
        return
    sys.stderr.write(f"myna: {printable(error.message)}\n")
    found = error.facts.get("problems")
    if isinstance(found, list) and len(found) > 5:  # the message names the first five
        for each in found[5:]:
            if isinstance(each, dict):
                sys.stderr.write(printable(f"  {each.get('field') or 'message'}: {each.get('message')}") + "\n")


def printable(text: str) -> str:
    """`text` without control characters: names come from devices and files, terminals obey escapes."""
    return "".join(each if each.isprintable() or each in "\n\t" else "�" for each in text)


def line(text: str) -> None:
    """One line on stdout."""
    sys.stdout.write(printable(text) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """One line on stderr: what is not the result."""
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """A table: ruled on a terminal, tab-separated with a header line elsewhere; `empty` if there is no row."""
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        line(empty)
        return
    if not sys.stdout.isatty():
        for row in [list(columns), *cells]:
            line("\t".join(value.replace("\t", " ").replace("\n", " ") for value in row))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    drawn = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in cells:
        drawn.add_row(*(_literal(value) for value in row))
    Console().print(drawn)


def _literal(value: str) -> Any:
    from rich.text import Text

    return Text(printable(value))


def pairs(rows: Iterable[tuple[str, object]]) -> None:
    """Names and values below each other; a value of None is left out."""
    shown = [(name, _cell(value)) for name, value in rows if value is not None]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        line(f"{name:<{width}}  {value}")


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def mebibytes(count: int | None) -> str | None:
    """Bytes in words."""
    return None if count is None else f"{count / (1 << 20):.1f} MiB"


def milliseconds(value: float | None) -> str:
    """A delay in words; what was not measured says so."""
    return "not measured" if value is None else f"{value:.1f} ms"
