"""The built-in voice: pitch and formants moved apart, with numpy alone."""

from typing import TYPE_CHECKING

from myna.engines.base import Capabilities, EngineSpec, Placement, VoiceAsset, VoiceParameters
from myna.engines.formant.presets import BUILT_IN, ENGINE, problems_of

if TYPE_CHECKING:
    from myna.engines.base import FileVoice, LiveVoice


def _open_live(asset: VoiceAsset, placement: Placement, parameters: VoiceParameters, rate_hz: int) -> "LiveVoice":
    from myna.engines.formant.voice import open_live  # scipy is imported in here, not before

    return open_live(asset, placement, parameters, rate_hz)


def _open_file(asset: VoiceAsset, placement: Placement, parameters: VoiceParameters) -> "FileVoice":
    from myna.engines.formant.voice import open_file

    return open_file(asset, placement, parameters)


SPEC = EngineSpec(
    name=ENGINE,
    capabilities=Capabilities(
        live=True,
        file=True,
        hop_ms=5.0,
        parameters=frozenset({"pitch", "formant"}),
        added=frozenset({"pitch", "formant"}),
    ),
    built_in=BUILT_IN,
    check=problems_of,
    open_live=_open_live,
    open_file=_open_file,
)
