"""The command line `myna`."""

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run `myna` with these arguments (None: the process's own) and return its exit code."""
    from myna.control.cli.app import run

    return run(argv)
