"""The voice library: built-in voices, the user's own, and the models that voices share."""

import difflib
import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from myna.control.contract import VoiceInfo
from myna.control.errors import MynaError
from myna.daemon.voices.description import DESCRIPTION, Description, copy_in, read, read_presets, write, write_presets
from myna.daemon.voices.disk import copy_synced, remove_quietly, sha256_of, stamp, state_errors
from myna.daemon.voices.inspection import Inspection, Inspector, inspect_in_child
from myna.daemon.voices.names import printable, voice_id
from myna.daemon.voices.values import Scalar, check_values, merged, scalars
from myna.engines.base import EngineSpec, VoiceAsset

MODEL_SUFFIXES = (".pth", ".pt", ".onnx", ".safetensors")
INDEX_SUFFIX = ".index"
# Shared models by role: the names under which they may lie in `assets/`, put there by `add` or by hand.
ASSET_NAMES: dict[str, tuple[str, ...]] = {
    "embedder": ("hubert_base", "contentvec_base", "contentvec"),
    "rmvpe": ("rmvpe",),
}


class VoiceLibrary:
    """All voices, by id. Thread-safe; `add` copies and inspects for seconds and wants a thread of its own.

    A user's voice is a folder `voices/ID` with `voice.toml` and files named by their content. One rename of
    `voice.toml` makes or replaces a voice, so that it is the old one or the new one at any instant, and a
    worker which still reads the old files is not disturbed.
    """

    def __init__(
        self,
        state_dir: Path,
        specs: Iterable[EngineSpec],
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
                remove_quietly(left)

    # --- looking ---------------------------------------------------------------------------------------

    def ids(self) -> list[str]:
        """All ids: built-in voices first, then the user's, by name."""
        own = []
        if self.voices_dir.is_dir():
            own = [p.name for p in self.voices_dir.iterdir() if (p / DESCRIPTION).is_file()]
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

    def resolve(self, voice: str) -> VoiceAsset:
        """What an engine needs to open a voice: its files and the shared models that are there.

        Raises:
            MynaError: `not_found`; `missing_asset` where its engine or a file of it is gone; `model_unusable`
                where its description is damaged.
        """
        self._require(voice)
        shared = self.assets()
        if voice in self._built_in:
            asset = self._built_in[voice]
            return VoiceAsset(
                id=asset.id,
                engine=asset.engine,
                files={**shared, **asset.files},
                defaults={**asset.defaults, **read_presets(self.voices_dir).get(voice, {})},
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
                digest.update(f"{role}\0{file.sha256}\0{stamp(path)}\n".encode())
        for role, path in sorted(self.assets().items()):
            digest.update(f"{role}\0{stamp(path)}\n".encode())
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
        raise MynaError("not_found", f"There is no voice {printable(voice)!r}.{hint}", voice=voice, near=near)

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
                defaults=scalars({**asset.defaults, **read_presets(self.voices_dir).get(voice, {})}),
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
                raise MynaError("not_found", f"There is no file {printable(str(wanted))}.", path=str(wanted))
        if id is not None and id != voice_id(id):
            raise MynaError("bad_request", f"{printable(id)!r} can't be a voice's id; {voice_id(id)!r} can.", id=id)
        if path.suffix.lower() == INDEX_SUFFIX:
            return self._add_index(path, id)
        if path.suffix.lower() not in MODEL_SUFFIXES:
            raise MynaError(
                "model_unusable",
                f"{printable(path.name)} is no model; {', '.join(MODEL_SUFFIXES)} or {INDEX_SUFFIX} is.",
                path=str(path),
            )
        found = self._inspect(path)
        if found.kind in ASSET_NAMES:
            return self._add_asset(path, found, replace)
        if found.kind != "voice":
            raise MynaError(
                "model_unusable",
                f"{printable(path.name)} is no voice, but {found.kind}.",
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
        hashes = {role: sha256_of(source) for role, source in sources.items()}
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
        with state_errors(self.voices_dir):
            folder = self.voices_dir / voice
            folder.mkdir(parents=True, exist_ok=True)
            files = {role: copy_in(source, folder, hashes[role]) for role, source in sources.items()}
            with self._lock:
                write(
                    folder,
                    Description(
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
                    f"{printable(path.name)} names no voice that is here. Give the id of its voice.",
                    voices=own,
                )
            voice = matches[-1]
        elif voice not in own:
            self._require(voice)
            raise MynaError("refused", f"{voice} is built in and takes no index.", id=voice)
        self._refuse_in_use(voice)
        with state_errors(self.voices_dir):
            file = copy_in(path, self.voices_dir / voice, sha256_of(path))
            with self._lock:
                entry = self._read(voice)
                entry.files["index"] = file
                write(self.voices_dir / voice, entry)
            self._sweep(voice)
        return self._info(voice, thorough=False)

    def _must_be_index(self, path: Path) -> None:
        name = printable(path.name)
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
        same = present is not None and sha256_of(present) == sha256_of(path)
        if present is not None and not same:
            if not replace:
                raise MynaError("refused", f"There is another {role} already. Replace it if you mean to.", asset=role)
            self._refuse_in_use(role)
        if not same:
            with state_errors(self.assets_dir), self._lock:
                self.assets_dir.mkdir(parents=True, exist_ok=True)
                part = self.assets_dir / f".new-{secrets.token_hex(8)}"
                copy_synced(path, part)
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
        with state_errors(self.voices_dir), self._lock:
            self._refuse_in_use(voice)
            gone = self.voices_dir / f".removed-{secrets.token_hex(8)}"
            (self.voices_dir / voice).rename(gone)
        remove_quietly(gone)

    def preset(self, voice: str, values: Mapping[str, Scalar]) -> VoiceInfo:
        """Keep default parameters of a voice; None lets one go. All are checked before any is kept.

        Raises:
            MynaError: `not_found`; `bad_request` naming every problem.
        """
        self._require(voice)
        engine = self._built_in[voice].engine if voice in self._built_in else self._read(voice).engine
        spec = self._specs.get(engine)
        check_values(values, spec.capabilities.parameters if spec is not None else None)
        with state_errors(self.voices_dir), self._lock:
            if voice in self._built_in:
                presets = read_presets(self.voices_dir)
                presets[voice] = merged(presets.get(voice, {}), values)
                write_presets(self.voices_dir, presets)
            else:
                entry = self._read(voice)
                entry.defaults = merged(entry.defaults, values)
                write(self.voices_dir / voice, entry)
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
            digest = sha256_of(path)
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
            with state_errors(self.voices_dir), self._lock:
                write(self.voices_dir / voice, entry)

    # --- disk ------------------------------------------------------------------------------------------

    def _read_or_none(self, voice: str) -> Description | None:
        try:
            return self._read(voice)
        except MynaError:
            return None

    def _read(self, voice: str) -> Description:
        return read(self.voices_dir / voice)

    def _sweep(self, voice: str) -> None:
        """Remove files of the folder that its description no longer names."""
        if self._in_use(voice) is not None:
            return
        entry = self._read(voice)
        kept = {f.name for f in entry.files.values()} | {DESCRIPTION}
        for path in (self.voices_dir / voice).iterdir():
            if path.name not in kept and not path.name.startswith(".new-"):
                remove_quietly(path)


def _one_voice(path: Path) -> tuple[Path, Path | None]:
    """A file as it is; of a folder its only model and its only index."""
    if not path.is_dir():
        return path, None
    models = sorted(p for p in path.iterdir() if p.suffix.lower() in MODEL_SUFFIXES)
    indexes = sorted(p for p in path.iterdir() if p.suffix.lower() == INDEX_SUFFIX)
    if len(models) != 1:
        raise MynaError(
            "bad_request",
            f"The folder {printable(path.name)} holds {len(models)} models. Name one file.",
            models=[str(p) for p in models],
        )
    return models[0], indexes[0] if len(indexes) == 1 else None
