#!/usr/bin/env python3
"""Prepare, run, test and check Myna from a clone: the one command a developer needs.

    python3 tools/dev.py setup [--extras LIST] [--audio] [--browser]
    python3 tools/dev.py demo
    python3 tools/dev.py test [PYTEST ARGUMENTS]
    python3 tools/dev.py check
    python3 tools/dev.py bench | soak | quality [ARGUMENTS]

Needs nothing but Python 3.11 to 3.13. Every command may be repeated: what is in place is left alone.
"""

import os
import subprocess
import sys

OLDEST, NEWEST = (3, 11), (3, 13)

# Commands that are scripts of their own, run in the environment, with the extras they import.
SCRIPTS = {
    "demo": ("demo.py", ("daemon", "monitor")),
    "bench": ("bench.py", ("dev", "rvc")),
    "soak": ("soak", ("dev",)),
    "quality": ("quality.py", ("dev", "rvc")),
}


def require_python():
    """Go on with a Python that fits; this file is therefore kept readable for old ones."""
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return
    for minor in (13, 12, 11):
        name = "python3.%d" % minor  # noqa: UP031 - old Pythons read this
        probe = "import sys; print(sys.version_info[:2] == (3, %d))" % minor  # noqa: UP031
        try:
            found = subprocess.check_output([name, "-c", probe], stderr=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError):
            continue
        if found.strip() == b"True":
            os.execvp(name, [name] + sys.argv)  # noqa: RUF005
    sys.exit(
        "Myna needs Python 3.11, 3.12 or 3.13; this is %d.%d. "  # noqa: UP031
        "Install one (Debian, Ubuntu: apt-get install python3.11 python3.11-venv) and run "
        "python3.11 tools/dev.py" % sys.version_info[:2]
    )


def main(arguments):
    """Run one command; returns the exit code."""
    import argparse

    from dev_environment import prepare
    from dev_system import prepare_system

    parser = argparse.ArgumentParser(
        prog="dev.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    setup = commands.add_parser("setup", help="make .venv and install what is missing")
    setup.add_argument("--extras", default="dev,rvc", help="extras of the package, comma-separated [dev,rvc]")
    setup.add_argument("--audio", action="store_true", help="also the sound servers that tests use")
    setup.add_argument("--browser", action="store_true", help="also the browser that one test uses (big)")
    for name, text in (
        ("demo", "convert speech in real time, measure the delay, write a WAV and a plot"),
        ("test", "run the test suite; arguments go to pytest"),
        ("check", "format, lint, types, imports, wheel, thin client"),
        ("bench", "measure speed"),
        ("soak", "run for long and watch"),
        ("quality", "measure how converted voices sound"),
    ):
        commands.add_parser(name, help=text, add_help=name == "check")
    # Arguments of the scripts and of pytest are theirs: argparse would eat their options.
    passed_on = arguments[1:] if arguments[:1] and arguments[0] in {"test", *SCRIPTS} else []
    options = parser.parse_args(arguments[: len(arguments) - len(passed_on)])

    if options.command == "setup":
        extras = [name.strip() for name in options.extras.split(",") if name.strip()]
        prepare_system(audio=options.audio, browser=options.browser)
        prepare(extras)
        return 0
    if options.command == "test":
        prepare_system(audio=True)
        python = prepare(["dev", "rvc"])
        return run_in([python, "-m", "pytest", *passed_on], OMP_NUM_THREADS="1")
    if options.command == "check":
        prepare_system()
        return run_in([prepare(["dev", "rvc"]), os.path.join(TOOLS, "check_tree.py")])
    script, extras = SCRIPTS[options.command]
    prepare_system()
    return run_in([prepare(list(extras)), os.path.join(TOOLS, script), *passed_on])


def run_in(command, **environment):
    """Run a command in the repository's root; returns its exit code, 128 + n for a signal."""
    sys.stdout.flush()
    try:
        done = subprocess.run(list(map(str, command)), cwd=ROOT, env={**os.environ, **environment}, check=False)
    except KeyboardInterrupt:
        return 130
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


TOOLS = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(TOOLS)

if __name__ == "__main__":
    require_python()
    sys.exit(main(sys.argv[1:]))
