"""The voice library: built-in voices, the user's own, and the models that voices share."""

import contextlib
import difflib
import errno
import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
import tomllib
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import tomlkit

from myna.control.contract import LiveSettings, VoiceInfo
from myna.control.errors import MynaError

if TYPE_CHECKING:  # the supervisor asks for names only; the engines' interface pulls in numpy
    from myna.engines.base import EngineSpec, VoiceAsset

Scalar = bool | int | float | str | None

MODEL_SUFFIXES = (".pth", ".pt", ".onnx", ".safetensors")
INDEX_SUFFIX = ".index"
# Shared models by role: the names under which they may lie in `assets/`, put there by `add` or by hand.
ASSET_NAMES: dict[str, tuple[str, ...]] = {
    "embedder": ("hubert_base", "contentvec_base", "contentvec"),
    "rmvpe": ("rmvpe",),
}
FILE_FORMAT = 1
INSPECT_TIMEOUT_S = 90.0
_RESERVED = {"con", "prn", "aux", "nul"} | {f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10)}
_PRESETS = "presets.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What a model file turned out to be.

    `kind` is `voice`, `index`, or a role of ASSET_NAMES; anything else is refused.
    """

    kind: str
    engine: str = "rvc"
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


Inspector = Callable[[Path], Inspection]


def inspect_in_child(path: Path, timeout_s: float = INSPECT_TIMEOUT_S) -> Inspection:
    """Look into a model file in a process of its own: the supervisor never loads torch, nor trusts a file.

    The child prints one JSON object with `kind`, `engine`, `facts`, `problems`, or `error` (a message).

    Raises:
        MynaError: `missing_asset` where the packages for it are not installed; `model_unusable` where the
            file can't be read, or kills or stalls its reader.
    """
    command = [sys.executable, "-m", "myna.engines.rvc.inspect", str(path)]
    name = _printable(path.name)
    try:
        child = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise MynaError(
            "model_unusable", f"{name} could not be read within {timeout_s:.0f} s.", path=str(path)
        ) from error
    stderr = child.stderr.decode("utf-8", "replace")
    lines = child.stdout.decode("utf-8", "replace").strip().splitlines()
    told: object = None
    if lines:
        with contextlib.suppress(ValueError):
            told = json.loads(lines[-1])
    if not isinstance(told, dict):
        if "No module named" in stderr:
            missing = stderr.strip().splitlines()[-1]
            raise MynaError(
                "missing_asset",
                f"Model files can't be read here ({missing}). To be able to: pip install 'myna[rvc]'.",
                path=str(path),
            )
        last = stderr.strip().splitlines()[-1:] or [f"exit status {child.returncode}"]
        raise MynaError("model_unusable", f"{name} could not be read: {last[0]}", path=str(path))
    return inspection_from(told, path)


def inspection_from(told: Mapping[str, Any], path: Path) -> Inspection:
    """What a child printed, checked: only plain values go on."""
    if told.get("error"):
        raise MynaError("model_unusable", str(told["error"]), path=str(path))
    facts = told.get("facts")
    problems = told.get("problems")
    return Inspection(
        kind=str(told.get("kind", "unknown")),
        engine=str(told.get("engine", "rvc")),
        facts=_scalars(facts) if isinstance(facts, dict) else {},
        problems=tuple(str(p) for p in problems) if isinstance(problems, list | tuple) else (),
    )


def _scalars(values: Mapping[str, object]) -> dict[str, Scalar]:
    return {str(k): v for k, v in values.items() if v is None or isinstance(v, bool | int | float | str)}


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


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


@dataclass(slots=True)
class _File:
    name: str
    sha256: str
    size: int
    mtime_ns: int
    source_name: str


@dataclass(slots=True)
class _Entry:
    """A user's voice as its `voice.toml` tells it."""

    engine: str
    added: float
    files: dict[str, _File]
    facts: dict[str, Scalar]
    problems: list[str]
    defaults: dict[str, Scalar]


class VoiceLibrary:
    """All voices, by id. Thread-safe; `add` copies and inspects for seconds and wants a thread of its own.

    A user's voice is a folder `voices/ID` with `voice.toml` and files named by their content. One rename of
    `voice.toml` makes or replaces a voice, so that it is the old one or the new one at any instant, and a
    worker which still reads the old files is not disturbed.
    """

    def __init__(
        self,
        state_dir: Path,
        specs: Iterable["EngineSpec"],
        *,
        in_use: Callable[[str], str | None] = lambda _: None,
        inspector: Inspector = inspect_in_child,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the library; nothing is written yet, leftovers of interrupted work are cleared away.

        Args:
            state_dir: Holds `voices/` and `assets/`.
            specs: The engines that are installed.
            in_use: Why a voice may not go now (`busy:live`, `busy:job`), or None.
            inspector: Tells what a model file is.
            clock: Unix seconds.
        """
        self.voices_dir = state_dir / "voices"
        self.assets_dir = state_dir / "assets"
        self._specs = {spec.name: spec for spec in specs}
        self._built_in = {asset.id: asset for spec in self._specs.values() for asset in spec.built_in}
        self._in_use = in_use
        self._inspect = inspector
        self._clock = clock
        self._lock = threading.RLock()
        for folder in (self.voices_dir, self.assets_dir):
            for left in [*folder.glob(".removed-*"), *folder.glob(".new-*"), *folder.glob("*/.new-*")]:
                _remove_quietly(left)

    # --- looking ---------------------------------------------------------------------------------------

    def ids(self) -> list[str]:
        """All ids: built-in voices first, then the user's, by name."""
        own = []
        if self.voices_dir.is_dir():
            own = [p.name for p in self.voices_dir.iterdir() if (p / "voice.toml").is_file()]
        return [*self._built_in, *sorted(i for i in own if not i.startswith(".") and i not in self._built_in)]

    def infos(self) -> tuple[VoiceInfo, ...]:
        """All voices, without asking their engines for problems."""
        return tuple(self._info(i, thorough=False) for i in self.ids())

    def show(self, voice: str) -> VoiceInfo:
        """One voice with all its problems; a file replaced by hand is noticed and inspected anew.

        Raises:
            MynaError: `not_found`.
        """
        self._require(voice)
        if voice not in self._built_in:
            self._refresh(voice)
        return self._info(voice, thorough=True)

    def resolve(self, voice: str) -> "VoiceAsset":
        """What an engine needs to open a voice: its files and the shared models that are there.

        Raises:
            MynaError: `not_found`; `missing_asset` where its engine or a file of it is gone; `model_unusable`
                where its description is damaged.
        """
        from myna.engines.base import VoiceAsset

        self._require(voice)
        shared = self.assets()
        if voice in self._built_in:
            asset = self._built_in[voice]
            return VoiceAsset(
                id=asset.id,
                engine=asset.engine,
                files={**shared, **asset.files},
                defaults={**asset.defaults, **self._presets().get(voice, {})},
                description=asset.description,
                unchanged=asset.unchanged,
            )
        entry = self._read(voice)
        if entry.engine not in self._specs:
            raise MynaError(
                "missing_asset",
                f"The voice {voice} needs the engine {entry.engine}, which is not installed.",
                engine=entry.engine,
            )
        files = {role: self.voices_dir / voice / f.name for role, f in entry.files.items()}
        for role, path in files.items():
            if not path.is_file():
                raise MynaError(
                    "missing_asset",
                    f"The {role} of voice {voice} is gone from {path.parent}. Add the voice again.",
                    asset=role,
                    where=str(path),
                )
        return VoiceAsset(id=voice, engine=entry.engine, files={**shared, **files}, defaults=dict(entry.defaults))

    def revision(self, voice: str) -> str:
        """A key for what is loaded: changes when a file of the voice, or a shared model, does."""
        digest = hashlib.sha256()
        if voice not in self._built_in:
            entry = self._read(voice)
            for role, file in sorted(entry.files.items()):
                path = self.voices_dir / voice / file.name
                digest.update(f"{role}\0{file.sha256}\0{_stamp(path)}\n".encode())
        for role, path in sorted(self.assets().items()):
            digest.update(f"{role}\0{_stamp(path)}\n".encode())
        return digest.hexdigest()[:16]

    def assets(self) -> dict[str, Path]:
        """The shared models that are there, by role."""
        found: dict[str, Path] = {}
        for role, names in ASSET_NAMES.items():
            candidates = (self.assets_dir / f"{n}{s}" for n in names for s in MODEL_SUFFIXES)
            path = next((p for p in candidates if p.is_file()), None)
            if path is not None:
                found[role] = path
        return found

    def _require(self, voice: str) -> None:
        known = self.ids()
        if voice in known:
            return
        by_fold = {k.casefold(): k for k in known}
        near = [by_fold[m] for m in difflib.get_close_matches(voice.casefold(), by_fold, n=3, cutoff=0.5)]
        hint = f" Did you mean {near[0]}?" if near else " `myna voices list` shows what there is."
        raise MynaError("not_found", f"There is no voice {_printable(voice)!r}.{hint}", voice=voice, near=near)

    def _info(self, voice: str, *, thorough: bool) -> VoiceInfo:
        if voice in self._built_in:
            asset = self._built_in[voice]
            problems: list[str] = []
            if thorough:
                problems += self._engine_problems(voice)
            return VoiceInfo(
                id=voice,
                engine=asset.engine,
                built_in=True,
                description=asset.description,
                files={role: str(path) for role, path in asset.files.items()},
                facts={"unchanged": True} if asset.unchanged else {},
                defaults=_scalars({**asset.defaults, **self._presets().get(voice, {})}),
                problems=tuple(problems),
            )
        try:
            entry = self._read(voice)
        except MynaError as error:
            return VoiceInfo(id=voice, engine="unknown", built_in=False, problems=(error.message,))
        folder = self.voices_dir / voice
        problems = list(entry.problems)
        if entry.engine not in self._specs:
            problems.append(f"its engine {entry.engine} is not installed")
        problems += [f"its {role} is gone" for role, f in entry.files.items() if not (folder / f.name).is_file()]
        if thorough and not problems:
            problems += self._engine_problems(voice)
        source = entry.files["model"].source_name if "model" in entry.files else ""
        return VoiceInfo(
            id=voice,
            engine=entry.engine,
            built_in=False,
            description=f"from {source}" if source else "",
            files={role: str(folder / f.name) for role, f in entry.files.items()},
            facts={
                **entry.facts,
                "added": entry.added,
                "bytes": sum(f.size for f in entry.files.values()),
                "revision": self.revision(voice),
            },
            defaults=dict(entry.defaults),
            problems=tuple(problems),
        )

    def _engine_problems(self, voice: str) -> list[str]:
        asset = self.resolve(voice)
        try:
            return list(self._specs[asset.engine].check(asset))
        except Exception as error:  # another package's engine: its bug is told, not ours to die of
            return [f"its engine failed to check it: {type(error).__name__}: {error}"]

    # --- changing --------------------------------------------------------------------------------------

    def add(
        self,
        path: Path,
        *,
        id: str | None = None,  # noqa: A002
        index: Path | None = None,
        replace: bool = False,
    ) -> VoiceInfo:
        """Add a voice, an index to a voice, or a shared model, from a file (or a folder with one voice).

        The same content under the same id again is no change and no error.

        Returns:
            The voice; for a shared model an entry with the engine `asset`.

        Raises:
            MynaError: `not_found` no such file; `bad_request` a bad id, or a folder with several models;
                `model_unusable` another kind of file; `refused` the id is taken (by a built-in voice, or by
                other content without `replace`); `busy` while in use; `state_unwritable`; `missing_asset`.
        """
        path, found_index = _one_voice(path)
        index = index or found_index
        for wanted in (path, index):
            if wanted is not None and not wanted.is_file():
                raise MynaError("not_found", f"There is no file {_printable(str(wanted))}.", path=str(wanted))
        if id is not None and id != voice_id(id):
            raise MynaError("bad_request", f"{_printable(id)!r} can't be a voice's id; {voice_id(id)!r} can.", id=id)
        if path.suffix.lower() == INDEX_SUFFIX:
            return self._add_index(path, id)
        if path.suffix.lower() not in MODEL_SUFFIXES:
            raise MynaError(
                "model_unusable",
                f"{_printable(path.name)} is no model; {', '.join(MODEL_SUFFIXES)} or {INDEX_SUFFIX} is.",
                path=str(path),
            )
        found = self._inspect(path)
        if found.kind in ASSET_NAMES:
            return self._add_asset(path, found, replace)
        if found.kind != "voice":
            raise MynaError(
                "model_unusable",
                f"{_printable(path.name)} is no voice, but {found.kind}.",
                path=str(path),
                kind=found.kind,
            )
        if index is not None:
            self._must_be_index(index)
        return self._add_voice(id or voice_id(path.stem), path, index, found, replace)

    def _add_voice(self, voice: str, path: Path, index: Path | None, found: Inspection, replace: bool) -> VoiceInfo:
        if voice in self._built_in:
            raise MynaError("refused", f"{voice} is a built-in voice. Choose another id.", id=voice)
        twin = next((i for i in self.ids() if i.casefold() == voice.casefold() and i != voice), None)
        if twin is not None:  # one folder on file systems that do not tell case apart
            raise MynaError("refused", f"There is a voice {twin}, which differs in case only.", id=twin)
        sources = {"model": path} | ({"index": index} if index is not None else {})
        before = self._read_or_none(voice)
        hashes = {role: _sha256(source) for role, source in sources.items()}
        if before is not None and {r: f.sha256 for r, f in before.files.items()} == hashes:
            return self._info(voice, thorough=False)
        if before is not None:
            if not replace:
                raise MynaError(
                    "refused",
                    f"There is another voice {voice}. Give this one an id of its own, or replace that one.",
                    id=voice,
                )
            self._refuse_in_use(voice)
        with _state_errors(self.voices_dir):
            folder = self.voices_dir / voice
            folder.mkdir(parents=True, exist_ok=True)
            files = {role: _copy_in(source, folder, hashes[role]) for role, source in sources.items()}
            with self._lock:
                self._write(
                    voice,
                    _Entry(
                        engine=found.engine,
                        added=self._clock(),
                        files=files,
                        facts=dict(found.facts),
                        problems=list(found.problems),
                        defaults=dict(before.defaults) if before is not None else {},
                    ),
                )
            self._sweep(voice)
        return self._info(voice, thorough=False)

    def _add_index(self, path: Path, voice: str | None) -> VoiceInfo:
        self._must_be_index(path)
        own = [i for i in self.ids() if i not in self._built_in]
        if voice is None:
            # RVC names an index after its voice: added_IVF256_Flat_nprobe_1_NAME_v2.index
            stem = voice_id(path.stem).casefold()
            matches = sorted((i for i in own if i.casefold() in stem), key=len)
            if not matches:
                raise MynaError(
                    "bad_request",
                    f"{_printable(path.name)} names no voice that is here. Give the id of its voice.",
                    voices=own,
                )
            voice = matches[-1]
        elif voice not in own:
            self._require(voice)
            raise MynaError("refused", f"{voice} is built in and takes no index.", id=voice)
        self._refuse_in_use(voice)
        with _state_errors(self.voices_dir):
            file = _copy_in(path, self.voices_dir / voice, _sha256(path))
            with self._lock:
                entry = self._read(voice)
                entry.files["index"] = file
                self._write(voice, entry)
            self._sweep(voice)
        return self._info(voice, thorough=False)

    def _must_be_index(self, path: Path) -> None:
        name = _printable(path.name)
        if path.suffix.lower() != INDEX_SUFFIX or path.stat().st_size == 0:
            raise MynaError("model_unusable", f"{name} is no index.", path=str(path))
        found = self._inspect(path)
        if found.kind != "index":
            raise MynaError("model_unusable", f"{name} is no index, but {found.kind}.", path=str(path))
        if found.problems:
            raise MynaError("model_unusable", f"{name} can't be used: {'; '.join(found.problems)}.", path=str(path))

    def _add_asset(self, path: Path, found: Inspection, replace: bool) -> VoiceInfo:
        role = found.kind
        target = self.assets_dir / f"{ASSET_NAMES[role][0]}{path.suffix.lower()}"
        present = self.assets().get(role)
        same = present is not None and _sha256(present) == _sha256(path)
        if present is not None and not same:
            if not replace:
                raise MynaError("refused", f"There is another {role} already. Replace it if you mean to.", asset=role)
            self._refuse_in_use(role)
        if not same:
            with _state_errors(self.assets_dir), self._lock:
                self.assets_dir.mkdir(parents=True, exist_ok=True)
                part = self.assets_dir / f".new-{secrets.token_hex(8)}"
                _copy_synced(path, part)
                part.replace(target)
                if present is not None and present != target:
                    present.unlink(missing_ok=True)
                present = target
        return VoiceInfo(
            id=role,
            engine="asset",
            built_in=False,
            description="shared by voices",
            files={role: str(present)},
            facts=dict(found.facts),
            problems=found.problems,
        )

    def remove(self, voice: str) -> None:
        """Remove a user's voice, at once and whole.

        Raises:
            MynaError: `not_found`; `refused` for a built-in one; `busy` while it is in use.
        """
        self._require(voice)
        if voice in self._built_in:
            raise MynaError("refused", f"{voice} is built in and can't be removed.", id=voice)
        with _state_errors(self.voices_dir), self._lock:
            self._refuse_in_use(voice)
            gone = self.voices_dir / f".removed-{secrets.token_hex(8)}"
            (self.voices_dir / voice).rename(gone)
        _remove_quietly(gone)

    def preset(self, voice: str, values: Mapping[str, Scalar]) -> VoiceInfo:
        """Keep default parameters of a voice; None lets one go. All are checked before any is kept.

        Raises:
            MynaError: `not_found`; `bad_request` naming every problem.
        """
        self._require(voice)
        engine = self._built_in[voice].engine if voice in self._built_in else self._read(voice).engine
        spec = self._specs.get(engine)
        _check_values(values, spec.capabilities.parameters if spec is not None else None)
        with _state_errors(self.voices_dir), self._lock:
            if voice in self._built_in:
                presets = self._presets()
                presets[voice] = _merged(presets.get(voice, {}), values)
                self.voices_dir.mkdir(parents=True, exist_ok=True)
                _write_toml(self.voices_dir / _PRESETS, {k: v for k, v in presets.items() if v})
            else:
                entry = self._read(voice)
                entry.defaults = _merged(entry.defaults, values)
                self._write(voice, entry)
        return self._info(voice, thorough=False)

    def _refuse_in_use(self, voice: str) -> None:
        reason = self._in_use(voice)
        if reason is not None:
            raise MynaError(
                "busy",
                f"{voice} is in use ({reason}). Try again when it no longer is.",
                reason=reason,
                id=voice,
            )

    def _refresh(self, voice: str) -> None:
        """Notice files that were replaced by hand: hash and inspect those whose size or time changed."""
        entry = self._read_or_none(voice)
        if entry is None:
            return
        changed = False
        for role, file in entry.files.items():
            path = self.voices_dir / voice / file.name
            try:
                now = path.stat()
            except OSError:
                continue
            if (now.st_size, now.st_mtime_ns) == (file.size, file.mtime_ns):
                continue
            digest = _sha256(path)
            if digest != file.sha256 and role == "model":
                try:
                    found = self._inspect(path)
                except MynaError as error:
                    found = Inspection(kind="unknown", engine=entry.engine, problems=(error.message,))
                if found.kind != "voice" and not found.problems:
                    found = Inspection(kind=found.kind, engine=entry.engine, problems=("its model is no voice",))
                entry.engine, entry.facts = found.engine, dict(found.facts)
                entry.problems = list(found.problems)
            file.sha256, file.size, file.mtime_ns = digest, now.st_size, now.st_mtime_ns
            changed = True
        if changed:
            with _state_errors(self.voices_dir), self._lock:
                self._write(voice, entry)

    # --- disk ------------------------------------------------------------------------------------------

    def _presets(self) -> dict[str, dict[str, Scalar]]:
        try:
            told = tomllib.loads((self.voices_dir / _PRESETS).read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return {k: _scalars(v) for k, v in told.items() if isinstance(v, dict)}

    def _read_or_none(self, voice: str) -> _Entry | None:
        try:
            return self._read(voice)
        except MynaError:
            return None

    def _read(self, voice: str) -> _Entry:
        path = self.voices_dir / voice / "voice.toml"
        try:
            told = tomllib.loads(path.read_text("utf-8"))
            if told["format"] != FILE_FORMAT:
                raise ValueError(f"format {told['format']}")
            files = {
                str(role): _File(
                    name=_plain_name(f["name"]),
                    sha256=str(f["sha256"]),
                    size=int(f["bytes"]),
                    mtime_ns=int(f["mtime_ns"]),
                    source_name=str(f.get("source_name", "")),
                )
                for role, f in told["files"].items()
            }
            return _Entry(
                engine=str(told["engine"]),
                added=float(told["added"]),
                files=files,
                facts=_scalars(told.get("facts", {})),
                problems=[str(p) for p in told.get("problems", [])],
                defaults=_scalars(told.get("defaults", {})),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise MynaError(
                "model_unusable",
                f"The description of voice {_printable(voice)} is damaged: {error}. Add the voice again.",
                path=str(path),
            ) from error

    def _write(self, voice: str, entry: _Entry) -> None:
        told = {
            "format": FILE_FORMAT,
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
        _write_toml(self.voices_dir / voice / "voice.toml", told)

    def _sweep(self, voice: str) -> None:
        """Remove files of the folder that its description no longer names."""
        if self._in_use(voice) is not None:
            return
        entry = self._read(voice)
        kept = {f.name for f in entry.files.values()} | {"voice.toml"}
        for path in (self.voices_dir / voice).iterdir():
            if path.name not in kept and not path.name.startswith(".new-"):
                _remove_quietly(path)


def _one_voice(path: Path) -> tuple[Path, Path | None]:
    """A file as it is; of a folder its only model and its only index."""
    if not path.is_dir():
        return path, None
    models = sorted(p for p in path.iterdir() if p.suffix.lower() in MODEL_SUFFIXES)
    indexes = sorted(p for p in path.iterdir() if p.suffix.lower() == INDEX_SUFFIX)
    if len(models) != 1:
        raise MynaError(
            "bad_request",
            f"The folder {_printable(path.name)} holds {len(models)} models. Name one file.",
            models=[str(p) for p in models],
        )
    return models[0], indexes[0] if len(indexes) == 1 else None


def _check_values(values: Mapping[str, Scalar], allowed: frozenset[str] | None) -> None:
    known = set(LiveSettings.__struct_fields__)
    if allowed is not None:
        known &= allowed
    problems = []
    for key, value in values.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            problems.append(f"{key}: no parameter of this voice" + (f"; did you mean {near[0]}?" if near else ""))
        elif value is not None:
            try:
                msgspec.convert({key: value}, LiveSettings)
            except msgspec.ValidationError as error:
                problems.append(f"{key}: {str(error).split(' - at ')[0]}")
    if problems:
        raise MynaError("bad_request", "; ".join(problems), problems=problems)


def _merged(old: Mapping[str, Scalar], new: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {k: v for k, v in {**old, **new}.items() if v is not None}


def _plain_name(name: object) -> str:
    if not isinstance(name, str) or name in ("", ".", "..") or Path(name).name != name or "\\" in name:
        raise ValueError(f"file name {name!r}")
    return name


def _stamp(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return "gone"
    return f"{found.st_size}:{found.st_mtime_ns}"


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise MynaError(
            "not_found", f"{_printable(path.name)} could not be read: {error.strerror}.", path=str(path)
        ) from error


def _copy_in(source: Path, folder: Path, digest: str) -> _File:
    """Copy under a name made of the content; what is there already with that content is kept."""
    target = folder / f"{digest[:32]}{source.suffix.lower()}"
    if not target.is_file():
        part = folder / f".new-{secrets.token_hex(8)}"
        try:
            _copy_synced(source, part)
            if _sha256(part) != digest:
                raise MynaError("busy", f"{_printable(source.name)} changed while it was read. Try again.")
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    found = target.stat()
    return _File(target.name, digest, found.st_size, found.st_mtime_ns, source.name)


def _copy_synced(source: Path, target: Path) -> None:
    with source.open("rb") as reading, target.open("xb") as writing:
        shutil.copyfileobj(reading, writing, 1 << 20)
        writing.flush()
        os.fsync(writing.fileno())


def _write_toml(path: Path, told: Mapping[str, Any]) -> None:
    part = path.with_name(f".new-{secrets.token_hex(8)}")
    try:
        with part.open("x", encoding="utf-8") as file:
            file.write(tomlkit.dumps(told))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def _state_errors(folder: Path) -> Any:
    """A state directory that can't be written is the world's fault, and told as such."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        cure = "Free some space" if full else "Check the permissions of the state directory"
        raise MynaError(
            "state_unwritable", f"{folder} can't be written: {error.strerror}. {cure}.", path=str(folder)
        ) from error


def _remove_quietly(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
