"""What the sound servers print, as recorded, and what it means."""

from typing import Any

import pytest

from myna.daemon.route import pipewire, pulse
from myna.daemon.route.names import MICROPHONE, SINK
from myna.daemon.route.server import parse_info

PULSE_INFO = """\
Server String: unix:/run/user/1000/pulse/native
Server Name: pulseaudio
Server Version: 16.1
Default Sample Specification: s16le 2ch 44100Hz
Default Sink: alsa_output.pci-0000_00_1f.3.analog-stereo
Default Source: alsa_input.pci-0000_00_1f.3.analog-stereo
"""
MODULES = """\
0\tmodule-device-restore\t\t
6\tmodule-native-protocol-unix
17\tmodule-null-sink\tsink_name=myna_sink rate=48000 norewinds=1 sink_properties="device.description='Myna output'"\t
18\tmodule-remap-source\tsource_name=myna_microphone master=myna_sink.monitor\t
19\tmodule-null-sink\tsink_name=myna_sink_of_another\t
20\tmodule-remap-source\tsource_name=other master=myna_sink.monitor\t
"""
SINKS = "1\tmyna_sink\tmodule-null-sink.c\tfloat32le 2ch 48000Hz\tIDLE\n2\talsa\tx\ty\tIDLE\n"
SOURCES = (
    "1\tmyna_sink.monitor\tmodule-null-sink.c\tfloat32le 2ch 48000Hz\tIDLE\n"
    "7\tmyna_microphone\tmodule-remap-source.c\tfloat32le 2ch 48000Hz\tIDLE\n"
)


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("pulseaudio", "16.1", ("pulseaudio", "16.1")),
        ("PulseAudio (on PipeWire 0.3.65)", "15.0.0", ("pipewire", "0.3.65")),
        ("PulseAudio (on PipeWire 1.4.2)", "15.0.0", ("pipewire", "1.4.2")),
    ],
)
def test_the_server_is_told_by_its_name(name: str, version: str, expected: tuple[str, str]) -> None:
    server = parse_info(f"Server Name: {name}\nServer Version: {version}\n")
    assert (server.kind, server.version) == expected


def test_only_modules_of_exactly_our_names_are_ours() -> None:
    assert pulse.our_modules(MODULES) == [(17, "module-null-sink"), (18, "module-remap-source")]


N, R = "module-null-sink", "module-remap-source"


@pytest.mark.parametrize(
    ("modules", "surplus"),
    [
        ([], []),
        ([(3, N), (5, R)], []),
        ([(3, N), (5, R), (9, N)], [9]),
        ([(3, N), (5, R), (9, N), (10, R)], [10, 9]),
        ([(5, R)], [5]),
        ([(3, N)], []),
    ],
)
def test_what_is_there_twice_goes_dependants_first(modules: list[tuple[int, str]], surplus: list[int]) -> None:
    assert pulse.surplus_modules(modules) == surplus


def test_pulse_state() -> None:
    outputs = "4\t7\t-\tprotocol-native.c\ts16le\n5\t3\t-\tprotocol-native.c\ts16le\n"
    state = pulse.parse_state(PULSE_INFO, SINKS, SOURCES, outputs)
    assert state.whole
    assert state.listeners == 1
    assert state.default_source == "alsa_input.pci-0000_00_1f.3.analog-stereo"
    twice = pulse.parse_state(PULSE_INFO, SINKS + "9\tmyna_sink.2\tx\ty\tIDLE\n", SOURCES, "")
    assert (twice.sinks, twice.whole) == (2, False)
    assert not pulse.parse_state(PULSE_INFO, "", "", "").any


def node(number: int, name: str, **props: Any) -> dict[str, Any]:
    info = {"props": {"node.name": name, **{key.replace("_", "."): value for key, value in props.items()}}}
    return {"id": number, "type": "PipeWire:Interface:Node", "info": info}


def link(output: int, input_: int) -> dict[str, Any]:
    props = {"link.output.node": output, "link.input.node": input_}
    return {"id": 900 + output, "type": "PipeWire:Interface:Link", "info": {"props": props}}


DEFAULTS = {
    "id": 35,
    "type": "PipeWire:Interface:Metadata",
    "props": {"metadata.name": "default"},
    "metadata": [
        {"subject": 0, "key": "default.audio.sink", "type": "Spa:String:JSON", "value": {"name": "speakers"}},
        {"subject": 0, "key": "default.audio.source", "type": "Spa:String:JSON", "value": {"name": "headset"}},
    ],
}


def test_lingering_nodes_are_joined_by_a_link_for_each_channel() -> None:
    nodes = [node(71, SINK), node(76, MICROPHONE), DEFAULTS]
    assert not pipewire.parse_state(nodes).whole
    assert not pipewire.parse_state([*nodes, link(71, 76)]).whole
    state = pipewire.parse_state([*nodes, link(71, 76), link(71, 76), link(76, 90), link(76, 90), link(76, 91)])
    assert state.whole
    assert state.listeners == 2
    assert (state.default_sink, state.default_source) == ("speakers", "headset")


def test_the_ends_of_one_loopback_need_no_link() -> None:
    ends = [
        {**node(34, SINK), "info": {"props": {"node.name": SINK, "node.link-group": "loopback-1-2"}}},
        {**node(33, MICROPHONE), "info": {"props": {"node.name": MICROPHONE, "node.link-group": "loopback-1-2"}}},
    ]
    assert pipewire.parse_state(ends).whole
    assert pipewire.node_ids([*ends, node(99, SINK)]) == {SINK: [34, 99], MICROPHONE: [33]}
    assert not pipewire.parse_state([*ends, node(99, SINK)]).whole


def test_objects_without_properties_are_passed_over() -> None:
    assert not pipewire.parse_state([{"id": 1, "type": "PipeWire:Interface:Core", "info": None}, {"id": 2}]).any
