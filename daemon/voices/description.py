"""What the files beside voices tell of them."""

import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from myna.control.errors import MynaError
from myna.daemon.voices.disk import copy_synced, sha256_of, write_toml
from myna.daemon.voices.names import printable
from myna.daemon.voices.values import Scalar, scalars

DESCRIPTION = "voice.toml"
_PRESETS = "presets.toml"
_FILE_FORMAT = 1


@dataclass(slots=True)
class VoiceFile:
    """A file of a voice; its name is made of its content."""

    name: str
    sha256: str
    size: int
    mtime_ns: int
    source_name: str


@dataclass(slots=True)
class Description:
    """A user's voice."""

    engine: str
    added: float
    files: dict[str, VoiceFile]
    facts: dict[str, Scalar]
    problems: list[str]
    defaults: dict[str, Scalar]


def read(folder: Path) -> Description:
    """What a voice's folder tells. MynaError("model_unusable") if that is damaged."""
    path = folder / DESCRIPTION
    try:
        told = tomllib.loads(path.read_text("utf-8"))
        if told["format"] != _FILE_FORMAT:
            raise ValueError(f"format {told['format']}")
        files = {
            str(role): VoiceFile(
                name=_plain_name(f["name"]),
                sha256=str(f["sha256"]),
                size=int(f["bytes"]),
                mtime_ns=int(f["mtime_ns"]),
                source_name=str(f.get("source_name", "")),
            )
            for role, f in told["files"].items()
        }
        return Description(
            engine=str(told["engine"]),
            added=float(told["added"]),
            files=files,
            facts=scalars(told.get("facts", {})),
            problems=[str(p) for p in told.get("problems", [])],
            defaults=scalars(told.get("defaults", {})),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MynaError(
            "model_unusable",
            f"The description of voice {printable(folder.name)} is damaged: {error}. Add the voice again.",
            path=str(path),
        ) from error


def write(folder: Path, entry: Description) -> None:
    """Keep it, in place of what was told before. OSError."""
    told = {
        "format": _FILE_FORMAT,
        "engine": entry.engine,
        "added": entry.added,
        "problems": entry.problems,
        "files": {
            role: {
                "name": f.name,
                "sha256": f.sha256,
                "bytes": f.size,
                "mtime_ns": f.mtime_ns,
                "source_name": f.source_name.encode("utf-8", "replace").decode("utf-8"),
            }
            for role, f in entry.files.items()
        },
        "facts": {k: v for k, v in entry.facts.items() if v is not None},  # TOML has no null
        "defaults": {k: v for k, v in entry.defaults.items() if v is not None},
    }
    write_toml(folder / DESCRIPTION, told)


def _plain_name(name: object) -> str:
    if not isinstance(name, str) or name in ("", ".", "..") or Path(name).name != name or "\\" in name:
        raise ValueError(f"file name {name!r}")
    return name


def copy_in(source: Path, folder: Path, digest: str) -> VoiceFile:
    """Copy under a name made of the content; what is there already with that content is kept."""
    target = folder / f"{digest[:32]}{source.suffix.lower()}"
    if not target.is_file():
        part = folder / f".new-{secrets.token_hex(8)}"
        try:
            copy_synced(source, part)
            if sha256_of(part) != digest:
                raise MynaError("busy", f"{printable(source.name)} changed while it was read. Try again.")
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    found = target.stat()
    return VoiceFile(target.name, digest, found.st_size, found.st_mtime_ns, source.name)


def read_presets(voices: Path) -> dict[str, dict[str, Scalar]]:
    """Default parameters that the user gave to built-in voices, by voice."""
    try:
        told = tomllib.loads((voices / _PRESETS).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return {k: scalars(v) for k, v in told.items() if isinstance(v, dict)}


def write_presets(voices: Path, presets: Mapping[str, Mapping[str, Scalar]]) -> None:
    """Keep them. OSError."""
    voices.mkdir(parents=True, exist_ok=True)
    write_toml(voices / _PRESETS, {k: v for k, v in presets.items() if v})
