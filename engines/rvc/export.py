"""What the child of `elsewhere` runs: `python -m myna.engines.rvc.export JSON`."""

import json
import sys
from pathlib import Path

from ..base import EngineError, Placement, VoiceAsset
from .models import Models


def main(arguments: list[str]) -> int:
    """Export and check what the parent asked for; exit code 1 with the reason on stderr."""
    told = json.loads(arguments[0])
    asset = VoiceAsset(id="export", engine="rvc", files={role: Path(p) for role, p in told["files"].items()})
    placement = Placement(
        device=told["device"],
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
