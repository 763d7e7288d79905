"""Read the trained last step of the sine source from a voice file."""

import numpy as np

from ..base import ModelUnusable
from .checkpoint import VoiceFile
from .source import Merge

MERGE_NAMES = ("dec.m_source.l_linear.weight", "dec.m_source.l_linear.bias")


def read_merge(voice: VoiceFile) -> Merge | None:
    """The trained last step of the sine source, None for a voice without f0.

    Raises:
        ModelUnusable: a voice with f0 lacks it.
    """
    if not voice.has_f0:
        return None
    try:
        weight, bias = (
            float(np.asarray(voice.weights[name].read(), np.float32).reshape(-1)[0]) for name in MERGE_NAMES
        )
    except (KeyError, IndexError) as error:
        raise ModelUnusable(f"{voice.path.name} says it has f0 but holds no sine source ({error})") from error
    return Merge(weight, bias)
