"""Open a voice's file, whichever of its kinds it is."""

from pathlib import Path

from .checkpoint import VoiceFile, open_voice
from .onnxfile import OnnxVoice, is_export, open_export


def open_any(path: Path) -> VoiceFile | OnnxVoice:
    """Describe a checkpoint (`.pth`, `.safetensors`) or an ONNX export; nothing in it runs, no torch is needed.

    Raises:
        ModelUnusable: it is no voice that can be used; the message says what it is and what is wanted.
        MissingAsset: the package that reads it is not installed.
    """
    return open_export(path) if is_export(path) else open_voice(path)
