"""The chain of one session: from the microphone's block to the block that is heard."""

from typing import Protocol, runtime_checkable

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
SETTLE_FRAMES = 480  # of a delay line's crossfade
LONGEST_DELAY_S = 6.0  # of everything that bypass must wait for


@runtime_checkable
class Closing(Protocol):
    """A stage that holds something to let go of."""

    def close(self) -> None: ...


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

    Order: finite guard, gain, denoise, VAD, finite guard, gate, voice, finite guard, loudness, denoise, finite guard,
    [bypass], gain, mute, limiter. The raw input reaches the output only through the bypass switch, and the monitor
    only through `monitor_source` with consent; everything else that fails gives silence.
    """

    def __init__(
        self,
        rate_hz: int,
        voice: LiveVoice,
        settings: LiveSettings,
        *,
        bypass: bool = False,
        muted: bool = False,
        monitor_consent: bool = False,
    ) -> None:
        self.rate_hz = rate_hz
        swap_frames = round(rate_hz * SWAP_MS / 1000)
        turn = max(1, round(rate_hz * SWITCH_MS / 1000))
        self.guard_in, self.guard_heard, self.guard_voice, self.guard_out = Finite(), Finite(), Finite(), Finite()
        self.gain_in = Ramp(rate_hz, gain_db=settings.gain_in_db)
        self.denoise_in = Swap(denoise_stage(settings.denoise_in, rate_hz), swap_frames)
        self.vad = Swap(vad_stage(settings.vad, rate_hz), swap_frames)
        self.gate = Gate(rate_hz)
        self.voice = Swap(voice, swap_frames)
        self.source_line = DelayLine(0, max_frames=round(LONGEST_DELAY_S * rate_hz), crossfade_frames=SETTLE_FRAMES)
        self.loudness = LoudnessMix(rate_hz, settings.rms_mix)
        self.denoise_out = Swap(denoise_stage(settings.denoise_out, rate_hz), swap_frames)
        self.bypass_line = DelayLine(0, max_frames=round(LONGEST_DELAY_S * rate_hz), crossfade_frames=SETTLE_FRAMES)
        self.gain_out = Ramp(rate_hz, gain_db=settings.gain_out_db)
        self.gain_monitor = Ramp(rate_hz, gain_db=settings.gain_monitor_db)
        self.limiter = Limiter(rate_hz)
        self.input_meter, self.output_meter = Meter(), Meter()
        self.taps: tuple[Tap, ...] = ()  # exchanged whole, by any thread
        self.monitor: Block | None = None  # what the monitor plays for the latest block
        self._dry_in, self._wet_in = Switch(turn, turn, on=bypass), Switch(turn, turn, on=not bypass)
        self._audible = Switch(turn, turn, on=not muted)
        self._monitor_dry, self._monitor_wet = Switch(turn, turn), Switch(turn, turn, on=True)
        self._bypass, self._muted = bypass, muted
        self._settings = settings
        self.apply(settings, bypass=bypass, muted=muted, monitor_consent=monitor_consent)
        self._align(at_once=True)

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
        """Blocks that held NaN or infinity, from the device or a stage."""
        guards = (self.guard_in, self.guard_heard, self.guard_voice, self.guard_out)
        return sum(guard.bad_blocks for guard in guards)

    def apply(self, settings: LiveSettings, *, bypass: bool, muted: bool, monitor_consent: bool) -> None:
        """Take settings that need no new stage, from the next block on. Call at a block boundary.

        A value that the voice refuses raises its error, and nothing has changed then.
        """
        self.newest_voice.set(voice_parameters(settings))
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

    def replace_voice(self, voice: LiveVoice) -> None:
        """Let a warm voice take over, crossfaded. Call at a block boundary."""
        self.voice.replace(voice)

    def process(self, block: Block) -> Block:
        """Convert a block, shape (frames,); keeps what the monitor plays in `monitor`."""
        clean = self.guard_in.process(block)
        self.input_meter.add(clean)
        heard = self.vad.process(self.denoise_in.process(self.gain_in.process(clean)))
        heard = self._guarded(heard, self.guard_heard, self.denoise_in)
        heard = self.gate.process(heard)
        voiced = self._guarded(self.voice.process(heard), self.guard_voice, self.voice)
        reference = self.source_line.process(heard)
        if self._settings.rms_mix < 1.0:
            voiced = self.loudness.process(voiced, reference)
        voiced = self._guarded(self.denoise_out.process(voiced), self.guard_out, self.denoise_out)
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
            self.guard_heard,
            self.gate,
            self.voice,
            self.guard_voice,
            self.source_line,
            self.loudness,
            self.denoise_out,
            self.guard_out,
            self.bypass_line,
            self.limiter,
        ):
            stage.reset()
        self._align(at_once=True)

    def retire(self) -> bool:
        """Close the stages that were let go of; False while one is still on its way out. Never in the audio path."""
        swaps = (self.denoise_in, self.vad, self.voice, self.denoise_out)
        for swap in swaps:
            while swap.retired:
                stage = swap.retired.popleft()
                if isinstance(stage, Closing):
                    stage.close()
        return not any(swap.swapping for swap in swaps)

    def _guarded(self, block: Block, guard: Finite, stage: Swap) -> Block:
        """`block` without NaN and infinity, which must not stay in the stage that it came from either."""
        bad = guard.bad_blocks
        out = guard.process(block)
        if guard.bad_blocks > bad:
            stage.reset()
        return out

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

    def _align(self, at_once: bool = False) -> None:
        """Keep the raw path and the loudness reference in time with the voice; crossfaded, unless all is silent."""
        for line, frames in (
            (self.bypass_line, self.latency_frames),
            (self.source_line, self.voice.latency_frames),
        ):
            if line.latency_frames != frames:
                line.set(frames)
                if at_once:
                    line.process(np.zeros(SETTLE_FRAMES, np.float32))
