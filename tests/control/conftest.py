"""A real server with a small handler table, in a state directory of the test's own."""

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from myna.control import codec, contract
from myna.control.client import Client
from myna.control.connection import ipc_endpoints, private_dir, write_connection
from myna.control.errors import MynaError
from myna.daemon.wire.deferred import Deferred
from myna.daemon.wire.server import Server

WAIT_S = 10.0


class Desk:
    """Handlers with a little state, as a daemon would have."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.settings = contract.LiveSettings()
        self.starts: list[Deferred] = []
        self.started = threading.Condition()
        self.jobs: dict[str, contract.JobInfo] = {}
        self.submits = 0
        self.busy_once = False
        self.healthy = True
        self.shut = threading.Event()
        self.calls: list[tuple[str, Any]] = []
        self.muted = False

    def session(self) -> contract.SessionStatus:
        return contract.SessionStatus(
            session="main", state="running", voice="formant", block_ms=20.0, load=0.25, muted=self.muted
        )

    def status(self, _: contract.Empty) -> contract.StatusReply:
        return contract.StatusReply(
            version="0",
            pid=os.getpid(),
            uptime_s=90061.0,
            rss_bytes=None,
            state_dir=str(self.state),
            endpoint="here",
            sessions=(self.session(),),
            next_action="speak",
        )

    def start(self, request: contract.LiveStart) -> Deferred:
        self.calls.append(("live.start", request))
        with self.started:
            self.starts.append(Deferred())
            self.started.notify_all()
            return self.starts[-1]

    def wait_for_starts(self, count: int) -> list[Deferred]:
        with self.started:
            assert self.started.wait_for(lambda: len(self.starts) >= count, WAIT_S)
            return list(self.starts)

    def answer_start(self, _: contract.SessionRef) -> contract.SessionStatus:
        return self.session()

    def set(self, request: contract.LiveSet) -> contract.LiveSetReply:
        self.calls.append(("live.set", request))
        return contract.LiveSetReply(revision=1, settings=codec.validate(contract.LiveSettings, request.values))

    def switch(self, request: contract.LiveSwitch | contract.LiveVoice) -> contract.SessionStatus:
        self.calls.append(("switch", request))
        return self.session()

    def mute(self, request: contract.LiveSwitch) -> contract.SessionStatus:
        self.muted = request.on
        return self.switch(request)

    def show_voice(self, request: contract.VoiceRef) -> contract.VoiceInfo:
        if request.voice != "formant":
            raise MynaError("not_found", f"There is no voice `{request.voice}`.", voice=request.voice)
        return contract.VoiceInfo(id="formant", engine="formant", built_in=True)

    def doctor(self, _: contract.Empty) -> contract.DoctorReply:
        level: Any = "ok" if self.healthy else "error"
        return contract.DoctorReply(
            findings=(contract.Finding(area="audio", name="devices", level=level, message="looked"),),
            healthy=self.healthy,
        )

    def bug(self, _: contract.Empty) -> contract.TracesReply:
        raise RuntimeError("secret detail")

    def wrong_type(self, _: contract.Empty) -> contract.Message:
        return contract.Empty()

    def too_much(self, _: contract.Empty) -> contract.VoicesReply:
        voice = contract.VoiceInfo(id="x" * 255, engine="e" * 1000, built_in=False)
        return contract.VoicesReply(voices=(voice,) * 1000)

    def submit(self, request: contract.JobsSubmit) -> contract.JobsSubmitted:
        if self.busy_once:
            self.busy_once = False
            raise MynaError("busy", "The queue is full.", retry_after_s=0.0)
        self.submits += 1
        ids = []
        for spec in request.jobs:
            known = next((each for each, job in self.jobs.items() if job.output == spec.output), None)
            ids.append(known or f"job{len(self.jobs)}")
            failed = "bad" in (spec.input or "")
            self.jobs[ids[-1]] = contract.JobInfo(
                id=ids[-1],
                kind=spec.kind,
                state="failed" if failed else "done",
                voice=spec.voice,
                input=spec.input,
                output=spec.output,
                error={"message": "it is no sound file"} if failed else None,
            )
        return contract.JobsSubmitted(ids=tuple(ids))

    def job(self, request: contract.JobRef) -> contract.JobInfo:
        return self.jobs[request.id]

    def list_jobs(self, request: contract.JobsList) -> contract.JobsReply:
        jobs = tuple(job for job in self.jobs.values() if not request.states or job.state in request.states)
        return contract.JobsReply(jobs=jobs, total=len(jobs))

    def config(self, _: contract.ConfigGet) -> contract.ConfigReply:
        values = (
            contract.ConfigValue(key="compute.device", value="auto", default="auto", source="default"),
            contract.ConfigValue(key="jobs.micro_batch", value=True, default=True, source="file"),
        )
        return contract.ConfigReply(values=values, path="settings.toml")

    def configure(self, request: contract.ConfigSet) -> contract.ConfigReply:
        self.calls.append(("config.set", request))
        return self.config(contract.ConfigGet())

    def open_devices(self, _: contract.DevicesTest) -> contract.DevicesTestReply:
        row = contract.DeviceTestRow(name="mic", direction="input", ok=False, detail="busy")
        return contract.DevicesTestReply(rows=(row,))

    def latency(self, _: contract.LatencyRequest) -> contract.LatencyReply:
        return contract.LatencyReply(
            latency=contract.LatencyParts(
                compute_ms=3.0, algorithmic_ms=40.0, loopback_ms=61.5, peers_estimated_ms=120.0
            ),
            reason="ok",
            delays_ms=(61.4, 61.6),
            correlation=(0.0, 0.2, 1.0, 0.1),
            correlation_step_ms=20.5,
        )

    def check(self, _: contract.CheckRequest) -> contract.CheckReply:
        rows = tuple(
            contract.CheckRow(block_ms=block, median_ms=5.0, p95_ms=8.0, load=8.0 / block, holds=block >= 20)
            for block in (10.0, 20.0, 40.0)
        )
        return contract.CheckReply(voice="formant", rows=rows, smallest_ms=20.0)

    def shutdown(self, _: contract.Shutdown) -> contract.Empty:
        self.shut.set()
        return contract.Empty()

    def table(self) -> dict[str, Callable[[Any], contract.Message | Deferred]]:
        return {
            "status": self.status,
            "shutdown": self.shutdown,
            "live.start": self.start,
            "live.state": self.answer_start,
            "live.set": self.set,
            "live.bypass": self.switch,
            "live.mute": self.mute,
            "live.voice": self.switch,
            "live.latency": self.latency,
            "live.check": self.check,
            "voices.list": self.too_much,
            "voices.show": self.show_voice,
            "doctor": self.doctor,
            "traces": self.bug,
            "models.list": self.wrong_type,
            "jobs.submit": self.submit,
            "jobs.show": self.job,
            "jobs.list": self.list_jobs,
            "config.get": self.config,
            "config.set": self.configure,
            "devices.test": self.open_devices,
        }


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short private state directory that the environment names."""
    with tempfile.TemporaryDirectory(prefix="mt") as folder:
        path = private_dir(Path(folder) / "state")
        monkeypatch.setenv("MYNA_STATE_DIR", str(path))
        monkeypatch.setenv("MYNA_RUNTIME_DIR", str(Path(folder) / "run"))
        monkeypatch.delenv("MYNA_CONNECTION", raising=False)
        yield path


@pytest.fixture
def desk(state: Path) -> Desk:
    """The handlers behind `server`."""
    return Desk(state)


def announce(server: Server, state: Path) -> None:
    """Write the connection file as the daemon does."""
    write_connection(state, server.connection())


@pytest.fixture
def server(state: Path, desk: Desk) -> Iterator[Server]:
    """A server over ipc, announced in the connection file."""
    endpoint, events = ipc_endpoints(state)
    with Server(endpoint, desk.table(), version="0", state_dir=state, events=events) as running:
        announce(running, state)
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """A client of `server`."""
    with Client() as connected:
        yield connected


@pytest.fixture
def raw(server: Server) -> Iterator[zmq.Socket[bytes]]:
    """A bare DEALER, for frames that no client of ours would send."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.RCVTIMEO, int(1000 * WAIT_S))
    dealer.connect(server.endpoint)
    yield dealer
    context.destroy(linger=0)
