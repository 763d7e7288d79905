"""Runs the sound server's own programs, each with a deadline."""

import os
import shutil
import subprocess

from myna.daemon.route.errors import RouteError

DEADLINE_S = 6.0
PACKAGES = {
    "pactl": "pulseaudio-utils",
    "pacat": "pulseaudio-utils",
    "parec": "pulseaudio-utils",
    "pw-cli": "pipewire-bin (Debian, Ubuntu), pipewire-utils (Fedora) or pipewire (Arch)",
    "pw-dump": "pipewire-bin (Debian, Ubuntu), pipewire-utils (Fedora) or pipewire (Arch)",
    "pw-link": "pipewire-bin (Debian, Ubuntu), pipewire-utils (Fedora) or pipewire (Arch)",
}


def installed(*programs: str) -> bool:
    """Whether all of them are on the path."""
    return all(shutil.which(program) for program in programs)


def output_of(program: str, *arguments: str) -> str:
    """What a program prints, in the C locale.

    Raises RouteError: `missing_asset` without the program, `failed` with its last words otherwise.
    """
    if not installed(program):
        raise RouteError("missing_asset", f"{program} is not installed; it is in the package {PACKAGES[program]}.")
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, env=environment, errors="replace"
        )
    except subprocess.TimeoutExpired as slow:
        raise RouteError(
            "failed", f"{program} did not answer within {DEADLINE_S:g} s; restart the sound server."
        ) from slow
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise RouteError("failed", f"{program} {arguments[0]} failed: {words[-1] if words else done.returncode}")
    return done.stdout
