"""KEY=VALUE pairs of the command line, turned into typed values and checked together."""

from collections.abc import Iterable, Mapping

import msgspec

from myna.control import codec
from myna.control.contract import LiveSettings, ParamValue
from myna.control.errors import MynaError

_WORDS: Mapping[str, bool | None] = {
    "true": True,
    "yes": True,
    "on": True,
    "false": False,
    "no": False,
    "off": False,
    "null": None,
    "none": None,
}


def split(pairs: Iterable[str]) -> dict[str, str]:
    """`["pitch=3"]` to `{"pitch": "3"}`. MynaError `bad_request` naming every pair without `=` or given twice."""
    found: dict[str, str] = {}
    wrong: list[codec.Problem] = []
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            wrong.append(codec.Problem(pair, "expected KEY=VALUE."))
        elif key in found:
            wrong.append(codec.Problem(key, "given twice."))
        else:
            found[key] = text.strip()
    if wrong:
        raise codec.refusal("command line", wrong)
    return found


def live_settings(pairs: Iterable[str], more: Mapping[str, ParamValue] | None = None) -> dict[str, ParamValue]:
    """Live settings, typed as their fields are. MynaError `bad_request` with every problem."""
    types = {field.name: field.type for field in msgspec.structs.fields(LiveSettings)}
    values: dict[str, ParamValue] = {
        key: typed(text, types[key]) if key in types else text for key, text in split(pairs).items()
    }
    values |= {key: value for key, value in (more or {}).items() if value is not None}
    wrong = codec.problems(LiveSettings, values)
    if wrong:
        raise codec.refusal("command line", wrong)
    return values


def parameters(pairs: Iterable[str], more: Mapping[str, ParamValue] | None = None) -> dict[str, ParamValue]:
    """Parameters of a voice: typed as the live setting of that name, or as they look. The daemon checks names."""
    types = {field.name: field.type for field in msgspec.structs.fields(LiveSettings)}
    values = {key: typed(text, types[key]) if key in types else plain(text) for key, text in split(pairs).items()}
    values |= {key: value for key, value in (more or {}).items() if value is not None}
    wrong = [
        problem for key, value in values.items() if key in types for problem in codec.problems(types[key], value, key)
    ]
    if wrong:
        raise codec.refusal("command line", wrong)
    return values


def typed(text: str, kind: object) -> ParamValue:
    """The reading of `text` that fits the type; the text itself if none does (the check then says why)."""
    for reading in _readings(text):
        if not codec.problems(kind, reading):
            return reading
    numbers = [reading for reading in _readings(text) if isinstance(reading, int | float)]
    return numbers[-1] if numbers and not isinstance(numbers[-1], bool) else text


def plain(text: str) -> ParamValue:
    """What `text` looks like: a number, true or false, null, else text."""
    readings = [reading for reading in _readings(text) if text.lower() not in ("on", "off", "yes", "no", "none")]
    return next((reading for reading in readings if reading != text), text)


def like(text: str, example: ParamValue) -> ParamValue:
    """`text` as the type of an example value, where it can be read so."""
    if isinstance(example, bool):
        return typed(text, bool)
    if isinstance(example, str):
        return text
    return plain(text)


def _readings(text: str) -> list[ParamValue]:
    """All that a text may mean, text first: a field that takes the word `off` gets the word."""
    readings: list[ParamValue] = [text]
    if text.lower() in _WORDS:
        readings.append(_WORDS[text.lower()])
    for kind in (int, float):
        try:
            readings.append(kind(text))
        except ValueError:
            continue
    return readings


def need(pairs: Mapping[str, object], what: str) -> None:
    """Refuse a command that was given nothing to do."""
    if not pairs:
        raise MynaError("bad_request", f"Nothing to change: name at least one {what} as KEY=VALUE.")
