"""One live session inside its worker: devices, voice, loop, and the state they are in."""

import contextlib
import gc
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from myna.control.contract import (
    CheckReply,
    LatencyParts,
    LatencyReply,
    LatencyRequest,
    LiveDevices,
    LiveState,
    RecordReply,
    SessionStatus,
)
from myna.control.errors import MynaError
from myna.daemon.audio.backend import AudioStream, DeviceError, StreamRequest
from myna.daemon.audio.open import open_stream
from myna.daemon.live import warmup
from myna.daemon.live.change import PIPELINE_SETTINGS, Change, change
from myna.daemon.live.delay import BlockLength, ComputeTimes, Prefill, advice, fixed_prefill_ms, jitter_ms, peers_estimate_ms
from myna.daemon.live.intake import Intake
from myna.daemon.live.loop import BlockLoop
from myna.daemon.live.messages import SessionConfig, VoiceOrder
from myna.daemon.live.monitor import Monitor
from myna.daemon.live.outlet import DriftingOutlet, DuplexOutlet
from myna.daemon.live.pipeline import LivePipeline, denoise_stage, vad_stage, voice_parameters
from myna.daemon.live.probe import LatencyProbe
from myna.daemon.live.realtime import ask_realtime
from myna.daemon.live.recorder import Recorder
from myna.daemon.restarts import Backoff
from myna.dsp.stage import Block
from myna.engines import registry
from myna.engines.base import EngineError, EngineSpec, LiveVoice

log = logging.getLogger(__name__)

T = TypeVar("T")

DEGRADED_S = 1.0  # after the last late block


class LiveSession:
    """Runs one session. `configure` and the other orders come from the worker's main thread.

    Everything slow (opening devices, loading voices, measuring) happens on one builder thread; the loop has its own.
    """

    def __init__(self, name: str, notify: Callable[[], None]) -> None:
        self.name = name
        self._notify = notify  # the state changed: tell the supervisor now
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="builder")
        self._state: LiveState = "stopped"
        self._reason: str | None = None
        self._config: SessionConfig | None = None
        self._stream: AudioStream | None = None
        self._monitor: Monitor | None = None
        self._loop: BlockLoop | None = None
        self._thread: threading.Thread | None = None
        self._pipeline: LivePipeline | None = None
        self._outlet: DuplexOutlet | DriftingOutlet | None = None
        self._probe: LatencyProbe | None = None
        self._recorder: Recorder | None = None
        self._times = ComputeTimes()
        self._prefill = Prefill(0.0, 0.0)
        self._length: BlockLength | None = None  # None: fixed by the user
        self._block_ms = 0.0
        self._next_block_ms: float | None = None  # on its way
        self._rate_hz = 0
        self._late_at = -1e9
        self._started_at = 0.0
        self._loopback: tuple[float, float] | None = None  # ms, Unix seconds
        self._realtime: str | None = None
        self._stopping = threading.Event()
        self.log: Callable[[str, str], None] = lambda level, message: None

    # --- orders -----------------------------------------------------------------------------------------

    def configure(self, config: SessionConfig, done: Callable[[Exception | None], None]) -> None:
        """Run with `config`; `done` hears when it is in force, or what refused it."""
        old = self._config
        if old is None or self._state in ("failed", "stopped"):
            self._config = config
            self._submit(lambda: self._start(config), done)
            return
        kind = change(old, config)
        if kind is Change.DEVICES:
            self._config = config
            self._submit(lambda: self._reopen(config), done)
        elif kind is Change.PIPELINE:
            self._submit(lambda: self._rebuild(config), done)
        elif kind is Change.PARAMETERS:
            self._config = config
            self._parameters(config, done)
        else:
            self._config = config
            done(None)

    def record(self, path: str | None, source: str) -> RecordReply:
        """Start a recording, or finish the one that runs."""
        if path is None:
            recorder, self._recorder = self._recorder, None
            if recorder is None:
                raise MynaError("refused", "No recording runs.")
            if self._pipeline is not None and recorder in self._pipeline.taps:
                self._pipeline.taps.remove(recorder)
            return recorder.close()
        if self._recorder is not None:
            raise MynaError("busy", f"A recording to {self._recorder.path} runs: stop it first.")
        if self._pipeline is None:
            raise MynaError("refused", "The session does not run yet.")
        try:
            self._recorder = Recorder(Path(path), self._rate_hz, source)
        except Exception as error:
            raise MynaError("failed", f"Can't record to {path}: {error}", path=path) from error
        self._pipeline.taps.append(self._recorder)
        return RecordReply(path=path, seconds=None)

    def measure_latency(self, request: LatencyRequest, done: Callable[[LatencyReply | Exception], None]) -> None:
        """Play noise bursts for a moment, find them at the input."""
        self._submit_value(lambda: self._measure(request), done)

    def check(self, order: VoiceOrder, done: Callable[[CheckReply | Exception], None]) -> None:
        """Time a voice over block lengths, beside the running one."""
        self._submit_value(lambda: self._check(order), done)

    def stop(self) -> None:
        """Fade out, close the devices, end the loop."""
        self._stopping.set()
        self._enter("stopping", "asked")
        self._close_stream()
        self._builder.shutdown(wait=True, cancel_futures=True)
        if self._recorder is not None:
            self.record(None, "converted")
        self._enter("stopped", "asked")

    # --- starting ---------------------------------------------------------------------------------------

    def _start(self, config: SessionConfig) -> None:
        self._enter("starting", None)
        try:
            self._open(config)
        except DeviceError as error:
            self._enter("failed", str(error))
            raise _device_fault(error) from error
        except EngineError as error:
            self._close_stream()
            self._enter("failed", str(error))
            raise

    def _reopen(self, config: SessionConfig) -> None:
        self._close_stream()
        self._start(config)

    def _open(self, config: SessionConfig) -> None:
        """Open devices, load and warm the voice, begin. DeviceError or EngineError; leaves nothing open then."""
        stream = open_stream(_request(config.devices), config.devices.fast)
        try:
            facts = stream.facts
            self._rate_hz = facts.rate_out_hz or facts.rate_in_hz or 48000
            self._enter("loading", None)
            voice = self._load(config, config.voice)
            self._enter("warming", None)
            self._size(config, voice, stream)
            self._pipeline = LivePipeline(
                self._rate_hz, voice, config.settings, bypass=config.bypass, muted=config.muted
            )
            self._begin(config, stream)
        except BaseException:
            stream.close()
            raise

    def _load(self, config: SessionConfig, order: VoiceOrder) -> LiveVoice:
        spec: EngineSpec = registry.find(order.engine)
        return spec.open_live(
            order.asset(), config.placement.placement(), voice_parameters(config.settings), self._rate_hz
        )

    def _size(self, config: SessionConfig, voice: LiveVoice, stream: AudioStream) -> None:
        """Choose the block and the prefill from measured compute."""
        hop_ms = registry.find(config.voice.engine).capabilities.hop_ms
        period_ms = _period_ms(stream, self._rate_hz)
        wanted = config.settings.block_ms
        if wanted == "auto":
            choices = warmup.choices_that_hold(voice, self._rate_hz, hop_ms)
            self._length = BlockLength(tuple(choices))
            self._block_ms = self._length.block_ms
        else:
            self._length = None
            self._block_ms = warmup.whole_hops(wanted, hop_ms)
        measured = warmup.time_for_prefill(voice, self._rate_hz, self._block_ms)
        nominal = measured.p99_ms + jitter_ms(self._block_ms, period_ms, stream.facts.duplex)
        if config.settings.prefill_ms != "auto":
            nominal = max(nominal, fixed_prefill_ms(config.settings.prefill_ms, self._block_ms, period_ms))
        self._prefill = Prefill(nominal, nominal + max(self._block_ms, 150.0))
        self._times.clear()
        self._next_block_ms = None
        voice.reset()

    def _begin(self, config: SessionConfig, stream: AudioStream) -> None:
        assert self._pipeline is not None
        facts = stream.facts
        if stream.source is None or stream.sink is None:
            raise DeviceError("failed", "A session needs an input and an output.")
        block_frames = self._frames(self._block_ms)
        rate_in = facts.rate_in_hz or self._rate_hz
        intake = Intake(stream.source, rate_in, self._rate_hz, block_frames)
        if facts.duplex:
            self._outlet = DuplexOutlet(stream.sink, self._delay_frames(config))
        else:
            self._outlet = DriftingOutlet(
                stream.source, stream.sink, rate_in, self._rate_hz, facts.rate_out_hz or self._rate_hz,
                self._delay_frames(config),
            )  # fmt: skip
        self._monitor = Monitor.open(config.devices, stream, self._rate_hz, self._log_line)
        self._stream = stream
        loop = BlockLoop(intake, _Heard(self), self._outlet, self._after_block, self._ended)
        self._loop = loop
        gc.collect()
        gc.freeze()  # what is loaded stays: later collections need not look at it
        stream.start()
        if self._monitor is not None:
            self._monitor.start()
        self._started_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, args=(loop,), name="block-loop", daemon=True)
        self._thread.start()
        self._enter("running", None)

    # --- the loop's thread ------------------------------------------------------------------------------

    def _run(self, loop: BlockLoop) -> None:
        self._realtime = ask_realtime()
        reason = loop.run(self._rate_hz)
        if reason == "stopped" or self._stopping.is_set():
            return
        try:
            self._builder.submit(self._ended_by_itself, reason)
        except RuntimeError:  # being stopped
            return

    def _after_block(self, compute_ms: float, late_frames: int) -> None:
        """The loop's own decisions after a block: prefill, block length. Runs at a block boundary."""
        now = time.monotonic()
        self._times.add(compute_ms)
        assert self._loop is not None
        if late_frames:
            self._late_at = now
            self._prefill.late(1e3 * late_frames / self._rate_hz, now)
            if self._length is not None and (longer := self._length.missed(now)) is not None:
                self._request_block(longer)
        elif self._loop.counters.blocks % 16 == 0:
            self._prefill.calm(compute_ms + _period_ms(self._stream, self._rate_hz), now)
            if self._length is not None and self._length.block_ms > self._length.choices_ms[0]:
                p95 = self._times.percentile(95) or 0.0
                if (shorter := self._length.calm(p95, now)) is not None:
                    self._request_block(shorter)
        self._move_delay()

    def _request_block(self, block_ms: float) -> None:
        """Have the voice made ready for another block length, then take it at a block boundary. Any thread."""
        pipeline, loop = self._pipeline, self._loop
        if pipeline is None or loop is None:
            return

        def prepare() -> None:
            pipeline.newest_voice.prepare(self._frames(block_ms))
            loop.changes.append(lambda: setattr(self, "_next_block_ms", block_ms))

        with contextlib.suppress(RuntimeError):  # being stopped
            self._builder.submit(prepare)

    def _move_delay(self) -> None:
        """At a block boundary: move the delay towards what is wanted, and take a new block length when it fits.

        A longer block needs its longer delay first, or its first frames would come too late; a shorter one is taken
        at once, and the delay follows.
        """
        loop, outlet, config = self._loop, self._outlet, self._config
        if loop is None or outlet is None or config is None:
            return
        outlet.delay_frames = self._delay_frames(config)
        coming = self._next_block_ms
        if coming is not None and (coming < self._block_ms or outlet.settled):
            self._block_ms, self._next_block_ms = coming, None
            loop.intake.block_frames = self._frames(coming)
            self._times.clear()
            self._log_line("info", f"block_ms is now {coming:g}")

    def _ended(self) -> str | None:
        """Why the stream is over, None while it runs."""
        if self._stopping.is_set():
            return "stopped"
        stream = self._stream
        if stream is None:
            return "stopped"
        if (reason := stream.ended()) is not None:
            return reason
        return None

    # --- loss and return --------------------------------------------------------------------------------

    def _ended_by_itself(self, reason: str) -> None:
        if reason == "end_of_file":
            self._close_stream()
            self._enter("stopped", "end of file")
            return
        if reason == "failed":  # a file that can't be read on or written: trying again would start it anew
            problem = getattr(self._stream, "problem", None) or "a file failed"
            self._close_stream()
            self._enter("failed", str(problem))
            return
        self._close_stream()
        backoff = Backoff()
        self._enter("reconnecting", f"the device was lost ({reason})")
        while not self._stopping.wait(backoff.next()):
            config = self._config
            if config is None:
                return
            try:
                self._open(config)
                return
            except (DeviceError, EngineError) as error:
                if self._reason != str(error):
                    self._enter("reconnecting", str(error))
            except Exception as error:  # an unknown fault must not end the waiting for the device
                log.exception("reopening")
                self._enter("reconnecting", f"{type(error).__name__}: {error}")

    def _close_stream(self) -> None:
        loop, thread, stream, monitor = self._loop, self._thread, self._stream, self._monitor
        if stream is not None and stream.sink is not None:
            stream.sink.silence(True)  # fades out within 64 frames; nothing more is played
        if loop is not None:
            loop.stopping = True
        if thread is not None and thread is not threading.current_thread():
            thread.join(2.0)
        self._loop = self._thread = self._stream = self._monitor = None
        if monitor is not None:
            monitor.close()
        if stream is not None:
            stream.close()
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            for old in (*pipeline.voice.retired, pipeline.voice.stage):
                old.close()  # type: ignore[attr-defined]  # it only ever holds voices

    # --- changes ----------------------------------------------------------------------------------------

    def _parameters(self, config: SessionConfig, done: Callable[[Exception | None], None]) -> None:
        loop = self._loop
        if loop is None:  # loading, or the device is away: taken at the next start
            done(None)
            return

        def at_boundary() -> None:
            if self._pipeline is not None:
                self._apply(config)
            done(None)

        loop.changes.append(at_boundary)

    def _apply(self, config: SessionConfig) -> None:
        """At a block boundary: everything that needs no new stage."""
        assert self._pipeline is not None
        self._pipeline.apply(
            config.settings, bypass=config.bypass, muted=config.muted, monitor_consent=config.monitor_consent
        )
        hop_ms = registry.find(config.voice.engine).capabilities.hop_ms
        wanted = config.settings.block_ms
        if wanted != "auto":
            self._length = None
            block_ms = warmup.whole_hops(wanted, hop_ms)
            if block_ms != self._block_ms:
                self._request_block(block_ms)
        elif self._length is None:
            self._length = BlockLength(tuple(warmup.whole_hops(c, hop_ms) for c in warmup.CHOICES_MS if c >= self._block_ms) or (self._block_ms,))
        if config.settings.prefill_ms != "auto":
            period_ms = _period_ms(self._stream, self._rate_hz)
            fixed = fixed_prefill_ms(config.settings.prefill_ms, self._block_ms, period_ms)
            if fixed > self._prefill.nominal_ms:
                self._prefill.nominal_ms = self._prefill.level_ms = fixed
        self._move_delay()

    def _rebuild(self, config: SessionConfig) -> None:
        """Build new stages or a new voice aside, warm them, hand them to the loop."""
        old, pipeline, loop = self._config, self._pipeline, self._loop
        if old is None or pipeline is None or loop is None:
            self._config = config
            return
        settings = config.settings
        voice: LiveVoice | None = None
        if old.voice != config.voice or any(
            getattr(old.settings, n) != getattr(settings, n) for n in PIPELINE_SETTINGS if n not in ("denoise_in", "denoise_out", "vad")
        ):
            voice = self._load(config, config.voice)
            voice.prepare(self._frames(self._block_ms))
            warmup.time_blocks(voice, self._rate_hz, self._block_ms, blocks=6)
            voice.reset()
        fresh = {
            name: make(value, self._rate_hz)
            for name, make, value in (
                ("denoise_in", denoise_stage, settings.denoise_in),
                ("denoise_out", denoise_stage, settings.denoise_out),
                ("vad", vad_stage, settings.vad),
            )
            if getattr(old.settings, name) != value
        }
        applied = threading.Event()

        def at_boundary() -> None:
            for name, stage in fresh.items():
                getattr(pipeline, name).replace(stage)
            if voice is not None:
                pipeline.replace_voice(voice)
            self._apply(config)
            applied.set()

        self._config = config
        loop.changes.append(at_boundary)
        applied.wait(2.0)
        while voice is not None and pipeline.voice.swapping and not self._stopping.wait(0.01):
            pass
        while pipeline.voice.retired:
            pipeline.voice.retired.popleft().close()  # type: ignore[attr-defined]
        self._notify()

    # --- measuring --------------------------------------------------------------------------------------

    def _measure(self, request: LatencyRequest) -> LatencyReply:
        pipeline, loop = self._pipeline, self._loop
        if pipeline is None or loop is None:
            raise MynaError("refused", "The session does not run: latency can be measured once it does.")
        probe = LatencyProbe(self._rate_hz, request.bursts)
        loop.changes.append(lambda: setattr(self, "_probe", probe))
        finished = probe.finished.wait(probe.seconds + 5.0)
        self._probe = None
        if not finished:
            return LatencyReply(latency=self._latency(), reason="not_measured")
        found = probe.result()
        if found.reason == "ok" and found.delay_ms is not None:
            stages_ms = 1e3 * pipeline.latency_frames / self._rate_hz
            self._loopback = (found.delay_ms + stages_ms, time.time())
        return LatencyReply(
            latency=self._latency(),
            reason=found.reason,
            delays_ms=found.delays_ms,
            peak_over_floor_db=found.peak_over_floor_db,
            correlation=found.correlation,
            correlation_step_ms=found.correlation_step_ms,
        )

    def _check(self, order: VoiceOrder) -> CheckReply:
        config = self._config
        if config is None or not self._rate_hz:
            raise MynaError("refused", "The session does not run yet.")
        voice = self._load(config, order)
        try:
            return warmup.check(voice, order.id, self._rate_hz, registry.find(order.engine).capabilities.hop_ms)
        finally:
            voice.close()

    # --- telling ----------------------------------------------------------------------------------------

    def status(self) -> SessionStatus:
        """What runs, as measured."""
        config, stream, pipeline, loop = self._config, self._stream, self._pipeline, self._loop
        state = self._state
        if state == "running" and time.monotonic() - self._late_at < DEGRADED_S:
            state = "degraded"
        status = SessionStatus(session=self.name, state=state, stop_reason=self._reason)
        if config is not None:
            status = msgspec.structs.replace(
                status,
                voice=config.voice.id,
                voice_unchanged=config.voice.unchanged,
                engine=config.voice.engine,
                bypass=config.bypass,
                muted=config.muted,
                settings=config.settings,
                revision=config.revision,
                input=config.devices.input,
                output=config.devices.output,
                fallbacks=config.placement.fallbacks,
            )
        if stream is None or pipeline is None or loop is None:
            return status
        facts = stream.facts
        voice_facts = pipeline.newest_voice.facts
        sink = stream.sink.stats() if stream.sink is not None else {}
        p95 = self._times.percentile(95)
        load = p95 / self._block_ms if p95 is not None and self._block_ms else None
        input_db, _ = pipeline.input_meter.take()
        output_db, _ = pipeline.output_meter.take()
        return msgspec.structs.replace(
            status,
            device=voice_facts.device,
            precision=voice_facts.precision,
            backend=voice_facts.backend,
            model_bytes=voice_facts.model_bytes,
            fallbacks=(*status.fallbacks, *voice_facts.fallbacks),
            input=facts.input,
            output=facts.output,
            monitor=self._monitor.name if self._monitor is not None else None,
            host_api=facts.host_api,
            rate_hz=self._rate_hz,
            period_ms=_period_ms(stream, self._rate_hz),
            duplex=facts.duplex,
            block_ms=self._block_ms,
            block_auto=self._length is not None,
            load=load,
            advice=advice(load, self._block_ms, p95),
            latency=self._latency(),
            recording=str(self._recorder.path) if self._recorder is not None else None,
            blocks=loop.counters.blocks,
            xruns=sink.get("dry_events", 0),
            late_frames=loop.counters.late_frames,
            dropped_frames=loop.counters.dropped_frames
            + (stream.source.stats()["in_dropped"] if stream.source is not None else 0),
            nonfinite_blocks=pipeline.nonfinite_blocks,
            faults=loop.counters.faults,
            drift_ppm=self._outlet.drift_ppm if self._outlet is not None else None,
            realtime=f"loop: {self._realtime}; device: {facts.realtime}",
            input_db=input_db,
            output_db=output_db,
            seconds=time.monotonic() - self._started_at,
        )

    @property
    def gate_open(self) -> bool | None:
        """Whether the gate is open, None when nothing runs."""
        return self._pipeline.gate_open if self._pipeline is not None else None

    def _latency(self) -> LatencyParts:
        stream, pipeline, outlet = self._stream, self._pipeline, self._outlet
        if stream is None or pipeline is None or outlet is None or self._config is None:
            return LatencyParts()
        facts = stream.facts
        rate = self._rate_hz
        intake_frames = self._loop.intake.latency_frames if self._loop is not None else 0
        stages = 1e3 * (pipeline.latency_frames + outlet.latency_frames + intake_frames) / rate
        held = 1e3 * outlet.delay_frames / rate
        device_in, device_out = facts.device_in_ms, facts.device_out_ms
        known = device_in is not None and device_out is not None
        return LatencyParts(
            compute_ms=self._times.percentile(99),
            algorithmic_ms=self._block_ms + stages,
            device_in_ms=device_in,
            device_out_ms=device_out,
            prefill_ms=held - self._block_ms,
            estimated_ms=held + stages + (device_in or 0.0) + (device_out or 0.0) if known else None,
            loopback_ms=self._loopback[0] if self._loopback else None,
            peers_estimated_ms=peers_estimate_ms(
                self._block_ms, self._config.settings.crossfade_ms, device_in or 0.0, device_out or 0.0
            )
            if known
            else None,
            measured_at=self._loopback[1] if self._loopback else None,
        )

    # --- small things -----------------------------------------------------------------------------------

    def _delay_frames(self, config: SessionConfig) -> int:
        """From a block's first input frame to its first output frame, in session frames."""
        natural = max(self._block_ms, self._next_block_ms or 0.0) + self._prefill.level_ms
        target = config.settings.target_latency_ms
        if target != "off" and self._stream is not None and self._pipeline is not None:
            facts = self._stream.facts
            others = 1e3 * self._pipeline.latency_frames / self._rate_hz
            others += (facts.device_in_ms or 0.0) + (facts.device_out_ms or 0.0)
            return self._frames(max(natural, target - others))
        return self._frames(natural)

    def _frames(self, milliseconds: float) -> int:
        return max(1, round(milliseconds * self._rate_hz / 1000.0))

    def _enter(self, state: LiveState, reason: str | None) -> None:
        self._state, self._reason = state, reason
        self._notify()

    def _log_line(self, level: str, message: str) -> None:
        self.log(level, message)

    def _submit(self, work: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:
                if not isinstance(error, MynaError | EngineError | DeviceError):
                    log.exception("an order failed")
                done(error)
            else:
                done(None)

        self._builder.submit(run)

    def _submit_value(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        def run() -> None:
            try:
                done(work())
            except Exception as error:
                if not isinstance(error, MynaError | EngineError | DeviceError):
                    log.exception("an order failed")
                done(error)

        self._builder.submit(run)


class _Heard:
    """The pipeline as the loop sees it: with the latency probe's bursts in the voice's place while one measures."""

    def __init__(self, session: LiveSession) -> None:
        self._session = session

    def process(self, position: int, block: Block) -> Block:
        session = self._session
        assert session._pipeline is not None
        out = session._pipeline.process(block)
        if (probe := session._probe) is not None:
            out = probe.exchange(block)
        if session._monitor is not None and session._pipeline.monitor is not None:
            session._monitor.write(position, session._pipeline.monitor)
        return out

    def reset(self) -> None:
        if self._session._pipeline is not None:
            self._session._pipeline.reset()


def _request(devices: LiveDevices) -> StreamRequest:
    channels = devices.input_channels
    return StreamRequest(
        input=devices.input,
        output=devices.output,
        host_api=devices.host_api,
        rate_hz=devices.rate_hz,
        period_ms=devices.period_ms,
        input_channels=tuple(c - 1 for c in channels) if channels else None,
    )


def _period_ms(stream: AudioStream | None, rate_hz: int) -> float:
    if stream is None:
        return 10.0
    frames = max(stream.facts.period_in_frames or 0, stream.facts.period_out_frames or 0)
    return 1e3 * frames / rate_hz if frames else 10.0


def _device_fault(error: DeviceError) -> MynaError:
    return MynaError("device_unavailable", str(error), reason=error.reason, **error.facts)
