"""What lives as long as one opened stream: the chain, its loop, and the delay that they hold."""

from collections.abc import Callable
from dataclasses import dataclass

from myna.control.contract import LiveSettings
from myna.daemon.audio.backend import AudioStream, Clock, DeviceError
from myna.daemon.live.delay import BlockLength, ComputeTimes, Prefill, jitter_ms
from myna.daemon.live.heard import Heard
from myna.daemon.live.intake import Intake
from myna.daemon.live.loop import STOPPED, BlockLoop, Done, Mail
from myna.daemon.live.messages import SessionConfig
from myna.daemon.live.monitor import Monitor
from myna.daemon.live.outlet import DriftingOutlet, DuplexOutlet
from myna.daemon.live.outside import RunningLoop
from myna.daemon.live.pipeline import LivePipeline, denoise_stage, vad_stage
from myna.daemon.live.sizing import Sizing, ceiling_ms
from myna.daemon.live.warmup import whole_hops
from myna.dsp.stage import Stage
from myna.engines.base import LiveVoice

DEGRADED_S = 1.0  # after the last late or failed block
VOICE_FAILS_S = 2.0  # of nothing but faults: the voice is loaded anew
LOAD_WINDOW_MS = 10_000.0  # that load speaks of
LEAST_BLOCKS = 8
OVERLOAD_BLOCKS = 3  # in a row that take longer than they last
VOICE_FAILED = "the voice fails"


@dataclass(frozen=True, slots=True)
class ReadyVoice:
    """A loaded, warm voice and what was measured of it; outlives the stream it was loaded for."""

    voice: LiveVoice
    sizing: Sizing
    config: SessionConfig  # that it was loaded for
    rate_hz: int


class Running:
    """One opened stream with everything that serves it. Made and closed by the builder, run by the loop.

    What the loop decides itself (prefill, block length, delay) is decided here, in `_after_block`.
    """

    def __init__(
        self,
        config: SessionConfig,
        stream: AudioStream,
        ready: ReadyVoice,
        clock: Clock,
        aside: Callable[[Callable[[], None]], None],
        log: Callable[[str, str], None],
    ) -> None:
        """Nothing moves yet. DeviceError if the stream lacks a direction; what a stage raises if it can't be made."""
        if stream.source is None or stream.sink is None:
            raise DeviceError("failed", "A session needs an input and an output.")
        self.stream, self.facts = stream, stream.facts
        self.ready = ready
        self.rate_hz = ready.rate_hz
        self.applied = config  # settings and switches that the loop has taken
        self.times = ComputeTimes()
        self.late_s = -1e9  # when a block came late
        self.fault_s = -1e9
        self.started_s = 0.0
        self.monitor: Monitor | None = None
        self.worker: RunningLoop | None = None
        self._clock, self._aside, self._log = clock, aside, log
        sizing, settings = ready.sizing, config.settings
        self.length: BlockLength | None = None  # None: fixed by the user
        if settings.block_ms == "auto":
            self.length = BlockLength(sizing.choices_ms or sizing.auto_choices(sizing.block_ms))
            self.block_ms = self.length.block_ms
        else:
            self.block_ms = whole_hops(settings.block_ms, sizing.hop_ms)
        self._next_block_ms: float | None = None  # on its way: prepared, waits for the delay it needs
        self._preparing_ms: float | None = None
        self._drops = self._clock_steps = 0  # seen so far
        self._too_long = 0  # blocks in a row that took longer than they last
        nominal = self._nominal_ms(self.block_ms, settings)
        self.prefill = Prefill(nominal, ceiling_ms(nominal, self.block_ms))
        self.pipeline = LivePipeline(
            self.rate_hz,
            ready.voice,
            config.in_force,
            bypass=config.bypass,
            muted=config.muted,
            monitor_consent=config.monitor_consent,
        )
        self.heard = Heard(self.pipeline)
        rate_in = self.facts.rate_in_hz or self.rate_hz
        intake = Intake(stream.source, rate_in, self.rate_hz, self._frames(self.block_ms))
        ready.voice.prepare(intake.block_frames)
        self.outlet: DuplexOutlet | DriftingOutlet
        if self.facts.duplex:
            self.outlet = DuplexOutlet(stream.sink, 1)
        else:
            self.outlet = DriftingOutlet(
                stream.source, stream.sink, rate_in, self.rate_hz, self.facts.rate_out_hz or self.rate_hz, 1
            )
        self.loop = BlockLoop(intake, self.heard, self.outlet, self._after_block, self.ended, clock, self.rate_hz)
        self.outlet.start_at(self._delay_frames())

    # --- from the builder -------------------------------------------------------------------------------

    def start(
        self, run_loop: Callable[[BlockLoop, Callable[[str], None]], RunningLoop], ended: Callable[[str], None]
    ) -> None:
        """Let callbacks and the loop begin; `ended` hears from the loop's thread why it ended. DeviceError."""
        self.stream.start()
        self.started_s = self._clock()
        self.worker = run_loop(self.loop, ended)
        if self.monitor is not None:
            self.heard.monitor = self.monitor
            self.monitor.start()

    def hush(self) -> None:
        """Fade out within 64 frames; nothing more is played. Any thread."""
        if self.stream.sink is not None:
            self.stream.sink.silence(True)

    def close(self) -> ReadyVoice | None:
        """Fade out, end the loop, close the devices. The voice, silent and without a past, for the next stream."""
        self.hush()
        self.loop.stopping = True
        if self.worker is not None:
            self.worker.join(2.0)
        if self.monitor is not None:
            self.monitor.close()
        self.stream.close()
        while self.loop.mail:  # nobody takes it any more; what it asked for is taken at the next start
            self.loop.mail.popleft().done(None)
        self.pipeline.voice.reset()  # completes an exchange of voices that was on its way
        self.pipeline.retire()
        if self.loop.counters.faulting_since_s is not None:
            self.ready.voice.close()  # it is not to be trusted any more
            return None
        return self.ready

    def take(self, config: SessionConfig, done: Done) -> None:
        """Have the loop take everything of `config` that needs no new stage. Any thread."""
        self.loop.mail.append(Mail(lambda: self._apply(config), done))

    def exchange(self, config: SessionConfig, stages: dict[str, Stage], ready: ReadyVoice | None, done: Done) -> None:
        """Have the loop crossfade to new stages, and to a new voice unless None; with all else of `config`."""

        def at_boundary() -> None:
            for name, stage in stages.items():
                getattr(self.pipeline, name).replace(stage)
            if ready is not None:
                self.ready = ready
                self.pipeline.replace_voice(ready.voice)
                self._renominate(config.settings)
                self.times.clear()
            self._apply(config)

        self.loop.mail.append(Mail(at_boundary, done))

    # --- questions, from any thread -----------------------------------------------------------------------

    def ended(self) -> str | None:
        """Why the stream, or the voice, is over; None while both run."""
        if self.loop.stopping:
            return STOPPED
        since_s = self.loop.counters.faulting_since_s
        if since_s is not None and self._clock() - since_s > VOICE_FAILS_S:
            return VOICE_FAILED
        return self.stream.ended()

    @property
    def degraded(self) -> bool:
        """Whether a block was late, or failed, a moment ago."""
        return self._clock() - max(self.late_s, self.fault_s) < DEGRADED_S

    @property
    def p95_ms(self) -> float | None:
        """Of the compute of recent blocks."""
        return self.times.percentile(95, max(LEAST_BLOCKS, round(LOAD_WINDOW_MS / self.block_ms)))

    @property
    def period_ms(self) -> float:
        """The longer of the devices' periods, 10 where unknown."""
        periods = [
            1e3 * frames / rate
            for frames, rate in (
                (self.facts.period_in_frames, self.facts.rate_in_hz),
                (self.facts.period_out_frames, self.facts.rate_out_hz),
            )
            if frames and rate
        ]
        return max(periods, default=10.0)

    @property
    def stages_ms(self) -> float:
        """Delay of all stages and filters, without the block and the devices."""
        frames = self.pipeline.latency_frames + self.outlet.latency_frames + self.loop.intake.latency_frames
        return 1e3 * frames / self.rate_hz

    # --- the loop's thread ------------------------------------------------------------------------------

    def _after_block(self, compute_ms: float, late_frames: int) -> None:
        """The loop's own decisions after a block: prefill, block length, delay. Runs at a block boundary."""
        now_s = self._clock()
        self.times.add(compute_ms)
        if self.loop.counters.faulting_since_s is not None:
            self.fault_s = now_s
        drops, self._drops = self._drops, self.loop.counters.drops
        self._too_long = self._too_long + 1 if compute_ms > self.block_ms else 0
        missed = late_frames > 0 or self._drops > drops
        if missed or self._too_long >= OVERLOAD_BLOCKS:
            self.late_s = now_s
        if missed:
            self._consider_longer(now_s)
        steps, self._clock_steps = self._clock_steps, self.outlet.clock_steps
        if self._clock_steps > steps:
            self.prefill.forgive(now_s)
        elif late_frames:
            held_ms = 1e3 * self.outlet.delay_frames / self.rate_hz - self.block_ms
            late_ms = 1e3 * late_frames / self.rate_hz
            self.prefill.late(late_ms, held_ms, now_s, overload=self._too_long > 1)
        elif not missed:
            needed_ms = compute_ms + jitter_ms(self.block_ms, self.period_ms, self.facts.duplex)
            self.prefill.calm(needed_ms, now_s, overload=compute_ms > self.block_ms)
            self._consider_shorter(now_s)
        self._move_delay()

    def _consider_longer(self, now_s: float) -> None:
        if self.length is None or self._preparing_ms is not None or self._next_block_ms is not None:
            return
        load = (self.times.percentile(50, LEAST_BLOCKS) or 0.0) / self.block_ms
        longer = self.length.missed(load, self.ready.sizing.load, now_s)
        if longer is not None:
            self._want_block(longer)

    def _consider_shorter(self, now_s: float) -> None:
        if self.length is None or self.length.block_ms <= self.length.choices_ms[0]:
            return
        if self.loop.counters.blocks % 16:  # a percentile costs more than a look at every block is worth
            return
        shorter = self.length.calm(self.p95_ms or 0.0, now_s)
        if shorter is not None:
            self._want_block(shorter)

    def _apply(self, config: SessionConfig) -> None:
        settings = config.settings
        self.pipeline.apply(
            config.in_force,
            bypass=config.bypass,
            muted=config.muted,
            monitor_consent=config.monitor_consent,
        )
        before, self.applied = self.applied, config
        if settings.block_ms != "auto":
            self.length = None
            block_ms = whole_hops(settings.block_ms, self.ready.sizing.hop_ms)
            if block_ms != (self._preparing_ms or self._next_block_ms or self.block_ms):
                self._want_block(block_ms)
        elif self.length is None:
            self.length = BlockLength(self.ready.sizing.auto_choices(self.block_ms))
        if settings.prefill_ms != before.settings.prefill_ms:
            self._renominate(settings)
        self._move_delay()

    def _want_block(self, block_ms: float) -> None:
        """Have the voice made ready for another block length aside; it is taken at a block boundary."""
        self._preparing_ms = block_ms
        voice = self.pipeline.newest_voice

        def ready() -> None:
            if self._preparing_ms == block_ms:  # nothing newer was asked for meanwhile
                self._preparing_ms, self._next_block_ms = None, block_ms
                self._renominate(self.applied.settings)

        def prepare() -> None:
            voice.prepare(self._frames(block_ms))
            self.loop.mail.append(Mail(ready, lambda _: None))

        self._aside(prepare)

    def _move_delay(self) -> None:
        """At a block boundary: move the delay towards what is wanted, and take a new block length when it fits.

        A longer block needs its longer delay first, or its first frames would come too late; a shorter one is taken
        at once, and the delay follows.
        """
        coming = self._next_block_ms
        self.outlet.delay_frames = self._delay_frames()
        if coming is not None and (coming <= self.block_ms or self.outlet.settled):
            self.block_ms, self._next_block_ms = coming, None
            self.loop.intake.block_frames = self._frames(coming)
            self.times.clear()
            self._renominate(self.applied.settings)
            self.outlet.delay_frames = self._delay_frames()
            self._log("info", f"block_ms is now {coming:g}")

    def _renominate(self, settings: LiveSettings) -> None:
        block_ms = max(self.block_ms, self._next_block_ms or 0.0)
        nominal = self._nominal_ms(block_ms, settings)
        self.prefill.renominate(nominal, ceiling_ms(nominal, block_ms))

    def _nominal_ms(self, block_ms: float, settings: LiveSettings) -> float:
        return self.ready.sizing.prefill_ms(block_ms, settings, self.period_ms, self.facts.duplex)

    def _delay_frames(self) -> int:
        """From a block's first input frame to its first output frame, in session frames."""
        natural = self._frames(max(self.block_ms, self._next_block_ms or 0.0) + self.prefill.level_ms)
        target = self.applied.settings.target_latency_ms
        if target == "off":
            return natural
        others = self.stages_ms + (self.facts.device_in_ms or 0.0) + (self.facts.device_out_ms or 0.0)
        return max(natural, self._frames(target - others))

    def _frames(self, milliseconds: float) -> int:
        return max(1, round(milliseconds * self.rate_hz / 1000.0))


def new_stages(old: LiveSettings, new: LiveSettings, rate_hz: int) -> dict[str, Stage]:
    """The stages, by their name in the pipeline, that `new` has otherwise than `old`; may load models."""
    stages: dict[str, Stage] = {}
    if old.denoise_in != new.denoise_in:
        stages["denoise_in"] = denoise_stage(new.denoise_in, rate_hz)
    if old.denoise_out != new.denoise_out:
        stages["denoise_out"] = denoise_stage(new.denoise_out, rate_hz)
    if old.vad != new.vad:
        stages["vad"] = vad_stage(new.vad, rate_hz)
    return stages
