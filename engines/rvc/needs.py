"""The models that RVC voices share, and what to say when one is not on this machine."""

from pathlib import Path
from typing import Final

from ..base import MissingAsset, VoiceAsset

ASSETS: Final = {
    "embedder": ("hubert_base.pt", "ContentVec, the content encoder that every RVC voice needs (about 190 MB)"),
    "rmvpe": ("rmvpe.pt", "RMVPE, the pitch model (about 180 MB; pitch by `swift` needs no file)"),
}


def required(asset: VoiceAsset, role: str) -> Path:
    """The file of a shared model.

    Raises:
        MissingAsset: it is not on this machine; facts: asset, where.
    """
    path = asset.files.get(role)
    if path is not None and path.exists():
        return path
    name, what = ASSETS[role]
    where = str(path) if path is not None else f"assets/{name} in the state directory"
    raise MissingAsset(
        f"{name} is missing: {what}. `myna voices add {name}` puts it where it belongs ({where}).",
        asset=name,
        where=where,
    )
