"""Runs live sessions for long, makes everything go wrong, and checks every law on what was played.

    python3 tools/dev.py soak --simulated 8h [--seed N]
    python3 tools/dev.py soak --real 10m [--seed N]
    python3 tools/dev.py soak --drift 8h | --kills 100 | --deaf 30m | --deaf 8h --at-once

Ends with a table of the laws, each with its figure (`--json`: one line of JSON); exit 1 if one does not hold.
"""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.soak.table import Table  # the path comes first

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """`90`, `90s`, `10m` or `8h` in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: say 90s, 10m or 8h")
    return float(found[1]) * UNITS[found[2]]


def main() -> int:
    """Run what was asked for; 0 if every law held."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--simulated", type=seconds, metavar="TIME", help="so long on simulated devices, e.g. 8h")
    parser.add_argument("--real", type=seconds, metavar="TIME", help="so long on a real sound server, e.g. 10m")
    parser.add_argument("--drift", type=seconds, metavar="TIME", help="simulated clocks that run apart, e.g. 8h")
    parser.add_argument("--kills", type=int, metavar="N", help="kill a real worker so many times at random moments")
    parser.add_argument("--deaf", type=seconds, metavar="TIME", help="real clients that never read, e.g. 30m")
    parser.add_argument("--at-once", action="store_true", help="with --deaf: what that time brings, without its pauses")
    parser.add_argument("--seed", type=int, default=1, help="equal seeds meet equal events [1]")
    parser.add_argument("--json", action="store_true", help="the table as one line of JSON")
    options = parser.parse_args()
    runs: list[Callable[[], Table]] = []
    # Each imports what it needs when it is wanted.
    if options.simulated is not None:
        from tools.soak.simulated_session import soak

        runs.append(lambda: soak(options.simulated, options.seed))
    if options.drift is not None:
        from tools.soak.clock_drift import drift

        runs.append(lambda: drift(options.drift, options.seed))
    if options.real is not None:
        from tools.soak.sound_server import soak as soak_real

        runs.append(lambda: soak_real(options.real, options.seed))
    if options.kills is not None:
        from tools.soak.worker_kills import kill_workers

        runs.append(lambda: kill_workers(options.kills, options.seed))
    if options.deaf is not None:
        from tools.soak.deaf_clients import deafen, deafen_at_once

        runs.append(lambda: deafen_at_once(options.deaf) if options.at_once else deafen(options.deaf, options.seed))
    if not runs:
        parser.error("say --simulated, --drift, --real, --kills or --deaf")
    held = [run().tell(as_json=options.json) for run in runs]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
