"""The virtual microphone on PipeWire: lingering nodes at once, a loopback fragment for every later start."""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from myna.daemon.route.errors import RouteError
from myna.daemon.route.files import remove_file, write_whole
from myna.daemon.route.fragments import pipewire_fragment, pipewire_links, pipewire_nodes
from myna.daemon.route.names import MICROPHONE, SINK
from myna.daemon.route.programs import output_of
from myna.daemon.route.state import RouteState

APPEAR_S = 5.0
SETTLE_S = 1.0
FRAGMENT = Path("pipewire/pipewire.conf.d/50-myna.conf")


def config_home(environment: Mapping[str, str]) -> Path:
    """The folder below which PipeWire's own configuration folder lies."""
    if folder := environment.get("XDG_CONFIG_HOME"):
        return Path(folder)
    return Path(environment.get("HOME") or Path.home()) / ".config"


def fragment_path(environment: Mapping[str, str]) -> Path:
    """Where PipeWire reads the user's fragments."""
    if folder := environment.get("PIPEWIRE_CONFIG_DIR"):
        return Path(folder) / "pipewire.conf.d" / FRAGMENT.name
    return config_home(environment) / FRAGMENT


def node_ids(dump: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Ids of the nodes that bear each of our two names, oldest first."""
    found: dict[str, list[int]] = {SINK: [], MICROPHONE: []}
    for item in dump:
        name = _props(item).get("node.name")
        if item.get("type") == "PipeWire:Interface:Node" and name in found:
            found[name].append(int(item["id"]))
    return {name: sorted(ids) for name, ids in found.items()}


def parse_state(dump: list[dict[str, Any]]) -> RouteState:
    """The state from what `pw-dump` prints."""
    ids = node_ids(dump)
    sinks, microphones = ids[SINK], ids[MICROPHONE]
    links = [(_props(item).get("link.output.node"), _props(item).get("link.input.node")) for item in dump]
    # A loopback's two ends share a group and need no link; lingering nodes have one link per channel.
    groups = {str(_props(item).get("node.link-group")) for item in dump if _named(item, SINK, MICROPHONE)}
    loopback = len(groups) == 1 and groups != {"None"} and bool(sinks) and bool(microphones)
    linked = sum(a in sinks and b in microphones for a, b in links) >= len(pipewire_links())
    return RouteState(
        sinks=len(sinks),
        microphones=len(microphones),
        joined=loopback or linked,
        listeners=len({b for a, b in links if a in microphones}),
        default_sink=_default(dump, "default.audio.sink"),
        default_source=_default(dump, "default.audio.source"),
    )


def _props(item: dict[str, Any]) -> dict[str, Any]:
    info = item.get("info")
    props = info.get("props") if isinstance(info, dict) else None
    return props if isinstance(props, dict) else {}


def _named(item: dict[str, Any], *names: str) -> bool:
    return item.get("type") == "PipeWire:Interface:Node" and _props(item).get("node.name") in names


def _default(dump: list[dict[str, Any]], key: str) -> str | None:
    for item in dump:
        entries = item.get("metadata")
        for entry in entries if isinstance(entries, list) else []:
            value = entry.get("value")
            if entry.get("key") == key and isinstance(value, dict):
                name = value.get("name")
                return name if isinstance(name, str) else None
    return None


def dump() -> list[dict[str, Any]]:
    """Every object of the server. RouteError if it does not answer."""
    try:
        return merged(output_of("pw-dump"))
    except ValueError as error:
        raise RouteError("failed", f"pw-dump printed no JSON ({error}); restart PipeWire.") from error


def merged(text: str) -> list[dict[str, Any]]:
    """The objects of pw-dump's lists: it prints one more for what changes while it prints. ValueError if it is none."""
    objects: dict[int, dict[str, Any]] = {}
    decoder = json.JSONDecoder()
    while text := text.lstrip():
        found, end = decoder.raw_decode(text)
        objects |= {item["id"]: item for item in found if isinstance(item, dict) and "id" in item}
        text = text[end:]
    return list(objects.values())


def state() -> RouteState:
    """Look at the server. RouteError if it does not answer."""
    return parse_state(dump())


def create() -> None:
    """Make both ends and their links unless they are there, once. RouteError if the server refuses."""
    if state().any and _settles(lambda found: found.whole, SETTLE_S):
        return
    remove()
    for _, properties in pipewire_nodes():
        output_of("pw-cli", "create-node", "adapter", properties)
    _until_linked()


def _until_linked() -> None:
    """Link the ports, which appear a moment after their nodes."""
    deadline = time.monotonic() + APPEAR_S
    problem = "its nodes did not appear"
    while time.monotonic() < deadline:
        for output, input_ in pipewire_links():
            try:
                output_of("pw-link", output, input_)
            except RouteError as error:
                problem = error.message
        if state().whole:
            return
        time.sleep(0.05)
    remove()
    raise RouteError("failed", f"PipeWire did not make the virtual microphone within {APPEAR_S:g} s: {problem}.")


def remove() -> bool:
    """Destroy every node of ours; True if there was any. RouteError if the server refuses."""
    found = [node for ids in node_ids(dump()).values() for node in ids]
    for node in found:
        # The two ends of a loopback go together; pw-cli ends well where the second is gone already.
        output_of("pw-cli", "destroy", str(node))
    if not _settles(lambda found: not found.any, APPEAR_S):
        raise RouteError("failed", "PipeWire did not let go of the virtual microphone; restart it.")
    return bool(found)


def _settles(condition: Callable[[RouteState], bool], within_s: float) -> bool:
    """Whether the server comes to a state within a while: its objects appear and vanish one by one."""
    deadline = time.monotonic() + within_s
    while not condition(state()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def persist() -> Path:
    """Write the fragment; returns its path. RouteError if it can't be written."""
    path = fragment_path(os.environ)
    try:
        write_whole(path, pipewire_fragment())
    except OSError as error:
        raise RouteError("state_unwritable", f"{path} can't be written: {error.strerror}.") from error
    return path


def persistent() -> bool:
    """Whether the fragment is there as it should be."""
    try:
        return fragment_path(os.environ).read_text(encoding="utf-8") == pipewire_fragment()
    except OSError:
        return False


def forget() -> bool:
    """Remove the fragment; True if it was there. RouteError if it can't be removed."""
    path = fragment_path(os.environ)
    try:
        return remove_file(path, config_home(os.environ))
    except OSError as error:
        raise RouteError("state_unwritable", f"{path} can't be removed: {error.strerror}.") from error
