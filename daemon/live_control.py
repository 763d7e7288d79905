"""The `live.*` methods: from a client's request to a session's new configuration, kept across restarts."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from myna.control.codec import did_you_mean
from myna.control.connection import write_private
from myna.control.contract import (
    CheckReply,
    CheckRequest,
    LatencyReply,
    LatencyRequest,
    LiveDevices,
    LiveRecord,
    LiveSet,
    LiveSetReply,
    LiveSettings,
    LiveStart,
    LiveSwitch,
    LiveVoice,
    Message,
    Meters,
    ModelInfo,
    RecordReply,
    SessionRef,
    SessionStatus,
)
from myna.control.errors import MynaError
from myna.daemon.live.messages import (
    Answer,
    Check,
    Configure,
    MeasureLatency,
    Order,
    PlacementOrder,
    Record,
    SessionConfig,
    Stop,
    VoiceOrder,
)
from myna.daemon.sessions import LiveSession, raise_answer, rss_bytes
from myna.daemon.settings import Settings, replaced
from myna.daemon.wire.deferred import Deferred
from myna.engines.base import VoiceAsset

log = logging.getLogger(__name__)

MAX_SESSIONS = 8


class KeptSession(Struct, frozen=True, kw_only=True):
    """What is kept of a session on disk, so that it is live again with the same settings."""

    voice: str = "formant"
    devices: LiveDevices = LiveDevices()
    settings: LiveSettings = LiveSettings()
    live: bool = False  # it ran when the daemon ended


class LiveControl:
    """Owns the live sessions; its methods are handlers of the wire, called from one thread."""

    def __init__(
        self,
        state_dir: Path,
        runtime_dir: Path,
        settings: Callable[[], Settings],
        resolve_voice: Callable[[str], VoiceAsset],
        place: Callable[[VoiceAsset], PlacementOrder],
        publish: Callable[[str, Message], None],
        environment: dict[str, str],
    ) -> None:
        self._environment = environment
        self._dir = state_dir / "sessions"
        self._log_dir = state_dir / "log"
        self._runtime_dir = runtime_dir
        self._settings, self._resolve, self._place = settings, resolve_voice, place
        self._publish = publish
        self._sessions: dict[str, LiveSession] = {}
        self._kept: dict[str, KeptSession] = {}
        self._unsaved: set[str] = set()
        self._revision = 0
        self._lock = threading.Lock()
        for file in sorted(self._dir.glob("*.json")) if self._dir.is_dir() else ():
            try:
                self._kept[file.stem] = msgspec.json.decode(file.read_bytes(), type=KeptSession)
            except (OSError, msgspec.MsgspecError) as error:
                log.warning("session %s: its kept settings can't be read and are left alone: %s", file.stem, error)

    # --- what others ask --------------------------------------------------------------------------------

    @property
    def saved(self) -> bool:
        """Whether every session's settings are on disk."""
        return not self._unsaved

    def statuses(self) -> tuple[SessionStatus, ...]:
        """All sessions; `main` is always one of them."""
        names = sorted({"main", *self._sessions})
        return tuple(self._measured(name) for name in names)

    def voices_in_use(self) -> set[str]:
        """Voices that a running session speaks with."""
        return {s.config.voice.id for s in self._sessions.values() if s.config is not None}

    def roles_in_use(self) -> set[str]:
        """Roles of the shared models that running sessions read: embedder, rmvpe."""
        return {role for s in self._sessions.values() if s.config is not None for role in s.config.voice.files} - {
            "model",
            "index",
        }

    def accelerators_in_use(self) -> set[str]:
        """Compute devices other than the CPU that live sessions use."""
        used = {s.config.placement.device for s in self._sessions.values() if s.config is not None}
        return used - {"cpu"}

    def models(self) -> tuple[ModelInfo, ...]:
        """What live workers hold in memory; never unloadable while they run."""
        found = []
        for name, session in sorted(self._sessions.items()):
            config, status = session.config, session.status
            if config is None or status.device is None:
                continue
            found.append(
                ModelInfo(
                    id=f"live:{name}:{config.voice.id}",
                    engine=config.voice.engine,
                    worker=f"live:{name}",
                    device=status.device,
                    dtype=status.precision,
                    device_bytes=None,
                    ram_bytes=status.model_bytes,
                    loaded_at=None,
                    last_used=time.time(),
                    busy="busy:live",
                    unloadable=False,
                    why_not="busy:live: stop the session first (`myna live stop`)",
                )
            )
        return tuple(found)

    def heartbeat(self) -> tuple[tuple[str, int], ...] | None:
        """Something that changes with every block while sessions run; None if none is to run."""
        running = tuple(
            (name, session.status.blocks)
            for name, session in sorted(self._sessions.items())
            if session.config is not None and session.status.state in ("running", "degraded")
        )
        return running or None

    def summary(self) -> str:
        """One line for a service manager."""
        words = [f"{status.session}: {status.state}" for status in (s.status for s in self._sessions.values())]
        return ", ".join(words) or "ready"

    def resume(self) -> None:
        """Start every session that was live when the daemon ended."""
        for name, kept in list(self._kept.items()):
            if kept.live:
                self._revision += 1
                try:
                    self.start(LiveStart(session=name, wait=False), resumed=True)
                except MynaError as error:
                    log.error("session %s can't be resumed: %s", name, error.message)

    def close(self) -> None:
        """Stop every session, fading out; what was live stays marked as live."""
        threads = [threading.Thread(target=session.close) for session in self._sessions.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    # --- handlers ---------------------------------------------------------------------------------------

    def start(self, request: LiveStart, *, resumed: bool = False) -> Deferred | SessionStatus:
        """live.start; a resumed session waits for devices that are not there yet."""
        name = request.session
        session = self._session(name, create=True)
        kept = self._kept.get(name) or KeptSession(settings=self._settings().live)
        settings = replaced(kept.settings, request.settings, "settings")
        devices = request.devices or kept.devices
        # Consent is given per start, never kept: the raw voice must not come back by itself.
        if settings.monitor_source != "converted":
            settings = msgspec.structs.replace(settings, monitor_source="converted")
        voice = self._resolve(request.voice or kept.voice)
        config = SessionConfig(
            session=name,
            voice=VoiceOrder.of(voice),
            placement=self._place(voice),
            devices=devices,
            settings=settings,
            bypass=request.bypass,
            revision=self._next_revision(),
        )
        before = self._kept.get(name)
        asked = KeptSession(voice=voice.id, devices=devices, settings=settings, live=True)
        self._keep(name, asked)  # at once: a daemon that dies while the voice loads goes live again

        def refused() -> None:  # the next start goes by what was there before, not by a device that does not exist
            if self._kept.get(name) is asked and session.config is not config:
                self._keep(name, before)

        reply = self._change(
            session, session.config, config, lambda _: self._measured(name), failed=refused, resumed=resumed
        )
        return reply if request.wait else self._measured(name)

    def stop(self, request: SessionRef) -> Deferred | SessionStatus:
        """live.stop"""
        session = self._session(request.session)
        kept = self._kept.get(request.session)
        if kept is not None and kept.live:
            self._keep(request.session, msgspec.structs.replace(kept, live=False))
        reply = Deferred()
        self._send(session, Stop(id=session.next_id()), reply, lambda _: self._measured(request.session))
        return reply

    def set(self, request: LiveSet) -> Deferred | LiveSetReply:
        """live.set"""
        session = self._session(request.session)
        kept = self._kept.get(request.session) or KeptSession(settings=self._settings().live)
        base = session.config.settings if session.config else kept.settings
        settings = replaced(base, request.values, "settings")
        raw_heard = settings.monitor_source != "converted"
        if raw_heard and base.monitor_source == "converted" and not request.consent:
            raise MynaError(
                "not_allowed",
                f"monitor_source={settings.monitor_source} plays the unconverted voice on the monitor: "
                "repeat with --consent if that is wanted.",
                consent="required",
            )
        revision = self._next_revision()

        def done(_: Answer | None) -> LiveSetReply:  # kept only once it is in force, beside what was kept meanwhile
            latest = self._kept.get(request.session, kept)
            self._keep(request.session, msgspec.structs.replace(latest, settings=settings))
            return LiveSetReply(revision=revision, settings=settings, saved=request.session not in self._unsaved)

        old = session.config
        if old is None:
            return done(None)
        config = msgspec.structs.replace(old, settings=settings, monitor_consent=raw_heard, revision=revision)
        return self._change(session, old, config, done)

    def voice(self, request: LiveVoice) -> Deferred | SessionStatus:
        """live.voice"""
        session = self._session(request.session)
        voice = self._resolve(request.voice)
        kept = self._kept.get(request.session) or KeptSession(settings=self._settings().live)
        if session.config is None:
            self._keep(request.session, msgspec.structs.replace(kept, voice=voice.id))
            return self._measured(request.session)
        config = msgspec.structs.replace(
            session.config, voice=VoiceOrder.of(voice), placement=self._place(voice), revision=self._next_revision()
        )

        def done(_: Answer) -> SessionStatus:  # kept only once it runs: a voice that fails leaves the old one
            self._keep(request.session, msgspec.structs.replace(self._kept[request.session], voice=voice.id))
            return self._measured(request.session)

        return self._change(session, session.config, config, done)

    def bypass(self, request: LiveSwitch) -> Deferred:
        """live.bypass"""
        return self._switch(request, "bypass")

    def mute(self, request: LiveSwitch) -> Deferred:
        """live.mute"""
        return self._switch(request, "muted")

    def record(self, request: LiveRecord) -> Deferred:
        """live.record"""
        session = self._running(request.session)
        if request.path is not None and not Path(request.path).is_absolute():
            raise MynaError("bad_request", "The recording's path must be absolute.", path=request.path)
        reply = Deferred()
        order = Record(id=session.next_id(), path=request.path, source=request.source)
        self._send(session, order, reply, lambda answer: answer.record or RecordReply(path=None, seconds=None))
        return reply

    def latency(self, request: LatencyRequest) -> Deferred:
        """live.latency"""
        session = self._running(request.session)
        reply = Deferred()
        order = MeasureLatency(id=session.next_id(), request=request)
        self._send(
            session,
            order,
            reply,
            lambda answer: answer.latency or LatencyReply(latency=session.status.latency, reason="not_measured"),
        )
        return reply

    def check(self, request: CheckRequest) -> Deferred:
        """live.check"""
        session = self._running(request.session)
        config = session.config
        assert config is not None
        voice = config.voice if request.voice is None else VoiceOrder.of(self._resolve(request.voice))
        reply = Deferred()
        order = Check(id=session.next_id(), voice=voice)
        empty = CheckReply(voice=voice.id, rows=(), smallest_ms=None)
        self._send(session, order, reply, lambda answer: answer.check or empty)
        return reply

    def state(self, request: SessionRef) -> SessionStatus:
        """live.state"""
        self._session(request.session)
        return self._measured(request.session)

    # --- inside -----------------------------------------------------------------------------------------

    def _session(self, name: str, create: bool = False) -> LiveSession:
        if name in self._sessions:
            return self._sessions[name]
        if not create and name != "main":
            raise MynaError(
                "not_found", f"There is no session {name!r}{did_you_mean(name, self._sessions)}", session=name
            )
        if len(self._sessions) >= MAX_SESSIONS:
            raise MynaError("busy", f"{MAX_SESSIONS} sessions run already: stop one first.", limit=MAX_SESSIONS)
        if not all(c.isalnum() or c in "-_" for c in name):
            raise MynaError("bad_request", "A session's name is letters, digits, - and _.", session=name)
        self._sessions[name] = LiveSession(name, self._runtime_dir, self._log_dir, self._heard, self._environment)
        return self._sessions[name]

    def _running(self, name: str) -> LiveSession:
        session = self._session(name)
        if session.config is None:
            raise MynaError("refused", f"Session {name!r} does not run: start it with `myna live start`.", session=name)
        return session

    def _switch(self, request: LiveSwitch, field: str) -> Deferred:
        session = self._running(request.session)
        assert session.config is not None
        config = msgspec.structs.replace(session.config, revision=self._next_revision(), **{field: request.on})
        return self._change(session, session.config, config, lambda _: self._measured(request.session))

    def _change(
        self,
        session: LiveSession,
        old: SessionConfig | None,
        config: SessionConfig,
        make: Callable[[Answer], Message],
        *,
        failed: Callable[[], None] | None = None,
        resumed: bool = False,
    ) -> Deferred:
        """Have the worker take `config`; where it refuses, go by `old` again and tell `failed`."""
        reply = Deferred()
        order = Configure(id=session.next_id(), config=config, resumed=resumed)

        def back() -> None:
            session.keep_config(config, old)
            if failed is not None:
                failed()

        self._send(session, order, reply, make, failed=back)
        return reply

    def _send(
        self,
        session: LiveSession,
        order: Order,
        reply: Deferred,
        make: Callable[[Answer], Message],
        failed: Callable[[], None] | None = None,
    ) -> None:
        def done(answer: Answer) -> None:
            try:
                reply.resolve(make(raise_answer(answer)))
            except MynaError as error:
                if failed is not None:
                    failed()
                reply.fail(error)

        session.send(order, done)

    def _measured(self, name: str) -> SessionStatus:
        session = self._sessions.get(name)
        if session is None:
            kept = self._kept.get(name) or KeptSession(settings=self._settings().live)
            return SessionStatus(session=name, state="stopped", voice=kept.voice, settings=kept.settings)
        return msgspec.structs.replace(session.status, rss_bytes=rss_bytes(session.status.pid))

    def _heard(self, status: SessionStatus, changed: bool, gate_open: bool | None) -> None:
        if changed:
            self._publish("live.state", status)
        if status.state in ("running", "degraded"):
            self._publish(
                "live.meters",
                Meters(
                    session=status.session,
                    input_db=status.input_db,
                    output_db=status.output_db,
                    load=status.load,
                    xruns=status.xruns,
                    gate_open=gate_open,
                ),
            )

    def _next_revision(self) -> int:
        self._revision += 1
        return self._revision

    def _keep(self, name: str, kept: KeptSession | None) -> None:
        """Remember what a session runs with, None for nothing; on disk too, where that can be written."""
        with self._lock:
            if kept is None:
                self._kept.pop(name, None)
            else:
                self._kept[name] = kept
            try:
                if kept is None:
                    (self._dir / f"{name}.json").unlink(missing_ok=True)
                    return
                self._dir.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_private(self._dir / f"{name}.json", msgspec.json.encode(kept))
                self._unsaved.discard(name)
            except (OSError, MynaError) as error:
                if name not in self._unsaved:
                    log.warning("session %s: its settings are in force but not on disk: %s", name, error)
                self._unsaved.add(name)
