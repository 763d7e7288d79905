"""Which device computes, in which precision, in what chunks, and why: pure decisions over told facts."""

import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from xml.etree import ElementTree

from myna.control.contract import Finding

Kind = Literal["cuda", "rocm", "xpu", "dml", "mps"]
Capability = tuple[int, int]

TOOL_TIMEOUT_S = 10.0
CHILD_TIMEOUT_S = 90.0
# A card sold with 4 GB tells a little less, because part of it is reserved.
ENOUGH_MEMORY_MB = 3_840
SMALL_MEMORY_MB = 4_096 + 256
CHUNK_SMALL_S, CHUNK_MIDDLE_S, CHUNK_LARGE_S = 30.0, 38.0, 60.0

NVIDIA_FIELDS = ("index", "name", "uuid", "memory.total", "memory.free", "driver_version", "compute_cap",
                 "mig.mode.current")  # fmt: skip
NVIDIA_OLD_FIELDS = NVIDIA_FIELDS[:6]  # drivers before 450 know no MIG, those before 470 no compute_cap
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
class Card:
    """One accelerator as told by a tool. `index` is what torch calls it: after filters, in their order."""

    kind: Kind
    index: int
    name: str
    memory_mb: int | None = None  # None: not told
    free_mb: int | None = None
    capability: Capability | None = None  # CUDA only
    uuid: str | None = None
    driver: str | None = None
    arch: str | None = None  # ROCm: gfx1100
    fp16: bool | None = None  # XPU: whether the device reports it
    mig: bool = False
    hidden: str | None = None  # why this process can't see it

    @property
    def device(self) -> str:
        """Its name in settings: `cuda:0` (ROCm too, as torch calls it), `xpu:0`, `mps`, `dml`."""
        if self.kind in ("mps", "dml"):
            return self.kind
        return f"{'cuda' if self.kind == 'rocm' else self.kind}:{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """The installed torch, by its version file; `archs` only where a child was asked (None: not known)."""

    version: str
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None
    archs: tuple[str, ...] | None = None

    @property
    def kind(self) -> Literal["cuda", "rocm", "xpu", "cpu"]:
        """What it was built for."""
        if self.hip:
            return "rocm"
        if self.cuda:
            return "cuda"
        return "xpu" if self.xpu else "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the platform tells without any tool."""

    system: Literal["linux", "darwin", "windows"]
    arch: str = "x86_64"
    memory_mb: int | None = None
    wsl: bool = False
    container: bool = False
    gpu_nodes: tuple[str, ...] = ()  # /dev/nvidia0, /dev/kfd, /dev/dxg, /dev/dri/renderD128
    chip: str | None = None  # Apple
    directml: bool = False  # the torch-directml package is installed
    torch: TorchBuild | None = None  # None: no torch
    environment: Mapping[str, str] = field(default_factory=dict)  # variables named *_VISIBLE_DEVICES


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeSettings:
    """What the user asked of computing."""

    device: str = "auto"  # auto, cpu, cuda:N, xpu:N, dml, mps
    precision: str = "auto"  # auto, fp32, fp16, bf16; int8: the features of a voice on the CPU
    allow_cpu_fallback: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether `auto` may use a card, in which precision, and why, in words."""

    card: Card
    usable: bool
    precision: str
    reason: str
    runs: bool = True  # False: not even if the user names it


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Where to compute. `fallbacks` says in words what was asked and could not be had."""

    device: str
    precision: str  # `auto` on the CPU: the fastest in which a voice passes its own check, told after its load
    chunk_s: float
    reason: str
    card: Card | None = None
    verdicts: tuple[Verdict, ...] = ()
    fallbacks: tuple[str, ...] = ()
    live_allowed: bool = True  # False: a named device is missing and a live session refuses the CPU
    double_on_cpu: bool = False  # the device lacks float64
    gpu_left_idle: bool = False  # on the CPU though the machine has a GPU


# --- the tools' answers ---------------------------------------------------------------------------------

_NOT_TOLD = re.compile(r"^\s*(\[.*\]|n/?a|err!?|unknown.*|none|-|)\s*$", re.IGNORECASE)
# Capabilities of cards whose drivers are too old to tell (and may stay so): by the name's first match.
_CAPABILITY_BY_NAME: tuple[tuple[str, Capability], ...] = (
    (r"\bB[12]00\b", (10, 0)), (r"RTX 50\d0", (12, 0)), (r"\b(H[12]00|GH200)\b", (9, 0)),
    (r"RTX 40\d0|\bL40S?\b|\bL4\b|RTX \d000 Ada", (8, 9)), (r"\b(A100|A30)\b", (8, 0)),
    (r"RTX 30\d0|RTX A\d000|\bA(10|16|40|2)G?\b", (8, 6)), (r"RTX 20\d0|GTX 16\d0|TITAN RTX|\bT4\b", (7, 5)),
    (r"V100|TITAN V\b", (7, 0)), (r"GTX 10[5678]0|GT 1030|TITAN X[Pp]|\bP4\b|\bP40\b|Quadro P", (6, 1)),
    (r"\bP100\b", (6, 0)), (r"GTX 9[5678]0|GTX TITAN X|\bM40\b|\bM60\b|Quadro M", (5, 2)),
    (r"GTX 750|GTX 745", (5, 0)), (r"\bK80\b", (3, 7)), (r"\bK[24]0\b|GTX 7[78]0|GTX TITAN", (3, 5)),
)  # fmt: skip


def _told(text: str | None) -> str | None:
    return None if text is None or _NOT_TOLD.match(text) else text.strip()


def _megabytes(text: object) -> int | None:
    """`24576`, `24576 MiB`, `20 GiB`: in MiB; None where not told."""
    found = re.match(r"^\s*([\d.]+)\s*([kKmMgGtT]?)", str(text)) if _told(str(text)) else None
    if found is None or not found[1].strip("."):
        return None
    factor = {"k": 1 / 1024, "": 1, "m": 1, "g": 1024, "t": 1 << 20}[found[2].lower()]
    try:
        return int(float(found[1]) * factor)
    except ValueError:
        return None


def _capability(text: str | None, name: str) -> Capability | None:
    told = re.match(r"^(\d+)\.(\d+)$", _told(text) or "")
    if told:
        return int(told[1]), int(told[2])
    return next((c for pattern, c in _CAPABILITY_BY_NAME if re.search(pattern, name)), None)


def parse_nvidia_csv(text: str, fields: Sequence[str] = NVIDIA_FIELDS) -> tuple[list[Card], list[str]]:
    """Cards of `nvidia-smi --query-gpu=FIELDS --format=csv,noheader,nounits`, in PCI order.

    Returns:
        The cards, and the lines that were none: a lost card makes the tool print a sentence in its place.
    """
    cards: list[Card] = []
    other: list[str] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        row = [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True))]
        if len(row) != len(fields) or not row[0].isdigit():
            other.append(line.strip())
            continue
        told = dict(zip(fields, row, strict=True))
        cards.append(
            Card(
                kind="cuda",
                index=int(told["index"]),
                name=_told(told["name"]) or "NVIDIA card",
                memory_mb=_megabytes(told["memory.total"]),
                free_mb=_megabytes(told["memory.free"]),
                capability=_capability(told.get("compute_cap"), told["name"]),
                uuid=_told(told["uuid"]),
                driver=_told(told["driver_version"]),
                mig=told.get("mig.mode.current", "").lower() == "enabled",
            )
        )
    return cards, other


def parse_nvidia_xml(text: str) -> dict[str, list[tuple[int | None, int | None]]]:
    """Total and free MiB of each MIG instance, by the UUID of its card, from `nvidia-smi -q -x`."""
    try:
        root = ElementTree.fromstring(_without_doctype(text))
    except ElementTree.ParseError:
        return {}
    found: dict[str, list[tuple[int | None, int | None]]] = {}
    for gpu in root.iter("gpu"):
        found[(gpu.findtext("uuid") or "").strip()] = [
            (
                _megabytes(device.findtext("fb_memory_usage/total")),
                _megabytes(device.findtext("fb_memory_usage/free")),
            )
            for device in gpu.iterfind("mig_devices/mig_device")
        ]
    return found


def _without_doctype(text: str) -> str:
    # It names a DTD in the net, and entities have no business here.
    return re.sub(r"<!DOCTYPE[^>]*>", "", text)


def parse_nvidia_list(text: str) -> dict[str, list[tuple[str, str]]]:
    """Profile and UUID of each MIG instance, by the UUID of its card, from `nvidia-smi -L`."""
    found: dict[str, list[tuple[str, str]]] = {}
    card = ""
    for line in text.splitlines():
        if gpu := re.match(r"^GPU \d+: .*\(UUID: (GPU-[^)]+)\)", line):
            card = gpu[1]
            found[card] = []
        elif mig := re.match(r"^\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)", line):
            found.setdefault(card, []).append((mig[1], mig[2]))
    return found


def with_instances(cards: Sequence[Card], listing: str, xml: str) -> list[Card]:
    """Put the MIG instances in the place of each card that is divided."""
    names, sizes = parse_nvidia_list(listing), parse_nvidia_xml(xml)
    result: list[Card] = []
    for card in cards:
        instances = names.get(card.uuid or "", [])
        if not card.mig or not instances:
            result.append(card)
            continue
        memory = sizes.get(card.uuid or "", [])
        for number, (profile, uuid) in enumerate(instances):
            total, free = memory[number] if number < len(memory) else (None, None)
            result.append(replace(card, name=f"{card.name} MIG {profile}", uuid=uuid, memory_mb=total, free_mb=free))
    return result


def parse_rocm_smi(text: str) -> list[Card]:
    """Cards of `rocm-smi … --json`; the spelling of its keys changed between versions, their words did not."""
    told = _json_in(text)
    if not isinstance(told, dict):
        return []
    system = {str(k).lower(): v for k, v in (told.get("system") or {}).items()}
    cards = []
    for key, values in told.items():
        number = re.match(r"^card(\d+)$", str(key))
        if number is None or not isinstance(values, dict):
            continue
        row = {str(k).lower(): str(v) for k, v in values.items()}
        total = _bytes_in_mb(row.get("vram total memory (b)"))
        used = _bytes_in_mb(row.get("vram total used memory (b)"))
        name = next((n for k in ("card series", "device name", "card model") if (n := _told(row.get(k)))), None)
        cards.append(
            Card(
                kind="rocm",
                index=int(number[1]),
                name=name or "AMD card",
                memory_mb=total,
                free_mb=total - used if total is not None and used is not None else None,
                uuid=_told(row.get("unique id")),
                driver=_told(str(system.get("driver version", ""))),
                arch=_told(row.get("gfx version")),
            )
        )
    return sorted(cards, key=lambda c: c.index)


def parse_amd_smi(text: str) -> list[Card]:
    """Cards of `amd-smi static --json`: a list, or (from ROCm 6.4) a list under `gpu_data`."""
    told = _json_in(text)
    if isinstance(told, dict):
        told = told.get("gpu_data")
    if not isinstance(told, list):
        return []
    cards = []
    for row in told:
        if not isinstance(row, dict) or not isinstance(row.get("gpu"), int):
            continue
        asic, vram = _table(row.get("asic")), _table(row.get("vram"))
        size = vram.get("size", vram.get("vram_size_mb", vram.get("size_mb")))
        if isinstance(size, dict):
            size = f"{size.get('value')} {size.get('unit', 'MB')}"
        cards.append(
            Card(
                kind="rocm",
                index=row["gpu"],
                name=_told(str(asic.get("market_name", ""))) or "AMD card",
                memory_mb=_megabytes(size),
                uuid=_told(str(asic.get("asic_serial", ""))),
                arch=_told(str(asic.get("target_graphics_version", ""))),
            )
        )
    return sorted(cards, key=lambda c: c.index)


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _json_in(text: str) -> Any:
    """The JSON value in a tool's output; warnings may stand before it."""
    starts = [i for i in (text.find("{"), text.find("[")) if i >= 0]
    for start in sorted(starts):
        try:
            return json.JSONDecoder().raw_decode(text[start:])[0]
        except ValueError:
            continue
    return None


def _bytes_in_mb(text: str | None) -> int | None:
    return int(text) >> 20 if text is not None and text.strip().isdigit() else None


def parse_torch_child(text: str, build: TorchBuild | None) -> tuple[list[Card], TorchBuild | None]:
    """Cards as torch itself sees them (already filtered and numbered), and what its build covers."""
    told = _json_in(text)
    if not isinstance(told, dict):
        return [], build
    kind: Kind = "rocm" if told.get("hip") else "cuda"
    cards = []
    for number, row in enumerate(told.get("cuda_devices") or []):
        cards.append(
            Card(
                kind=kind,
                index=number,
                name=str(row.get("name", "card")),
                memory_mb=_bytes_in_mb(str(row.get("total_memory"))),
                capability=None if kind == "rocm" else (int(row["major"]), int(row["minor"])),
                arch=row.get("arch"),
            )
        )
    for number, row in enumerate(told.get("xpu_devices") or []):
        cards.append(
            Card(
                kind="xpu",
                index=number,
                name=str(row.get("name", "card")),
                memory_mb=_bytes_in_mb(str(row.get("total_memory"))),
                fp16=bool(row.get("has_fp16")),
                driver=row.get("driver"),
            )
        )
    archs = told.get("archs")
    build = TorchBuild(
        version=str(told.get("version", "")),
        cuda=told.get("cuda"),
        hip=told.get("hip"),
        xpu=told.get("xpu"),
        archs=tuple(archs) if isinstance(archs, list) else None,
    )
    return cards, build


def parse_torch_version(text: str) -> TorchBuild | None:
    """What torch was built for, from the text of its `version.py`, which is not run.

    Example lines: `__version__ = '2.6.0+cu124'`, `cuda: Optional[str] = '12.4'`, `hip: Optional[str] = None`.
    """
    found = {m[1]: m[2] for m in re.finditer(r"^(\w+)\s*(?::[^=\n]+)?=\s*['\"]([^'\"\n]*)['\"]", text, re.MULTILINE)}
    version = found.get("__version__")
    if version is None:
        return None
    return TorchBuild(
        version=version, cuda=found.get("cuda") or None, hip=found.get("hip") or None, xpu=found.get("xpu") or None
    )


# --- filters --------------------------------------------------------------------------------------------


def visible(cards: Sequence[Card], value: str | None, variable: str = "CUDA_VISIBLE_DEVICES") -> list[Card]:
    """Apply a variable as the driver does: only what it names, in its order, renumbered from 0.

    An entry is an index or the unambiguous beginning of a UUID (`GPU-…`, `MIG-…`); reading stops at the first
    that fits nothing, or fits a second time. Unset shows all; empty and `-1` show nothing. A process sees one MIG
    instance at most; the index of a divided card means its first instance.

    Example: four cards, `2,GPU-aa,9,1` → card 2 as 0, the card GPU-aa… as 1; 9 ends it.

    Returns:
        The visible cards, then the others with `hidden` saying why.
    """
    divided = {c.index for c in cards if c.uuid and c.uuid.startswith("MIG-")}
    entries = None if value is None else [e.strip() for e in value.split(",")]
    chosen: list[Card] = []
    if entries is None:
        for card in cards:
            if card.index not in divided or not any(c.uuid and c.uuid.startswith("MIG-") for c in chosen):
                chosen.append(card)
    else:
        for entry in entries:
            matches = _named(cards, entry)
            if matches is None or matches in chosen:
                break
            if matches.uuid and matches.uuid.startswith("MIG-") and any(c.mig for c in chosen):
                break
            chosen.append(matches)
    why = f"hidden by {variable}={value}" if value is not None else "a process sees one MIG instance at most"
    left = [replace(c, hidden=why) for c in cards if c not in chosen]
    return [replace(c, index=n) for n, c in enumerate(chosen)] + left


def _named(cards: Sequence[Card], entry: str) -> Card | None:
    if re.match(r"^\+?\d+$", entry):
        return next((c for c in cards if c.index == int(entry)), None)
    if not entry.upper().startswith(("GPU-", "MIG-", "0X")):
        return None
    # The older form MIG-GPU-UUID/1/0 names an instance by its card; without a listing it can't be told apart.
    fits = [c for c in cards if c.uuid and c.uuid.lower().startswith(entry.lower())]
    return fits[0] if len(fits) == 1 else None


def filter_by_environment(cards: Sequence[Card], environment: Mapping[str, str]) -> list[Card]:
    """Apply the vendors' variables to their own cards."""
    nvidia = [c for c in cards if c.kind == "cuda"]
    amd = [c for c in cards if c.kind == "rocm"]
    rest = [c for c in cards if c.kind not in ("cuda", "rocm")]
    if nvidia:
        nvidia = visible(nvidia, environment.get("CUDA_VISIBLE_DEVICES"))
    if amd:
        lowest = visible(amd, environment.get("ROCR_VISIBLE_DEVICES"), "ROCR_VISIBLE_DEVICES")
        name = next((n for n in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") if n in environment), None)
        seen = [c for c in lowest if not c.hidden]
        amd = visible(seen, environment[name], name) if name else seen
        amd += [c for c in lowest if c.hidden]
    return nvidia + amd + rest


# --- discovery ------------------------------------------------------------------------------------------


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
        methods.append("the installed torch-directml")
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


# --- decisions ------------------------------------------------------------------------------------------


def covers(archs: Sequence[str], card: Card) -> bool:
    """Whether a torch build has code for a card.

    CUDA: `sm_XY` of the same major version and a minor not above the card's, or PTX (`compute_XY`) of anything
    not newer. `sm_90a` and the like run on exactly that card. ROCm: the very gfx name, features aside.

    Example: a card of 8.6 runs on sm_80 and on compute_75, not on sm_87, sm_90 or sm_75.
    """
    if card.kind == "rocm":
        return card.arch is None or card.arch.split(":")[0] in {a.split(":")[0] for a in archs}
    if card.kind != "cuda" or card.capability is None:
        return True
    major, minor = card.capability
    for arch in archs:
        found = re.match(r"^(sm|compute)_(\d+)(\d)([a-z]?)$", arch)
        if found is None:
            continue
        has = int(found[2]), int(found[3])
        if found[4]:
            if has == (major, minor):
                return True
        elif found[1] == "sm":
            if has[0] == major and has[1] <= minor:
                return True
        elif has <= (major, minor):
            return True
    return False


def _gib(memory_mb: int) -> str:
    return f"{memory_mb / 1024:.1f} GiB"


def judge(card: Card, build: TorchBuild | None) -> Verdict:
    """The verdict on one card, as `auto` sees it."""

    def no(reason: str, *, runs: bool = True) -> Verdict:
        return Verdict(card=card, usable=False, precision="fp32", reason=reason, runs=runs)

    def yes(precision: str, reason: str) -> Verdict:
        return Verdict(card=card, usable=True, precision=precision, reason=reason)

    if card.hidden is not None:
        return no(f"not used: {card.hidden}", runs=False)
    if card.mig and not (card.uuid or "").startswith("MIG-"):
        return no("not used: it is set to be divided (MIG), but holds no instance", runs=False)
    if card.kind == "mps":
        return no("not used by itself: Apple's GPU is used only when named, in fp32")
    if card.kind == "dml":
        return yes("fp32", "used in fp32, after any card that torch drives itself")
    if build is not None and build.kind != card.kind:
        return no(f"not used: the installed torch {build.version} is built for {build.kind}", runs=False)
    if build is not None and build.archs is not None and not covers(build.archs, card):
        what = card.arch or f"compute capability {_dotted(card.capability)}"
        return no(f"not used: the installed torch {build.version} has no code for {what}", runs=False)
    if card.memory_mb is not None and card.memory_mb < ENOUGH_MEMORY_MB:
        return no(f"not used: {_gib(card.memory_mb)} of memory, 4 GiB are needed")
    if card.kind == "rocm":
        return yes("fp16", "used in fp16")
    if card.kind == "xpu":
        return yes("fp16", "used in fp16") if card.fp16 else yes("fp32", "used in fp32: it reports no fp16")
    return _judge_cuda(card, yes, no)


def _judge_cuda(card: Card, yes: Callable[[str, str], Verdict], no: Callable[[str], Verdict]) -> Verdict:
    level = card.capability
    if level is None:
        return no("not used: its compute capability is not told")
    if level < (5, 3):
        return no(f"not used: compute capability {_dotted(level)}, 5.3 is needed")
    if level < (6, 1):
        return no(f"not used: compute capability {_dotted(level)} is too slow in fp32 and in fp16")
    if re.search(r"\bGTX 16\d\d", card.name):
        return yes("fp32", "used in fp32: cards of the GTX 16 series compute wrongly in fp16")
    if level == (6, 1):
        return yes("fp32", "used in fp32: compute capability 6.1 is slow in fp16")
    return yes("fp16", f"used in fp16: compute capability {_dotted(level)}")


def _dotted(capability: Capability | None) -> str:
    return "unknown" if capability is None else f"{capability[0]}.{capability[1]}"


_KIND_ORDER = {"cuda": 3, "rocm": 2, "xpu": 1, "dml": 0, "mps": -1}


def _rank(verdict: Verdict) -> tuple[int, Capability, int, int]:
    card = verdict.card
    return _KIND_ORDER[card.kind], card.capability or (0, 0), card.memory_mb or 0, -card.index


def decide(cards: Sequence[Card], settings: ComputeSettings, build: TorchBuild | None = None) -> Decision:
    """Where to compute, in which precision, in what chunks, and why.

    `auto` takes the best usable card: CUDA, ROCm or XPU, by capability and then memory, else DirectML, else the
    CPU. A named device that is not there means the CPU, and that is told and keeps a live session from starting
    unless `allow_cpu_fallback`.
    """
    verdicts = tuple(judge(card, build) for card in cards)
    asked = settings.device.strip().lower()
    if asked == "cpu":
        return _on_cpu(verdicts, settings, "as asked", ())
    if asked == "auto":
        usable = [v for v in verdicts if v.usable]
        if not usable:
            reason = "no accelerator was found" if not cards else "none of the accelerators found is used"
            return _on_cpu(verdicts, settings, reason, ())
        best = max(usable, key=_rank)
        others = sum(v.usable for v in verdicts) - 1
        why = "the best of those found" if others else "the only usable accelerator"
        return _on_card(best, verdicts, settings, why)
    named = _asked_for(verdicts, asked)
    if named is None or not named.runs:
        why = f"{settings.device} is not there" if named is None else f"{settings.device}: {named.reason}"
        fallback = f"computing on the CPU instead of {settings.device}: {why}"
        return replace(_on_cpu(verdicts, settings, why, (fallback,)), live_allowed=settings.allow_cpu_fallback)
    return _on_card(named, verdicts, settings, "as asked")


def _asked_for(verdicts: Sequence[Verdict], asked: str) -> Verdict | None:
    """A device by name; a kind without a number is its best card."""
    exact = [v for v in verdicts if v.card.device == asked and v.card.hidden is None]
    if exact:
        return max(exact, key=_rank)
    of_kind = [v for v in verdicts if v.card.device.split(":")[0] == asked and v.card.hidden is None]
    return max(of_kind, key=lambda v: (v.runs, v.usable, _rank(v)), default=None)


def _on_cpu(
    verdicts: tuple[Verdict, ...], settings: ComputeSettings, reason: str, fallbacks: tuple[str, ...]
) -> Decision:
    precision = settings.precision
    if precision == "fp16":
        fallbacks += ("fp32 instead of fp16: the CPU computes in fp32, and in bf16 where it multiplies that natively",)
        precision = "fp32"
    return Decision(
        device="cpu",
        precision=precision,
        chunk_s=CHUNK_MIDDLE_S,
        reason=reason,
        verdicts=verdicts,
        fallbacks=fallbacks,
        gpu_left_idle=bool(verdicts),
    )


def _on_card(verdict: Verdict, verdicts: tuple[Verdict, ...], settings: ComputeSettings, reason: str) -> Decision:
    card = verdict.card
    precision = verdict.precision
    fallbacks: tuple[str, ...] = ()
    if settings.precision == "int8":
        fallbacks = (f"{precision} instead of int8: only the CPU computes in it",)
    elif settings.precision != "auto":
        if card.kind in ("cuda", "rocm", "xpu"):
            precision = settings.precision
        elif settings.precision != "fp32":
            fallbacks = (f"fp32 instead of {settings.precision}: {card.device} computes in fp32 only",)
    return Decision(
        device=card.device,
        precision=precision,
        chunk_s=chunk_s(card.memory_mb, precision),
        reason=f"{reason}; {verdict.reason}" if verdict.usable else f"{reason}, though {verdict.reason}",
        card=card,
        verdicts=verdicts,
        fallbacks=fallbacks,
        double_on_cpu=card.kind in ("mps", "dml", "xpu"),
    )


def chunk_s(memory_mb: int | None, precision: str) -> float:
    """Length of an offline chunk: shortest on cards of up to 4 GiB, longest in half precision."""
    if memory_mb is not None and memory_mb <= SMALL_MEMORY_MB:
        return CHUNK_SMALL_S
    return CHUNK_LARGE_S if precision in ("fp16", "bf16") else CHUNK_MIDDLE_S


# --- for people -----------------------------------------------------------------------------------------


def findings(found: Discovery, decision: Decision) -> list[Finding]:
    """What `doctor` says of computing: the choice, each card with its verdict, and what was met on the way."""
    level: Literal["ok", "warning", "error"] = "ok"
    if decision.fallbacks:
        level = "warning" if decision.live_allowed else "error"
    chosen = decision.card.name if decision.card is not None else "the CPU"
    precision = decision.precision
    if precision == "auto":
        precision = "bf16 where the CPU multiplies it natively and the voice passes its check, else in fp32"
    message = f"Computing on {decision.device} ({chosen}) in {precision}: {decision.reason}."
    result = [
        Finding(
            area="compute",
            name="device",
            level=level,
            message=" ".join([message, *(f"{f[0].upper()}{f[1:]}." for f in decision.fallbacks)]),
            cure=None if level == "ok" else _cure(decision),
            facts={
                "device": decision.device,
                "precision": decision.precision,
                "chunk_s": decision.chunk_s,
                "method": found.method,
                "live_allowed": decision.live_allowed,
                "torch": found.torch.version if found.torch is not None else None,
                "torch_kind": found.torch.kind if found.torch is not None else None,
            },
        )
    ]
    for verdict in decision.verdicts:
        card = verdict.card
        label = card.device if card.hidden is None else "hidden"
        result.append(
            Finding(
                area="compute",
                name=f"{label} {card.name}",
                level="ok" if verdict.usable else "info",
                message=f"{card.name}: {verdict.reason}.",
                facts={
                    "kind": card.kind,
                    "memory_mb": card.memory_mb,
                    "free_mb": card.free_mb,
                    "capability": _dotted(card.capability) if card.capability is not None else None,
                    "arch": card.arch,
                    "driver": card.driver,
                    "usable": verdict.usable,
                    "precision": verdict.precision if verdict.usable else None,
                },
            )
        )
    if decision.gpu_left_idle and decision.device == "cpu" and found.torch is not None and found.torch.kind == "cpu":
        result.append(
            Finding(
                area="compute",
                name="torch",
                level="warning",
                message=f"The installed torch {found.torch.version} is a CPU build, but there is a GPU.",
                cure="Install the torch build for this GPU.",
            )
        )
    result += [Finding(area="compute", name="note", level=n.level, message=n.message, cure=n.cure) for n in found.notes]
    return result


def _cure(decision: Decision) -> str:
    here = ", ".join(sorted({v.card.device for v in decision.verdicts if v.runs and v.card.hidden is None}))
    options = f"compute.device to one of: auto, cpu{', ' + here if here else ''}"
    if decision.live_allowed:
        return f"Set {options}."
    return f"Set {options}; or compute.allow_cpu_fallback = true to go live on the CPU."
