"""`mynad`: the daemon's command line."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from myna.control.errors import CODES, MynaError


def arguments() -> argparse.ArgumentParser:
    """The options of `mynad`."""
    parser = argparse.ArgumentParser(
        prog="mynad", description="The Myna daemon: turns a microphone into another voice, controlled by `myna`."
    )
    parser.add_argument(
        "--foreground", action="store_true", help="stay in this terminal instead of going to the background"
    )
    parser.add_argument(
        "--config", type=Path, metavar="F", help="settings file (default: the platform's config folder)"
    )
    parser.add_argument("--state-dir", type=Path, metavar="D", help="where jobs, voices and logs are kept")
    parser.add_argument("--listen", metavar="E", help="endpoint, e.g. tcp://127.0.0.1:7777 (default: a private socket)")
    parser.add_argument(
        "--resume", action="store_true", help="be live again if a session was live when the daemon ended"
    )
    parser.add_argument("--json", action="store_true", help="tell errors as JSON on standard output")
    parser.add_argument("--version", action="store_true", help="print the version and end")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run `mynad`; returns its exit code."""
    options = arguments().parse_args(argv)
    if options.version:
        from myna.daemon.supervisor import version

        print(f"mynad {version()}")
        return 0
    try:
        if not options.foreground:
            return _go_to_background(list(sys.argv[1:] if argv is None else argv))
        from myna.daemon.supervisor import Supervisor

        return Supervisor(
            state=options.state_dir, config=options.config, listen=options.listen, resume=options.resume
        ).run()
    except MynaError as error:
        if options.json:
            fault = {"code": error.code, "message": error.message, "facts": error.facts}
            print(msgspec.json.encode({"ok": False, "error": fault}, enc_hook=str).decode())
        else:
            print(f"mynad: {error.message} [{error.code}]", file=sys.stderr)
        return int(CODES[error.code])


def _go_to_background(argv: list[str]) -> int:
    """Start the daemon detached, pass on its ready line (or its error and exit code)."""
    detached = {"start_new_session": True} if os.name == "posix" else {"creationflags": 0x00000208}
    process = subprocess.Popen(
        [sys.executable, "-m", "myna.daemon", "--foreground", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **detached,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    if line.startswith("mynad ready"):
        print(line, end="", flush=True)
        return 0
    sys.stdout.write(line + process.stdout.read())
    sys.stderr.write(process.stderr.read())
    return process.wait()


if __name__ == "__main__":
    sys.exit(main())
