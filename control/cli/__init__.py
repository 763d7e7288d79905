"""The command line `myna`."""

import io
import os
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run `myna` with these arguments (None: the process's own) and return its exit code.

    Every error is printed here and nowhere else.
    """
    from myna.control.cli import output
    from myna.control.errors import Exit, MynaError

    arguments = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in (arguments[: arguments.index("--")] if "--" in arguments else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # an old code page lacks some of our characters
            stream.reconfigure(errors="replace")
    try:
        if arguments[:1] == ["live"]:
            from myna.control.cli import onekey

            if (code := onekey.run(arguments)) is not None:
                return code
        from myna.control.cli.app import run

        return run(arguments, as_json)
    except MynaError as error:
        output.print_error(error, as_json)
        return int(error.exit_code)
    except KeyboardInterrupt:
        output.print_error(MynaError("interrupted", "Interrupted."), as_json)
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:  # `myna … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(Exit.OK)
