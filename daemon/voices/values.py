"""Plain values of a voice: what was found out about it, and its default parameters."""

import difflib
from collections.abc import Mapping

import msgspec

from myna.control.contract import LiveSettings
from myna.control.errors import MynaError
from myna.engines.base import VoiceAsset
from myna.engines.registry import installed_engines

Scalar = bool | int | float | str | None
DEFAULTS = LiveSettings()


def scalars(values: Mapping[str, object]) -> dict[str, Scalar]:
    """What of a table is plain; the rest is left out."""
    return {str(k): v for k, v in values.items() if v is None or isinstance(v, bool | int | float | str)}


def kept_values(asset: VoiceAsset) -> dict[str, Scalar]:
    """An asset's own parameters, without those that its engine adds to what is asked.

    Only what its engine honours: nothing that is kept with a voice, by whatever hand, reaches the session's switches.
    MynaError("bad_request") naming those that can't be: a description may have been written by hand.
    """
    spec = installed_engines().engines.get(asset.engine)
    taken = spec.capabilities.parameters - spec.capabilities.added if spec is not None else frozenset()
    kept = {name: value for name, value in scalars(asset.defaults).items() if name in taken}
    check_values(kept, None)
    return kept


def in_force(settings: LiveSettings, kept: Mapping[str, Scalar]) -> LiveSettings:
    """A session's settings with its voice's own, where the session's are still at their defaults."""
    untouched = {name: kept[name] for name in kept if getattr(settings, name) == getattr(DEFAULTS, name)}
    return msgspec.structs.replace(settings, **untouched) if untouched else settings


def check_values(values: Mapping[str, Scalar], allowed: frozenset[str] | None) -> None:
    """MynaError("bad_request") naming every parameter that a voice does not take, or not with that value.

    `allowed`: names that its engine takes; None: the engine is not here.
    """
    known = set(LiveSettings.__struct_fields__)
    if allowed is not None:
        known &= allowed
    problems = []
    for key, value in values.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            problems.append(f"{key}: no parameter of this voice" + (f"; did you mean {near[0]}?" if near else ""))
        elif value is not None:
            try:
                msgspec.convert({key: value}, LiveSettings)
            except msgspec.ValidationError as error:
                problems.append(f"{key}: {str(error).split(' - at ')[0]}")
    if problems:
        raise MynaError("bad_request", "; ".join(problems), problems=problems)


def merged(old: Mapping[str, Scalar], new: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The old values, changed by the new ones; None lets one go."""
    return {k: v for k, v in {**old, **new}.items() if v is not None}
