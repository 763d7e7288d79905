"""Have a voice's networks exported and checked in a process of its own.

Converting a network holds the interpreter lock for seconds and leaves hundreds of megabytes behind, neither of which
a live worker can afford. What the child makes lies in the cache afterwards; the parent only reads it.
"""

import json
import subprocess
import sys

from ..base import BackendUnavailable, Placement, VoiceAsset

LIMIT_S = 900.0


def export_elsewhere(asset: VoiceAsset, placement: Placement) -> None:
    """Have a child export and check; returns when it has.

    Raises:
        BackendUnavailable: it failed, with its last words.
    """
    told = {
        "files": {role: str(path) for role, path in asset.files.items() if role in ("model", "embedder", "rmvpe")},
        "device": placement.device,
        "precision": placement.precision,
        "threads": placement.threads,
        "backend": placement.backend,
        "cache_dir": str(placement.cache_dir),
    }
    command = [sys.executable, "-m", "myna.engines.rvc.export", json.dumps(told)]
    try:
        child = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendUnavailable(f"its networks could not be exported: {error}") from error
    if child.returncode != 0:
        lines = child.stderr.decode("utf-8", "replace").strip().splitlines()
        last = lines[-1] if lines else f"exit status {child.returncode}"
        raise BackendUnavailable(f"its networks could not be exported: {last}")
