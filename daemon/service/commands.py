"""Runs a service manager's own program, with a deadline."""

import os
import shutil
import subprocess
from dataclasses import dataclass

DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended."""

    code: int
    output: str
    words: str  # its last line of complaint

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.code == 0


def run(*command: str) -> Outcome:
    """Run it in the C locale; a missing program or a passed deadline is an outcome too."""
    if shutil.which(command[0]) is None:
        return Outcome(127, "", f"{command[0]} is not installed")
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DEADLINE_S,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(124, "", f"{command[0]} did not answer within {DEADLINE_S:g} s")
    words = (done.stderr or done.stdout).strip().splitlines()
    return Outcome(done.returncode, done.stdout, words[-1] if words else f"exit code {done.returncode}")
