"""Asks this machine for its accelerators, by child processes."""

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from myna.control.contract import Finding
from myna.daemon.compute.answers import parse_torch_version
from myna.daemon.compute.cards import Machine, TorchBuild
from myna.daemon.compute.decision import ComputeSettings, Decision, decide
from myna.daemon.compute.discovery import TORCH_CHILD, Discovery, ToolOutput, discover
from myna.daemon.compute.findings import findings

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
        directml=_is_installed("onnxruntime-directml"),
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
