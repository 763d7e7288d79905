"""Runs the tools that tell of accelerators, or plays back what they said on another machine."""

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from myna.control.contract import Finding
from myna.control.errors import MynaError
from myna.daemon.compute import (
    TORCH_CHILD,
    ComputeSettings,
    Decision,
    Discovery,
    Machine,
    Run,
    ToolOutput,
    TorchBuild,
    decide,
    discover,
    findings,
    parse_torch_version,
)

RECORDINGS = Path(__file__).resolve().parent.parent / "tests" / "data" / "compute"
"""Recorded machines, in a source tree; elsewhere a recording is named by its path."""

# What torch itself tells, printed as one JSON object by a process of its own.
_CHILD = """
import json, torch
told = {"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip,
        "xpu": getattr(torch.version, "xpu", None), "archs": None, "cuda_devices": [], "xpu_devices": []}
if torch.cuda.is_available():
    told["archs"] = torch.cuda.get_arch_list()
    for n in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(n)
        told["cuda_devices"].append({"name": p.name, "total_memory": p.total_memory, "major": p.major,
                                     "minor": p.minor, "arch": getattr(p, "gcnArchName", None)})
if hasattr(torch, "xpu") and torch.xpu.is_available():
    for n in range(torch.xpu.device_count()):
        p = torch.xpu.get_device_properties(n)
        told["xpu_devices"].append({"name": p.name, "total_memory": p.total_memory,
                                    "has_fp16": bool(getattr(p, "has_fp16", False)),
                                    "driver": getattr(p, "driver_version", None)})
print(json.dumps(told))
"""


def run_tool(command: Sequence[str], timeout_s: float) -> ToolOutput:
    """Run a tool without a shell, in the plain locale. Never raises; a tool that hangs is killed."""
    argv = [sys.executable, "-c", _CHILD] if tuple(command) == (TORCH_CHILD,) else list(command)
    if shutil.which(argv[0]) is None:
        return ToolOutput(outcome="missing")
    try:
        child = subprocess.run(
            argv,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C", "LANGUAGE": "C"},
        )
    except subprocess.TimeoutExpired:
        return ToolOutput(outcome="timeout")
    except OSError as error:
        return ToolOutput(outcome="failed", stderr=str(error))
    return ToolOutput(
        outcome="ran",
        code=child.returncode,
        stdout=child.stdout.decode("utf-8", "replace"),
        stderr=child.stderr.decode("utf-8", "replace"),
    )


def installed_torch() -> TorchBuild | None:
    """The installed torch by its version file, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        return parse_torch_version((Path(spec.origin).parent / "version.py").read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def this_machine() -> Machine:
    """What the platform tells, without any tool."""
    system = {"Linux": "linux", "Darwin": "darwin", "Windows": "windows"}.get(platform.system(), "linux")
    release = platform.release().lower()
    nodes = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/dev/dri/renderD128")
    return Machine(
        system=cast(Any, system),
        arch=platform.machine(),
        memory_mb=_memory_mb(),
        wsl="microsoft" in release or "wsl" in release,
        container=_in_container(),
        gpu_nodes=tuple(n for n in nodes if os.path.exists(n)),
        chip=platform.processor() or None if system == "darwin" else None,
        directml=_is_installed("torch-directml"),
        torch=installed_torch(),
        environment={k: v for k, v in os.environ.items() if k.endswith("_VISIBLE_DEVICES")},
    )


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _in_container() -> bool:
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return True
    try:
        groups = Path("/proc/1/cgroup").read_text("utf-8", "replace")
    except OSError:
        return False
    return re.search(r"docker|kubepods|containerd|lxc", groups) is not None


def _memory_mb() -> int | None:
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) >> 20
    if sys.platform == "win32":
        kilobytes = ctypes.c_ulonglong()
        if ctypes.windll.kernel32.GetPhysicallyInstalledSystemMemory(ctypes.byref(kilobytes)):
            return kilobytes.value >> 10
    return None


def probe(settings: ComputeSettings, *, ask_torch: bool = False) -> tuple[Discovery, Decision]:
    """Find this machine's accelerators and decide. Takes up to the tools' timeouts: not for the control thread."""
    found = discover(this_machine(), run_tool, ask_torch=ask_torch)
    return found, decide(found.cards, settings, found.torch)


def doctor_findings(settings: ComputeSettings) -> list[Finding]:
    """What `doctor` says of computing on this machine."""
    return findings(*probe(settings, ask_torch=True))


# --- recordings -----------------------------------------------------------------------------------------


def record(description: str) -> dict[str, Any]:
    """This machine as a recording: what the platform and every tool that was run told."""
    machine = this_machine()
    tools: dict[str, Any] = {}

    def remember(command: Sequence[str], timeout_s: float) -> ToolOutput:
        output = run_tool(command, timeout_s)
        if output.outcome != "missing":
            tools[" ".join(command)] = {
                "outcome": output.outcome,
                "code": output.code,
                "stdout": output.stdout,
                "stderr": output.stderr,
            }
        return output

    discover(machine, remember, ask_torch=True)
    torch = machine.torch
    return {
        "description": description,
        "machine": {
            "system": machine.system,
            "arch": machine.arch,
            "memory_mb": machine.memory_mb,
            "wsl": machine.wsl,
            "container": machine.container,
            "gpu_nodes": list(machine.gpu_nodes),
            "chip": machine.chip,
            "directml": machine.directml,
            "torch": None
            if torch is None
            else {"version": torch.version, "cuda": torch.cuda, "hip": torch.hip, "xpu": torch.xpu},
            "environment": dict(machine.environment),
        },
        "tools": tools,
    }


def recorded_cases() -> list[str]:
    """The names of the recordings that come with the source."""
    return sorted(p.stem for p in RECORDINGS.glob("*.json")) if RECORDINGS.is_dir() else []


def playback(recording: Mapping[str, Any]) -> tuple[Machine, Run]:
    """A recorded machine, and a runner that answers as its tools did; a tool not recorded is missing there."""
    told = dict(recording["machine"])
    torch = told.pop("torch", None)
    told["gpu_nodes"] = tuple(told.get("gpu_nodes", ()))
    machine = Machine(**told, torch=TorchBuild(**torch) if torch is not None else None)
    tools = recording.get("tools", {})

    def run(command: Sequence[str], timeout_s: float) -> ToolOutput:
        said = tools.get(" ".join(command))
        if said is None:
            return ToolOutput(outcome="missing")
        lines = {k: "\n".join(v) + "\n" if isinstance(v, list) else v for k, v in said.items()}
        return msgspec.convert({"outcome": "ran", "code": 0, **lines}, ToolOutput)

    return machine, run


def load_recording(case: str) -> dict[str, Any]:
    """A recording by its name or its path.

    Raises:
        MynaError: `not_found`; `bad_request` where the file is no recording.
    """
    path = Path(case) if case.endswith(".json") else RECORDINGS / f"{case}.json"
    try:
        told = json.loads(path.read_text("utf-8"))
        playback(told)
    except OSError as error:
        names = ", ".join(recorded_cases()) or "none here; name a file"
        raise MynaError("not_found", f"There is no recorded machine {case!r}. Known: {names}.", case=case) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MynaError("bad_request", f"{path.name} is no recording of a machine: {error}", case=case) from error
    return cast(dict[str, Any], told)


def simulate(case: str, settings: ComputeSettings | None = None, *, ask_torch: bool = True) -> list[Finding]:
    """What `doctor` would say on a recorded machine. MynaError: see `load_recording`."""
    machine, run = playback(load_recording(case))
    found = discover(machine, run, ask_torch=ask_torch)
    return findings(found, decide(found.cards, settings or ComputeSettings(), found.torch))
