"""What a job may say about how its voice sounds, checked before it is queued."""

import difflib
from collections.abc import Mapping
from typing import Annotated, Literal, get_type_hints

import msgspec
from msgspec import Meta, Struct

from myna.control.contract import F0Method, ParamValue


class FileParameters(Struct, frozen=True, kw_only=True):
    """Voice parameters of offline work; where the defaults differ from live, files want the better sound."""

    pitch: Annotated[float, Meta(ge=-24, le=24)] = 0.0
    formant: Annotated[float, Meta(ge=-12, le=12)] = 0.0
    f0_method: F0Method = "auto"
    index_rate: Annotated[float, Meta(ge=0, le=1)] = 0.75
    protect: Annotated[float, Meta(ge=0, le=0.5)] = 0.33
    rms_mix: Annotated[float, Meta(ge=0, le=1)] = 0.25
    speaker_id: Annotated[int, Meta(ge=0, le=65535)] = 0
    autotune: Annotated[float, Meta(ge=0, le=1)] = 0.0
    unvoiced: Literal["protect", "zero", "original"] = "protect"
    crossfade_ms: Annotated[float, Meta(ge=5, le=150)] = 50.0
    context_ms: Annotated[float, Meta(ge=50, le=5000)] | None = None


_HINTS = get_type_hints(FileParameters, include_extras=True)
NAMES = frozenset(_HINTS)


def problems_of(parameters: Mapping[str, ParamValue]) -> list[str]:
    """Everything that is wrong with a job's parameters, each naming its field."""
    problems = []
    for name, value in parameters.items():
        if name not in _HINTS:
            near = difflib.get_close_matches(name, _HINTS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            problems.append(f"parameters.{name}: unknown{hint}")
            continue
        try:
            msgspec.convert(value, _HINTS[name])
        except msgspec.ValidationError as problem:
            problems.append(f"parameters.{name}: {problem}")
    return problems


def resolved(kept: Mapping[str, object], asked: Mapping[str, ParamValue]) -> dict[str, object]:
    """All parameters of a job: what it asks, over what is kept with its voice, over the defaults of files."""
    known = {name: value for name, value in kept.items() if name in _HINTS}
    return {**msgspec.structs.asdict(FileParameters()), **known, **asked}
