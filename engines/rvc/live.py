"""An RVC voice in a live session."""

from concurrent.futures import wait
from functools import partial

import numpy as np
from numpy.typing import NDArray

from myna.dsp.levels import match_loudness
from myna.dsp.sola import Sola

from ..base import Block, Placement, VoiceAsset, VoiceFacts, VoiceParameters
from ..f0.extractors import PitchExtractor
from ..f0.pitch import autotuned, coarse, gaps_filled, transposed
from ..f0.salience import MULTIPLE
from .beside import Beside
from .features import doubled, protected
from .geometry import HOP_16K, RATE_16K, Geometry, formant_step, plan
from .models import Models
from .networks import Network, Shape
from .noise import KeyedNoise
from .rates import StreamResampler, resampled
from .render import SineTrack, span_until, stretched

Array = NDArray[np.float32]

# What the voice hears of the past beside the block. 2.5 s is the original's; a second sounds the same to every
# measure tried and halves the work on a CPU.
BEST_CONTEXT_MS = 1000.0
# Pitch frames before the block that are found anew, now that what follows them is known. With 3 and more, RMVPE would
# need 64 frames for a block of 250 ms instead of the 32 that the original looks at, and twice the time.
_REFRESHED = 2
_NOISE_KEY = 0x6D796E61
_LONGEST_MS = 1500 + 5000 + 200  # the largest block, context and crossfade that settings allow


class RvcLive:
    """Converts block by block: context and pitch move on by exactly a block, only the tail is rendered.

    The sine's phase and all noise belong to absolute time, so that two renders of the same moment agree and the
    crossfade joins equal waves.
    """

    def __init__(self, asset: VoiceAsset, placement: Placement, parameters: VoiceParameters, rate_hz: int) -> None:
        """Load the voice for a session at `rate_hz`.

        Raises:
            ModelUnusable, MissingAsset, ParameterRefused, BackendUnavailable, OutOfMemory: as `Models`.
        """
        plan(rate_hz, rate_hz // 100, crossfade_ms=5, context_ms=50)  # refuses rates without whole hops
        self._models = Models(asset, placement)
        try:
            self._models.check(parameters)
            self._light = self._models.choice.device == "cpu"
            self._extractors: dict[str, PitchExtractor] = {}
            self._extractor = self._pick(parameters)
        except BaseException:
            self._models.close()
            raise
        # Two networks of one thread each take less of the processor than one after the other on two threads.
        apart = self._extractor is not None and placement.threads > 1 and self._models.choice.backend.name == "openvino"
        self._beside = Beside("pitch") if apart else None
        self._parameters = parameters
        self._rate_hz = rate_hz
        self._resampler = StreamResampler(rate_hz, RATE_16K)
        self._source_noise = KeyedNoise(_NOISE_KEY, self._models.hop)
        self._latent_noise = KeyedNoise(_NOISE_KEY + 1, self._models.channels)
        self._sine = SineTrack(self._models.merge, self._source_noise) if self._models.merge is not None else None
        self._plans: dict[int, Geometry] = {}
        self._geometry: Geometry | None = None
        self.rendered_blocks = 0  # blocks that cost inference
        self.reset()

    # --- what runs ---------------------------------------------------------------------------------------

    @property
    def latency_frames(self) -> int:
        """Crossfade, search and the resampler's delay; of the block length in use, or of any before the first."""
        sizes = self._geometry or self._plan(self._rate_hz // 5)
        return sizes.crossfade_frames + sizes.search_frames + self._resampler.latency_frames

    @property
    def tail_frames(self) -> int:
        """Silence after which the output is silent: the delay, the block in which that is noticed, its fade."""
        sizes = self._geometry or self._plan(self._rate_hz // 5)
        return self.latency_frames + sizes.block_frames + sizes.crossfade_frames

    @property
    def facts(self) -> VoiceFacts:
        """What runs."""
        return self._models.facts(self._extractor)

    @property
    def last_lag_frames(self) -> int:
        """How far the last block was shifted to continue the one before."""
        return self._sola.last_lag if self._sola is not None else 0

    # --- control -----------------------------------------------------------------------------------------

    def prepare(self, block_frames: int) -> None:
        """Compile whatever a block of this many frames needs; a running block is not disturbed.

        Raises:
            ParameterRefused: the block is not whole tens of ms.
            BackendUnavailable, OutOfMemory: it cannot be made.
        """
        sizes = self._plan(block_frames)
        for network, shapes in self._stages(sizes):
            self._models.stage(network, shapes)
        if self._extractor is not None:
            self._extractor.prepare(self._pitch_window(sizes))

    def _stages(self, sizes: Geometry) -> list[tuple[Network, list[Shape]]]:
        """The networks that a block runs, with their shapes; pitch is the extractor's affair."""
        models = self._models
        return [
            (models.content, [(1, sizes.total * HOP_16K)]),
            (models.latent, models.latent_shapes(sizes.total, sizes.total - sizes.flow_head)),
            (models.audio, models.audio_shapes(sizes.rendered)),
        ]

    def _in_use(self, sizes: Geometry) -> list[tuple[Network, list[Shape]]]:
        """All networks of a block length, the pitch network included."""
        used = self._stages(sizes)
        if self._models.pitch is not None and self._extractor is not None:
            frames = self._pitch_window(sizes) // HOP_16K + 1
            used.append((self._models.pitch, [(1, 128, frames + -frames % MULTIPLE)]))
        return used

    def _pitch_window(self, sizes: Geometry) -> int:
        """Samples that the pitch extractor is given."""
        assert self._extractor is not None
        fresh = min(sizes.block + _REFRESHED, sizes.total)
        return min(self._extractor.window(fresh), sizes.total * HOP_16K)

    def set(self, parameters: VoiceParameters) -> None:
        """Take new parameters from the next block on.

        A new pitch method or context is loaded right here, so a caller that must not wait opens the voice anew
        instead; all else costs nothing.

        Raises:
            ParameterRefused, MissingAsset: a value this voice cannot take; the old ones stay.
        """
        self._models.check(parameters)
        extractor = self._pick(parameters)
        old, self._parameters = self._parameters, parameters
        self._extractor = extractor
        if (old.crossfade_ms, old.context_ms) != (parameters.crossfade_ms, parameters.context_ms):
            self._plans.clear()
            if self._geometry is not None:
                self._use(self._plan(self._geometry.block_frames))

    def reset(self) -> None:
        """Forget all audio heard so far, and the networks of block lengths that are no longer in use."""
        self._resampler.reset()
        frames = _LONGEST_MS // 10
        self._heard = np.zeros(frames * HOP_16K, np.float32)  # at 16 kHz, newest last
        self._said = np.zeros(_LONGEST_MS * self._rate_hz // 1000, np.float32)  # at the session rate
        self._f0_hz = np.zeros(frames, np.float32)  # as found, neither moved nor tuned
        self._frame = 0  # absolute number of the frame that begins where the context ends
        self._quiet_frames = 1 << 40  # exact zeros at the end of the input; nothing heard yet is silence
        self._sola: Sola | None = None
        self._voiced_out = False  # whether the crossfade still holds sound
        if self._geometry is not None:
            self._use(self._geometry)
            self._models.forget_others(self._in_use(self._geometry))
        if self._sine is not None:
            self._sine.reset(0)

    def close(self) -> None:
        """Let go of memory."""
        if self._beside is not None:
            self._beside.close()
        self._models.close()
        self._extractors.clear()
        self._extractor = None

    # --- the block ---------------------------------------------------------------------------------------

    def process(self, block: Block) -> Block:
        """Convert one block, shape (frames,), whole tens of ms.

        Raises:
            ParameterRefused: the block is not whole tens of ms.
        """
        if block.shape[0] == 0:
            return np.zeros(0, np.float32)
        if self._geometry is None or self._geometry.block_frames != block.shape[0]:
            self._use(self._plan(block.shape[0]))
        sizes, sola = self._geometry, self._sola
        assert sizes is not None
        assert sola is not None
        self._hear(block, sizes)
        if self._quiet_frames >= sizes.block_frames + self.latency_frames:
            return self._silence(sizes, sola)
        try:
            new = self._render(sizes)
        except BaseException:
            sola.reset()  # what it holds ends before the gap
            raise
        self._voiced_out = True
        return sola.process(new)

    def _hear(self, block: Block, sizes: Geometry) -> None:
        """Move every memory on by one block, whatever becomes of it."""
        clean = block if np.isfinite(block).all() else np.nan_to_num(block, nan=0.0, posinf=0.0, neginf=0.0)
        sounding = np.flatnonzero(clean)
        if sounding.size:
            self._quiet_frames = clean.shape[0] - 1 - int(sounding[-1])
        else:
            self._quiet_frames += clean.shape[0]
        _push(self._said, clean)
        _push(self._heard, self._resampler.process(clean))
        _push(self._f0_hz, np.zeros(sizes.block, np.float32))
        self._frame += sizes.block

    def _silence(self, sizes: Geometry, sola: Sola) -> Block:
        """No inference: the crossfade rings out into zeros, after that zeros."""
        if self._sine is not None:
            self._advance_sine(sizes)
        if not self._voiced_out:
            return np.zeros(sizes.block_frames, np.float32)
        self._voiced_out = False
        return sola.process(np.zeros(sizes.wanted_frames, np.float32))

    def _render(self, sizes: Geometry) -> Array:
        """The newest stretch, converted: (wanted_frames,) at the session rate."""
        models, parameters = self._models, self._parameters
        self.rendered_blocks += 1
        heard = self._heard[-sizes.total * HOP_16K :]
        features, raw_hz = self._recognised(heard, sizes)
        phone = self._phone(features, raw_hz, sizes)
        sid = np.array([parameters.speaker_id], np.int64)
        first_latent = self._frame - (sizes.total - sizes.flow_head)
        noise = self._latent_noise.rows(first_latent, sizes.total - sizes.flow_head).T
        step = formant_step(models.hop, parameters.formant)
        bins: tuple[NDArray[np.int64], ...] = ()
        f0_hz = np.zeros(sizes.total, np.float32)
        if raw_hz is not None:
            f0_hz = self._moved(raw_hz)
            # The decoder runs on a stretched axis, so the pitch that the encoder is told moves against it.
            bins = (coarse((f0_hz * np.float32(models.hop / step)).astype(np.float32))[None],)
        z = models.stage(models.latent, models.latent_shapes(sizes.total, noise.shape[1]))(
            phone[None], np.ascontiguousarray(noise[None]), sid, *bins
        )[0]
        span = span_until(self._frame, sizes.rendered, models.hop, step)
        latent = stretched(z, first_latent, span)
        source: tuple[Array, ...] = ()
        if self._sine is not None:
            source = (self._sine.source(f0_hz, self._frame - sizes.total, span)[None, None],)
        audio = models.stage(models.audio, models.audio_shapes(sizes.rendered))(
            np.ascontiguousarray(latent[None]), sid, *source
        )[0, 0]
        if self._sine is not None:
            self._advance_sine(sizes, f0_hz)
        start = span.offset(self._frame - sizes.tail)
        made = resampled(audio, sizes.hop_frames, step, start=start, frames=sizes.tail * sizes.hop_frames)
        new = made[-sizes.wanted_frames :]
        if parameters.rms_mix < 1.0:
            end = self._said.shape[0] - self._resampler.latency_frames
            new = match_loudness(
                new, self._said[end - sizes.wanted_frames : end], parameters.rms_mix, hop_frames=sizes.hop_frames
            )
        return new

    def _recognised(self, heard: Array, sizes: Geometry) -> tuple[Array, Array | None]:
        """Content features of the context, and its pitch where the voice has one; at the same time if that helps."""
        if self._extractor is None:
            return self._features(heard), None
        if self._beside is None:
            return self._features(heard), self._found(heard, sizes)
        pitch = self._beside.start(partial(self._found, heard, sizes))
        try:
            features = self._features(heard)
        finally:
            wait([pitch])  # whatever becomes of this block, the next one finds the extractor at rest
        return features, pitch.result()

    def _features(self, heard: Array) -> Array:
        """Content features, (frames of 20 ms, width)."""
        features = self._models.stage(self._models.content, [(1, heard.shape[0])])(heard[None])[0]
        return np.concatenate((features, features[-1:]))

    def _found(self, heard: Array, sizes: Geometry) -> Array:
        """Pitch of the context, with the newest frames found in this block."""
        assert self._extractor is not None
        fresh = min(sizes.block + _REFRESHED, sizes.total)
        track = self._extractor.track(heard[-self._pitch_window(sizes) :])
        self._f0_hz[-fresh:] = track[-fresh:]
        return self._f0_hz[-sizes.total :]

    def _moved(self, raw_hz: Array) -> Array:
        """Pitch as it is to be heard."""
        parameters = self._parameters
        f0_hz = gaps_filled(raw_hz) if parameters.unvoiced == "original" else raw_hz
        return autotuned(transposed(f0_hz, parameters.pitch), parameters.autotune)

    def _phone(self, features: Array, raw_hz: Array | None, sizes: Geometry) -> Array:
        """Content features doubled to 10 ms; retrieval touches what reaches the latent only."""
        models, parameters = self._models, self._parameters
        if models.index is None or parameters.index_rate <= 0:
            return doubled(features, sizes.total)
        own = doubled(features, sizes.total)
        first = (sizes.total - sizes.tail) // 2
        tail = models.index.blended(features[first:], parameters.index_rate)
        retrieved = doubled(np.concatenate((features[:first], tail)), sizes.total)
        if raw_hz is None or parameters.unvoiced != "protect":
            return retrieved
        return protected(retrieved, own, raw_hz, parameters.protect)

    def _advance_sine(self, sizes: Geometry, f0_hz: Array | None = None) -> None:
        """Carry the phase to where the next block's tail will begin; before that it is read backwards."""
        assert self._sine is not None
        curve = np.zeros(sizes.total, np.float32) if f0_hz is None else f0_hz
        self._sine.advance(curve, self._frame - sizes.total, self._frame + sizes.block - sizes.tail)

    # --- sizes -------------------------------------------------------------------------------------------

    def _plan(self, block_frames: int) -> Geometry:
        known = self._plans.get(block_frames)
        if known is None:
            context = self._parameters.context_ms
            known = self._plans[block_frames] = plan(
                self._rate_hz,
                block_frames,
                crossfade_ms=self._parameters.crossfade_ms,
                context_ms=BEST_CONTEXT_MS if context is None else context,
            )
        return known

    def _use(self, sizes: Geometry) -> None:
        """Go over to another block length; what would have been played next is crossfaded from."""
        lengths = (sizes.block_frames, sizes.crossfade_frames, sizes.search_frames)
        self._geometry = sizes
        self._sola = Sola(*lengths) if self._sola is None else self._sola.resized(*lengths)

    def _pick(self, parameters: VoiceParameters) -> PitchExtractor | None:
        """The extractor that the parameters ask for, opened once."""
        if self._models.merge is None:
            return None
        known = self._extractors.get(parameters.f0_method)
        if known is None:
            known = self._models.extractor(parameters.f0_method, light=self._light)
            self._extractors[parameters.f0_method] = known
        return known


def _push(ring: Array, new: Array) -> None:
    """Move `ring` on by `new`, newest last."""
    count = new.shape[0]
    if count >= ring.shape[0]:
        ring[:] = new[-ring.shape[0] :]
    else:
        ring[:-count] = ring[count:]
        ring[-count:] = new
