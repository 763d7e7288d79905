"""Whether a device is a cable made of software, as far as its name tells."""

import re

_VIRTUAL = re.compile(
    r"virt(ual|mic|_)|\bcable\b|cable[-_ ]?(input|output|[ab]\b)|vb-?(audio|cable)|voicemeeter|black ?hole"
    r"|loopback|soundflower|null|\bmyna|monitor of|\.monitor\b|\bvac\b|\bobs\b",
    re.IGNORECASE,
)


def is_virtual(name: str) -> bool:
    """True for the names that virtual cables, null sinks and their monitors go by."""
    return _VIRTUAL.search(name) is not None
