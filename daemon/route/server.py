"""Which sound server runs for this user."""

import re
from dataclasses import dataclass

from myna.daemon.route.errors import RouteError
from myna.daemon.route.programs import installed, output_of
from myna.daemon.route.state import ServerKind

NO_SERVER = (
    "No sound server answers. Start one: `systemctl --user start pipewire pipewire-pulse wireplumber`, "
    "or `pulseaudio --start`."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A sound server that answered."""

    kind: ServerKind
    version: str | None


def parse_info(info: str) -> Server:
    """The server from what `pactl info` prints; PipeWire speaks PulseAudio's protocol and says so in its name."""
    name = re.search(r"^Server Name: (.*)$", info, re.MULTILINE)
    version = re.search(r"^Server Version: (.*)$", info, re.MULTILINE)
    if name and (found := re.search(r"PipeWire ([\w.]+)", name[1])):
        return Server(kind="pipewire", version=found[1])
    return Server(kind="pulseaudio", version=version[1].strip() if version else None)


def find_server() -> Server:
    """Ask. RouteError: `missing_asset` without any program to ask with, `device_unavailable` if nobody answers."""
    if not installed("pactl") and not installed("pw-cli"):
        raise RouteError(
            "missing_asset",
            "Neither pactl nor pw-cli is installed. Debian, Ubuntu: apt-get install pulseaudio-utils "
            "(and pipewire-bin where PipeWire runs).",
        )
    if installed("pactl"):
        try:
            return parse_info(output_of("pactl", "info"))
        except RouteError:
            pass  # PipeWire may run without its PulseAudio side
    if installed("pw-cli"):
        try:
            output_of("pw-cli", "info", "0")
        except RouteError:
            pass
        else:
            return Server(kind="pipewire", version=None)
    raise RouteError("device_unavailable", NO_SERVER)
