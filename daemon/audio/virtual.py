"""Whether a device is a cable made of software, as far as its name tells."""

import re

_WORDS = ("cable", "loopback", "null", "vac", "obs", "myna")  # as whole words only
_PARTS = (
    "virtual", "virtmic", "virt_", "vb-audio", "vb-cable", "voicemeeter", "black ?hole", "soundflower", "monitor of",
    r"\.monitor\b",
)  # fmt: skip
_VIRTUAL = re.compile("|".join((*(f"(?<![a-z]){word}(?![a-z])" for word in _WORDS), *_PARTS)), re.IGNORECASE)


def is_virtual(name: str) -> bool:
    """True for the names that virtual cables, null sinks and their monitors go by."""
    return _VIRTUAL.search(name) is not None
