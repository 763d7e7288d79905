"""Creates, examines and removes the virtual microphone with whatever sound server this machine has."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from myna.daemon.route import pipewire, pulse
from myna.daemon.route.alsa import find_plugin
from myna.daemon.route.cables import Device, find_cable, steps
from myna.daemon.route.errors import RouteError
from myna.daemon.route.names import MICROPHONE, MICROPHONE_TITLE, PCM, SINK
from myna.daemon.route.server import Server, find_server
from myna.daemon.route.state import Proof, RouteState

PROOFS = {
    "ok": "a tone sent through arrived",
    "no_signal": "a tone sent through did not arrive",
    "in_use": "not tried: an application records it now and would hear the tone",
    "no_tools": "not tried: pacat and parec are missing (package pulseaudio-utils)",
    "not_there": "the sound server refused to open it",
}

# A server without any other source has no other choice of a default.
HEARS_ITSELF = "It is the default microphone, so Myna would hear itself: name your own with `myna up --input`."


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteReport:
    """The virtual microphone as it was found. What was not measured is None."""

    server: str | None  # pipewire, pulseaudio; None where the system has no such server
    server_version: str | None = None
    present: bool = False
    persistent: bool | None = None  # whether it is back after a restart of the sound server
    sink: str | None = None
    microphone: str | None = None  # what applications list
    output: str | None = None  # device name for `myna up --output`
    host_api: str | None = None
    is_default: bool | None = None  # whether the server uses it for applications that chose nothing
    in_use_by: int | None = None  # applications that record it now
    proof: str | None = None
    level_db: float | None = None
    snr_db: float | None = None
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    steps: tuple[str, ...] = field(default=())

    @property
    def healthy(self) -> bool:
        """Whether it is there and nothing speaks against its working."""
        return self.present and not self.problems


def create() -> RouteReport:
    """Make the virtual microphone, now and for every later start; what is there already is left alone.

    Raises:
        RouteError: No server answers, it refuses, or its configuration folder can't be written. On macOS and Windows
            `missing_asset` if no virtual cable is installed, with the steps.
    """
    if platform.system() != "Linux":
        report = _cable_report()
        if not report.present:
            raise RouteError("missing_asset", " ".join(("No virtual cable is installed.", *report.steps)))
        return report
    with _one_at_a_time():
        server = find_server()
        edge = _edge(server)
        edge.create()
        edge.persist()
        return status(proof=False)


def remove() -> bool:
    """Remove every trace; True if there was any. RouteError if the server refuses.

    Works without a running server too: then only the configuration is there to be removed.
    """
    if platform.system() != "Linux":
        return False
    with _one_at_a_time():
        # Both, since the server may have been changed in between.
        found = [pipewire.forget(), pulse.forget()]
        try:
            server = find_server()
        except RouteError as error:
            if error.code not in ("device_unavailable", "missing_asset"):
                raise
        else:
            found.append(_edge(server).remove())
    return any(found)


def status(*, proof: bool = True) -> RouteReport:
    """Look at it, and send a tone through unless told not to or somebody listens. RouteError without a server."""
    if platform.system() != "Linux":
        return _cable_report()
    server = find_server()
    edge = _edge(server)
    state = edge.state()
    persistent = edge.persistent()
    if not state.any:
        words = ("It will be there after the sound server's next start.",) if persistent else ()
        return RouteReport(
            server=server.kind,
            server_version=server.version,
            persistent=persistent,
            problems=words,
            steps=("Create it: myna route create",),
        )
    shown = _proof(state) if proof and state.whole else None
    return RouteReport(
        server=server.kind,
        server_version=server.version,
        present=state.whole,
        persistent=persistent,
        sink=SINK if state.sinks else None,
        microphone=MICROPHONE_TITLE if state.microphones else None,
        output=PCM,
        host_api="ALSA",
        is_default=state.default_source == MICROPHONE or state.default_sink == SINK,
        in_use_by=state.listeners,
        proof=shown.reason if shown else None,
        level_db=shown.level_db if shown else None,
        snr_db=shown.snr_db if shown else None,
        problems=tuple(_problems(state.whole, persistent, shown)),
        warnings=(HEARS_ITSELF,) if state.default_source == MICROPHONE else (),
        steps=(f"In the application, choose {MICROPHONE_TITLE!r} as the microphone.",),
    )


def _proof(state: RouteState) -> Proof:
    # numpy comes with it, which a mere look (the supervisor's) can do without
    from myna.daemon.route.tone import prove

    return prove(state.listeners)


def _problems(whole: bool, persistent: bool, proof: Proof | None) -> Iterator[str]:
    if not whole:
        yield "It is damaged (parts are missing or there twice): run `myna route create`."
    if not persistent:
        yield "It will be gone after the sound server's next start: run `myna route create`."
    if proof is not None and proof.reason in ("no_signal", "not_there"):
        yield f"It does not work: {PROOFS[proof.reason]}. Run `myna route remove`, then `myna route create`."
    if find_plugin() is None:
        yield (
            "ALSA has no plugin for the sound server, so Myna cannot play into it. Debian, Ubuntu: "
            "apt-get install libasound2-plugins; Fedora: dnf install alsa-plugins-pulseaudio; "
            "Arch: pacman -S alsa-plugins"
        )


def _edge(server: Server) -> ModuleType:
    return pipewire if server.kind == "pipewire" else pulse


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two commands at once would make two microphones. The lock is on a folder: no file to leave behind."""
    import fcntl

    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or Path.home())
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise RouteError("failed", f"{folder} can't be opened: {error.strerror}.") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _cable_report() -> RouteReport:
    """macOS and Windows: look for a cable that somebody installed."""
    cable = find_cable(_devices(), platform.system())
    told = tuple(steps(cable, platform.system()))
    if cable is None:
        return RouteReport(server=None, steps=told)
    return RouteReport(
        server=None,
        present=True,
        persistent=True,  # a driver: it is there after every start
        microphone=cable.microphone,
        output=cable.output,
        host_api=cable.host_api,
        steps=told,
    )


def _devices() -> list[Device]:
    """The machine's devices. PortAudio is opened in here, in this short-lived process of the command."""
    import sounddevice

    apis = [api["name"] for api in sounddevice.query_hostapis()]
    return [
        Device(d["name"], apis[d["hostapi"]], d["max_input_channels"], d["max_output_channels"])
        for d in sounddevice.query_devices()
    ]
