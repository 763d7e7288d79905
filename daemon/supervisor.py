"""The supervisor: one process that owns the control channel and everything that is only decided."""

import contextlib
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

import platformdirs

from myna.control import connection
from myna.control.contract import (
    ConfigGet,
    ConfigReply,
    ConfigSet,
    DevicesReply,
    DevicesTest,
    DoctorReply,
    DoctorRequest,
    Empty,
    FlushReply,
    FlushRequest,
    FlushRow,
    JobsList,
    Message,
    ModelInfo,
    ModelsReply,
    ModelUnload,
    Shutdown,
    StatusReply,
    UnloadReply,
    UnloadRow,
    VoiceAdd,
    VoicePreset,
    VoiceRef,
    VoicesReply,
    Warning_,
)
from myna.control.errors import MynaError
from myna.daemon import doctor
from myna.daemon.audio.enumerate import list_in_child
from myna.daemon.audio.trial import try_in_child
from myna.daemon.instance import InstanceLock
from myna.daemon.jobs.queue import JobQueue
from myna.daemon.live_control import LiveControl
from myna.daemon.logs import open_log
from myna.daemon.placing import Placing
from myna.daemon.route.alsa import worker_environment
from myna.daemon.service.notify import Notifier, Watchdog
from myna.daemon.sessions import rss_bytes
from myna.daemon.settings import SettingsFile
from myna.daemon.voices.library import VoiceLibrary
from myna.daemon.wire.deferred import Deferred
from myna.daemon.wire.server import Server
from myna.engines import registry

log = logging.getLogger(__name__)

TICK_S = 0.5
SWITCH_INTERVAL_S = 0.001  # an answer does not wait 5 ms for the interpreter lock


@cache
def version() -> str:
    """The installed version of myna: read once (0.8 ms), as what runs stays what it was when it started."""
    return installed_version("myna")


class Supervisor:
    """Wires the rooms together and runs until told to end. Never imports torch, onnxruntime or PortAudio."""

    def __init__(self, *, state: Path | None, config: Path | None, listen: str | None, resume: bool) -> None:
        """Take the state directory and read the settings; nothing runs yet.

        Raises MynaError: already_running, state_unwritable, config_invalid, not_allowed.
        """
        self._started_at = time.monotonic()
        self.state = connection.private_dir(connection.state_dir(state))
        self._lock = InstanceLock(self.state)
        path = config or Path(
            os.environ.get("MYNA_CONFIG") or platformdirs.user_config_path("myna", appauthor=False) / "settings.toml"
        )
        self.settings = SettingsFile(path.expanduser().absolute())
        open_log(self.state / "log", self.settings.value.log, terminal=True)
        self._resume = resume
        self._stop = threading.Event()
        self._force = threading.Event()
        requests, events = connection.default_endpoints(self.state)
        runtime_dir = Path(connection.ipc_endpoints(self.state)[0].removeprefix("ipc://")).parent
        asked = listen or self.settings.value.control.listen
        self.server = Server(
            asked or requests,
            self._handlers(),
            version=version(),
            state_dir=self.state,
            events=None if asked else events,
        )
        self.placing = Placing(self.settings.value.compute, self.state / "cache")
        self.voices = VoiceLibrary(self.state, registry.specs(), in_use=self._voice_in_use)
        self.jobs = JobQueue(
            self.state, self.settings.value, self.server.publish, self.voices.resolve, place=self.placing.job
        )
        self.live = LiveControl(
            self.state,
            runtime_dir,
            lambda: self.settings.value,
            self.voices.resolve,
            lambda asset: self.placing.live(asset.engine),
            self.server.publish,
            worker_environment(self.state),
        )
        self._slow: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    # --- life -------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until a signal or `shutdown`; returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        notifier = Notifier()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self.server.start()
        threading.Thread(target=self._run_slow, name="slow-work", daemon=True).start()
        self.placing.start()
        self.jobs.start()
        here = self.server.connection()
        connection.write_connection(self.state, here)
        log.info("ready, pid %d, %s", os.getpid(), self.server.endpoint)
        print(f"mynad ready pid={os.getpid()} endpoint={self.server.endpoint}", flush=True)
        if self._resume:
            self.live.resume()
        notifier.ready("ready")
        watchdog = Watchdog(notifier.watchdog_s)
        told = ""
        devices: set[str] = set()
        while not self._stop.wait(TICK_S):
            self._stay_reachable(here)
            if watchdog.due(time.monotonic(), self.live.heartbeat()):
                notifier.alive()
            if (words := self.live.summary()) != told:
                notifier.status(words)
                told = words
            devices = self._tell_jobs(devices)
        notifier.stopping("stopping")
        self._close()
        notifier.close()
        return 0

    def _stay_reachable(self, here: connection.Connection) -> None:
        """Without its connection file no client finds the daemon: somebody who tidies up must not cut it off."""
        try:
            if self.state.is_dir() and connection.mend_connection(self.state, here):
                log.warning("the connection file was gone or damaged, and is written anew")
        except MynaError as error:
            log.debug("the connection file can't be written: %s", error)

    def _on_signal(self, number: int, _frame: Any) -> None:
        if self._stop.is_set():  # the second one forces
            self._force.set()
            os._exit(128 + number)
        self._stop.set()

    def _close(self) -> None:
        log.info("ending")
        connection.remove_connection(self.state, os.getpid())
        self.live.close()
        self.jobs.close(force=self._force.is_set())
        self.server.close()
        self._lock.close()

    def _tell_jobs(self, before: set[str]) -> set[str]:
        """Live goes first: the queue hears which accelerators live sessions use."""
        now = self.live.accelerators_in_use()
        for device in now - before:
            self.jobs.live_started(device)
        for device in before - now:
            self.jobs.live_stopped(device)
        return now

    # --- slow work: child processes and files, away from the handlers' thread ------------------------------

    def _run_slow(self) -> None:
        while True:
            self._slow.get()()

    def _later(self, work: Callable[[], Message]) -> Deferred:
        reply = Deferred()

        def run() -> None:
            try:
                reply.resolve(work())
            except BaseException as error:
                if not isinstance(error, MynaError):
                    log.exception("slow work failed")
                reply.fail(error)

        self._slow.put(run)
        return reply

    # --- handlers ---------------------------------------------------------------------------------------

    def _handlers(self) -> dict[str, Callable[[Any], Message | Deferred]]:
        return {
            "status": self._status,
            "shutdown": self._shutdown,
            "live.start": lambda m: self.live.start(m),
            "live.stop": lambda m: self.live.stop(m),
            "live.set": lambda m: self.live.set(m),
            "live.voice": lambda m: self.live.voice(m),
            "live.bypass": lambda m: self.live.bypass(m),
            "live.mute": lambda m: self.live.mute(m),
            "live.record": lambda m: self.live.record(m),
            "live.latency": lambda m: self.live.latency(m),
            "live.check": lambda m: self.live.check(m),
            "live.state": lambda m: self.live.state(m),
            "devices.list": lambda m: self._later(self._devices),
            "devices.test": lambda m: self._later(lambda: self._test_devices(m)),
            "voices.list": lambda m: VoicesReply(voices=self.voices.infos()),
            "voices.show": self._show_voice,
            "voices.add": self._add_voice,
            "voices.remove": self._remove_voice,
            "voices.preset": self._preset,
            "jobs.submit": lambda m: self.jobs.submit(m),
            "jobs.list": lambda m: self.jobs.list(m),
            "jobs.show": lambda m: self.jobs.show(m.id),
            "jobs.cancel": lambda m: self.jobs.cancel(m.id),
            "jobs.retry": lambda m: self.jobs.retry(m.id),
            "jobs.run_now": lambda m: self.jobs.run_now(m.id),
            "models.list": lambda m: ModelsReply(models=self._models()),
            "models.unload": self._unload,
            "memory.flush": self._flush,
            "doctor": lambda m: self._later(lambda: self._doctor(m)),
            "traces": lambda m: self.jobs.traces(),
            "config.get": self._get_config,
            "config.set": self._set_config,
        }

    def _status(self, _: Empty) -> StatusReply:
        sessions = self.live.statuses()
        warnings: list[Warning_] = []
        if not (self.settings.saved and self.live.saved):
            warnings.append(
                Warning_(
                    code="settings_not_saved",
                    message="Changes are in force but not on disk.",
                    action=f"Free space or permissions in {self.settings.path.parent} and {self.state}.",
                )
            )
        if self.jobs.set_aside is not None:
            warnings.append(
                Warning_(
                    code="jobs_set_aside",
                    message=f"The job store was damaged and lies in {self.jobs.set_aside}; the queue began anew.",
                    action="Submit again what had not ended: what is written already can be skipped (`--exists skip`).",
                )
            )
        for session in sessions:
            warnings.extend(doctor.session_warnings(session))
        return StatusReply(
            version=version(),
            pid=os.getpid(),
            uptime_s=time.monotonic() - self._started_at,
            rss_bytes=rss_bytes(os.getpid()),
            state_dir=str(self.state),
            endpoint=self.server.endpoint,
            sessions=sessions,
            jobs=self.jobs.counts(),
            models=len(self._models()),
            settings_saved=self.settings.saved and self.live.saved,
            next_action=warnings[0].action if warnings else None,
            warnings=tuple(warnings),
        )

    def _shutdown(self, request: Shutdown) -> Empty:
        if request.force:
            self._force.set()
        self._stop.set()
        return Empty()

    def _devices(self) -> DevicesReply:
        return list_in_child()

    def _test_devices(self, request: DevicesTest) -> Message:
        return try_in_child(request)

    def _show_voice(self, request: VoiceRef) -> Deferred:
        return self._later(lambda: self.voices.show(request.voice))

    def _add_voice(self, request: VoiceAdd) -> Deferred:
        return self._later(
            lambda: self.voices.add(
                Path(request.path),
                id=request.id,
                index=Path(request.index) if request.index else None,
                replace=request.replace,
            )
        )

    def _remove_voice(self, request: VoiceRef) -> Empty:
        self.voices.remove(request.voice)
        return Empty()

    def _preset(self, request: VoicePreset) -> Message:
        return self.voices.preset(request.voice, request.values)

    def _voice_in_use(self, voice: str) -> str | None:
        """Why a voice, or a shared model by its role, may not go now."""
        if voice in self.live.voices_in_use() or voice in self.live.roles_in_use():
            return "busy:live"
        running = self.jobs.list(JobsList(states=("running",))).jobs
        return "busy:job" if any(job.voice == voice for job in running) else None

    def _models(self) -> tuple[ModelInfo, ...]:
        return (*self.live.models(), *self.jobs.models())

    def _unload(self, request: ModelUnload) -> UnloadReply | Deferred:
        models = self._models()
        if request.id is not None and request.id not in {model.id for model in models}:
            if request.id.rpartition(":")[2] in set(self.voices.ids()):  # a voice, in nobody's memory
                return UnloadReply(rows=(UnloadRow(id=request.id, done=True, reason="not loaded"),))
            raise MynaError(
                "not_found", f"Nothing called {request.id!r} is in memory: see `myna models`.", id=request.id
            )
        chosen = [model for model in models if request.id in (None, model.id)]

        def unload() -> UnloadReply:
            rows = [
                self.jobs.unload(model)
                if model.unloadable
                else UnloadRow(id=model.id, done=False, reason=model.why_not or model.busy)
                for model in chosen
            ]
            return UnloadReply(rows=tuple(rows))

        return self._later(unload)

    def _flush(self, request: FlushRequest) -> Deferred:
        def flush() -> FlushReply:
            rows = [
                FlushRow(
                    worker=f"live:{status.session}",
                    outcome="deferred",
                    reason="busy:live",
                    before={"allocated": None, "reserved": None, "process": status.rss_bytes, "driver_free": None},
                    after={"allocated": None, "reserved": None, "process": rss_bytes(status.pid), "driver_free": None},
                )
                for status in self.live.statuses()
                if status.pid is not None
            ]
            return FlushReply(rows=(*rows, *self.jobs.flush(request.unload)))

        return self._later(flush)

    def _doctor(self, request: DoctorRequest) -> DoctorReply:
        if request.simulate is not None:
            from myna.daemon.compute import recordings

            found = recordings.simulate(request.simulate)
            return DoctorReply(findings=tuple(found), healthy=all(each.level != "error" for each in found))
        return doctor.examine(
            state=self.state, settings=self.settings, voices=self.voices, sessions=self.live.statuses()
        )

    def _get_config(self, request: ConfigGet) -> ConfigReply:
        return ConfigReply(
            values=self.settings.get(request.key), path=str(self.settings.path), saved=self.settings.saved
        )

    def _set_config(self, request: ConfigSet) -> ConfigReply:
        before = self.settings.value
        self.settings.set(request.values)
        after = self.settings.value
        if after.compute != before.compute:
            self.placing.change_settings(after.compute)
        if after.compute != before.compute or after.jobs != before.jobs:
            self.jobs.change_settings(after)
        with contextlib.suppress(ValueError):
            logging.getLogger().setLevel(after.log.level.upper())
        return ConfigReply(
            values=tuple(row for row in self.settings.get() if row.key in request.values),
            path=str(self.settings.path),
            saved=self.settings.saved,
        )
