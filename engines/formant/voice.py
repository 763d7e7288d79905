"""The built-in voice as the engine interface wants it: live with any block size, and for files."""

import numpy as np

from myna.engines.base import (
    Block,
    ParameterRefused,
    Placement,
    VoiceAsset,
    VoiceFacts,
    VoiceParameters,
)
from myna.engines.formant.presets import ENGINE, Preset, preset_of
from myna.engines.formant.stream import Converter

RATES_HZ = (8000, 192000)
CONTEXT_MS = 400.0  # a stretch of voice before a cut, for marks and filters to settle
_SLICE_S = 1.0

_FACTS = VoiceFacts(engine=ENGINE, device="cpu", precision="fp64", backend="numpy", model_bytes=0)


class LiveFormant:
    """The built-in voice in a live session.

    Blocks of any size are cut into hops inside; the wait for a whole hop is part of `latency_frames`, so that any
    split gives the same output bit for bit. The voice `neutral` is the same delay and nothing else, whatever
    pitch and formant are asked for. Every other voice speaks unvoiced sound anew, at pitch 0 and formant 0 too.
    """

    def __init__(self, preset: Preset, parameters: VoiceParameters, rate_hz: int) -> None:
        """Start silent.

        Raises:
            ParameterRefused: a rate outside 8–192 kHz.
        """
        if not RATES_HZ[0] <= rate_hz <= RATES_HZ[1]:
            raise ParameterRefused(
                f"The built-in voice works at {RATES_HZ[0]} to {RATES_HZ[1]} Hz, not at {rate_hz}.",
                parameter="rate_hz",
                value=rate_hz,
                allowed=RATES_HZ,
            )
        self._converter = Converter(rate_hz, preset, parameters.pitch, parameters.formant)
        self._unchanged = preset.style == "unchanged"
        # The hop handed back with the last of `hop` frames begins `delay` frames before its end.
        self.latency_frames = self._converter.delay - 1
        self.tail_frames = self.latency_frames + self._converter.silent_frames
        self.facts = _FACTS
        self.reset()

    def reset(self) -> None:
        """Forget all audio heard so far."""
        self._converter.reset()
        hop = self._converter.hop
        self._waiting = np.zeros(0, np.float32)
        self._ready = np.zeros(self.latency_frames if self._unchanged else hop - 1, np.float32)

    def prepare(self, block_frames: int) -> None:
        """Nothing to load; any size will do."""

    def set(self, parameters: VoiceParameters) -> None:
        """Aim for a new pitch and formant from the next hop on."""
        self._converter.set(parameters.pitch, parameters.formant)

    def process(self, block: Block) -> Block:
        """Convert a block, shape (frames,); what is not finite counts as silence."""
        heard = np.nan_to_num(block, nan=0.0, posinf=0.0, neginf=0.0).astype(np.float32, copy=False)
        ready = np.concatenate((self._ready, heard)) if self._unchanged else self._convert(heard)
        self._ready = ready[len(block) :]
        return ready[: len(block)].copy()

    def _convert(self, heard: Block) -> Block:
        hop = self._converter.hop
        waiting = np.concatenate((self._waiting, heard))
        whole = len(waiting) - len(waiting) % hop
        done = [self._converter.step(waiting[at : at + hop]) for at in range(0, whole, hop)]
        self._waiting = waiting[whole:].copy()
        return np.concatenate([self._ready, *(np.asarray(d, np.float32) for d in done)])

    def close(self) -> None:
        """Let go of the audio heard."""
        self.reset()


class FileFormant:
    """The built-in voice for files: the live voice over the whole, its delay taken out."""

    rate_hz: int | None = None
    context_ms = CONTEXT_MS
    facts = _FACTS

    def __init__(self, preset: Preset, parameters: VoiceParameters) -> None:
        """Remember how to sound; a stream is made for each stretch."""
        self._preset = preset
        self._parameters = parameters

    def convert(self, audio: Block, rate_hz: int) -> Block:
        """Convert a stretch, shape (frames,); returns as many frames.

        Raises:
            ParameterRefused: a rate outside 8–192 kHz.
        """
        voice = LiveFormant(self._preset, self._parameters, rate_hz)
        late = voice.latency_frames
        padded = np.concatenate((np.asarray(audio, np.float32), np.zeros(late, np.float32)))
        size = round(_SLICE_S * rate_hz)
        parts = [voice.process(padded[at : at + size]) for at in range(0, len(padded), size)]
        return np.concatenate([np.zeros(0, np.float32), *parts])[late:]

    def close(self) -> None:
        """Nothing is held."""


def open_live(asset: VoiceAsset, placement: Placement, parameters: VoiceParameters, rate_hz: int) -> LiveFormant:
    """Open a voice for a live session; it computes on the CPU wherever it is placed.

    Raises:
        ParameterRefused: the asset's defaults, or the rate, are not for this engine.
    """
    return LiveFormant(_preset(asset), parameters, rate_hz)


def open_file(asset: VoiceAsset, placement: Placement, parameters: VoiceParameters) -> FileFormant:
    """Open a voice for files.

    Raises:
        ParameterRefused: the asset's defaults are not for this engine.
    """
    return FileFormant(_preset(asset), parameters)


def _preset(asset: VoiceAsset) -> Preset:
    try:
        return preset_of(asset)
    except ValueError as error:
        raise ParameterRefused(f"Voice {asset.id!r} can't be opened: {error}.", voice=asset.id) from error
