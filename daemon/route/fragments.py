"""The text that brings the virtual microphone back after a restart of the sound server; pure."""

from myna.daemon.route.names import MICROPHONE, MICROPHONE_TITLE, RATE_HZ, SINK, SINK_TITLE

BEGIN = "### Myna's virtual microphone: begin (made by `myna route`) ###"
END = "### Myna's virtual microphone: end ###"
INCLUDE = ".include /etc/pulse/default.pa"


def pipewire_fragment() -> str:
    """A file for `pipewire.conf.d`: a loopback whose two ends are a sink and a source.

    The lowest priorities keep the session manager from making either end the default while any other device is there.
    """
    return f"""\
# Myna's virtual microphone, made by `myna route create` and removed by `myna route remove`.
context.modules = [
  {{
    name = libpipewire-module-loopback
    flags = [ nofail ]
    args = {{
      node.description = "{MICROPHONE_TITLE}"
      audio.rate = {RATE_HZ}
      audio.channels = 2
      audio.position = [ FL FR ]
      capture.props = {{
        node.name = "{SINK}"
        node.description = "{SINK_TITLE}"
        media.class = "Audio/Sink"
        priority.session = 1
        priority.driver = 1
      }}
      playback.props = {{
        node.name = "{MICROPHONE}"
        node.description = "{MICROPHONE_TITLE}"
        media.class = "Audio/Source"
        priority.session = 1
        priority.driver = 1
      }}
    }}
  }}
]
"""


def pipewire_nodes() -> list[tuple[str, str]]:
    """The same two ends made at once: node name and its properties for the `adapter` factory.

    They linger in the server after the maker has gone, until the server restarts and the fragment takes over.
    """
    shared = (
        "factory.name=support.null-audio-sink object.linger=true audio.channels=2 audio.position=[ FL FR ] "
        f"audio.rate={RATE_HZ} priority.session=1 priority.driver=1"
    )
    sink = f'node.name={SINK} node.description="{SINK_TITLE}" media.class=Audio/Sink monitor.channel-volumes=true'
    source = f'node.name={MICROPHONE} node.description="{MICROPHONE_TITLE}" media.class=Audio/Source/Virtual'
    return [(SINK, f"{{ {shared} {sink} }}"), (MICROPHONE, f"{{ {shared} {source} }}")]


def pipewire_links() -> list[tuple[str, str]]:
    """Output and input port of each channel's link between the two ends."""
    return [(f"{SINK}:monitor_{channel}", f"{MICROPHONE}:input_{channel}") for channel in ("FL", "FR")]


def pulse_modules() -> list[tuple[str, list[str]]]:
    """PulseAudio's modules with their arguments, in the order in which they must be loaded.

    norewinds: a null sink that rewinds takes blocks of two seconds, and its delay jumps. The source is a remapped one
    because browsers and Discord hide monitors.
    """
    sink = [
        f"sink_name={SINK}",
        f"rate={RATE_HZ}",
        "channels=2",
        "channel_map=front-left,front-right",
        "format=float32le",
        "norewinds=1",
        f"sink_properties=\"device.description='{SINK_TITLE}'\"",
    ]
    source = [
        f"source_name={MICROPHONE}",
        f"master={SINK}.monitor",
        f"source_properties=\"device.description='{MICROPHONE_TITLE}'\"",
    ]
    return [("module-null-sink", sink), ("module-remap-source", source)]


def pulse_block() -> str:
    """The lines for PulseAudio's start script, between marks by which they are found again."""
    lines = [f"load-module {module} {' '.join(arguments)}" for module, arguments in pulse_modules()]
    return "\n".join([BEGIN, ".nofail", *lines, END]) + "\n"


def with_block(script: str | None, block: str) -> str:
    """A start script that holds `block` once; None stands for no script of the user's own.

    A user's script replaces the system's, so one that is made here must include that.
    """
    kept = None if script is None else without_block(script)
    kept = kept or INCLUDE
    return kept + ("" if kept.endswith("\n") else "\n") + block


def without_block(script: str) -> str | None:
    """The script without the block; None if nothing is left but what was made here."""
    kept: list[str] = []
    inside = False
    for line in script.splitlines(keepends=True):
        if line.strip() == BEGIN:
            inside = True
        elif line.strip() == END and inside:
            inside = False
        elif not inside:
            kept.append(line)
    text = "".join(kept)
    return None if text.strip() in ("", INCLUDE) else text
