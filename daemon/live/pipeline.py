"""The chain of one session: from the microphone's block to the block that is heard."""

from collections import deque
from typing import Protocol

import numpy as np

from myna.control.contract import Denoise, LiveSettings
from myna.dsp.chain import Chain
from myna.dsp.delay import DelayLine
from myna.dsp.fades import Ramp, Switch
from myna.dsp.finite import Finite
from myna.dsp.gate import Gate
from myna.dsp.levels import LoudnessMix, Meter
from myna.dsp.limiter import Limiter
from myna.dsp.stage import Block, Stage
from myna.dsp.swap import Swap
from myna.engines.base import LiveVoice, VoiceParameters

SWITCH_MS = 15.0  # bypass and mute: long enough not to click, short enough to feel immediate
SWAP_MS = 40.0
LONGEST_DELAY_S = 6.0  # of everything that bypass must wait for


class Tap(Protocol):
    """Hears every block, aligned in time; must not wait."""

    def put(self, aligned_input: Block, converted: Block) -> None: ...


def voice_parameters(settings: LiveSettings) -> VoiceParameters:
    """What of the settings is the voice's. Loudness mixing is the pipeline's, so the voice keeps its own."""
    return VoiceParameters(
        pitch=settings.pitch,
        formant=settings.formant,
        f0_method=settings.f0_method,
        index_rate=settings.index_rate,
        protect=settings.protect,
        rms_mix=1.0,
        speaker_id=settings.speaker_id,
        autotune=settings.autotune,
        unvoiced=settings.unvoiced,
        crossfade_ms=settings.crossfade_ms,
        context_ms=settings.context_ms,
    )


def denoise_stage(kind: Denoise, rate_hz: int) -> Stage:
    """The stage that a `denoise_*` setting names; may load a model, so never in the audio path."""
    if kind == "off":
        return Chain(())
    from myna.dsp.denoise import DeepFilterDenoise, RnnoiseDenoise, SpectralDenoise  # only when asked for

    if kind == "rnnoise":
        return RnnoiseDenoise(rate_hz)
    if kind == "deepfilter":
        return DeepFilterDenoise(rate_hz)
    return SpectralDenoise(rate_hz)


def vad_stage(on: bool, rate_hz: int) -> Stage:
    """The voice-activity stage, or nothing."""
    if not on:
        return Chain(())
    from myna.dsp.vad import VoiceActivity

    return VoiceActivity(rate_hz)


class LivePipeline:
    """Runs every stage of a session, one block at a time.

    Order: finite guard, gain, denoise, VAD, gate, voice, finite guard, loudness, denoise, [bypass], gain, mute,
    limiter. The raw input reaches the output only through the bypass switch, and the monitor only through
    `monitor_source` with consent; everything else that fails gives silence.
    """

    def __init__(self, rate_hz: int, voice: LiveVoice, settings: LiveSettings, *, bypass: bool, muted: bool) -> None:
        self.rate_hz = rate_hz
        swap_frames = round(rate_hz * SWAP_MS / 1000)
        turn = max(1, round(rate_hz * SWITCH_MS / 1000))
        self.guard_in, self.guard_voice = Finite(), Finite()
        self.gain_in = Ramp(rate_hz, gain_db=settings.gain_in_db)
        self.denoise_in = Swap(denoise_stage(settings.denoise_in, rate_hz), swap_frames)
        self.vad = Swap(vad_stage(settings.vad, rate_hz), swap_frames)
        self.gate = Gate(rate_hz)
        self.voice = Swap(voice, swap_frames)
        self.source_line = DelayLine(0, max_frames=round(LONGEST_DELAY_S * rate_hz))
        self.loudness = LoudnessMix(rate_hz, settings.rms_mix)
        self.denoise_out = Swap(denoise_stage(settings.denoise_out, rate_hz), swap_frames)
        self.bypass_line = DelayLine(0, max_frames=round(LONGEST_DELAY_S * rate_hz))
        self.gain_out = Ramp(rate_hz, gain_db=settings.gain_out_db)
        self.gain_monitor = Ramp(rate_hz, gain_db=settings.gain_monitor_db)
        self.limiter = Limiter(rate_hz)
        self.input_meter, self.output_meter = Meter(), Meter()
        self.taps: deque[Tap] = deque()
        self.monitor: Block | None = None  # what the monitor plays for the latest block
        self._dry_in, self._wet_in = Switch(turn, turn, on=bypass), Switch(turn, turn, on=not bypass)
        self._audible = Switch(turn, turn, on=not muted)
        self._monitor_dry, self._monitor_wet = Switch(turn, turn), Switch(turn, turn, on=True)
        self._bypass, self._muted = bypass, muted
        self._settings = settings
        self._consent = False
        self.apply(settings, bypass=bypass, muted=muted, monitor_consent=False)
        self._align()

    @property
    def latency_frames(self) -> int:
        """Delay of all stages."""
        return (
            self.denoise_in.latency_frames
            + self.vad.latency_frames
            + self.gate.latency_frames
            + self.voice.latency_frames
            + self.denoise_out.latency_frames
        )

    @property
    def newest_voice(self) -> LiveVoice:
        """The voice that sounds, or is about to."""
        newest: LiveVoice = self.voice.newest  # type: ignore[assignment]  # it only ever holds voices
        return newest

    @property
    def gate_open(self) -> bool:
        """Whether the gate lets sound through."""
        return self.gate.is_open

    @property
    def nonfinite_blocks(self) -> int:
        """Blocks that held NaN or infinity, from the device or the voice."""
        return self.guard_in.bad_blocks + self.guard_voice.bad_blocks

    def apply(self, settings: LiveSettings, *, bypass: bool, muted: bool, monitor_consent: bool) -> None:
        """Take settings that need no new stage, from the next block on. Call at a block boundary."""
        self._settings, self._bypass, self._muted = settings, bypass, muted
        self._consent = monitor_consent
        self.gain_in.set(settings.gain_in_db)
        self.gain_out.set(settings.gain_out_db)
        self.gain_monitor.set(settings.gain_monitor_db)
        self.gate.set(
            None if settings.gate_db == "off" else settings.gate_db,
            attack_ms=settings.gate_attack_ms,
            hold_ms=settings.gate_hold_ms,
            release_ms=settings.gate_release_ms,
            hysteresis_db=settings.gate_hysteresis_db,
        )
        self.loudness.set(settings.rms_mix)
        self.newest_voice.set(voice_parameters(settings))

    def replace_voice(self, voice: LiveVoice) -> None:
        """Let a warm voice take over, crossfaded. Call at a block boundary."""
        self.voice.replace(voice)

    def process(self, block: Block) -> Block:
        """Convert a block, shape (frames,); keeps what the monitor plays in `monitor`."""
        clean = self.guard_in.process(block)
        self.input_meter.add(clean)
        heard = self.gate.process(self.vad.process(self.denoise_in.process(self.gain_in.process(clean))))
        voiced = self.voice.process(heard)
        if not np.isfinite(voiced).all():
            self.newest_voice.reset()  # NaN must not stay in its state
        voiced = self.guard_voice.process(voiced)
        if self._settings.rms_mix < 1.0:
            voiced = self.loudness.process(voiced, self.source_line.process(heard))
        voiced = self.denoise_out.process(voiced)
        dry = self.bypass_line.process(clean)
        out = self._finish(self._choose(voiced, dry))
        self.monitor = self._monitored(out, dry)
        self.output_meter.add(out)
        for tap in self.taps:
            tap.put(dry, out)
        self._align()
        return out

    def reset(self) -> None:
        """Forget all sound: nothing said before may be heard after."""
        for stage in (
            self.guard_in,
            self.denoise_in,
            self.vad,
            self.gate,
            self.voice,
            self.guard_voice,
            self.source_line,
            self.loudness,
            self.denoise_out,
            self.bypass_line,
            self.limiter,
        ):
            stage.reset()
        self._align()

    def _choose(self, voiced: Block, dry: Block) -> Block:
        """The converted voice, or with bypass on the raw one, or both while one gives way to the other."""
        if not self._bypass and self._dry_in.phase == 0.0:
            return voiced
        raw, wet = dry.copy(), voiced.copy()
        self._dry_in.apply(raw, self._bypass)
        self._wet_in.apply(wet, not self._bypass)
        return raw + wet

    def _finish(self, chosen: Block) -> Block:
        out = self.gain_out.process(chosen)
        self._audible.apply(out, not self._muted)
        return self.limiter.process(out) if self._settings.limiter else out

    def _monitored(self, out: Block, dry: Block) -> Block:
        source = self._settings.monitor_source if self._consent else "converted"
        if source == "converted" and self._monitor_dry.phase == 0.0:
            return self.gain_monitor.process(out)
        raw, wet = dry.copy(), out.copy()
        self._monitor_dry.apply(raw, source != "converted")
        self._monitor_wet.apply(wet, source != "input")
        return self.gain_monitor.process(raw + wet)

    def _align(self) -> None:
        """Keep the raw path and the loudness reference in time with the voice."""
        if self.bypass_line.latency_frames != self.latency_frames:
            self.bypass_line.set(self.latency_frames)
        if self.source_line.latency_frames != self.voice.latency_frames:
            self.source_line.set(self.voice.latency_frames)
