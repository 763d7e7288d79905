"""Tiny models of true layout and random weights, made on the spot."""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch

from myna.engines.base import Placement, VoiceAsset, VoiceParameters

GOLDEN = Path(__file__).parents[2] / "golden"
EAGER = Placement(backend="eager")
PLAIN = VoiceParameters(f0_method="swift")


def write_embedder(path: Path, *, width: int = 32, features: int = 256, layers: int = 9, seed: int = 3) -> Path:
    """A content encoder whose projection has `features` values, in fairseq's layout."""
    draw = torch.Generator().manual_seed(seed)

    def some(*shape: int, scale: float | None = None) -> torch.Tensor:
        fan = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        return torch.randn(*shape, generator=draw) * (fan**-0.5 if scale is None else scale)

    state: OrderedDict[str, torch.Tensor] = OrderedDict()
    channels = 16
    for i, kernel in enumerate((10, 3, 3, 3, 3, 2, 2)):
        state[f"feature_extractor.conv_layers.{i}.0.weight"] = some(channels, 1 if i == 0 else channels, kernel) * 1.5
    for name in ("feature_extractor.conv_layers.0.2", "layer_norm"):
        state[f"{name}.weight"], state[f"{name}.bias"] = torch.ones(channels), torch.zeros(channels)
    state["post_extract_proj.weight"], state["post_extract_proj.bias"] = some(width, channels), torch.zeros(width)
    state["encoder.pos_conv.0.weight_g"] = torch.ones(1, 1, 128)
    state["encoder.pos_conv.0.weight_v"] = some(width, width // 16, 128)
    state["encoder.pos_conv.0.bias"] = torch.zeros(width)
    norms = ["encoder.layer_norm"]
    for i in range(layers):
        at = f"encoder.layers.{i}"
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            state[f"{at}.self_attn.{name}.weight"] = some(width, width)
            state[f"{at}.self_attn.{name}.bias"] = torch.zeros(width)
        state[f"{at}.fc1.weight"], state[f"{at}.fc1.bias"] = some(2 * width, width), torch.zeros(2 * width)
        state[f"{at}.fc2.weight"], state[f"{at}.fc2.bias"] = some(width, 2 * width), torch.zeros(width)
        norms += [f"{at}.self_attn_layer_norm", f"{at}.final_layer_norm"]
    for name in norms:
        state[f"{name}.weight"], state[f"{name}.bias"] = torch.ones(width), torch.zeros(width)
    state["final_proj.weight"], state["final_proj.bias"] = some(features, width), torch.zeros(features)
    torch.save({"model": state, "cfg": {"model": {"encoder_attention_heads": 4}}}, path)
    return path


def asset(folder: Path, voice: str = "v1_40k_f0", *, index: Path | None = None, rmvpe: bool = False) -> VoiceAsset:
    """A golden v1 voice with an encoder that fits it, written to `folder` once."""
    embedder = folder / "hubert_base.pt"
    if not embedder.exists():
        write_embedder(embedder)
    files = {"model": GOLDEN / "synth" / f"{voice}.pth", "embedder": embedder}
    if index is not None:
        files["index"] = index
    if rmvpe:
        files["rmvpe"] = GOLDEN / "rmvpe_tiny.pt"
    return VoiceAsset(id=voice, engine="rvc", files=files)
