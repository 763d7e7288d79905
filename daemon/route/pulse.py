"""The virtual microphone on PulseAudio: two modules at once, the same two lines in the start script."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from myna.daemon.route.errors import RouteError
from myna.daemon.route.files import remove_file, write_whole
from myna.daemon.route.fragments import pulse_block, pulse_modules, with_block, without_block
from myna.daemon.route.names import MICROPHONE, SINK
from myna.daemon.route.programs import output_of
from myna.daemon.route.state import RouteState

NAMES = {"module-null-sink": ("sink_name", SINK), "module-remap-source": ("source_name", MICROPHONE)}


def script_path(environment: Mapping[str, str]) -> Path:
    """The user's start script: where PulseAudio itself looks, in its order (it ignores XDG_CONFIG_HOME here)."""
    if folder := environment.get("PULSE_CONFIG_PATH"):
        return Path(folder) / "default.pa"
    home = Path(environment.get("HOME") or Path.home())
    old = home / ".pulse" / "default.pa"
    return old if old.exists() else home / ".config" / "pulse" / "default.pa"


def our_modules(listing: str) -> list[tuple[int, str]]:
    """Index and name of each loaded module that is ours, from `pactl list short modules`, oldest first."""
    found: list[tuple[int, str]] = []
    for line in listing.splitlines():
        index, name, *arguments = line.split("\t")
        if name in NAMES and arguments:
            key, value = NAMES[name]
            # The remapped source's own line names the sink as its master, hence the whole word.
            if re.search(rf"(?<!\S){key}={re.escape(value)}(?!\S)", arguments[0]):
                found.append((int(index), name))
    return sorted(found)


def surplus_modules(modules: list[tuple[int, str]]) -> list[int]:
    """Modules to unload before missing ones are loaded, dependants first.

    Worked example: [(3, null-sink), (5, remap), (9, null-sink)] gives [9]; [(5, remap)] gives [5], whose sink has gone.
    """
    sinks = [index for index, name in modules if name == "module-null-sink"]
    sources = [index for index, name in modules if name == "module-remap-source"]
    extra = sources[1:] if sinks else sources
    return extra[::-1] + sinks[:0:-1]


def parse_state(info: str, sinks: str, sources: str, outputs: str) -> RouteState:
    """The state from `pactl info` and the short lists of sinks, sources and source outputs.

    A duplicate that the server had to rename (`myna_sink.2`) counts as one of ours.
    """
    ours = [line.split("\t") for line in sources.splitlines() if _is(line, MICROPHONE)]
    indices = {columns[0] for columns in ours}
    listening = [line.split("\t") for line in outputs.splitlines() if line]
    count = sum(_is(line, SINK) for line in sinks.splitlines())
    return RouteState(
        sinks=count,
        microphones=len(ours),
        joined=bool(ours) and count > 0,  # a remapped source cannot outlive its sink
        listeners=sum(columns[1] in indices for columns in listening if len(columns) > 1),
        default_sink=_field(info, "Default Sink"),
        default_source=_field(info, "Default Source"),
    )


def _is(line: str, name: str) -> bool:
    columns = line.split("\t")
    return len(columns) > 1 and re.fullmatch(rf"{re.escape(name)}(\.\d+)?", columns[1]) is not None


def _field(info: str, name: str) -> str | None:
    found = re.search(rf"^{name}: (.+)$", info, re.MULTILINE)
    return found[1].strip() if found else None


def state() -> RouteState:
    """Look at the server. RouteError if it does not answer."""
    lists = [output_of("pactl", "list", "short", kind) for kind in ("sinks", "sources", "source-outputs")]
    return parse_state(output_of("pactl", "info"), *lists)


def create() -> None:
    """Load what is missing, unload what is there twice. RouteError if the server refuses."""
    before = state()
    for index in surplus_modules(our_modules(output_of("pactl", "list", "short", "modules"))):
        output_of("pactl", "unload-module", str(index))
    there = {name for _, name in our_modules(output_of("pactl", "list", "short", "modules"))}
    for module, arguments in pulse_modules():
        if module not in there:
            output_of("pactl", "load-module", module, *arguments)
    keep_defaults(before)


def keep_defaults(before: RouteState) -> None:
    """Undo it if the server, or a module that follows new devices, made one of ours the default."""
    now = state()
    for kind, was, is_now in (
        ("sink", before.default_sink, now.default_sink),
        ("source", before.default_source, now.default_source),
    ):
        ours = is_now is not None and is_now.startswith((SINK, MICROPHONE))
        if ours and was and not was.startswith((SINK, MICROPHONE)) and _exists(kind, was):
            output_of("pactl", f"set-default-{kind}", was)


def _exists(kind: str, name: str) -> bool:
    listing = output_of("pactl", "list", "short", f"{kind}s")
    return any(_is(line, name) for line in listing.splitlines())


def remove() -> bool:
    """Unload both; True if there was anything. RouteError if the server refuses."""
    modules = our_modules(output_of("pactl", "list", "short", "modules"))
    for index, _ in reversed(modules):  # the source was loaded after its sink
        output_of("pactl", "unload-module", str(index))
    return bool(modules)


def persist() -> Path:
    """Put both lines into the start script; returns its path. RouteError if it can't be written."""
    path = script_path(os.environ)
    try:
        script = path.read_text(encoding="utf-8") if path.exists() else None
        write_whole(path, with_block(script, pulse_block()))
    except OSError as error:
        raise RouteError("state_unwritable", f"{path} can't be written: {error.strerror}.") from error
    return path


def persistent() -> bool:
    """Whether the start script holds the lines as they should be."""
    path = script_path(os.environ)
    try:
        return pulse_block() in path.read_text(encoding="utf-8")
    except OSError:
        return False


def forget() -> bool:
    """Take the lines out of the start script, and the script away if it held nothing else; True if there were any."""
    path = script_path(os.environ)
    try:
        script = path.read_text(encoding="utf-8")
        rest = without_block(script)
        if rest == script:
            return False
        if rest is None:
            return remove_file(path, Path(os.environ.get("HOME") or Path.home()))
        return write_whole(path, rest)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RouteError("state_unwritable", f"{path} can't be written: {error.strerror}.") from error
