"""Tell a content encoder's file apart and its sizes from its tensors; no torch."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..base import ModelUnusable
from . import torchfile
from .torchfile import tensors_in
from .weightnames import plain_names

LAYERS_OF_STRIDES = 7
V1_LAYER, V2_LAYER = 9, 12
WANTED = "wanted is ContentVec: hubert_base.pt (fairseq) or a transformers folder with config.json and its weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The encoder's sizes, as its tensors show them."""

    channels: int
    kernels: tuple[int, ...]
    width: int
    hidden: int
    heads: int
    layers: int
    position_kernel: int
    position_groups: int
    projected: int


_RENAMES = (
    (r"^hubert\.", ""),
    (r"conv_layers\.(\d+)\.conv\.", r"conv_layers.\1.0."),
    (r"conv_layers\.(\d+)\.layer_norm\.", r"conv_layers.\1.2."),
    (r"^feature_projection\.layer_norm\.", "layer_norm."),
    (r"^feature_projection\.projection\.", "post_extract_proj."),
    (r"^encoder\.pos_conv_embed\.conv\.", "encoder.pos_conv.0."),
    (r"(layers\.\d+)\.attention\.", r"\1.self_attn."),
    (r"(layers\.\d+)\.layer_norm\.", r"\1.self_attn_layer_norm."),
    (r"(layers\.\d+)\.feed_forward\.intermediate_dense\.", r"\1.fc1."),
    (r"(layers\.\d+)\.feed_forward\.output_dense\.", r"\1.fc2."),
)


def _renamed(name: str) -> str:
    for pattern, to in _RENAMES:
        name = re.sub(pattern, to, name)
    return name


def read(path: Path) -> tuple[dict[str, torchfile.Tensor], Mapping[object, object]]:
    """The tensors under their fairseq names, and whatever configuration stands beside them."""
    configuration: Mapping[object, object] = {}
    if path.is_dir():
        beside = path / "config.json"
        if beside.is_file():
            try:
                loaded = json.loads(beside.read_text("utf-8"))
            except ValueError as error:
                raise ModelUnusable(f"{beside} cannot be read: {error}") from error
            configuration = loaded if isinstance(loaded, dict) else {}
        for name in ("model.safetensors", "pytorch_model.bin"):
            if (path / name).is_file():
                path = path / name
                break
        else:
            raise ModelUnusable(f"{path} holds no model.safetensors or pytorch_model.bin; {WANTED}")
    content = torchfile.read_file(path)
    if isinstance(content, Mapping):
        inner = content.get("model", content.get("weight", content))
        cfg = content.get("cfg")
        if isinstance(cfg, Mapping) and isinstance(cfg.get("model"), Mapping):
            configuration = cfg["model"]
        found = dict(tensors_in(inner))
        names = plain_names(found)
        tensors = {_renamed(names[name]): tensor for name, tensor in found.items()}
        if "feature_extractor.conv_layers.0.0.weight" in tensors and "post_extract_proj.weight" in tensors:
            return tensors, configuration
    raise ModelUnusable(f"{path.name} is not a HuBERT/ContentVec content encoder; {WANTED}", path=str(path))


def sizes_of(tensors: Mapping[str, torchfile.Tensor], configuration: Mapping[object, object], path: Path) -> Sizes:
    try:
        kernels = tuple(
            tensors[f"feature_extractor.conv_layers.{i}.0.weight"].shape[2] for i in range(LAYERS_OF_STRIDES)
        )
        position = tensors["encoder.pos_conv.0.weight_v"].shape
        width, channels = tensors["post_extract_proj.weight"].shape
        hidden = tensors["encoder.layers.0.fc1.weight"].shape[0]
        if "feature_extractor.conv_layers.0.2.weight" not in tensors:
            raise KeyError("the first layer's group norm")
    except (KeyError, IndexError, ValueError) as error:
        raise ModelUnusable(
            f"{path.name} is a speech encoder of another shape ({error} is missing); {WANTED}"
        ) from error
    said = configuration.get("num_attention_heads", configuration.get("encoder_attention_heads"))
    heads = said if isinstance(said, int) and said > 0 and width % said == 0 else max(width // 64, 1)
    layers = sum(1 for name in tensors if re.fullmatch(r"encoder\.layers\.\d+\.fc1\.weight", name))
    return Sizes(
        channels=channels,
        kernels=kernels,
        width=width,
        hidden=hidden,
        heads=heads,
        layers=layers,
        position_kernel=position[2],
        position_groups=width // position[1],
        projected=tensors["final_proj.weight"].shape[0] if "final_proj.weight" in tensors else 0,
    )


def needs(sizes: Sizes, version: str, path: Path) -> tuple[int, bool]:
    """Layers read for a version, and whether they are projected."""
    layers, project = (V1_LAYER, True) if version == "v1" else (V2_LAYER, False)
    if sizes.layers < layers:
        raise ModelUnusable(f"{path.name} has {sizes.layers} layers; a {version} voice needs {layers}")
    if project and not sizes.projected:
        raise ModelUnusable(f"{path.name} lacks the final projection that v1 voices need; {WANTED}")
    return layers, project


def describe(path: Path) -> dict[str, bool | int | float | str | None]:
    """Facts about the encoder in `path`.

    Raises:
        ModelUnusable: it is none.
    """
    sizes = sizes_of(*read(path), path)
    return {"width": sizes.width, "layers": sizes.layers, "heads": sizes.heads, "projected": sizes.projected}


def check(path: Path, version: str, features: int) -> None:
    """See that the encoder serves voices of `version` with this many features, without reading its weights.

    Raises:
        ModelUnusable: it does not.
    """
    tensors, configuration = read(path)
    sizes = sizes_of(tensors, configuration, path)
    needs(sizes, version, path)
    made = sizes.projected if version == "v1" else sizes.width
    if made != features:
        raise ModelUnusable(f"{path.name} makes {made} features; this {version} voice needs {features}; {WANTED}")
