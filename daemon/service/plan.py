"""What is asked of a service manager: one value, from which every system's file is rendered."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NAME = "myna"
LABEL = "org.myna.daemon"  # launchd's reverse-domain custom
TASK = "Myna"
DESCRIPTION = "Myna: your microphone in another voice"

# Exit codes after which a new start would end the same way: usage, already running, not allowed.
HOPELESS = (2, 5, 6)
WATCHDOG_S = 30
RESTART_LIMIT = 5
RESTART_WINDOW_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The daemon's command line, and where its words go where the manager keeps no journal."""

    command: tuple[str, ...]
    log: Path


def plan_for(environment: Mapping[str, str], *, state_dir: Path, python: str = sys.executable) -> Plan:
    """The plan for this interpreter.

    What the user chose by MYNA_STATE_DIR and MYNA_CONFIG is passed on, since a service manager knows nothing of it; the
    platform's own places need no option. `--resume` makes the daemon live again after a login if it was live when it
    ended.
    """
    command = [python, "-m", "myna.daemon", "--foreground", "--resume"]
    if environment.get("MYNA_STATE_DIR"):
        command += ["--state-dir", str(state_dir)]
    if config := environment.get("MYNA_CONFIG"):
        command += ["--config", str(Path(config).expanduser().absolute())]
    return Plan(command=tuple(command), log=state_dir / "service.log")
