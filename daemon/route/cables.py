"""Virtual cables of macOS and Windows: found among a machine's devices by name; pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """A device as the host API lists it."""

    name: str
    host_api: str
    inputs: int
    outputs: int


@dataclass(frozen=True, slots=True)
class Cable:
    """A virtual cable that was found: where Myna plays, what applications choose as their microphone."""

    product: str
    output: str
    microphone: str
    host_api: str


@dataclass(frozen=True, slots=True)
class Product:
    """How one product names the two ends of its cable. `{}` stands for what both ends share (a letter, a number)."""

    name: str
    system: str
    output: str  # patterns, matched from the start of a name; MME cuts names at 31 characters
    microphone: str


# In order of preference.
PRODUCTS = (
    Product("VB-CABLE", "Windows", r"CABLE Input \(VB-Audio Virtual", r"CABLE Output \(VB-Audio Virtual"),
    Product("VB-CABLE A/B/C/D", "Windows", r"CABLE-(?P<n>[A-D]) Input", r"CABLE-(?P<n>[A-D]) Output"),
    Product("VB-Audio Hi-Fi Cable", "Windows", r"Hi-?Fi Cable Input", r"Hi-?Fi Cable Output"),
    Product(
        "Virtual Audio Cable", "Windows", r"Line (?P<n>\d+) \(Virtual Audio Cab", r"Line (?P<n>\d+) \(Virtual Audio Cab"
    ),
    Product("VoiceMeeter", "Windows", r"Voice[Mm]eeter Input", r"Voice[Mm]eeter (Output|Out B1)"),
    Product("BlackHole", "Darwin", r"BlackHole (?P<n>\d+)ch", r"BlackHole (?P<n>\d+)ch"),
    Product("Loopback", "Darwin", r"Loopback Audio(?P<n>( \d+)?)$", r"Loopback Audio(?P<n>( \d+)?)$"),
    Product("VB-Cable", "Darwin", r"VB-Cable", r"VB-Cable"),
)

# WASAPI first: the shortest delay of those that share a device, and whole names.
API_ORDER = ("Windows WASAPI", "Core Audio", "Windows DirectSound", "MME", "Windows WDM-KS")


def find_cable(devices: Iterable[Device], system: str) -> Cable | None:
    """The best virtual cable among `devices`, or None.

    Both ends must be there under one host API. `system` is "Windows" or "Darwin".
    """
    known = list(devices)
    apis = sorted({device.host_api for device in known}, key=lambda api: (_rank(api), api))
    for product in PRODUCTS:
        if product.system != system:
            continue
        for api in apis:
            here = [device for device in known if device.host_api == api]
            outputs = _matches(product.output, (device.name for device in here if device.outputs))
            microphones = _matches(product.microphone, (device.name for device in here if device.inputs))
            for key in sorted(outputs.keys() & microphones.keys()):
                return Cable(product.name, outputs[key], microphones[key], api)
    return None


def _rank(api: str) -> int:
    return API_ORDER.index(api) if api in API_ORDER else len(API_ORDER)


def _matches(pattern: str, names: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        if match := re.match(pattern, name):
            found.setdefault(match.groupdict().get("n") or "", name)
    return found


def steps(cable: Cable | None, system: str) -> list[str]:
    """What a person does to have a virtual microphone there: install a cable, then choose both its ends."""
    if cable is not None:
        return [
            f"Play into it: myna up --output {_quoted(cable.output)} --host-api {_quoted(cable.host_api)}",
            f"In the application, choose {cable.microphone!r} as the microphone.",
        ]
    if system == "Darwin":
        return [
            "Install BlackHole (2 channels): brew install blackhole-2ch, then restart the Mac.",
            "Run `myna route status` again: it names the device.",
        ]
    return [
        "Install VB-CABLE from its maker's site (vb-audio.com/Cable): unpack it, run VBCABLE_Setup_x64.exe "
        "as administrator, restart Windows.",
        "Run `myna route status` again: it names the device.",
    ]


def _quoted(text: str) -> str:
    return f'"{text}"'
