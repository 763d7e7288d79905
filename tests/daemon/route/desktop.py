"""A sound server of a user's own, started as on a desktop, so that its configuration brings nodes back."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAMS = {
    "pulseaudio": ("pulseaudio", "pactl", "pacat"),
    "pipewire": ("pipewire", "pipewire-pulse", "wireplumber", "dbus-daemon", "pw-dump", "pactl"),
}
DEADLINE_S = 15.0


class Desktop:
    """A private sound server with one pair of cables that stands for the hardware, and a home folder of its own."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.home = folder / "home"
        self.runtime = folder / "run"
        self.home.mkdir()
        (self.runtime / "pulse").mkdir(parents=True)
        self.runtime.chmod(0o700)
        dropped = ("PULSE_", "PIPEWIRE_", "XDG_", "DBUS_", "ALSA_CONFIG", "DISPLAY", "WAYLAND_DISPLAY")
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
        self.environment |= {
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.runtime),
            "PULSE_RUNTIME_PATH": str(self.runtime / "pulse"),
            "PULSE_STATE_PATH": str(folder / "state"),
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path={self.runtime}/bus",
            "LC_ALL": "C",
        }
        # Libraries start a server of their own where none answers, unless one is named.
        self.client = {**self.environment, "PULSE_SERVER": f"unix:{self.runtime}/pulse/native"}
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start it and wait until it answers with its cables."""
        if self.kind == "pulseaudio":
            options = ["--daemonize=no", "--exit-idle-time=-1", "--realtime=no", "--high-priority=no"]
            self._spawn("pulseaudio", *options, "--disable-shm=yes", "--use-pid-file=no")
        else:
            bus = self.client["DBUS_SESSION_BUS_ADDRESS"]
            self._spawn("dbus-daemon", "--session", "--nofork", "--nopidfile", f"--address={bus}")
            self.wait("the bus", lambda: (self.runtime / "bus").exists())
            self._spawn("pipewire")
            self.wait("pipewire", lambda: (self.runtime / "pipewire-0").exists())
            self._spawn("wireplumber")
            self._spawn("pipewire-pulse")
            self.wait("wireplumber", lambda: "wireplumber" in self.run("pw-cli", "ls", "Client").stdout.lower())
        self.wait("the server", lambda: self.run("pactl", "info").returncode == 0)
        # A real-time client starves a server that is not; desktops make theirs real-time, here it is done from outside,
        # after the start, since PulseAudio drops what it inherits.
        for process in self._processes:
            subprocess.run(["chrt", "-a", "-f", "-p", "40", str(process.pid)], capture_output=True, check=False)
        cable = ["sink_name=speakers", "norewinds=1", "sink_properties=device.description=Speakers"]
        self.wait("a cable", lambda: self.run("pactl", "load-module", "module-null-sink", *cable).returncode == 0)
        self.run("pactl", "load-module", "module-remap-source", "source_name=headset", "master=speakers.monitor")
        self.wait("the headset", lambda: "headset" in self.names("sources"))
        self.run("pactl", "set-default-sink", "speakers")
        self.run("pactl", "set-default-source", "headset")

    def stop(self) -> None:
        """Kill it, as a crash would."""
        for process in reversed(self._processes):
            process.kill()
        for process in self._processes:
            process.wait()
        self._processes.clear()
        for socket in ("bus", "pipewire-0", "pipewire-0.lock", "pulse/native"):
            (self.runtime / socket).unlink(missing_ok=True)

    def restart(self) -> None:
        """Kill it and start it again with the same home."""
        self.stop()
        self.start()

    def run(self, *command: str, **extra: str) -> "subprocess.CompletedProcess[str]":
        """Run a client of this server."""
        return subprocess.run(
            command, capture_output=True, text=True, env={**self.client, **extra}, check=False, timeout=60
        )

    def names(self, kind: str) -> list[str]:
        """Names of the server's sinks or sources."""
        lines = self.run("pactl", "list", "short", kind).stdout.splitlines()
        return [line.split("\t")[1] for line in lines if "\t" in line]

    def defaults(self) -> list[str]:
        """The lines that tell the default sink and source."""
        info = self.run("pactl", "info").stdout
        return [line for line in info.splitlines() if line.startswith(("Default Sink", "Default Source"))]

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        """Wait for a condition, with a deadline."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log"))
                pytest.fail(f"gave up waiting for {what}\n{logs}")
            time.sleep(0.05)

    def _spawn(self, name: str, *arguments: str) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [name, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment
                )
            )
