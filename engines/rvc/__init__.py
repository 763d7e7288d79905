"""RVC voices, live and for files. Importing this loads neither torch nor any file."""

from ..base import (
    Capabilities,
    EngineError,
    EngineSpec,
    FileVoice,
    LiveVoice,
    Placement,
    VoiceAsset,
    VoiceParameters,
)


def _open_live(asset: VoiceAsset, placement: Placement, parameters: VoiceParameters, rate_hz: int) -> LiveVoice:
    from .live import RvcLive

    return RvcLive(asset, placement, parameters, rate_hz)


def _open_file(asset: VoiceAsset, placement: Placement, parameters: VoiceParameters) -> FileVoice:
    from .file import RvcFile

    return RvcFile(asset, placement, parameters)


def _check(asset: VoiceAsset) -> tuple[str, ...]:
    """Problems of a voice in words, found without torch and without reading its weights.

    An ONNX export can't be described without reading all of it, which a small process must not; that was done in
    another when it was added.
    """
    from .checkpoint import open_voice
    from .needs import required
    from .onnxfile import is_export

    problems: list[str] = []
    model = asset.files.get("model")
    if model is None:
        problems.append("it has no model file")
    elif is_export(model):
        if not model.is_file():
            problems.append(f"{model} is missing")
    else:
        try:
            problems += open_voice(model).notes
        except EngineError as error:
            problems.append(str(error))
    try:
        required(asset, "embedder")
    except EngineError as error:
        problems.append(str(error))
    return tuple(problems)


SPEC = EngineSpec(
    name="rvc",
    capabilities=Capabilities(
        live=True,
        file=True,
        hop_ms=10.0,
        parameters=frozenset(
            {
                "pitch",
                "formant",
                "f0_method",
                "index_rate",
                "protect",
                "rms_mix",
                "speaker_id",
                "autotune",
                "unvoiced",
                "crossfade_ms",
                "context_ms",
            }
        ),
        cuda_graph=True,
        devices=frozenset({"cpu", "cuda", "xpu", "mps", "dml"}),
    ),
    built_in=(),
    check=_check,
    open_live=_open_live,
    open_file=_open_file,
)
