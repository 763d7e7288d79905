"""Machines with other accelerators, recorded there and played back here."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from myna.control.contract import Finding
from myna.control.errors import MynaError
from myna.daemon.compute import probe
from myna.daemon.compute.cards import Machine, TorchBuild
from myna.daemon.compute.decision import ComputeSettings, decide
from myna.daemon.compute.discovery import Run, ToolOutput, discover
from myna.daemon.compute.findings import findings

RECORDINGS = Path(__file__).resolve().parents[2] / "tests" / "data" / "compute"
"""Recorded machines, in a source tree; elsewhere a recording is named by its path."""


def record(description: str) -> dict[str, Any]:
    """This machine as a recording: what the platform and every tool that was run told."""
    machine = probe.this_machine()
    tools: dict[str, Any] = {}

    def remember(command: Sequence[str], timeout_s: float) -> ToolOutput:
        output = probe.run_tool(command, timeout_s)
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
