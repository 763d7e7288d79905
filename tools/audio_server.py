"""A private PulseAudio or PipeWire with two virtual cables, for tests and for trying things without a sound card.

    python tools/audio_server.py start [pulse|pipewire] [--dir D]    prints the environment to use
    python tools/audio_server.py env | status | stop [--dir D]

or, in a test:

    with AudioServer("pulse") as server:
        subprocess.run([...], env=server.env)

Its nodes, 48 kHz, all sharing one clock:

    mic_cable    sink: a test plays the "voice" into it
    test_mic     source: what mic_cable plays; the microphone for the program under test
    out_cable    sink: the program under test plays into it
    virtual_mic  source: what out_cable plays; what others record

ALSA programs (PortAudio among them) see the four under the same names. Everything lives in one private directory;
no session bus, systemd or privilege is needed, and only processes started here are ever signalled.
"""

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

Kind = Literal["pulse", "pipewire"]

MIC_CABLE, TEST_MIC = "mic_cable", "test_mic"
OUT_CABLE, VIRTUAL_MIC = "out_cable", "virtual_mic"
NODES = (MIC_CABLE, TEST_MIC, OUT_CABLE, VIRTUAL_MIC)
PROGRAMS: dict[Kind, tuple[str, ...]] = {
    "pulse": ("pulseaudio", "pactl"),
    "pipewire": ("pipewire", "wireplumber", "pipewire-pulse", "dbus-daemon", "pw-cli", "pactl"),
}
START_S = 15.0
STOP_S = 3.0
POLL_S = 0.05
REALTIME_PRIORITY = 40
DEFAULT_DIRECTORY = Path(tempfile.gettempdir()) / f"myna-audio-{os.getuid() if hasattr(os, 'getuid') else 0}"


class ServerError(Exception):
    """The server could not be started; the message holds the end of its logs."""


def missing_programs(kind: Kind) -> list[str]:
    """What has to be installed before a server of that kind can start."""
    return [program for program in PROGRAMS[kind] if shutil.which(program) is None]


def faketime_library() -> Path | None:
    """libfaketime for threaded programs, where Debian, Fedora and Arch have it; None: not installed."""
    folders = (Path("/usr/lib"), Path("/usr/lib64"))
    return next((each for folder in folders for each in folder.glob("**/faketime/libfaketimeMT.so.1")), None)


# --- what the servers read ------------------------------------------------------------------------------------


def pulse_script(socket: Path, rate_hz: int) -> str:
    """PulseAudio's start script. Without `norewinds` a null sink works in blocks of 2 s and its delay jumps."""

    def sink(name: str) -> str:
        return (
            f"load-module module-null-sink sink_name={name} rate={rate_hz} channels=2 norewinds=1 "
            f"sink_properties=device.description={name}"
        )

    def source(name: str, master: str) -> str:
        return (
            f"load-module module-remap-source source_name={name} master={master}.monitor "
            f"source_properties=device.description={name}"
        )

    lines = [
        ".fail",
        f"load-module module-native-protocol-unix auth-anonymous=1 socket={socket}",
        sink(MIC_CABLE),
        sink(OUT_CABLE),
        source(TEST_MIC, MIC_CABLE),
        source(VIRTUAL_MIC, OUT_CABLE),
        f"set-default-sink {OUT_CABLE}",
        f"set-default-source {TEST_MIC}",
    ]
    return "\n".join(lines) + "\n"


def pulse_settings(rate_hz: int) -> str:
    """PulseAudio's daemon.conf: one rate and float throughout, so that sound passes bit for bit."""
    settings = {
        "default-sample-format": "float32le",
        "default-sample-rate": rate_hz,
        "alternate-sample-rate": rate_hz,
        "flat-volumes": "no",
        "default-fragments": 4,
        "default-fragment-size-msec": 5,
    }
    return "".join(f"{key} = {value}\n" for key, value in settings.items())


def pipewire_settings(rate_hz: int, quantum: int = 480) -> str:
    """A fragment for pipewire.conf.d that fixes the rate and the period."""
    return (
        "context.properties = {\n"
        f"    default.clock.rate = {rate_hz}\n"
        f"    default.clock.allowed-rates = [ {rate_hz} ]\n"
        f"    default.clock.quantum = {quantum}\n"
        "    default.clock.min-quantum = 128\n"
        "}\n"
    )


def alsa_settings(socket: Path, system: str = "/usr/share/alsa/alsa.conf") -> str:
    """An ALSA configuration with one PCM per node; the hint makes it appear in lists of devices."""
    parts = [f"<{system}>"]
    for node in NODES:
        parts.append(
            f'pcm.{node} {{ type pulse server "unix:{socket}" device "{node}" handle_underrun 0 '
            f'hint {{ show on description "{node}" }} }}'
        )
        parts.append(f'ctl.{node} {{ type pulse server "unix:{socket}" device "{node}" }}')
    parts.append(f'pcm.!default {{ type pulse server "unix:{socket}" }}')
    parts.append(f'ctl.!default {{ type pulse server "unix:{socket}" }}')
    return "\n".join(parts) + "\n"


# --- processes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Process:
    """A process by id and start time, so that another one with a recycled id is never taken for it."""

    name: str
    pid: int
    started: int

    @staticmethod
    def of(name: str, pid: int) -> "Process":
        """The process that has that id now."""
        return Process(name, pid, _start_time(pid) or 0)

    def alive(self) -> bool:
        """True while that very process runs; a zombie does not."""
        return self.started != 0 and _start_time(self.pid) == self.started

    def send(self, number: int) -> None:
        """Signal it, if it is still there."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _start_time(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


class AudioServer:
    """A running server in a directory of its own. As a context manager it starts and stops it."""

    def __init__(
        self,
        kind: Kind = "pulse",
        directory: Path | None = None,
        *,
        rate_hz: int = 48000,
        realtime: bool = True,
        clock: float = 1.0,
    ) -> None:
        """A server that is not yet running.

        `clock` is how fast PulseAudio's time passes: its null sinks then play and record at that many times their
        rate, as a device with another crystal does. It needs libfaketime (`faketime_library`).
        """
        self.kind: Kind = kind
        self._own_directory = directory is None
        # Short: the path of a Unix socket must stay under 108 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="myna-audio-")) if directory is None else directory
        self.rate_hz = rate_hz
        self._clock = clock
        self._realtime = realtime
        self.realtime = "not asked"
        self._processes: list[Process] = []
        self._children: list[subprocess.Popen[bytes]] = []

    @staticmethod
    def attach(directory: Path) -> "AudioServer | None":
        """The server that an earlier process started there, None if there is none."""
        try:
            state = json.loads((directory / "server.json").read_text())
        except (OSError, ValueError):
            return None
        server = AudioServer(state["kind"], directory)
        server._processes = [Process(**each) for each in state["processes"]]
        return server

    @property
    def socket(self) -> Path:
        """Where PulseAudio's protocol is spoken."""
        return self.directory / "run" / "pulse" / "native"

    @property
    def variables(self) -> dict[str, str]:
        """What a client's environment needs beyond its own."""
        run = self.directory / "run"
        variables = {
            "XDG_RUNTIME_DIR": run,
            "XDG_CONFIG_HOME": self.directory / "config",
            "XDG_STATE_HOME": self.directory / "state",
            "XDG_CACHE_HOME": self.directory / "cache",
            "PULSE_RUNTIME_PATH": run / "pulse",
            "PULSE_STATE_PATH": self.directory / "state",
            "PULSE_COOKIE": self.directory / "state" / "cookie",
            "PULSE_SERVER": f"unix:{self.socket}",
            "ALSA_CONFIG_PATH": self.directory / "asound.conf",
        }
        if self.kind == "pipewire":
            variables["PIPEWIRE_RUNTIME_DIR"] = run
            variables["DBUS_SESSION_BUS_ADDRESS"] = f"unix:path={run}/bus"
        return {name: str(value) for name, value in variables.items()}

    @property
    def env(self) -> dict[str, str]:
        """A whole environment for a client: this process's own, with the server's in it."""
        kept = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        return {**kept, **self.variables}

    def start(self) -> None:
        """Start it and wait until all nodes are there. ServerError if it does not come up; then nothing runs."""
        missing = missing_programs(self.kind)
        if missing:
            raise ServerError(f"not installed: {', '.join(missing)}")
        if any(process.alive() for process in self._processes):
            raise ServerError(f"already running in {self.directory}")
        for part in ("run/pulse", "log", "config/pipewire/pipewire.conf.d", "state", "cache"):
            (self.directory / part).mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.directory, self.directory / "run", self.directory / "run" / "pulse"):
            folder.chmod(0o700)
        (self.directory / "asound.conf").write_text(alsa_settings(self.socket))
        try:
            if self.kind == "pulse":
                self._start_pulse()
            else:
                self._start_pipewire()
            self._wait("the cables", lambda: set(NODES) <= self.nodes())
        except BaseException:
            self.stop()
            raise
        if self._realtime:
            self._go_realtime()
        self._remember()

    def stop(self) -> None:
        """End it: asked first, killed after 3 s; remove the directory if it was made here."""
        for process in reversed(self._processes):
            process.send(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while any(process.alive() for process in self._processes) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        self.kill()
        (self.directory / "server.json").unlink(missing_ok=True)
        if self._own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def signal(self, number: int) -> None:
        """Signal all of its processes: SIGSTOP makes it hang, SIGCONT lets it go on."""
        for process in self._processes:
            process.send(number)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.signal(signal.SIGKILL)
        for child in self._children:
            child.wait(STOP_S)
        self._processes, self._children = [], []

    def status(self) -> dict[str, bool]:
        """Which of its processes are alive, by name and id."""
        return {f"{process.name} {process.pid}": process.alive() for process in self._processes}

    def nodes(self) -> set[str]:
        """Names of the sinks and sources that the server has now."""
        names = set()
        for what in ("sinks", "sources"):
            listed = self.pactl("list", "short", what)
            names |= {line.split("\t")[1] for line in listed.splitlines() if "\t" in line}
        return names

    def unplug(self, sink: str) -> None:
        """Unload one of the cables: its sink, and with it the source that others record from."""
        for line in self.pactl("list", "short", "modules").splitlines():
            number, _, rest = line.partition("\t")
            if "module-null-sink" in rest and f"sink_name={sink}" in rest:
                self.pactl("unload-module", number)
        self._wait(f"{sink} to go", lambda: sink not in self.nodes())

    def plug(self, sink: str, source: str) -> None:
        """Load a cable again. ServerError if the server refuses."""
        if not (self._load_sink(sink) and self._load_source(source, sink)):
            raise ServerError(f"{self.kind} would not make {sink} again")
        self._wait(f"{sink} and {source}", lambda: {sink, source} <= self.nodes())

    def pactl(self, *arguments: str) -> str:
        """Run pactl against the server; its output, empty if it failed."""
        done = subprocess.run(
            ["pactl", *arguments], env=self.env, capture_output=True, text=True, timeout=10, check=False
        )
        return done.stdout if done.returncode == 0 else ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_pulse(self) -> None:
        script, settings = self.directory / "start.pa", self.directory / "daemon.conf"
        script.write_text(pulse_script(self.socket, self.rate_hz))
        settings.write_text(pulse_settings(self.rate_hz))
        options = (
            "-n --daemonize=no --use-pid-file=no --system=no --exit-idle-time=-1 --disallow-exit=no --realtime=no "
            "--high-priority=no --disable-shm=yes --log-target=stderr --log-level=notice"
        )
        variables = {"PULSE_CONFIG": str(settings)}
        if self._clock != 1.0:
            variables |= {"LD_PRELOAD": str(faketime_library()), "FAKETIME": f"+0 x{self._clock:.6f}"}
        self._spawn("pulseaudio", ["pulseaudio", *options.split(), "-F", str(script)], **variables)

    def _start_pipewire(self) -> None:
        run = self.directory / "run"
        fragment = self.directory / "config" / "pipewire" / "pipewire.conf.d" / "myna-test.conf"
        fragment.write_text(pipewire_settings(self.rate_hz))
        # wireplumber ends at once without a session bus, so it gets one of its own.
        bus = ["dbus-daemon", "--session", "--nofork", "--nopidfile", "--nosyslog"]
        self._spawn("dbus-daemon", [*bus, f"--address=unix:path={run}/bus"])
        self._wait("the session bus", (run / "bus").exists)
        self._spawn("pipewire", ["pipewire"])
        self._wait("pipewire", (run / "pipewire-0").exists)
        self._spawn("wireplumber", ["wireplumber"])
        self._spawn("pipewire-pulse", ["pipewire-pulse"])
        self._wait("wireplumber", lambda: "wireplumber" in self._pipewire_clients().lower())
        self._wait("pipewire-pulse", lambda: bool(self.pactl("info")))
        # For a moment after its start pipewire-pulse answers "Not supported": ask until it does not.
        self._wait("a null sink", lambda: MIC_CABLE in self.nodes() or self._load_sink(MIC_CABLE))
        for made in (
            self._load_sink(OUT_CABLE),
            self._load_source(TEST_MIC, MIC_CABLE),
            self._load_source(VIRTUAL_MIC, OUT_CABLE),
        ):
            if not made:
                raise ServerError("pipewire-pulse would not make the cables")
        self.pactl("set-default-sink", OUT_CABLE)
        self.pactl("set-default-source", TEST_MIC)

    def _load_sink(self, name: str) -> bool:
        options = [f"sink_name={name}", f"rate={self.rate_hz}", "channels=2"]
        options += ["norewinds=1"] if self.kind == "pulse" else []
        properties = f"sink_properties=device.description={name}"
        return bool(self.pactl("load-module", "module-null-sink", *options, properties))

    def _load_source(self, name: str, sink: str) -> bool:
        options = (f"source_name={name}", f"master={sink}.monitor")
        properties = f"source_properties=device.description={name}"
        return bool(self.pactl("load-module", "module-remap-source", *options, properties))

    def _pipewire_clients(self) -> str:
        done = subprocess.run(
            ["pw-cli", "ls", "Client"], env=self.env, capture_output=True, text=True, timeout=10, check=False
        )
        return done.stdout

    def _spawn(self, name: str, command: list[str], **variables: str) -> None:
        environment: Mapping[str, str] = {**self.env, **variables}
        if self.kind == "pulse":  # a server that finds PULSE_SERVER set thinks itself a client of it
            environment = {key: value for key, value in environment.items() if key != "PULSE_SERVER"}
        with (self.directory / "log" / f"{name}.log").open("wb") as log:
            child = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._children.append(child)
        self._processes.append(Process.of(name, child.pid))
        self._remember()

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            dead = [process.name for process in self._processes if not process.alive()]
            if dead:
                raise ServerError(f"{', '.join(dead)} ended at once:\n{self._logs()}")
            if ready():
                return
            time.sleep(POLL_S)
        raise ServerError(f"gave up waiting for {what}:\n{self._logs()}")

    def _logs(self) -> str:
        logs = sorted((self.directory / "log").glob("*.log"))
        return "\n".join(log.read_text(errors="replace")[-2000:] for log in logs)

    def _go_realtime(self) -> None:
        """On a busy machine only real-time priority keeps a server on time.

        From outside, after the start and for every thread: PulseAudio drops what it inherits, and never raises its
        main thread, which moves the clients' data.
        """
        for process in self._processes:
            if process.name in ("dbus-daemon", "wireplumber"):
                continue
            for thread in Path(f"/proc/{process.pid}/task").iterdir():
                try:
                    os.sched_setscheduler(int(thread.name), os.SCHED_FIFO, os.sched_param(REALTIME_PRIORITY))
                except OSError as error:
                    self.realtime = f"not permitted: {error.strerror}"
                    return
        self.realtime = f"SCHED_FIFO {REALTIME_PRIORITY}"

    def _remember(self) -> None:
        processes = [{"name": p.name, "pid": p.pid, "started": p.started} for p in self._processes]
        (self.directory / "server.json").write_text(json.dumps({"kind": self.kind, "processes": processes}))


_FOREIGN = {"PULSE_SERVER", "PULSE_SINK", "PULSE_SOURCE", "PULSE_CONFIG", "DISPLAY", "DBUS_SESSION_BUS_ADDRESS"}


def main() -> int:
    """The command line; its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("action", choices=("start", "stop", "status", "env"))
    parser.add_argument("kind", nargs="?", choices=tuple(PROGRAMS), default="pulse")
    parser.add_argument("--dir", type=Path, default=DEFAULT_DIRECTORY)
    parser.add_argument("--no-realtime", action="store_true")
    options = parser.parse_args()
    server = AudioServer.attach(options.dir)
    running = server is not None and any(server.status().values())
    if options.action == "start":
        if running:
            print(f"already running in {options.dir}", file=sys.stderr)
            return 1
        server = AudioServer(options.kind, options.dir, realtime=not options.no_realtime)
        try:
            server.start()
        except ServerError as error:
            print(error, file=sys.stderr)
            return 1
        print(f"# {server.kind}, realtime: {server.realtime}")
    if server is None:
        print("not running", file=sys.stderr)
        return 3
    if options.action == "stop":
        server.stop()
    elif options.action == "status":
        for name, alive in server.status().items():
            print(f"{name}: {'up' if alive else 'gone'}")
        print("nodes: " + (", ".join(sorted(server.nodes())) or "none"))
        return 0 if all(server.status().values()) else 1
    else:
        for name, value in server.variables.items():
            print(f"export {name}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
