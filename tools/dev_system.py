"""What the operating system must bring: installed where that is allowed, else told by exact command."""

import ctypes.util
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PORTAUDIO_NOTE = "sound devices stay closed without it; `file:` devices work"
ALSA_PULSE_PLUGIN = "alsa-lib/libasound_module_pcm_pulse.so"


@dataclass(frozen=True)
class Need:
    """One thing the system must bring, its packages by package manager, and why."""

    name: str
    why: str
    present: Callable[[], bool]
    packages: Mapping[str, tuple[str, ...]]
    required: bool = False
    # A second sound server on a desktop would fight with the first: only for machines that are nobody's.
    touches_sound: bool = False


def has_headers() -> bool:
    """Whether this Python's C headers are here."""
    return (Path(sysconfig.get_path("include")) / "Python.h").exists()


def has_venv() -> bool:
    """Whether this Python can make environments (Debian packs that apart)."""
    importlib.invalidate_caches()
    return importlib.util.find_spec("venv") is not None and importlib.util.find_spec("ensurepip") is not None


def has_compiler() -> bool:
    """Whether a C compiler is here."""
    chosen = os.environ.get("CC", "").split()
    return any(shutil.which(name) for name in (*chosen[:1], "cc", "gcc", "clang"))


def has_portaudio() -> bool:
    """Whether PortAudio is here; elsewhere than on Linux it comes with its Python package."""
    return platform.system() != "Linux" or ctypes.util.find_library("portaudio") is not None


def has_alsa_pulse() -> bool:
    """Whether ALSA can play to a sound server."""
    folders = [Path("/usr/lib"), Path("/usr/lib64"), *Path("/usr/lib").glob("*-linux-gnu*")]
    return any((folder / ALSA_PULSE_PLUGIN).exists() for folder in folders)


def all_of(*programs: str) -> Callable[[], bool]:
    """A test for programs on the path."""
    return lambda: all(shutil.which(program) for program in programs)


def python_package(suffix: str) -> str:
    """The Debian package of this very Python, such as python3.11-dev."""
    return f"python{sys.version_info[0]}.{sys.version_info[1]}-{suffix}"


def base_needs() -> list[Need]:
    """What building from source and opening sound devices takes."""
    return [
        Need(
            "a C compiler",
            "the audio core is C, built from source in a clone",
            has_compiler,
            {"apt-get": ("gcc", "libc6-dev"), "dnf": ("gcc",), "pacman": ("gcc",)},
            required=True,
        ),
        Need(
            "Python's C headers",
            "the audio core is C, built from source in a clone",
            has_headers,
            {"apt-get": (python_package("dev"),), "dnf": ("python3-devel",), "pacman": ("python",)},
            required=True,
        ),
        Need(
            "the venv module",
            "the environment is made with it",
            has_venv,
            {"apt-get": (python_package("venv"),)},
            required=True,
        ),
        Need(
            "PortAudio",
            PORTAUDIO_NOTE,
            has_portaudio,
            {"apt-get": ("libportaudio2",), "dnf": ("portaudio",), "pacman": ("portaudio",)},
        ),
    ]


def audio_needs() -> list[Need]:
    """What the tests against real sound servers take."""
    return [
        Need(
            "PulseAudio and ALSA's way to it",
            "the tests marked e2e play through a private one",
            lambda: all_of("pulseaudio", "pactl", "pacat", "aplay")() and has_alsa_pulse(),
            {
                "apt-get": ("pulseaudio", "pulseaudio-utils", "libasound2-plugins", "alsa-utils", "faketime"),
                "dnf": ("pulseaudio", "pulseaudio-utils", "alsa-plugins-pulseaudio", "alsa-utils", "libfaketime"),
                "pacman": ("pulseaudio", "alsa-plugins", "alsa-utils", "libfaketime"),
            },
            touches_sound=True,
        ),
        Need(
            "PipeWire",
            "the tests marked e2e play through a private one",
            all_of("pipewire", "pipewire-pulse", "wireplumber", "pw-cli", "dbus-daemon"),
            {
                "apt-get": ("pipewire", "pipewire-bin", "pipewire-pulse", "wireplumber", "dbus"),
                "dnf": ("pipewire", "pipewire-utils", "wireplumber", "dbus-daemon"),
                "pacman": ("pipewire", "wireplumber", "dbus"),
            },
            touches_sound=True,
        ),
        Need(
            "systemd-analyze",
            "the test of the autostart unit asks it",
            all_of("systemd-analyze"),
            {"apt-get": ("systemd",), "dnf": ("systemd",), "pacman": ("systemd",)},
        ),
    ]


def browser_need() -> Need:
    """What the test with a browser as the far end takes."""
    return Need(
        "Chromium",
        "one test records the virtual microphone in it",
        lambda: any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")),
        {"apt-get": ("chromium",), "dnf": ("chromium",), "pacman": ("chromium",)},
    )


def install_commands(manager: str, packages: Iterable[str]) -> list[list[str]]:
    """The commands, in order, by which a package manager installs packages."""
    names = list(packages)
    if manager == "apt-get":
        options = ["-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=120"]
        return [
            ["apt-get", *options, "update"],
            ["apt-get", *options, "install", "-y", "--no-install-recommends", *names],
        ]
    if manager == "dnf":
        return [["dnf", "install", "-y", *names]]
    if manager == "pacman":
        return [["pacman", "-S", "--needed", "--noconfirm", *names]]
    raise ValueError(f"no such package manager: {manager}")


def find_manager() -> str | None:
    """The system's package manager, if it is one that is known here."""
    return next((name for name in ("apt-get", "dnf", "pacman") if shutil.which(name)), None)


def privilege() -> list[str] | None:
    """What to put before a command to run it as root without a question; None where that can't be."""
    if not hasattr(os, "geteuid"):
        return None
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0:
        return ["sudo", "-n"]
    return None


def is_own_machine() -> bool:
    """Whether this is nobody's desktop: root without a user's session, as in containers and CI."""
    if not hasattr(os, "geteuid"):
        return False
    session = ("SUDO_USER", "DISPLAY", "WAYLAND_DISPLAY")
    return os.geteuid() == 0 and not any(os.environ.get(name) for name in session)


def advice(needs: Iterable[Need], system: str, manager: str | None) -> list[str]:
    """Lines that tell a person what is missing and the exact command that mends it."""
    missing = list(needs)
    lines = [f"missing: {need.name} ({need.why})" for need in missing]
    if manager is not None:
        packages = [package for need in missing for package in need.packages.get(manager, ())]
        if packages:
            commands = install_commands(manager, packages)
            lines.append("install with: " + " && ".join("sudo " + " ".join(command) for command in commands))
    elif system == "Darwin":
        lines.append("install with: xcode-select --install")
    elif system == "Windows":
        lines.append("install the C++ workload of Visual Studio's Build Tools, then open a new terminal")
    else:
        lines.append("install them with your system's package manager")
    return lines


def run_install(commands: Iterable[list[str]], prefix: list[str], tries: int = 3) -> bool:
    """Run a package manager, each command up to `tries` times: mirrors fail for moments."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in commands:
        for attempt in range(tries):
            done = subprocess.run(
                [*prefix, *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
            )
            if done.returncode == 0:
                break
            if attempt < tries - 1:
                time.sleep(2.0 * (attempt + 1))
        else:
            sys.stderr.write("".join(done.stdout.splitlines(keepends=True)[-15:]))
            return False
    return True


def prepare_system(*, audio: bool = False, browser: bool = False) -> None:
    """Install what is missing where that is allowed; tell the exact command where it is not.

    Ends the program only if something without which nothing can be built stays missing.
    """
    wanted = base_needs()
    # Sound servers of this kind are a Linux affair; elsewhere those tests skip and say so.
    if platform.system() == "Linux":
        wanted += audio_needs() if audio else []
        wanted += [browser_need()] if browser else []
    missing = [need for need in wanted if not need.present()]
    if not missing:
        return
    manager = find_manager()
    prefix = privilege() if manager else None
    if manager is not None and prefix is not None:
        allowed = [need for need in missing if is_own_machine() or not need.touches_sound]
        packages = [package for need in allowed for package in need.packages.get(manager, ())]
        if packages:
            print(f"dev.py: installing {' '.join(packages)}", flush=True)
            run_install(install_commands(manager, packages), prefix)
            missing = [need for need in missing if not need.present()]
    for line in advice(missing, platform.system(), manager) if missing else []:
        print(f"dev.py: {line}", flush=True)
    if any(need.required for need in missing):
        sys.exit("dev.py: the above is needed to go on")
