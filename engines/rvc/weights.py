"""Turn a checkpoint's tensors into the plain float32 state of our networks."""

from collections.abc import Mapping

import numpy as np
import torch

from ..base import ModelUnusable
from .torchfile import Tensor
from .weightnames import plain_names


def folded(tensors: Mapping[str, Tensor], *, where: str) -> dict[str, torch.Tensor]:
    """Read all tensors as float32 and fold weight norm (w = g · v / ‖v‖) into plain weights.

    The norm runs over every axis along which `g` has size 1, which serves both RVC's layers (first axis kept)
    and HuBERT's positional convolution (last axis kept).

    Raises:
        ModelUnusable: a value is not finite, or half of a weight-norm pair is missing.
    """
    named = plain_names(tensors)
    read: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        values = tensor.read()
        if not np.issubdtype(values.dtype, np.floating):
            continue  # counters such as num_batches_tracked
        wide = values.astype(np.float32, copy=False)
        if not np.isfinite(wide).all():
            raise ModelUnusable(f"{where} holds NaN or infinity in {name}; the file is damaged or badly trained")
        read[named[name]] = torch.from_numpy(np.ascontiguousarray(wide))
    for name in [n for n in read if n.endswith(".weight_v")]:
        base = name.removesuffix("_v")
        if base + "_g" not in read:
            raise ModelUnusable(f"{where} is damaged: {base}_g is missing")
        v, g = read.pop(name), read.pop(base + "_g")
        axes = [axis for axis in range(v.ndim) if g.shape[axis] == 1]
        # The same operation as torch's own, so that folding costs no accuracy against the unfolded layer.
        if len(axes) == v.ndim - 1:
            kept = next(axis for axis in range(v.ndim) if axis not in axes)
            read[base] = torch._weight_norm(v, g, kept)
        else:
            read[base] = v * (g / v.norm(2, axes, keepdim=True))
    return read
