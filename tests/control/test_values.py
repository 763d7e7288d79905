"""KEY=VALUE pairs: read as the field's type wants them, all problems at once."""

import pytest

from myna.control.cli import values
from myna.control.contract import ParamValue
from myna.control.errors import MynaError


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("pitch=3", 3),
        ("pitch=-3.5", -3.5),
        ("vad=on", True),
        ("vad=false", False),
        ("gate_db=off", "off"),
        ("gate_db=-50", -50),
        ("block_ms=auto", "auto"),
        ("block-ms=20", 20),
        ("context_ms=none", None),
        ("f0_method=pm", "pm"),
        ("speaker_id=2", 2),
    ],
)
def test_a_live_setting_is_read_as_its_type(pair: str, value: ParamValue) -> None:
    ((_, found),) = values.live_settings([pair]).items()
    assert found == value
    assert type(found) is type(value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(MynaError) as caught:
        values.live_settings(["pitch=99", "pich=1", "vad=perhaps"])
    assert len(caught.value.facts["problems"]) == 3  # type: ignore[arg-type]
    for wrong in (["pitch"], ["=3"], ["pitch=1", "pitch=2"]):
        with pytest.raises(MynaError):
            values.live_settings(wrong)


def test_an_option_wins_over_a_pair() -> None:
    assert values.live_settings(["pitch=1"], {"pitch": 2.0, "formant": None}) == {"pitch": 2.0}


def test_parameters_of_a_voice_may_be_its_own() -> None:
    assert values.parameters(["pitch=2", "grit=0.5", "mode=soft", "wide=true"]) == {
        "pitch": 2,
        "grit": 0.5,
        "mode": "soft",
        "wide": True,
    }
    with pytest.raises(MynaError):
        values.parameters(["pitch=high"])


@pytest.mark.parametrize(
    ("text", "example", "value"),
    [("off", True, False), ("yes", False, True), ("8", 4, 8), ("8", "auto", "8"), ("2.5", 1.0, 2.5), ("x", None, "x")],
)
def test_a_setting_is_read_like_its_default(text: str, example: ParamValue, value: ParamValue) -> None:
    assert values.like(text, example) == value
