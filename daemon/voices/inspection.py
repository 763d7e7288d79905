"""Looks into model files, in a process of its own for each."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from myna.control.errors import MynaError
from myna.daemon.voices.names import printable
from myna.daemon.voices.values import Scalar, scalars

INSPECT_TIMEOUT_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What a model file turned out to be.

    `kind` is `voice`, `index`, or the role of a model that voices share; anything else is refused.
    """

    kind: str
    engine: str = "rvc"
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


Inspector = Callable[[Path], Inspection]


def inspect_in_child(path: Path, timeout_s: float = INSPECT_TIMEOUT_S) -> Inspection:
    """Look into a model file in a process of its own: the supervisor never loads torch, nor trusts a file.

    The child prints one JSON object with `kind`, `engine`, `facts`, `problems`, or `error` (a message).

    Raises:
        MynaError: `missing_asset` where the packages for it are not installed; `model_unusable` where the
            file can't be read, or kills or stalls its reader.
    """
    command = [sys.executable, "-m", "myna.engines.rvc.inspect", str(path)]
    name = printable(path.name)
    try:
        child = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise MynaError(
            "model_unusable", f"{name} could not be read within {timeout_s:.0f} s.", path=str(path)
        ) from error
    stderr = child.stderr.decode("utf-8", "replace")
    lines = child.stdout.decode("utf-8", "replace").strip().splitlines()
    told: object = None
    if lines:
        with contextlib.suppress(ValueError):
            told = json.loads(lines[-1])
    if not isinstance(told, dict):
        if "No module named" in stderr:
            missing = stderr.strip().splitlines()[-1]
            raise MynaError(
                "missing_asset",
                f"Model files can't be read here ({missing}). To be able to: pip install 'myna[rvc]'.",
                path=str(path),
            )
        last = stderr.strip().splitlines()[-1:] or [f"exit status {child.returncode}"]
        raise MynaError("model_unusable", f"{name} could not be read: {last[0]}", path=str(path))
    return inspection_from(told, path)


def inspection_from(told: Mapping[str, Any], path: Path) -> Inspection:
    """What a child printed, checked: only plain values go on."""
    if told.get("error"):
        raise MynaError("model_unusable", str(told["error"]), path=str(path))
    facts = told.get("facts")
    problems = told.get("problems")
    return Inspection(
        kind=str(told.get("kind", "unknown")),
        engine=str(told.get("engine", "rvc")),
        facts=scalars(facts) if isinstance(facts, dict) else {},
        problems=tuple(str(p) for p in problems) if isinstance(problems, list | tuple) else (),
    )
