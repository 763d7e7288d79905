"""Devices are found by name and host API, and what is near is told when they are not."""

import os
import sys

import pytest

from myna.daemon.audio.backend import DeviceError, StreamRequest
from myna.daemon.audio.choose import Listed, best_pair, candidates, one_clock
from myna.daemon.audio.portaudio import _rate, device_error, sane_ms
from myna.daemon.audio.realtime import Realtime
from myna.daemon.audio.virtual import is_virtual


def listed(index: int, name: str, host_api: str, inputs: int = 0, outputs: int = 0, **more: bool) -> Listed:
    return Listed(index=index, name=name, host_api=host_api, inputs=inputs, outputs=outputs, rate_hz=48000, **more)


DEVICES = [
    listed(0, "Mic (USB)", "MME", inputs=2),
    listed(1, "Mic (USB)", "Windows WASAPI", inputs=1, default_input=True, system_default_input=True),
    listed(2, "mic", "Windows WASAPI", inputs=1),
    listed(3, "Speakers", "MME", outputs=2, default_output=True, system_default_output=True),
    listed(4, "Speakers", "Windows WASAPI", outputs=2, default_output=True),
    listed(5, "Headset", "Windows WASAPI", inputs=1, outputs=2),
    listed(6, "CABLE Input (VB-Audio Virtual Cable)", "MME", outputs=2),
]


@pytest.mark.parametrize(
    ("name", "direction", "host_api", "expected"),
    [
        ("Mic (USB)", "input", None, [1, 0]),
        ("Mic (USB)", "input", "MME", [0]),
        ("mic", "input", None, [2]),  # exact before a part
        ("MIC", "input", None, [2]),  # case before a part
        ("usb", "input", None, [1, 0]),
        ("cable input", "output", None, [6]),
        ("headset", "output", "windows wasapi", [5]),
        (None, "input", None, [1]),
        (None, "output", None, [3, 4]),
        (None, "output", "Windows WASAPI", [4]),
    ],
)
def test_a_name_finds_its_devices_best_host_api_first(
    name: str | None, direction: str, host_api: str | None, expected: list[int]
) -> None:
    found = candidates(DEVICES, name, direction, host_api)  # type: ignore[arg-type]
    assert [device.index for device in found] == expected


@pytest.mark.parametrize(
    ("name", "direction", "host_api", "near"),
    [
        ("Speakrs", "output", None, ["Speakers", "Headset"]),
        ("e", "output", None, ["CABLE Input (VB-Audio Virtual Cable)", "Headset", "Speakers"]),
        ("Mic (USB)", "output", None, None),
    ],
)
def test_no_or_several_devices_are_told_with_near_names(
    name: str, direction: str, host_api: str | None, near: list[str] | None
) -> None:
    with pytest.raises(DeviceError) as caught:
        candidates(DEVICES, name, direction, host_api)  # type: ignore[arg-type]
    assert caught.value.reason == "not_found"
    assert name in str(caught.value)
    if near is not None:
        assert caught.value.facts["near"] == near


def test_unknown_host_api_lists_those_there_are() -> None:
    with pytest.raises(DeviceError) as caught:
        candidates(DEVICES, "mic", "input", "JACK")
    assert caught.value.facts["host_apis"] == ["MME", "Windows WASAPI"]


def test_without_devices_or_default_the_message_says_so() -> None:
    with pytest.raises(DeviceError, match="No input device is listed: is the sound server running"):
        candidates([], None, "input", None)
    with pytest.raises(DeviceError, match="No default output device"):
        candidates([listed(0, "x", "ALSA", outputs=1)], None, "output", None)


def test_a_pair_shares_a_host_api_where_it_can() -> None:
    heard = candidates(DEVICES, "Mic (USB)", "input", None)
    assert [d.index for d in best_pair(heard, candidates(DEVICES, "Speakers", "output", None))] == [1, 4]
    assert [d.index for d in best_pair(heard, candidates(DEVICES, "CABLE", "output", None))] == [0, 6]
    only = candidates(DEVICES, "mic", "input", None)
    assert [d.index for d in best_pair(only, candidates(DEVICES, "CABLE", "output", None))] == [2, 6]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("Invalid sample rate", -9997), "rate"),
        (("Device unavailable", -9985), "busy"),
        (("Invalid number of channels", -9998), "format"),
        (("Unanticipated host error", -9999, (0, -13, "Permission denied")), "permission"),
        (("Unanticipated host error", -9999, (0, -16, "Device or resource busy")), "busy"),
        (("Unanticipated host error", -9999, (0, -111, "Connection refused")), "no_server"),
        (("Something new", -1), "failed"),
    ],
)
def test_portaudio_errors_get_a_reason(arguments: tuple[object, ...], reason: str) -> None:
    assert device_error(Exception(*arguments), "opening 'mic'").reason == reason


def test_garbage_latencies_are_not_told() -> None:
    assert sane_ms(0.01) == pytest.approx(10.0)
    assert sane_ms(1e9) is None
    assert sane_ms(0.0) is None
    assert sane_ms(float("nan")) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CABLE Output (VB-Audio Virtual Cable)", True),
        ("BlackHole 2ch", True),
        ("Myna Microphone", True),
        ("Monitor of Null Output", True),
        ("alsa_output.pci.monitor", True),
        ("out_cable", True),
        ("Loopback: PCM (hw:1,0)", True),
        ("VoiceMeeter Input", True),
        ("USB Microphone", False),
        ("Jobs' AirPods", False),
        ("Vacuum tube amp", False),
        ("Speakers (Realtek)", False),
    ],
)
def test_virtual_devices_are_known_by_name(name: str, expected: bool) -> None:
    assert is_virtual(name) is expected


@pytest.mark.skipif(sys.platform != "linux", reason="priorities are lent on Linux only")
def test_lent_priority_is_taken_back_and_told_from_the_facts() -> None:
    realtime, before = Realtime(), os.sched_getscheduler(0)
    with realtime.lent():
        pass
    assert os.sched_getscheduler(0) == before
    assert realtime.told.startswith(("not permitted", "permitted, but no thread"))


@pytest.mark.parametrize(
    ("heard", "played", "shared"),
    [
        (listed(0, "HDA Intel: ALC256 (hw:0,0)", "ALSA", 2), listed(1, "HDA Intel: HDMI (hw:0,3)", "ALSA", 0, 2), True),
        (listed(0, "USB Mic (hw:1,0)", "ALSA", 1), listed(1, "HDA Intel: ALC256 (hw:0,0)", "ALSA", 0, 2), False),
        (listed(0, "pulse", "ALSA", 32, 32), listed(0, "pulse", "ALSA", 32, 32), False),
        (listed(0, "headset", "ALSA", 1), listed(1, "Myna", "ALSA", 0, 2), False),
        (
            listed(0, "system", "JACK Audio Connection Kit", 2),
            listed(1, "obs", "JACK Audio Connection Kit", 0, 2),
            True,
        ),
        (listed(0, "ASIO Fireface", "ASIO", 8, 8), listed(0, "ASIO Fireface", "ASIO", 8, 8), True),
        (listed(3, "Scarlett", "Core Audio", 2, 2), listed(3, "Scarlett", "Core Audio", 2, 2), True),
        (listed(3, "Scarlett", "Core Audio", 2, 2), listed(4, "BlackHole 2ch", "Core Audio", 2, 2), False),
        (listed(0, "Mic", "Windows WASAPI", 2), listed(1, "Speakers", "Windows WASAPI", 0, 2), False),
        (listed(0, "Mic", "MME", 2), listed(1, "CABLE", "Windows WASAPI", 0, 2), False),
    ],
)
def test_one_callback_serves_both_only_where_they_share_a_clock(heard: Listed, played: Listed, shared: bool) -> None:
    assert one_clock(heard, played) is shared


class Answering:
    """PortAudio as far as it is asked for rates: each of `answers` once, an error's code or 0."""

    class PortAudioError(Exception):
        pass

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)

    def check_output_settings(self, **asked: object) -> None:
        code = self.answers.pop(0)
        if code:
            raise self.PortAudioError("refused", code)


@pytest.mark.parametrize(
    ("answers", "found"),
    [((0,), 48000), ((-9997, 0), 44100), ((-9997, -9998, 0), 96000), ((-9997, -9997, -9997), 96000)],
)
def test_the_rate_is_the_first_that_is_not_refused(answers: tuple[int, ...], found: int) -> None:
    device = Listed(index=0, name="card", host_api="ALSA", inputs=0, outputs=2, rate_hz=96000)
    assert _rate(Answering(*answers), device, "output", StreamRequest(input=None, output=None)) == found


@pytest.mark.parametrize(("code", "reason"), [(-9999, "failed"), (-9985, "busy"), (-9996, "not_found")])
def test_a_device_that_is_away_while_it_is_asked_for_a_rate_is_not_opened_at_another(code: int, reason: str) -> None:
    device = Listed(index=0, name="card", host_api="ALSA", inputs=0, outputs=2, rate_hz=44100)
    with pytest.raises(DeviceError, match="48000") as caught:
        _rate(Answering(code, 0), device, "output", StreamRequest(input=None, output=None))
    assert caught.value.reason == reason
