"""What the vendors' variables leave visible of the cards, and under which numbers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from myna.daemon.compute.cards import Card


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
