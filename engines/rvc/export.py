"""Export and check a voice's networks in a process of its own: `python -m myna.engines.rvc.export JSON`.

Converting a network holds the interpreter lock for seconds and leaves hundreds of megabytes behind, neither of which
a live worker can afford. What the child makes lies in the cache afterwards; the parent only reads it.
"""

import json
import subprocess
import sys
from pathlib import Path

from ..base import BackendUnavailable, EngineError, Placement, VoiceAsset

LIMIT_S = 900.0


def elsewhere(asset: VoiceAsset, placement: Placement) -> None:
    """Have a child export and check; returns when it has.

    Raises:
        BackendUnavailable: it failed, with its last words.
    """
    told = {
        "files": {role: str(path) for role, path in asset.files.items() if role in ("model", "embedder", "rmvpe")},
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


def main(arguments: list[str]) -> int:
    """Do what `elsewhere` asked."""
    from .models import Models

    told = json.loads(arguments[0])
    asset = VoiceAsset(id="export", engine="rvc", files={role: Path(p) for role, p in told["files"].items()})
    placement = Placement(
        precision=told["precision"],
        threads=told["threads"],
        backend=told["backend"],
        cache_dir=Path(told["cache_dir"]),
    )
    try:
        Models(asset, placement, here=True).close()
    except EngineError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
