"""Say what a model file is: `python -m myna.engines.rvc.inspect PATH` prints one JSON object. Needs no torch."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from ..base import EngineError, ModelUnusable
from . import torchfile
from .checkpoint import content_hash
from .onnxfile import OnnxVoice, is_export
from .opening import open_any

Facts = dict[str, bool | int | float | str | None]


def inspect(path: Path) -> dict[str, object]:
    """Describe a model file.

    Returns:
        kind: `voice`, `index`, `embedder` or `rmvpe`; engine; facts (version, rate_hz, f0, speakers, embedder,
        sha256 …); problems in words.

    Raises:
        ModelUnusable: none of these; the message says what it is and what is wanted.
    """
    try:
        with path.open("rb") as file:
            head = file.read(4)
    except OSError as error:
        raise ModelUnusable(f"{path} cannot be read: {error.strerror}", path=str(path)) from error
    if head[:2] in (b"Ix", b"Iw", b"IH") and head.isalnum():
        return _index(path)
    names = set() if is_export(path) else _shared_names(path)
    if "feature_extractor.conv_layers.0.0.weight" in names or any("feature_extractor.conv_layers" in n for n in names):
        from .embedder import describe

        described = describe(path)
        return {"kind": "embedder", "engine": "rvc", "facts": {**described, **_common(path)}, "problems": []}
    if "unet.encoder.bn.weight" in names and "fc.1.bias" in names:
        return {"kind": "rmvpe", "engine": "rvc", "facts": {"tensors": len(names), **_common(path)}, "problems": []}
    voice = open_any(path)
    facts: Facts = {
        "version": voice.version,
        "rate_hz": voice.rate_hz,
        "f0": voice.has_f0,
        "speakers": voice.speakers,
        "features": voice.features,
        "embedder": voice.embedder or "contentvec",
        "format": "onnx" if isinstance(voice, OnnxVoice) else "torch",
        "tensors": voice.tensors if isinstance(voice, OnnxVoice) else len(voice.weights),
        "info": "" if isinstance(voice, OnnxVoice) else voice.info,
        **_common(path),
    }
    return {"kind": "voice", "engine": "rvc", "facts": facts, "problems": list(voice.notes)}


def _shared_names(path: Path) -> set[str]:
    """Names of the tensors in a file that holds them directly or under `model`; empty for a voice."""
    content = torchfile.read_file(path)
    if not isinstance(content, Mapping):
        return set()
    inner = content.get("model", content.get("weight", content))
    return {name for name, _ in torchfile.tensors_in(inner)}


def _index(path: Path) -> dict[str, object]:
    try:
        import faiss
    except ImportError as error:
        raise ModelUnusable(
            f"{path.name} is a faiss index, and the package faiss-cpu that reads it is not installed", path=str(path)
        ) from error
    try:
        index = faiss.read_index(str(path))
    except (RuntimeError, MemoryError) as error:
        raise ModelUnusable(f"index {path.name} is cut off or damaged", path=str(path)) from error
    version = {256: "v1", 768: "v2"}.get(index.d)
    facts: Facts = {"vectors": index.ntotal, "features": index.d, "version": version, **_common(path)}
    problems = []
    if version is None:
        problems.append(f"its vectors have {index.d} values; RVC's have 256 (v1) or 768 (v2)")
    if index.ntotal == 0:
        problems.append("it is empty")
    return {"kind": "index", "engine": "rvc", "facts": facts, "problems": problems}


def _common(path: Path) -> Facts:
    return {"bytes": path.stat().st_size, "sha256": content_hash(path)}


def main(arguments: list[str]) -> int:
    """Print what the one named file is; an unusable one is an answer too."""
    if len(arguments) != 1:
        print("usage: python -m myna.engines.rvc.inspect PATH", file=sys.stderr)
        return 2
    try:
        told: dict[str, object] = inspect(Path(arguments[0]))
    except EngineError as error:
        told = {"error": str(error)}
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
