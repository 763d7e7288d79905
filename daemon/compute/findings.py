"""What `doctor` says of computing."""

from typing import Literal

from myna.control.contract import Finding
from myna.daemon.compute.cards import dotted
from myna.daemon.compute.decision import Decision
from myna.daemon.compute.discovery import Discovery


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
                    "capability": dotted(card.capability) if card.capability is not None else None,
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
