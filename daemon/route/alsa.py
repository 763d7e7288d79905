"""How PortAudio, which knows ALSA alone, gets to the virtual microphone's sink.

A name of its own in ALSA's configuration, seen by our processes only (through ALSA_CONFIG_PATH), beats choosing the
sink by PULSE_SINK: that would send the monitor there too.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from myna.daemon.route.files import write_whole
from myna.daemon.route.names import MICROPHONE_TITLE, PCM, SINK

SYSTEM_CONFIG = Path("/usr/share/alsa/alsa.conf")
PLUGIN_FOLDERS = ("/usr/lib/alsa-lib", "/usr/lib64/alsa-lib", "/usr/lib/*-linux-gnu*/alsa-lib")
FILE_NAME = "asound.conf"


def alsa_text(plugin: str) -> str:
    """The definition of the sink's name through ALSA's `pulse` or `pipewire` plugin."""
    target = {
        "pulse": f'type pulse device "{SINK}" handle_underrun 0',
        "pipewire": f'type pipewire playback_node "{SINK}"',
    }[plugin]
    hint = f'hint {{ show on description "{MICROPHONE_TITLE} (virtual microphone)" }}'
    return f"# Myna's virtual microphone, for Myna's own processes.\npcm.{PCM} {{ {target} {hint} }}\n"


def config_path(existing: str | None, ours: Path) -> str:
    """ALSA_CONFIG_PATH with our file last: what a user set stays in force."""
    before = existing or str(SYSTEM_CONFIG)
    parts = [part for part in before.split(":") if part and part != str(ours)]
    return ":".join([*parts, str(ours)])


def find_plugin(folders: Iterable[str] = PLUGIN_FOLDERS) -> str | None:
    """The plugin through which ALSA reaches the sound server: `pulse`, `pipewire`, or None if neither is installed."""
    for plugin in ("pulse", "pipewire"):
        for folder in folders:
            if any(Path("/").glob(f"{folder.lstrip('/')}/libasound_module_pcm_{plugin}.so")):
                return plugin
    return None


def worker_environment(folder: Path, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables that a process needs before it opens PortAudio to find the device `Myna`.

    Writes a small file into `folder` if it is not there as it should be. Empty where there is nothing to set: on
    systems without ALSA, without a plugin for the sound server, or where the folder can't be written.
    """
    known = os.environ if environment is None else environment
    existing = known.get("ALSA_CONFIG_PATH")
    if not sys.platform.startswith("linux") or not (existing or SYSTEM_CONFIG.exists()):
        return {}
    plugin = find_plugin()
    if plugin is None:
        return {}
    path = folder / FILE_NAME
    try:
        write_whole(path, alsa_text(plugin))
    except OSError:
        return {}
    return {"ALSA_CONFIG_PATH": config_path(existing, path)}
