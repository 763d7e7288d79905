"""How commands that run beside the daemon (`myna route`, `myna service`) tell their result or their error."""

import json
import sys
from collections.abc import Sequence
from typing import Protocol

from myna.control.errors import CODES


class Told(Protocol):
    """An error with a code of the wire and words."""

    code: str
    message: str


def show(value: dict[str, object], words: Sequence[str], as_json: bool) -> None:
    """The result: as JSON, or in words."""
    print(json.dumps(value) if as_json else "\n".join(words), flush=True)


def fail(error: Told, as_json: bool) -> int:
    """The error, as every `myna` command shows it; returns the exit code that goes with it."""
    if as_json:
        problem = {"code": error.code, "message": error.message, "facts": {}}
        print(json.dumps({"ok": False, "error": problem}), flush=True)
    else:
        print(f"myna: {error.message}", file=sys.stderr)
    return CODES[error.code]
