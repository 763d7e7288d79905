"""Tell whether a network is being exported; some of its parts are then written in a form that runtimes do better."""

from typing import Any

import torch


def exporting() -> bool:
    """Whether the call that runs is being recorded for an export, to OpenVINO or to ONNX."""
    recorder: Any = torch.jit  # its types do not show what it offers
    return bool(recorder.is_tracing())
