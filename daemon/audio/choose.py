"""Which listed device a name means: pure decisions on what the host APIs list."""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from myna.daemon.audio.backend import DeviceError

Direction = Literal["input", "output"]

# Best first, where a device is listed by several: low delay and a mixer that lets others play too.
HOST_API_ORDER = (
    "Windows WASAPI",
    "Core Audio",
    "PulseAudio",
    "ALSA",
    "JACK Audio Connection Kit",
    "Windows DirectSound",
    "MME",
    "OSS",
    "ASIO",
    "Windows WDM-KS",
)
ONE_CLOCK_HOSTS = ("JACK Audio Connection Kit", "ASIO")
NEAR_NAMES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One device as a host API lists it. `index` is good until the next listing only."""

    index: int
    name: str
    host_api: str
    inputs: int
    outputs: int
    rate_hz: int
    latency_in_ms: float | None = None
    latency_out_ms: float | None = None
    default_input: bool = False  # of its host API
    default_output: bool = False
    system_default_input: bool = False
    system_default_output: bool = False

    def channels(self, direction: Direction) -> int:
        """Channels in that direction, 0: it has none."""
        return self.inputs if direction == "input" else self.outputs


def candidates(devices: Iterable[Listed], name: str | None, direction: Direction, host_api: str | None) -> list[Listed]:
    """The devices a name can mean, at most one per host API, best host API first.

    An exact name wins over one that differs in case, that over one that contains the name. None is each host API's
    default, the system's first.

    Raises:
        DeviceError: not_found, with near names in its facts; also where a part of a name fits several devices.
    """
    usable = [device for device in devices if device.channels(direction)]
    if host_api is not None:
        known = {device.host_api for device in usable}
        usable = [device for device in usable if device.host_api.casefold() == host_api.casefold()]
        if not usable:
            raise DeviceError(
                "not_found",
                f"No {direction} device under the host API {host_api!r}; there are: {_listed(known)}.",
                host_apis=sorted(known),
            )
    if not usable:
        wanted = f", {name!r} neither" if name is not None else ""
        raise DeviceError(
            "not_found", f"No {direction} device is listed{wanted}: is the sound server running for this user?"
        )
    if name is None:
        return _defaults(usable, direction)
    folded = name.casefold()
    for fits in (
        [device for device in usable if device.name == name],
        [device for device in usable if device.name.casefold() == folded],
        [device for device in usable if folded in device.name.casefold()],
    ):
        names = sorted({device.name for device in fits})
        if len({each.casefold() for each in names}) > 1:
            raise DeviceError("not_found", f"{name!r} fits several {direction} devices: {_listed(names)}.", near=names)
        if fits:
            return _one_per_host_api(fits)
    names = sorted({device.name for device in usable})
    near = difflib.get_close_matches(name, names, NEAR_NAMES, 0.3) or names[:NEAR_NAMES]
    raise DeviceError("not_found", f"There is no {direction} device {name!r}. Near: {_listed(near)}.", near=near)


def best_pair(inputs: Sequence[Listed], outputs: Sequence[Listed]) -> tuple[Listed, Listed]:
    """The best input and output, of one host API if any has both. Both sequences are best first, not empty."""
    for heard in inputs:
        for played in outputs:
            if heard.host_api == played.host_api:
                return heard, played
    return inputs[0], outputs[0]


def _defaults(usable: list[Listed], direction: Direction) -> list[Listed]:
    if direction == "input":
        fits = [device for device in usable if device.default_input]
        fits.sort(key=lambda device: not device.system_default_input)
    else:
        fits = [device for device in usable if device.default_output]
        fits.sort(key=lambda device: not device.system_default_output)
    if fits:
        return fits
    names = sorted({device.name for device in usable})
    raise DeviceError("not_found", f"No default {direction} device is set; name one of: {_listed(names)}.", near=names)


def _one_per_host_api(fits: list[Listed]) -> list[Listed]:
    first: dict[str, Listed] = {}
    for device in fits:
        first.setdefault(device.host_api, device)
    rank = {host_api: place for place, host_api in enumerate(HOST_API_ORDER)}
    return sorted(first.values(), key=lambda device: rank.get(device.host_api, len(rank)))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def one_clock(source: Listed, sink: Listed) -> bool:
    """Whether both are known to run on one clock, so that one callback may serve both without drift.

    True for the host APIs that have a single clock, for one device of Core Audio, and for one card of ALSA. Not for a
    sound server's devices: whatever their names, a USB microphone and a virtual cable behind one server differ by tens
    of ppm, and the delay of a duplex stream runs away by as much (measured with 1000 ppm: 40 ms in 40 s).
    """
    if source.host_api != sink.host_api:
        return False
    if source.host_api in ONE_CLOCK_HOSTS:
        return True
    if source.host_api == "Core Audio":
        return source.index == sink.index
    cards = [re.search(r"\(hw:(\d+),", device.name) for device in (source, sink)]
    return bool(cards[0] and cards[1] and cards[0][1] == cards[1][1])
