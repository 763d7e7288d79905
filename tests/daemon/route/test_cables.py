"""Virtual cables among recorded device lists of macOS and Windows."""

import pytest

from myna.daemon.route.cables import Cable, Device, find_cable, steps

WINDOWS = [
    Device("Microsoft Sound Mapper - Input", "MME", 2, 0),
    Device("CABLE Output (VB-Audio Virtual ", "MME", 2, 0),
    Device("Microphone (HyperX Cloud)", "MME", 1, 0),
    Device("Microsoft Sound Mapper - Output", "MME", 0, 2),
    Device("CABLE Input (VB-Audio Virtual C", "MME", 0, 2),
    Device("CABLE Input (VB-Audio Virtual Cable)", "Windows DirectSound", 0, 2),
    Device("CABLE Output (VB-Audio Virtual Cable)", "Windows DirectSound", 2, 0),
    Device("Speakers (Realtek(R) Audio)", "Windows WASAPI", 0, 2),
    Device("CABLE Input (VB-Audio Virtual Cable)", "Windows WASAPI", 0, 2),
    Device("CABLE Output (VB-Audio Virtual Cable)", "Windows WASAPI", 2, 0),
]
VOICEMEETER = [
    Device("VoiceMeeter Input (VB-Audio VoiceMeeter VAIO)", "Windows WASAPI", 0, 8),
    Device("VoiceMeeter Output (VB-Audio VoiceMeeter VAIO)", "Windows WASAPI", 8, 0),
]
VOICEMEETER_NEW = [
    Device("Voicemeeter Input (VB-Audio Voicemeeter VAIO)", "Windows WASAPI", 0, 8),
    Device("Voicemeeter Out B1 (VB-Audio Voicemeeter VAIO)", "Windows WASAPI", 8, 0),
    Device("Voicemeeter Out A1 (VB-Audio Voicemeeter VAIO)", "Windows WASAPI", 8, 0),
]
VAC = [
    Device("Line 2 (Virtual Audio Cable)", "Windows WASAPI", 0, 2),
    Device("Line 1 (Virtual Audio Cable)", "Windows WASAPI", 2, 0),
    Device("Line 1 (Virtual Audio Cable)", "Windows WASAPI", 0, 2),
]
MAC = [
    Device("MacBook Pro Microphone", "Core Audio", 1, 0),
    Device("MacBook Pro Speakers", "Core Audio", 0, 2),
    Device("BlackHole 16ch", "Core Audio", 16, 16),
    Device("ZoomAudioDevice", "Core Audio", 2, 2),
]
MAC_LOOPBACK = [Device("Loopback Audio", "Core Audio", 2, 2), Device("Loopback Audio 2", "Core Audio", 2, 2)]


@pytest.mark.parametrize(
    ("devices", "system", "expected"),
    [
        (
            WINDOWS,
            "Windows",
            Cable(
                "VB-CABLE",
                "CABLE Input (VB-Audio Virtual Cable)",
                "CABLE Output (VB-Audio Virtual Cable)",
                "Windows WASAPI",
            ),
        ),
        (
            WINDOWS[:5],
            "Windows",
            Cable("VB-CABLE", "CABLE Input (VB-Audio Virtual C", "CABLE Output (VB-Audio Virtual ", "MME"),
        ),
        (VOICEMEETER, "Windows", Cable("VoiceMeeter", VOICEMEETER[0].name, VOICEMEETER[1].name, "Windows WASAPI")),
        (
            VOICEMEETER_NEW,
            "Windows",
            Cable("VoiceMeeter", VOICEMEETER_NEW[0].name, VOICEMEETER_NEW[1].name, "Windows WASAPI"),
        ),
        (VAC, "Windows", Cable("Virtual Audio Cable", VAC[2].name, VAC[1].name, "Windows WASAPI")),
        (MAC, "Darwin", Cable("BlackHole", "BlackHole 16ch", "BlackHole 16ch", "Core Audio")),
        (MAC_LOOPBACK, "Darwin", Cable("Loopback", "Loopback Audio", "Loopback Audio", "Core Audio")),
    ],
)
def test_a_cable_is_found_by_name(devices: list[Device], system: str, expected: Cable) -> None:
    assert find_cable(devices, system) == expected
    assert find_cable(reversed(devices), system) == expected


@pytest.mark.parametrize(
    ("devices", "system"),
    [
        ([], "Windows"),
        (MAC[:2], "Darwin"),
        (WINDOWS[4:5], "Windows"),  # one end alone is no cable
        (VAC[:2], "Windows"),  # ends of two different lines
        (MAC, "Windows"),
        ([WINDOWS[1], WINDOWS[8]], "Windows"),  # ends under two host APIs
    ],
)
def test_no_cable(devices: list[Device], system: str) -> None:
    assert find_cable(devices, system) is None


def test_a_plain_cable_comes_before_a_mixer() -> None:
    found = find_cable([*VOICEMEETER, *WINDOWS], "Windows")
    assert found is not None
    assert found.product == "VB-CABLE"


def test_the_steps_name_both_ends_or_what_to_install() -> None:
    found = find_cable(WINDOWS, "Windows")
    told = steps(found, "Windows")
    assert '--output "CABLE Input (VB-Audio Virtual Cable)" --host-api "Windows WASAPI"' in told[0]
    assert "'CABLE Output (VB-Audio Virtual Cable)'" in told[1]
    assert "BlackHole" in steps(None, "Darwin")[0]
    assert "VB-CABLE" in steps(None, "Windows")[0]
