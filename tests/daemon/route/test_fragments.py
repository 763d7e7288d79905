"""The configuration that brings the virtual microphone back."""

import re

import pytest

from myna.daemon.route.fragments import (
    BEGIN,
    INCLUDE,
    pipewire_fragment,
    pipewire_links,
    pipewire_nodes,
    pulse_block,
    pulse_modules,
    with_block,
    without_block,
)
from myna.daemon.route.names import MICROPHONE, MICROPHONE_TITLE, SINK


def test_the_pipewire_fragment_is_a_sink_and_a_source_in_one_loopback() -> None:
    text = pipewire_fragment()
    assert text.count("{") == text.count("}")
    assert text.count("[") == text.count("]")
    sink, source = text.split("playback.props")
    assert f'node.name = "{SINK}"' in sink
    assert 'media.class = "Audio/Sink"' in sink
    assert f'node.name = "{MICROPHONE}"' in source
    assert 'media.class = "Audio/Source"' in source
    assert "nofail" in text  # a server without the module must start all the same


def test_no_end_wants_to_be_the_default() -> None:
    assert re.findall(r"priority\.session = (\d+)", pipewire_fragment()) == ["1", "1"]
    assert all("priority.session=1" in properties for _, properties in pipewire_nodes())


def test_lingering_nodes_outlive_their_maker_and_are_linked_per_channel() -> None:
    assert all("object.linger=true" in properties for _, properties in pipewire_nodes())
    assert pipewire_links() == [
        (f"{SINK}:monitor_FL", f"{MICROPHONE}:input_FL"),
        (f"{SINK}:monitor_FR", f"{MICROPHONE}:input_FR"),
    ]


def test_pulse_loads_a_sink_without_rewinds_before_its_remapped_source() -> None:
    (first, sink), (second, source) = pulse_modules()
    assert (first, second) == ("module-null-sink", "module-remap-source")
    assert "norewinds=1" in sink
    assert f"master={SINK}.monitor" in source
    assert MICROPHONE_TITLE in source[-1]


OWN = "# mine\nload-module module-echo-cancel\n"


@pytest.mark.parametrize("script", [None, OWN, OWN.rstrip("\n"), INCLUDE + "\n", ""])
def test_a_script_holds_the_block_once_however_often_it_is_put_in(script: str | None) -> None:
    once = with_block(script, pulse_block())
    twice = with_block(once, pulse_block())
    assert once == twice
    assert once.count(BEGIN) == 1
    # A user's script replaces the system's: one of ours without it would leave no sound at all.
    assert (INCLUDE in once) == (script is None or OWN.rstrip() not in script)


def test_taking_the_block_out_gives_the_user_back_what_was_theirs() -> None:
    assert without_block(with_block(OWN, pulse_block())) == OWN
    assert without_block(with_block(None, pulse_block())) is None
    assert without_block(pulse_block() + OWN) == OWN
    assert without_block(OWN) == OWN


def test_an_old_block_is_replaced() -> None:
    old = pulse_block().replace("rate=48000", "rate=44100")
    assert with_block(INCLUDE + "\n" + old, pulse_block()) == INCLUDE + "\n" + pulse_block()
