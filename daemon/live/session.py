"""One live session inside its worker: from orders to states, through every loss and return."""

import gc
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from myna.control.contract import (
    CheckReply,
    LatencyReply,
    LatencyRequest,
    LiveDevices,
    LiveState,
    RecordReply,
    SessionStatus,
)
from myna.control.errors import MynaError
from myna.daemon.audio.backend import AudioStream, DeviceError, StreamRequest
from myna.daemon.live.change import Change, change, same_voice, with_parameters
from myna.daemon.live.loop import STOPPED, Done
from myna.daemon.live.messages import SessionConfig, VoiceOrder
from myna.daemon.live.monitor import Monitor, monitor_request
from myna.daemon.live.outside import Outside
from myna.daemon.live.pipeline import voice_parameters
from myna.daemon.live.probe import LatencyProbe
from myna.daemon.live.recording import Recording
from myna.daemon.live.running import VOICE_FAILED, ReadyVoice, Running, new_stages
from myna.daemon.live.sizing import size
from myna.daemon.live.telling import latency_told, told
from myna.daemon.live.warmup import Stopwatch
from myna.daemon.restarts import Backoff
from myna.engines.base import EngineError, LiveVoice

log = logging.getLogger(__name__)

T = TypeVar("T")

STOP_S = 4.0  # for what is at work to end; the supervisor waits a little longer
RETIRE_S = 0.1  # between two looks whether an exchange of voices is over
PROBE_LOOK_S = 0.1
PROBE_PATIENCE_S = 5.0
# Refusals at the start that time mends by itself: the answer tells, and the session goes on trying.
PASSING = frozenset({"busy", "lost", "no_server"})


class LiveSession:
    """Runs one session. `configure` and the other orders come from the worker's main thread and return at once.

    Everything slow (opening devices, loading voices) happens on one builder, which never waits for the loop; the
    loop has a thread of its own and waits for nobody. Three configurations are kept apart: what was asked for
    last, what was built (devices, voice, stages), and, in `Running`, what the loop has taken.
    """

    def __init__(self, name: str, notify: Callable[[], None], outside: Outside | None = None) -> None:
        self.name = name
        self.log: Callable[[str, str], None] = lambda level, message: None
        self._notify = notify  # the state changed: tell the supervisor now
        self._outside = outside if outside is not None else Outside()
        self._builder = self._outside.builder("builder")
        self._state: LiveState = "stopped"
        self._reason: str | None = None
        self._asked: SessionConfig | None = None
        self._built: SessionConfig | None = None
        self._running: Running | None = None
        self._ready: ReadyVoice | None = None  # a warm voice without a stream
        self._offered: ReadyVoice | None = None  # handed to the loop, which may not have taken it yet
        # Devices as asked for, and the names of those that were opened then.
        self._known: tuple[LiveDevices, tuple[str | None, str | None]] | None = None
        self._recording = Recording(lambda message: self.log("warning", message))
        self._loopback: tuple[float, float] | None = None  # ms, Unix seconds
        self._backoff = Backoff()
        self._voice_backoff = Backoff(first_s=1.0, longest_s=60.0)
        self._patient = False
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # of the configurations; never held for long, never taken by the loop

    # --- orders -----------------------------------------------------------------------------------------

    def configure(self, config: SessionConfig, done: Done, *, resumed: bool = False) -> None:
        """Run with `config`; `done` hears when it is in force, or what refused it.

        A `resumed` session waits for its devices, whatever is the matter with them.
        """
        self._patient = self._patient or resumed
        with self._lock:
            asked, self._asked = self._asked, config
            running = self._running
            hot = (
                asked is not None
                and running is not None
                and change(asked, config) in (Change.NOTHING, Change.PARAMETERS)
            )
            if not hot:
                self._submit(lambda: self._build(config), done)
                return
            built = self._built
            assert built is not None
            assert running is not None
            self._built = with_parameters(built, config)
            newest = self._built
        # At once, also while the builder loads a voice for an earlier change.
        running.take(newest, lambda error: self._took(error, running, done))

    def record(self, path: str | None, source: str, done: Callable[[RecordReply | Exception], None]) -> None:
        """Start a recording, or finish the one that runs."""
        try:
            if path is None:
                self._recording.stop(self._running, done)
            else:
                done(self._recording.start(Path(path), source, self._running))
        except Exception as error:  # the answer to who asked; the session goes on
            done(error)

    def measure_latency(self, request: LatencyRequest, done: Callable[[LatencyReply | Exception], None]) -> None:
        """Play noise bursts for a moment, find them at the input."""
        running = self._running
        if running is None:
            done(MynaError("refused", "The session does not run: latency can be measured once it does."))
            return
        if running.heard.probe is not None:
            done(MynaError("busy", "The delay is being measured already."))
            return
        probe = LatencyProbe(running.rate_hz, request.bursts)
        running.heard.probe = probe
        deadline_s = self._outside.clock() + probe.seconds + PROBE_PATIENCE_S
        self._builder.later(PROBE_LOOK_S, lambda: self._look_at_probe(running, probe, deadline_s, done))

    def check(self, order: VoiceOrder, done: Callable[[CheckReply | Exception], None]) -> None:
        """Time a voice over block lengths, beside the running one."""
        running, built = self._running, self._built
        if running is None or built is None:
            done(MynaError("refused", "The session does not run yet."))
            return
        aside = self._outside.builder("check")  # it takes long: a lost device must not wait for it

        def work() -> None:
            done(self._tried(lambda: self._check(replace(built, voice=order), running.rate_hz)))
            aside.close(0.0)

        aside.submit(work)

    def stop(self) -> None:
        """Fade out, close the devices, end the loop, finish the recording."""
        self._stopping.set()
        self._enter("stopping", "asked")
        if (running := self._running) is not None:
            running.hush()
        self._builder.submit(self._shut)
        if not self._builder.close(STOP_S):
            log.warning("something still loads or closes; the process ends without it")
        self._recording.close(STOP_S / 2)
        self._enter("stopped", "asked")

    # --- telling ----------------------------------------------------------------------------------------

    def status(self) -> SessionStatus:
        """What runs, as measured."""
        running = self._running
        state = self._state
        if state == "running" and running is not None and running.degraded:
            state = "degraded"
        with self._lock:
            config = self._built or self._asked
        return told(
            self.name, state, self._reason, config, running,
            recording=self._recording.path, loopback=self._loopback, now_s=self._outside.clock(),
        )  # fmt: skip

    @property
    def gate_open(self) -> bool | None:
        """Whether the gate is open, None when nothing runs."""
        running = self._running
        return running.pipeline.gate_open if running is not None else None

    # --- building: on the builder, all of it ---------------------------------------------------------------

    def _build(self, config: SessionConfig) -> None:
        """Bring `config` into force, or raise and leave what was in force."""
        with self._lock:
            config = with_parameters(config, self._asked or config)
            built = self._built
        try:
            if built is None or self._state in ("failed", "stopped"):
                self._first(config)
            elif self._running is None:
                self._while_away(built, config)
            elif (kind := change(built, config)) is Change.DEVICES:
                self._reopen(built, config)
            elif kind is Change.PIPELINE:
                self._rebuild(built, config)
            else:
                running = self._running
                self._keep(config)
                running.take(config, lambda error: self._took(error, running, lambda _: None))
        except Exception:  # whatever refused it, what was asked is as before
            with self._lock:  # hot changes that came meanwhile stay
                if built is not None and self._asked is not None:
                    self._built = with_parameters(built, self._asked)
                    if change(self._asked, config) in (Change.NOTHING, Change.PARAMETERS):
                        self._asked = self._built
            raise

    def _first(self, config: SessionConfig) -> None:
        self._keep(config)
        self._known = None  # whoever starts a session says what it uses
        self._enter("starting", None)
        try:
            self._bring_up(config, tell=True)
        except DeviceError as error:
            if self._patient or error.reason in PASSING:
                self._enter("reconnecting", str(error))
                self._builder.later(self._backoff.next(), self._retry)
            else:
                self._enter("failed", str(error))
            raise _device_fault(error) from error
        except Exception as error:  # any bug of an engine: told, and raised on
            self._enter("failed", _words(error))
            raise

    def _while_away(self, built: SessionConfig, config: SessionConfig) -> None:
        """The device is lost: other devices are tried at once; a voice is loaded, so that a bad one is refused."""
        if built.devices != config.devices:
            try:
                self._bring_up(config, tell=False)
            except DeviceError as error:
                raise _device_fault(error) from error
        elif self._ready is not None and not same_voice(self._ready.config, config):
            fresh = self._load(config, self._ready.rate_hz)
            self._ready.voice.close()
            self._ready = fresh
        elif self._ready is not None:
            new_stages(built.settings, config.settings, self._ready.rate_hz)  # only to see whether they can be made
        self._keep(config)

    def _reopen(self, built: SessionConfig, config: SessionConfig) -> None:
        """Other devices: opened beside the old ones where that goes, else in their place; the old ones come back
        when the new ones refuse."""
        running = self._running
        assert running is not None
        try:
            stream = self._open(config)
        except DeviceError:
            stream = None  # busy by ourselves, or plugged in after we opened: both end when ours is closed
        if stream is not None:
            try:
                ready = self._voice_for(config, _rate(stream), running.ready)
            except BaseException:  # whatever it is, the device is let go of
                stream.close()
                raise
            self._close_running()
            self._swap_ready(ready)
        else:
            self._close_running()
        try:
            self._bring_up(config, tell=False, stream=stream)
        except Exception as error:  # any: the old devices are tried again, and it is raised on
            self._enter("reconnecting", f"back to the devices before: {error}")
            self._retry_with(built)
            raise _device_fault(error) if isinstance(error, DeviceError) else error from error

    def _rebuild(self, built: SessionConfig, config: SessionConfig) -> None:
        """Build new stages or a new voice aside, warm them, hand them to the loop."""
        running = self._running
        assert running is not None
        stages = new_stages(built.settings, config.settings, running.rate_hz)
        ready = None if same_voice(built, config) else self._load(config, running.rate_hz)
        with self._lock:
            config = with_parameters(config, self._asked or config)  # what changed while it loaded
            self._built, self._offered = config, ready or self._offered
        running.exchange(config, stages, ready, lambda error: self._took(error, running, lambda _: None))
        self._builder.later(RETIRE_S, lambda: self._retire(running))

    def _retire(self, running: Running) -> None:
        if running is not self._running:
            return  # it was closed with all that it had
        if not running.pipeline.retire():
            self._builder.later(RETIRE_S, lambda: self._retire(running))
        self._notify()

    def _open(self, config: SessionConfig) -> AudioStream:
        devices = config.devices
        channels = devices.input_channels
        request = StreamRequest(
            input=devices.input,
            output=devices.output,
            host_api=devices.host_api,
            rate_hz=devices.rate_hz,
            period_ms=devices.period_ms,
            input_channels=tuple(c - 1 for c in channels) if channels else None,
        )
        stream = self._outside.open_stream(request, devices.fast)
        known = self._known
        if known is not None and known[0] == devices:
            found = (stream.facts.input, stream.facts.output)
            if found != known[1]:  # a name may fit several devices, and a default may move: neither is consent
                stream.close()
                raise DeviceError(
                    "not_found",
                    f"{_pair(known[1])} is away; {_pair(found)} answers instead, which only a new start may use.",
                )
        return stream

    def _bring_up(self, config: SessionConfig, *, tell: bool, stream: AudioStream | None = None) -> None:
        """Open devices, have the voice ready, begin. DeviceError or the voice's errors; leaves nothing open then."""
        stream = stream or self._open(config)
        monitor: Monitor | None = None
        try:
            if tell:
                self._enter("loading", None)
            ready = self._voice_for(config, _rate(stream), self._ready, tell=tell)
            self._swap_ready(ready)
            with self._lock:
                config = with_parameters(config, self._asked or config)
            running = Running(config, stream, ready, self._outside.clock, self._builder.submit, self.log)
            monitor = running.monitor = self._monitor(config, stream, running.rate_hz)
            gc.unfreeze()
            gc.collect()
            gc.freeze()  # what is loaded stays: later collections need not look at it
            self._recording.resume(running)
            with self._lock:
                running.start(self._outside.run_loop, lambda reason: self._loop_ended(running, reason))
                self._running, self._ready = running, None
                newest = with_parameters(config, self._asked or config)
                self._built = newest
            running.take(newest, lambda error: None)
        except BaseException:  # whatever it is, the devices are let go of
            if monitor is not None:
                monitor.close()
            stream.close()
            raise
        self._known = (config.devices, (running.facts.input, running.facts.output))
        self._backoff.reset()
        self._enter("running", None)

    def _voice_for(
        self, config: SessionConfig, rate_hz: int, warm: ReadyVoice | None, *, tell: bool = False
    ) -> ReadyVoice:
        """The warm voice if it serves, else a fresh one."""
        if warm is not None and warm.rate_hz == rate_hz and same_voice(warm.config, config):
            return warm
        return self._load(config, rate_hz, tell=tell)

    def _load(self, config: SessionConfig, rate_hz: int, *, tell: bool = False) -> ReadyVoice:
        """Load and warm the voice, and time it."""
        spec = self._outside.find_engine(config.voice.engine)
        voice = self._open_voice(config, rate_hz)
        if tell:
            self._enter("warming", None)
        try:
            watch = Stopwatch(voice, rate_hz, self._outside.clock)
            sizing = size(watch, spec.capabilities.hop_ms, config.settings.block_ms)
            running = self._running
            if running is not None:
                voice.prepare(round(running.block_ms * rate_hz / 1000.0))
            voice.reset()
        except BaseException:  # whatever it is, the voice's memory is let go of
            voice.close()
            raise
        return ReadyVoice(voice, sizing, config, rate_hz)

    def _open_voice(self, config: SessionConfig, rate_hz: int) -> LiveVoice:
        spec = self._outside.find_engine(config.voice.engine)
        parameters = voice_parameters(config.in_force)
        return spec.open_live(config.voice.asset(), config.placement.placement(), parameters, rate_hz)

    def _swap_ready(self, ready: ReadyVoice) -> None:
        if self._ready is not None and self._ready.voice is not ready.voice:
            self._ready.voice.close()
        self._ready = ready

    def _monitor(self, config: SessionConfig, stream: AudioStream, rate_hz: int) -> Monitor | None:
        request = monitor_request(config.devices)
        if request is None:
            return None
        fast = config.devices.fast
        return Monitor(
            request,
            lambda wanted: self._outside.open_stream(wanted, fast),
            self._outside.builder("monitor"),
            stream,
            rate_hz,
            lambda level, message: self.log(level, message),
        )

    def _close_running(self) -> None:
        """Close the stream, keep the voice."""
        running, self._running = self._running, None
        if running is None:
            return
        ready = running.close()
        offered, self._offered = self._offered, None
        if offered is not None and running.ready is not offered:  # the loop ended before it took it
            if ready is not None:
                ready.voice.close()
            ready = offered
        self._ready = ready

    def _shut(self) -> None:
        self._close_running()
        if self._ready is not None:
            self._ready.voice.close()
            self._ready = None

    # --- loss and return --------------------------------------------------------------------------------

    def _loop_ended(self, running: Running, reason: str) -> None:
        """From the loop's thread: it came to an end by itself, or was told to."""
        if reason == STOPPED or self._stopping.is_set() or running.loop.stopping:
            return
        running.hush()
        if reason != "end_of_file" and getattr(running.stream, "problem", None) is None:
            self._enter("reconnecting", _lost(reason, running))
        self._builder.submit(lambda: self._after_end(running, reason))

    def _after_end(self, running: Running, reason: str) -> None:
        if running is not self._running:
            return  # something newer has taken its place
        problem = getattr(running.stream, "problem", None)
        why = _lost(reason, running)
        stable = self._outside.clock() - running.started_s > 60.0
        self._close_running()
        if reason == "end_of_file":
            self._enter("stopped", "end of file")
        elif problem is not None:  # a file that can't be read on or written: trying again would start it anew
            self._enter("failed", str(problem))
        else:
            self._enter("reconnecting", why)
            self.log("warning", why)
            if stable:
                self._voice_backoff.reset()
            backoff = self._voice_backoff if reason == VOICE_FAILED else self._backoff
            self._builder.later(backoff.next(), self._retry)

    def _retry(self) -> None:
        with self._lock:
            built = self._built
        if built is not None:
            self._retry_with(built)

    def _retry_with(self, config: SessionConfig) -> None:
        """Try to come back; when that fails, try again later, for ever."""
        if self._stopping.is_set() or self._state != "reconnecting" or self._running is not None:
            return
        try:
            self._bring_up(config, tell=False)
        except Exception as error:  # an unknown fault must not end the waiting for the device
            words = _words(error)
            if words != self._reason:  # each reason once: a storm of errors must not fill the log
                self._enter("reconnecting", words)
                self.log("warning", words)
                if not isinstance(error, MynaError | EngineError | DeviceError):
                    log.exception("reopening")
            slow = isinstance(error, DeviceError)
            self._builder.later((self._backoff if slow else self._voice_backoff).next(), self._retry)
        else:
            self.log("info", "the session is back")

    # --- measuring --------------------------------------------------------------------------------------

    def _look_at_probe(
        self, running: Running, probe: LatencyProbe, deadline_s: float,
        done: Callable[[LatencyReply | Exception], None],
    ) -> None:  # fmt: skip
        if not probe.finished and running is self._running and self._outside.clock() < deadline_s:
            self._builder.later(PROBE_LOOK_S, lambda: self._look_at_probe(running, probe, deadline_s, done))
            return
        running.heard.probe = None
        done(self._tried(lambda: self._measured(running, probe)))

    def _measured(self, running: Running, probe: LatencyProbe) -> LatencyReply:
        found = probe.result() if probe.finished else None
        if found is not None and found.reason == "ok" and found.delay_ms is not None:
            stages_ms = 1e3 * running.pipeline.latency_frames / running.rate_hz
            self._loopback = (found.delay_ms + stages_ms, time.time())
        return latency_told(running, self._loopback, found)

    def _check(self, config: SessionConfig, rate_hz: int) -> CheckReply:
        spec = self._outside.find_engine(config.voice.engine)
        voice = self._open_voice(config, rate_hz)
        try:
            return Stopwatch(voice, rate_hz, self._outside.clock).check(config.voice.id, spec.capabilities.hop_ms)
        finally:
            voice.close()

    # --- small things -----------------------------------------------------------------------------------

    def _keep(self, config: SessionConfig) -> None:
        with self._lock:
            self._built = config

    def _took(self, error: Exception | None, running: Running, done: Done) -> None:
        """From the loop's thread, so without a lock: hot values were taken, or refused and then not kept."""
        if error is not None:
            taken = running.applied
            self._builder.submit(lambda: self._untake(taken))
        done(error)

    def _untake(self, taken: SessionConfig) -> None:
        with self._lock:
            if self._built is not None:
                self._built = with_parameters(self._built, taken)
            if self._asked is not None:
                self._asked = with_parameters(self._asked, taken)

    def _enter(self, state: LiveState, reason: str | None) -> None:
        if self._stopping.is_set() and state not in ("stopping", "stopped"):
            return
        self._state, self._reason = state, reason
        self._notify()

    def _submit(self, work: Callable[[], None], done: Done) -> None:
        def run() -> None:
            got = self._tried(work)
            done(got if isinstance(got, Exception) else None)

        self._builder.submit(run)

    def _tried(self, work: Callable[[], T]) -> T | Exception:
        try:
            return work()
        except Exception as error:
            if not isinstance(error, MynaError | EngineError | DeviceError):
                log.exception("an order failed")
            return error


def _rate(stream: AudioStream) -> int:
    return stream.facts.rate_out_hz or stream.facts.rate_in_hz or 48000


def _pair(names: tuple[str | None, str | None]) -> str:
    return " and ".join(repr(name) for name in names)


def _lost(reason: str, running: Running) -> str:
    if reason == VOICE_FAILED:
        fault = running.loop.counters.last_fault
        return f"the voice fails in every block and is loaded anew ({type(fault).__name__}: {fault})"
    return f"the device was lost ({reason})"


def _words(error: Exception) -> str:
    known = isinstance(error, MynaError | EngineError | DeviceError)
    return str(error) if known else f"{type(error).__name__}: {error}"


def _device_fault(error: DeviceError) -> MynaError:
    return MynaError("device_unavailable", str(error), reason=error.reason, **error.facts)
