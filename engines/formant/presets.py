"""The built-in voices: each a shift of pitch and formants with a style."""

from dataclasses import dataclass
from typing import Literal

from myna.engines.base import VoiceAsset

ENGINE = "formant"

Style = Literal["natural", "robot", "whisper", "breathy", "unchanged"]
STYLES: tuple[Style, ...] = ("natural", "robot", "whisper", "breathy", "unchanged")

PITCH_LIMIT = 24.0  # semitones, preset and session together
FORMANT_LIMIT = 12.0
ROBOT_HZ = 110.0  # the robot's note at pitch 0
ROBOT_RANGE_HZ = (30.0, 600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """What a voice asset's own defaults say: the session's pitch and formants are added to these."""

    pitch: float = 0.0  # semitones
    formant: float = 0.0  # semitones
    style: Style = "natural"
    robot_hz: float = ROBOT_HZ


def preset_of(asset: VoiceAsset) -> Preset:
    """Read an asset's defaults.

    Raises:
        ValueError: a default is of the wrong kind or out of range; the message lists them all.
    """
    problems = list(problems_of(asset))
    if problems:
        raise ValueError("; ".join(problems))
    style: Style = "natural"
    for known in STYLES:
        if asset.defaults.get("style", "natural") == known:
            style = known
    return Preset(
        pitch=_number(asset.defaults.get("pitch", 0.0)),
        formant=_number(asset.defaults.get("formant", 0.0)),
        style="unchanged" if asset.unchanged else style,
        robot_hz=_number(asset.defaults.get("robot_hz", ROBOT_HZ)),
    )


def problems_of(asset: VoiceAsset) -> tuple[str, ...]:
    """All that is wrong with an asset, in words; empty if it can be opened."""
    problems = []
    if asset.engine != ENGINE:
        problems.append(f"voice {asset.id!r} belongs to engine {asset.engine!r}, not {ENGINE!r}")
    for name, low, high in (
        ("pitch", -PITCH_LIMIT, PITCH_LIMIT),
        ("formant", -FORMANT_LIMIT, FORMANT_LIMIT),
        ("robot_hz", *ROBOT_RANGE_HZ),
    ):
        value = asset.defaults.get(name, low)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            problems.append(f"{name} must be a number between {low:g} and {high:g}, not {value!r}")
    style = asset.defaults.get("style", "natural")
    if style not in STYLES:
        problems.append(f"style must be one of {', '.join(STYLES)}, not {style!r}")
    elif (style == "unchanged") != asset.unchanged and "style" in asset.defaults:
        problems.append("style 'unchanged' and the asset's `unchanged` mark must go together")
    return tuple(problems)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"not a number: {value!r}")
    return float(value)


def _voice(name: str, description: str, **defaults: object) -> VoiceAsset:
    return VoiceAsset(id=name, engine=ENGINE, defaults=defaults, description=description)


# Moderate on purpose: formants moved by six semitones cost words with every method tried.
BUILT_IN: tuple[VoiceAsset, ...] = (
    _voice("formant", "Your own voice as a base: set pitch and formants yourself", pitch=0.0, formant=0.0),
    _voice("deep", "Lower and larger", pitch=-4.0, formant=-2.0),
    _voice("bright", "Higher and lighter", pitch=4.0, formant=2.0),
    _voice("giant", "Very large", pitch=-6.0, formant=-4.0),
    _voice("small", "Very small", pitch=7.0, formant=4.0),
    _voice("masked", "Hard to place: higher pitch in a larger body", pitch=3.0, formant=-2.0),
    _voice("breathy", "Half voice, half breath", pitch=2.0, formant=1.0, style="breathy"),
    _voice("robot", "One note, whatever you say", pitch=0.0, formant=0.0, style="robot", robot_hz=ROBOT_HZ),
    _voice("whisper", "No voice at all, only breath", pitch=0.0, formant=0.0, style="whisper"),
    VoiceAsset(
        id="neutral",
        engine=ENGINE,
        defaults={"style": "unchanged"},
        description="Unchanged: your own voice, only delayed",
        unchanged=True,
    ),
)
