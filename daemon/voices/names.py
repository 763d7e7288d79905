"""Names of voices: safe on every disk and screen."""

import unicodedata

_RESERVED = {"con", "prn", "aux", "nul"} | {f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10)}


def voice_id(name: str) -> str:
    """A safe id from a file's stem: letters and digits of any script, `-`, `_`, `.`; a folder name anywhere.

    `Ana (v2) 🎤` → `Ana-v2`; `..` → `voice`; `con` → `voice-con`. At most 64 characters.
    """
    text = unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode("utf-8"))
    kept = "".join(c if c.isalnum() or c in "-_." else " " for c in text)
    slug = "-".join(kept.split()).strip("-._")[:64]
    while len(slug.encode()) > 200:  # a name on disk has at most 255 bytes, and a letter has up to four
        slug = slug[:-1]
    slug = slug.strip("-._")
    if not slug:
        return "voice"
    if slug.split(".")[0].lower() in _RESERVED:
        return f"voice-{slug}"
    return slug


def printable(text: str) -> str:
    """A name from outside, without what would move the cursor."""
    return "".join(c if c.isprintable() else "?" for c in text)
