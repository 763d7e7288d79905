"""An RVC voice for files: whole stretches, cut at quiet points, rendered through the live networks."""

import math

import numpy as np
from numpy.typing import NDArray

from ..base import Block, Placement, VoiceAsset, VoiceFacts, VoiceParameters
from ..f0.extractors import PitchExtractor
from ..f0.pitch import autotuned, coarse, gaps_filled, transposed
from .features import doubled, protected
from .geometry import HOP_16K, RATE_16K, formant_step
from .loudness import matched
from .models import Models
from .noise import KeyedNoise
from .rates import resampled, whole
from .render import SineTrack, Span, span_until, stretched

Array = NDArray[np.float32]

CONTEXT_MS = 1000.0  # on both sides of a piece, as the original pads
# Pieces, in frames of 10 ms: longer ones cost memory by the square (attention), shorter ones time (context).
LONGEST_FRAMES = 3000
_LOOK_FRAMES = 600  # how far before the longest a quiet point is looked for
_DECODED_FRAMES = 400  # decoder frames rendered at once
_DECODER_REACH = 11
_NOISE_KEY = 0x6D796E61


class RvcFile:
    """Converts whole stretches. The same sound and parameters give the same bytes, whatever ran before."""

    def __init__(self, asset: VoiceAsset, placement: Placement, parameters: VoiceParameters) -> None:
        """Load the voice.

        Raises:
            ModelUnusable, MissingAsset, ParameterRefused, BackendUnavailable, OutOfMemory: as `Models`.
        """
        # Pieces have any length, and backends of fixed shapes would compile for each.
        self._models = Models(asset, placement, backend="eager")
        try:
            self._models.check(parameters)
            self._extractor: PitchExtractor | None = None
            if self._models.merge is not None:
                self._extractor = self._models.extractor(parameters.f0_method, light=False)
        except BaseException:
            self._models.close()
            raise
        self._parameters = parameters

    @property
    def rate_hz(self) -> int:
        """The voice's own rate."""
        return self._models.rate_hz

    @property
    def context_ms(self) -> float:
        """Audio wanted around a segment."""
        return CONTEXT_MS

    @property
    def facts(self) -> VoiceFacts:
        """What runs."""
        return self._models.facts(self._extractor)

    def close(self) -> None:
        """Let go of memory."""
        self._models.close()
        self._extractor = None

    def convert(self, audio: Block, rate_hz: int) -> Block:
        """Convert a whole stretch, shape (frames,), delay-compensated.

        Returns:
            round(frames × voice rate / rate_hz) frames. What is not finite counts as silence; a stretch of exact
            zeros comes back as zeros.
        """
        models = self._models
        wanted = round(audio.shape[0] * models.rate_hz / rate_hz)
        if wanted == 0:
            return np.zeros(0, np.float32)
        clean = np.nan_to_num(np.asarray(audio, np.float32), nan=0.0, posinf=0.0, neginf=0.0)
        if not clean.any():
            return np.zeros(wanted, np.float32)
        heard = whole(clean, rate_hz, RATE_16K)
        said = heard
        heard = _without_rumble(heard)
        frames = math.ceil(heard.shape[0] / HOP_16K)
        heard = np.pad(heard, (0, frames * HOP_16K - heard.shape[0]))
        noise = KeyedNoise(_NOISE_KEY + 1, models.channels)
        sine = SineTrack(models.merge, KeyedNoise(_NOISE_KEY, models.hop)) if models.merge is not None else None
        pieces = [self._piece(heard, first, last, noise, sine) for first, last in _cuts(heard, frames)]
        made = np.concatenate(pieces)
        made = made[:wanted] if made.shape[0] >= wanted else np.pad(made, (0, wanted - made.shape[0]))
        made = matched(said, RATE_16K, made, models.rate_hz, self._parameters.rms_mix)
        if not np.isfinite(made).all():
            made = np.nan_to_num(made, nan=0.0, posinf=0.0, neginf=0.0)
        return _hushed(made, clean, models.rate_hz, rate_hz)

    def _piece(self, heard: Array, first: int, last: int, noise: KeyedNoise, sine: SineTrack | None) -> Array:
        """Frames first … last − 1, converted with a second of context on each side, at the voice's rate."""
        models, parameters = self._models, self._parameters
        pad = round(CONTEXT_MS / 10)
        begin, end = first - pad, last + pad
        if (end - begin) % 2:
            end += 1
        total = end - begin
        wav = _mirrored(heard, begin * HOP_16K, end * HOP_16K)
        features = models.stage(models.content, [(1, wav.shape[0])])(wav[None])[0]
        features = np.concatenate((features, features[-1:]))
        phone = own = doubled(features, total)
        raw_hz = self._extractor.track(wav) if self._extractor is not None else None
        if models.index is not None and parameters.index_rate > 0:
            phone = doubled(models.index.blended(features, parameters.index_rate), total)
            if raw_hz is not None and parameters.unvoiced == "protect":
                phone = protected(phone, own, raw_hz, parameters.protect)
        step = formant_step(models.hop, parameters.formant)
        f0_hz = np.zeros(total, np.float32)
        bins: tuple[NDArray[np.int64], ...] = ()
        if raw_hz is not None:
            raw_hz = gaps_filled(raw_hz) if parameters.unvoiced == "original" else raw_hz
            f0_hz = autotuned(transposed(raw_hz, parameters.pitch), parameters.autotune)
            bins = (coarse((f0_hz * np.float32(models.hop / step)).astype(np.float32))[None],)
        sid = np.array([parameters.speaker_id], np.int64)
        rows = np.ascontiguousarray(noise.rows(begin, total).T[None])
        z = models.stage(models.latent, models.latent_shapes(total, total))(phone[None], rows, sid, *bins)[0]
        made = [
            self._decoded(z, f0_hz, begin, at, min(at + _DECODED_FRAMES, last), step, sid, sine)
            for at in range(first, last, _DECODED_FRAMES)
        ]
        return np.concatenate(made)

    def _decoded(
        self,
        z: Array,
        f0_hz: Array,
        begin: int,
        first: int,
        last: int,
        step: int,
        sid: NDArray[np.int64],
        sine: SineTrack | None,
    ) -> Array:
        """Frames first … last − 1 of a piece whose latent starts at frame `begin`; margins make them exact."""
        models = self._models
        hop = models.hop
        end = span_until(last, 0, hop, step).first + _DECODER_REACH + 1
        start = first * step // hop - _DECODER_REACH - 1
        span = Span(start, end - start, hop, step)
        latent = np.ascontiguousarray(stretched(z, begin, span)[None])
        source: tuple[Array, ...] = ()
        if sine is not None:
            sine.advance(f0_hz, begin, first)
            source = (sine.source(f0_hz, begin, span)[None, None],)
        audio = models.stage(models.audio, models.audio_shapes(span.count))(latent, sid, *source)[0, 0]
        if sine is not None:
            sine.advance(f0_hz, begin, last)
        return resampled(audio, hop, step, start=span.offset(first), frames=(last - first) * hop)


def _without_rumble(heard: Array) -> Array:
    """Cut below 48 Hz, forwards and backwards, as the original does before it looks for pitch."""
    if heard.shape[0] < 64:
        return heard
    from scipy.signal import butter, sosfiltfilt  # for files alone: it takes a second to import, and 45 MiB

    sections = butter(5, 48, btype="highpass", fs=RATE_16K, output="sos")
    out: Array = sosfiltfilt(sections, heard.astype(np.float64)).astype(np.float32)
    return out


def _cuts(heard: Array, frames: int) -> list[tuple[int, int]]:
    """Pieces of at most LONGEST_FRAMES, cut at the quietest tenth of a second in reach."""
    power = np.square(heard.reshape(frames, HOP_16K).astype(np.float64)).sum(axis=1)
    smooth = np.convolve(power, np.ones(10), mode="same") if frames >= 10 else power
    pieces, first = [], 0
    while frames - first > LONGEST_FRAMES:
        low = first + LONGEST_FRAMES - _LOOK_FRAMES
        cut = low + int(np.argmin(smooth[low : first + LONGEST_FRAMES]))
        cut -= cut % 2  # features have frames of 20 ms
        pieces.append((first, cut))
        first = cut
    pieces.append((first, frames))
    return pieces


def _mirrored(heard: Array, begin: int, end: int) -> Array:
    """Samples begin … end − 1; beyond the ends the sound mirrored, so that a network sees no sudden silence."""
    count = heard.shape[0]
    at = np.arange(begin, end)
    period = max(2 * (count - 1), 1)
    folded = np.abs(at) % period
    out: Array = heard[np.where(folded >= count, period - folded, folded)]
    return out


def _hushed(made: Array, clean: Array, rate_hz: int, said_rate_hz: int) -> Array:
    """Silence where a tenth of a second and more of the input was exactly zero, faded over 10 ms within it."""
    least, fade = said_rate_hz // 10, max(rate_hz // 100, 1)
    sounding = np.flatnonzero(clean)
    edges = np.concatenate(([-1], sounding, [clean.shape[0]]))
    gaps = np.flatnonzero(np.diff(edges) - 1 >= least)
    if gaps.size == 0:
        return made
    gain = np.ones(made.shape[0], np.float32)
    ramp = np.linspace(1.0, 0.0, fade, dtype=np.float32)
    for gap in gaps:
        low = round((int(edges[gap]) + 1) * rate_hz / said_rate_hz)
        high = min(round(int(edges[gap + 1]) * rate_hz / said_rate_hz), made.shape[0])
        at_start, at_end = edges[gap] < 0, edges[gap + 1] >= clean.shape[0]
        gain[low:high] = 0.0
        if not at_start:
            piece = gain[low : low + fade]
            piece[:] = ramp[: piece.shape[0]]
        if not at_end:
            piece = gain[max(high - fade, 0) : high]
            piece[:] = ramp[::-1][-piece.shape[0] :]
    return made * gain
