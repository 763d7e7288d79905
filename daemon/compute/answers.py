"""Reads what the vendors' tools and torch print of accelerators."""

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

from myna.daemon.compute.cards import Capability, Card, Kind, TorchBuild

NVIDIA_FIELDS = ("index", "name", "uuid", "memory.total", "memory.free", "driver_version", "compute_cap",
                 "mig.mode.current")  # fmt: skip
NVIDIA_OLD_FIELDS = NVIDIA_FIELDS[:6]  # drivers before 450 know no MIG, those before 470 no compute_cap

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
