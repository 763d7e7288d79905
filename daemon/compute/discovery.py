"""Finds accelerators by tools that somebody else runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from myna.daemon.compute.answers import (
    NVIDIA_FIELDS,
    NVIDIA_OLD_FIELDS,
    parse_amd_smi,
    parse_nvidia_csv,
    parse_rocm_smi,
    parse_torch_child,
    with_instances,
)
from myna.daemon.compute.cards import Card, Machine, TorchBuild
from myna.daemon.compute.visibility import filter_by_environment

TOOL_TIMEOUT_S = 10.0
CHILD_TIMEOUT_S = 90.0

NVIDIA_PATHS = (
    "nvidia-smi",
    "/usr/lib/wsl/lib/nvidia-smi",  # WSL leaves it out of the search path of services
    r"C:\Windows\System32\nvidia-smi.exe",
    r"C:\Program Files\NVIDIA Corporation\NVSMI\nvidia-smi.exe",
)
AMD_SMI = ("amd-smi", "static", "--asic", "--vram", "--json")
ROCM_SMI = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showuniqueid", "--json")
TORCH_CHILD = "torch-child"  # the pseudo command under which the child that imports torch is run and recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutput:
    """What a tool said; `outcome` is `ran`, `missing`, `timeout` or `failed` (could not be started)."""

    outcome: Literal["ran", "missing", "timeout", "failed"]
    code: int | None = None
    stdout: str = ""
    stderr: str = ""


Run = Callable[[Sequence[str], float], ToolOutput]
"""Runs a command with a timeout in seconds. Never raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something met on the way that explains the result."""

    level: Literal["info", "warning"]
    message: str
    cure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """All cards found, by which method."""

    cards: tuple[Card, ...]
    method: str
    notes: tuple[Note, ...] = ()
    torch: TorchBuild | None = None


def discover(machine: Machine, run: Run, *, ask_torch: bool = False) -> Discovery:
    """Find the cards by the vendors' tools and the platform; torch is asked last, once, in a child process.

    Args:
        machine: What the platform tells.
        run: Runs a tool.
        ask_torch: Ask the child even though a tool found cards, to learn what the build covers.
    """
    notes: list[Note] = []
    methods: list[str] = []
    cards = _nvidia(machine, run, notes, methods) + _amd(machine, run, notes, methods)
    cards = filter_by_environment(cards, machine.environment)
    if machine.system == "darwin" and machine.arch == "arm64":
        methods.append("the platform")
        cards.append(Card(kind="mps", index=0, name=machine.chip or "Apple GPU", memory_mb=machine.memory_mb))
    build = machine.torch
    if build is not None and build.kind != "cpu" and (ask_torch or not cards):
        output = run((TORCH_CHILD,), CHILD_TIMEOUT_S)
        asked, told = parse_torch_child(output.stdout, build) if output.outcome == "ran" else ([], build)
        if output.outcome == "timeout":
            notes.append(Note(level="warning", message=f"torch did not answer within {CHILD_TIMEOUT_S:.0f} s."))
        elif output.outcome != "ran" or told is build:
            last = (output.stderr.strip().splitlines() or [f"exit status {output.code}"])[-1]
            notes.append(Note(level="warning", message=f"torch could not tell its devices: {last}"))
        else:
            build = told
        if not cards and asked:
            cards = asked
            methods.append("torch, in a child process")
    if machine.directml:
        cards.append(Card(kind="dml", index=0, name="DirectML device"))
        methods.append("the installed onnxruntime-directml")
    if not cards:
        notes += _explain_nothing(machine)
    return Discovery(
        cards=tuple(cards), method=" and ".join(methods) or "none found anything", notes=tuple(notes), torch=build
    )


def _nvidia(machine: Machine, run: Run, notes: list[Note], methods: list[str]) -> list[Card]:
    if machine.system == "darwin":
        return []
    paths = [p for p in NVIDIA_PATHS if p.startswith("C:") == (machine.system == "windows") or p == "nvidia-smi"]
    for path in paths:
        output = run(_nvidia_query(path, NVIDIA_FIELDS), TOOL_TIMEOUT_S)
        if output.outcome == "missing":
            continue
        fields: Sequence[str] = NVIDIA_FIELDS
        if output.outcome == "ran" and "not a valid field" in output.stdout + output.stderr:
            fields = NVIDIA_OLD_FIELDS
            output = run(_nvidia_query(path, fields), TOOL_TIMEOUT_S)
        if output.outcome == "timeout":
            notes.append(
                Note(
                    level="warning",
                    message=f"nvidia-smi did not answer within {TOOL_TIMEOUT_S:.0f} s: the driver hangs.",
                    cure="Restart the machine, or reinstall the NVIDIA driver.",
                )
            )
            return []
        cards, other = parse_nvidia_csv(output.stdout, fields)
        notes += [_nvidia_complaint(line) for line in other]
        if not cards:
            if not other:
                said = (output.stderr.strip().splitlines() or [f"exit status {output.code}"])[0]
                notes.append(_nvidia_complaint(said))
            return []
        if any(c.mig for c in cards):
            listing = run((path, "-L"), TOOL_TIMEOUT_S)
            xml = run((path, "-q", "-x"), TOOL_TIMEOUT_S)
            cards = with_instances(cards, listing.stdout, xml.stdout)
        methods.append("nvidia-smi")
        return cards
    return []


def _nvidia_query(path: str, fields: Sequence[str]) -> tuple[str, ...]:
    return path, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"


def _nvidia_complaint(line: str) -> Note:
    lower = line.lower()
    cure = None
    if "version mismatch" in lower:
        cure = "The driver was updated under a running system. Restart the machine."
    elif "couldn't communicate" in lower or "driver/library" in lower:
        cure = "Install or reinstall the NVIDIA driver for the running kernel."
    elif "gpu is lost" in lower or "requires reset" in lower:
        cure = "Restart the machine; if it comes back, check the card's power and seat."
    return Note(level="warning", message=f"nvidia-smi says: {line[:300]}", cure=cure)


def _amd(machine: Machine, run: Run, notes: list[Note], methods: list[str]) -> list[Card]:
    if machine.system != "linux":
        return []
    for command, parse in ((AMD_SMI, parse_amd_smi), (ROCM_SMI, parse_rocm_smi)):
        output = run(command, TOOL_TIMEOUT_S)
        if output.outcome == "timeout":
            notes.append(Note(level="warning", message=f"{command[0]} did not answer within {TOOL_TIMEOUT_S:.0f} s."))
        if output.outcome == "ran" and (cards := parse(output.stdout)):
            methods.append(command[0])
            return cards
    return []


def _explain_nothing(machine: Machine) -> list[Note]:
    """Why no card was found where the platform shows signs of one."""
    nodes = " ".join(machine.gpu_nodes)
    if "/dev/nvidia" in nodes and machine.container:
        return [
            Note(
                level="warning",
                message="This container has an NVIDIA device, but not the driver's tools.",
                cure="Start it with the NVIDIA runtime and NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
            )
        ]
    if "/dev/nvidia" in nodes:
        return [
            Note(
                level="warning",
                message="There is an NVIDIA device, but nvidia-smi does not work.",
                cure="Install the driver's utilities.",
            )
        ]
    if machine.wsl:
        return [
            Note(
                level="info",
                message="Running under WSL without a visible GPU.",
                cure="Install the NVIDIA driver on Windows (not inside WSL), then `wsl --shutdown`.",
            )
        ]
    if "/dev/kfd" in nodes:
        return [
            Note(
                level="warning",
                message="There is an AMD compute device, but no ROCm tool answers.",
                cure="Install rocm-smi, and add this user to the groups render and video.",
            )
        ]
    if machine.container:
        return [
            Note(
                level="info",
                message="Running in a container that was given no GPU.",
                cure="Start it with --gpus all if it shall use one.",
            )
        ]
    return []
