"""Tell what a model file is, and describe it if it is a voice."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..base import ModelUnusable
from .torchfile import Tensor, read_file, tensors_in
from .weightnames import plain_names

WANTED: Final = (
    "wanted is a finished RVC voice: the small .pth (about 55 MB) that training leaves in assets/weights, or that "
    "its 'extract small model' step makes"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceConfig:
    """The shape of a voice's networks; the positional list that stands in its file."""

    inter: int
    hidden: int
    filter: int
    heads: int
    layers: int
    kernel: int
    short_blocks: bool
    block_kernels: tuple[int, ...]
    block_dilations: tuple[tuple[int, ...], ...]
    rates: tuple[int, ...]
    decoder_start: int
    kernels: tuple[int, ...]
    speaker_width: int
    rate_hz: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceFile:
    """A voice file that has been described but not yet read into memory."""

    path: Path
    weights: Mapping[str, Tensor]
    config: VoiceConfig
    version: str  # v1 (256 features) or v2 (768)
    features: int
    has_f0: bool
    rate_hz: int
    speakers: int
    info: str
    embedder: str | None  # the content encoder it was trained on, where the file says so
    notes: tuple[str, ...] = ()


def content_hash(path: Path) -> str:
    """SHA-256 of the file, in hex; a file replaced under its old name has another one.

    Raises:
        ModelUnusable: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelUnusable(f"{path} cannot be read: {error.strerror}", path=str(path)) from error


def open_voice(path: Path) -> VoiceFile:
    """Describe the voice in `path`; no tensor is read and no torch is needed.

    Raises:
        ModelUnusable: the file is missing, damaged, or something else; the message says what it is and what
            is wanted.
    """
    content = read_file(path)
    what = _foreign(content)
    if what is not None:
        raise ModelUnusable(f"{path.name} is {what}; {WANTED}", path=str(path), kind=what)
    assert isinstance(content, Mapping)  # _foreign refuses all else
    weights = {plain: tensor for (name, tensor), plain in _plain(content["weight"])}
    try:
        return _described(path, content, weights)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ModelUnusable(
            f"{path.name} looks like a voice but its description is damaged "
            f"({type(error).__name__}: {error}); {WANTED}",
            path=str(path),
        ) from error


def _plain(weight: object) -> list[tuple[tuple[str, Tensor], str]]:
    pairs = list(tensors_in(weight))
    names = plain_names(name for name, _ in pairs)
    return [((name, tensor), names[name]) for name, tensor in pairs]


def _foreign(content: object) -> str | None:
    """What `content` is, in words, if it is not a voice."""
    if isinstance(content, Tensor):
        return "a single tensor"
    if not isinstance(content, Mapping):
        return f"a torch file that holds a {type(content).__name__}"
    if not content:
        return "a torch file without content"
    weight = content.get("weight")
    model = content.get("model", content.get("state_dict", content.get("net_g")))
    inner = set(map(str, model)) if isinstance(model, Mapping) else set()
    outer = set(map(str, content))
    names = inner or (set(map(str, weight)) if isinstance(weight, Mapping) else outer)

    def has(prefix: str) -> bool:
        return any(name.startswith(prefix) for name in names)

    kind = None
    if has("feature_extractor.conv_layers") or has("hubert.") or has("w2v_encoder."):
        kind = "a HuBERT/ContentVec content encoder, which belongs among the assets (`myna voices add` puts it there)"
    elif has("unet.") and has("fc."):
        kind = "the RMVPE pitch model, which belongs among the assets (`myna voices add` puts it there)"
    elif has("discriminators.") or (inner and has("discriminator")):
        kind = "the discriminator half of a training checkpoint (D_….pth), which makes no sound"
    elif inner and has("enc_p.") and has("f0_decoder."):
        kind = "a so-vits-svc checkpoint, another kind of voice"
    elif inner and has("enc_p.") and has("dec."):
        kind = "a training checkpoint (G_….pth) with the encoder and optimizer still in it"
    elif {"generator"} <= outer or ({"conv_pre.weight_g", "conv_pre.weight"} & names):
        kind = "a bare HiFi-GAN vocoder"
    elif has("ssl_proj.") or (has("enc_p.") and has("ref_enc.")):
        kind = "a GPT-SoVITS model, another kind of voice"
    elif has("ar_text_") or has("model.ar_"):
        kind = "a GPT-SoVITS language model"
    elif has("model.diffusion_model.") or has("denoise_fn."):
        kind = "a diffusion model"
    elif "pytorch-lightning_version" in outer:
        kind = "a PyTorch Lightning checkpoint of some other model"
    elif not isinstance(weight, Mapping):
        kind = "a torch file of another kind (its keys: " + ", ".join(sorted(outer)[:6]) + ")"
    elif not has("enc_p.") or not has("dec."):
        kind = "a torch file whose weights are no voice (its first: " + ", ".join(sorted(names)[:3]) + ")"
    elif not any(isinstance(tensor, Tensor) for tensor in weight.values()):
        kind = "a voice file without tensors"
    return kind


def _described(path: Path, content: Mapping[object, object], weights: Mapping[str, Tensor]) -> VoiceFile:
    metadata = content.get("metadata")
    facts: Mapping[object, object] = metadata if isinstance(metadata, Mapping) and metadata else content
    vocoder = facts.get("vocoder")
    if vocoder not in (None, "", "HiFi-GAN", "NSF-HiFiGAN", "Default", "default", "hifigan"):
        raise ModelUnusable(f"{path.name} was trained with the vocoder {vocoder}, which is not RVC's own; {WANTED}")
    notes = []
    features = weights["enc_p.emb_phone.weight"].shape[1]
    if features not in (256, 768):
        raise ModelUnusable(
            f"{path.name} expects {features} content features; RVC voices have 256 (v1) or 768 (v2)", features=features
        )
    version = "v1" if features == 256 else "v2"
    said = str(facts.get("version", "v1"))
    if said != version and "version" in facts:
        notes.append(f"the file says {said} but its tensors are {version}")
    has_f0 = "enc_p.emb_pitch.weight" in weights
    if "f0" in facts and bool(int(str(facts["f0"]).strip() or 0)) != has_f0:
        notes.append(f"the file's f0 flag says otherwise, but its tensors are {'with' if has_f0 else 'without'} f0")
    config = _config(facts.get("config"), path)
    _agrees(config, weights, path)
    speakers = weights["emb_g.weight"].shape[0]
    embedder = facts.get("embedder_model", facts.get("embedder"))
    told = encoder_note(embedder)
    if told is not None:
        notes.append(told)
    return VoiceFile(
        path=path,
        weights=weights,
        config=config,
        version=version,
        features=features,
        has_f0=has_f0,
        rate_hz=config.rate_hz,
        speakers=speakers,
        info=str(facts.get("info", ""))[:200],
        embedder=str(embedder) if embedder else None,
        notes=tuple(notes),
    )


def encoder_note(embedder: object) -> str | None:
    """A warning for a voice that says it was trained on another content encoder than ContentVec."""
    if not embedder or any(known in str(embedder).lower() for known in ("contentvec", "hubert_base")):
        return None
    return f"it was trained on the content encoder {embedder}; with ContentVec it will babble"


def _config(value: object, path: Path) -> VoiceConfig:
    if isinstance(value, str):
        value = json.loads(value)  # safetensors keeps it as text
    if isinstance(value, Mapping):
        raise ModelUnusable(f"{path.name} has the configuration of another kind of model; {WANTED}")
    if not isinstance(value, (list, tuple)) or len(value) != 18:
        raise ModelUnusable(f"{path.name} lacks RVC's list of 18 network sizes; {WANTED}")

    def whole(at: int, low: int, high: int) -> int:
        number = value[at]
        if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
            raise ValueError(f"size {at} of the configuration is {number!r}, not within {low} to {high}")
        return number

    def several(items: object, low: int, high: int, most: int) -> tuple[int, ...]:
        if not isinstance(items, Sequence) or isinstance(items, str) or not 1 <= len(items) <= most:
            raise ValueError("a list of sizes in the configuration is damaged")
        numbers = tuple(items)
        if any(isinstance(n, bool) or not isinstance(n, int) or not low <= n <= high for n in numbers):
            raise ValueError(f"a size in the configuration is not within {low} to {high}")
        return numbers

    rates = several(value[12], 1, 64, 8)
    kernels = several(value[14], 1, 128, 8)
    block_kernels = several(value[10], 1, 63, 8)
    dilations = tuple(several(row, 1, 64, 8) for row in value[11])
    rate_hz = whole(17, 8000, 192000)
    if len(kernels) != len(rates) or len(dilations) != len(block_kernels):
        raise ValueError("the lists of sizes in the configuration differ in length")
    if any(k < r or (k - r) % 2 for k, r in zip(kernels, rates, strict=True)):
        raise ValueError("an upsampling kernel does not fit its factor")
    if math.prod(rates) * 100 != rate_hz:
        raise ValueError(f"its frames are {math.prod(rates)} samples at {rate_hz} Hz, not 10 ms")
    config = VoiceConfig(
        inter=whole(2, 2, 4096),
        hidden=whole(3, 2, 4096),
        filter=whole(4, 1, 16384),
        heads=whole(5, 1, 64),
        layers=whole(6, 1, 64),
        kernel=whole(7, 1, 31),
        short_blocks=str(value[9]) == "2",
        block_kernels=block_kernels,
        block_dilations=dilations,
        rates=rates,
        decoder_start=whole(13, 2 ** len(rates), 8192),
        kernels=kernels,
        speaker_width=whole(16, 1, 4096),
        rate_hz=rate_hz,
    )
    if config.hidden % config.heads or config.inter % 2 or config.decoder_start % 2 ** len(rates):
        raise ValueError("sizes in the configuration do not divide")
    return config


def _agrees(config: VoiceConfig, weights: Mapping[str, Tensor], path: Path) -> None:
    """Hold the sizes against the tensors before anything is allocated by them."""
    expected = {
        "enc_p.emb_phone.weight": (config.hidden, weights["enc_p.emb_phone.weight"].shape[1]),
        "enc_p.proj.weight": (2 * config.inter, config.hidden, 1),
        "enc_p.encoder.ffn_layers.0.conv_1.weight": (config.filter, config.hidden, config.kernel),
        "dec.conv_pre.weight": (config.decoder_start, config.inter, 7),
        "dec.cond.weight": (config.decoder_start, config.speaker_width, 1),
    }
    for name, shape in expected.items():
        found = weights[name].shape
        if found != shape:
            raise ModelUnusable(
                f"{path.name} does not fit the configuration inside it: {name} is {found}, not {shape}", tensor=name
            )
    table = weights["emb_g.weight"].shape
    if len(table) != 2 or table[1] != config.speaker_width:
        raise ModelUnusable(f"{path.name} has a speaker table of a wrong shape: {table}")
    if f"enc_p.encoder.attn_layers.{config.layers - 1}.conv_q.weight" not in weights:
        raise ModelUnusable(f"{path.name} has fewer encoder layers than its configuration says")
