"""All that a loaded voice computes with: its files, the backend they run on, and stages by shape."""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..base import (
    BackendUnavailable,
    MissingAsset,
    ModelUnusable,
    ParameterRefused,
    Placement,
    SharedModel,
    VoiceAsset,
    VoiceFacts,
    VoiceParameters,
)
from ..f0.extractors import Autocorrelation, Crepe, Fcpe, PitchExtractor, Rmvpe, Swift, World, refuse
from ..f0.salience import MULTIPLE
from ..index import Retrieval
from . import embedder as embedder_file
from .backends.backend import Closed, Stage, examples
from .backends.choice import Choice, choose
from .backends.cpu import give_memory_back
from .checkpoint import VoiceFile, content_hash
from .elsewhere import export_elsewhere
from .geometry import FORMANT_LIMIT
from .merge import read_merge
from .needs import required
from .networks import Network, Shape
from .onnxfile import OnnxVoice
from .onnxparts import EXPORT_NOTE, OnnxParts
from .opening import open_any
from .source import Merge

if TYPE_CHECKING:
    from torch import nn

Array = NDArray[np.float32]

# Names exports on disk; raised when a network's code changes what it computes.
REVISION = "3"
_KEPT_STAGES = 2  # of a network: the block length in use and the one that is to follow


class Models:
    """A voice's networks, ready to be asked for stages of any shape. One owner; not thread-safe."""

    def __init__(
        self, asset: VoiceAsset, placement: Placement, *, backend: str | None = None, here: bool = False
    ) -> None:
        """Open the voice and the models that it shares.

        Args:
            asset: `model`, optionally `index`; `embedder` and, for RMVPE, `rmvpe`.
            placement: Where to compute.
            backend: Overrides the placement's.
            here: Export in this process; otherwise a child does, wherever there is a cache to hand it over in.

        Raises:
            ModelUnusable: a file is missing, damaged or of another kind.
            MissingAsset: the content encoder is not on this machine.
            BackendUnavailable, OutOfMemory: it cannot run there.
        """
        self.asset = asset
        self.placement = placement
        if "model" not in asset.files:
            raise ModelUnusable(f"the voice {asset.id} has no model file", voice=asset.id)
        voice = open_any(asset.files["model"])
        self.voice: VoiceFile | OnnxVoice = voice
        embedder = required(asset, "embedder")
        self.rmvpe_path = asset.files.get("rmvpe")
        if self.rmvpe_path is not None and not self.rmvpe_path.exists():
            self.rmvpe_path = None
        embedder_file.check(embedder, voice.version, voice.features)
        self.hop, self.rate_hz = voice.rate_hz // 100, voice.rate_hz
        self.features, self.speakers = voice.features, voice.speakers
        self.merge: Merge | None
        if isinstance(voice, OnnxVoice):
            self.merge, self.channels = voice.merge, voice.channels
        else:
            self.merge, self.channels = read_merge(voice), voice.config.inter
        key = _key(voice.path)
        self.content = Network(
            "content",
            _key(embedder) + self.voice.version,
            lambda: _content(embedder, voice.version),
            (np.zeros((1, 16 * 320 + 80), np.float32),),
        )
        sid = np.zeros(1, np.int64)
        phone = np.zeros((1, 40, self.features), np.float32)
        noise = np.zeros((1, self.channels, 30), np.float32)
        z = np.zeros((1, self.channels, 8), np.float32)
        pitch = (np.ones((1, 40), np.int64),) if self.merge else ()
        source = (np.zeros((1, 1, 8 * self.hop), np.float32),) if self.merge else ()
        self.latent = Network("latent", key, lambda: _latent(voice), (phone, noise, sid, *pitch))
        self.audio = Network("audio", key, lambda: _audio(voice), (z, sid, *source))
        self._exported: OnnxParts | None = None
        if isinstance(voice, OnnxVoice) and not here:  # the child that exports has nothing to do with it
            loaded = self._exported = OnnxParts(voice, placement.threads, placement.device)
            self.latent.run, self.audio.run = loaded.latent, loaded.audio
        self.pitch: Network | None = None
        if self.rmvpe_path is not None and self.merge is not None:
            path = self.rmvpe_path
            self.pitch = Network("pitch", _key(path), lambda: _pitch(path), (np.zeros((1, 128, MULTIPLE), np.float32),))
        for network in (self.content, self.latent, self.audio, self.pitch):
            if network is not None:
                network.together = placement.device == "cpu"
        self._stages: OrderedDict[tuple[str, tuple[Shape, ...]], Stage] = OrderedDict()
        self.notes: list[str] = list(voice.notes)
        self.index: Retrieval | None = self._index()
        self.choice: Choice = self._choose(backend, here)
        self._bytes = voice.bytes if isinstance(voice, OnnxVoice) else sum(t.nbytes for t in voice.weights.values())

    def _index(self) -> Retrieval | None:
        """The voice's index; a bad one is named once and the voice runs without."""
        path = self.asset.files.get("index")
        if path is None:
            return None
        try:
            return Retrieval(path, self.features, max(1, self.placement.threads))
        except (ModelUnusable, MissingAsset) as error:
            self.notes.append(f"without retrieval: {error}")
            return None

    def _choose(self, backend: str | None, here: bool) -> Choice:
        placement = self.placement
        if backend is not None:
            placement = Placement(
                device=placement.device,
                precision=placement.precision,
                threads=placement.threads,
                backend=backend,
                cache_dir=placement.cache_dir,
            )
        # Sizes of a short block: the check is about numbers, not about size.
        total, tail, rendered = 60, 40, 16
        networks: list[tuple[Network, list[Shape]]] = [(self.content, [(1, total * 160)])]
        if isinstance(self.voice, VoiceFile):
            networks.append((self.latent, self.latent_shapes(total, tail)))
            networks.append((self.audio, self.audio_shapes(rendered)))
        if self.pitch is not None:
            networks.append((self.pitch, [(1, 128, 2 * MULTIPLE)]))
        prepare = None
        if not here and placement.cache_dir is not None:
            prepare = partial(export_elsewhere, self.asset, placement)
        choice = choose(placement, networks, prepare)
        if choice.backend.name != "eager":
            for network, _ in networks:
                network.release()
            give_memory_back()
        return choice

    def latent_shapes(self, total: int, tail: int) -> list[Shape]:
        """Input shapes of the latent network for a context of `total` frames, of which `tail` are wanted."""
        shapes: list[Shape] = [(1, total, self.features), (1, self.channels, tail), (1,)]
        return [*shapes, (1, total)] if self.merge else shapes

    def audio_shapes(self, rendered: int) -> list[Shape]:
        """Input shapes of the audio network for `rendered` decoder frames."""
        shapes: list[Shape] = [(1, self.channels, rendered), (1,)]
        return [*shapes, (1, 1, rendered * self.hop)] if self.merge else shapes

    def stage(self, network: Network, shapes: list[Shape]) -> Stage:
        """`network` at these shapes, made and run once at first use, and kept while it is among the last used.

        May be called beside a running block for shapes that the block does not use: nothing that is in use is run.

        Raises:
            BackendUnavailable, OutOfMemory: it cannot be made.
        """
        key = (network.role, tuple(shapes))
        known = self._stages.get(key)
        if known is None:
            known = network.run or self.choice.backend.stage(network, shapes)
            if self.choice.backend.name != "eager" or network.run is not None:
                network.release()
                known(*examples(network, shapes))
            self._stages[key] = known
            same = [k for k in list(self._stages) if k[0] == network.role]
            for old in same[:-_KEPT_STAGES]:
                self._stages.pop(old, None)
        else:
            self._stages.move_to_end(key)
        return known

    def forget_others(self, used: Sequence[tuple[Network, list[Shape]]]) -> None:
        """Let go of the stages that are not among `used`; each holds weights of its own. Not in the audio path."""
        keep = {(network.role, tuple(shapes)) for network, shapes in used}
        gone = [key for key in list(self._stages) if key not in keep]
        for key in gone:
            del self._stages[key]
        if gone and self.choice.backend.name != "eager":
            give_memory_back()

    def extractor(self, method: str, *, light: bool) -> PitchExtractor:
        """The pitch extractor of a method; `auto` is RMVPE where its weights are there, unless `light` is wanted.

        `light` also takes the small network of CREPE.

        Raises:
            MissingAsset: RMVPE's weights, or the package of another method, are not on this machine.
            ParameterRefused: an unknown method.
        """
        if method == "auto":
            method = "rmvpe" if self.pitch is not None and not light else "swift"
        if method == "swift":
            return Swift(1)
        if method == "rmvpe":
            required(self.asset, "rmvpe")
            network = self.pitch
            if network is None:
                raise refuse(method, False)
            return Rmvpe(lambda frames: self.stage(network, [(1, 128, frames)]))
        if method in ("dio", "harvest"):
            return World(method)
        if method == "fcpe":
            return Fcpe(threads=self.placement.threads)
        if method == "crepe":
            return Crepe(tiny=light, threads=self.placement.threads)
        if method == "pm":
            return Autocorrelation()
        raise refuse(method, self.pitch is not None)

    def check(self, parameters: VoiceParameters) -> None:
        """Refuse what this voice cannot do.

        Raises:
            ParameterRefused: a speaker it does not have, or a formant shift out of range.
        """
        if not 0 <= parameters.speaker_id < self.speakers:
            raise ParameterRefused(
                f"the voice {self.asset.id} has speakers 0 to {self.speakers - 1}, not {parameters.speaker_id}",
                parameter="speaker_id",
                value=parameters.speaker_id,
                allowed=f"0..{self.speakers - 1}",
            )
        if abs(parameters.formant) > FORMANT_LIMIT:
            raise ParameterRefused(
                f"RVC voices move formants by up to ±{FORMANT_LIMIT:g} semitones, not {parameters.formant:g}",
                parameter="formant",
                value=parameters.formant,
                allowed=f"-{FORMANT_LIMIT:g}..{FORMANT_LIMIT:g}",
            )
        if not -24 <= parameters.pitch <= 24:
            raise ParameterRefused(
                f"pitch moves by up to ±24 semitones, not {parameters.pitch:g}",
                parameter="pitch",
                value=parameters.pitch,
                allowed="-24..24",
            )

    def facts(self, extractor: PitchExtractor | None) -> VoiceFacts:
        """What runs."""
        backend = self.choice.backend
        name, providers, fallbacks = backend.name, backend.providers, self.choice.fallbacks
        if isinstance(self.voice, OnnxVoice):
            if name != "onnxruntime":
                name = f"{name} + onnxruntime"
            if self._exported is not None:
                providers = (*providers, *(p for p in self._exported.providers if p not in providers))
                fallbacks += self._exported.fallbacks
        return VoiceFacts(
            engine="rvc",
            device=self.choice.device,
            precision=backend.precision,
            backend=name,
            providers=providers,
            fallbacks=fallbacks,
            model_bytes=self._bytes,
            shared=self._shared(),
            notes=(
                *self.notes,
                *self.choice.notes,
                *((EXPORT_NOTE,) if isinstance(self.voice, OnnxVoice) else ()),
                f"pitch by {extractor.name}" if extractor is not None else "a voice without f0: pitch is not moved",
            ),
        )

    def _shared(self) -> tuple[SharedModel, ...]:
        """The encoder and the pitch network, as far as they are in memory; their bytes where torch holds them."""
        files = [(self.content, self.asset.files["embedder"]), (self.pitch, self.rmvpe_path)]
        return tuple(
            SharedModel(id=path.name, model_bytes=network.bytes)
            for network, path in files
            if network is not None and path is not None and network.together and network.loaded
        )

    def close(self) -> None:
        """Let go of all weights and stages."""
        self._stages.clear()
        self.index = None
        for network in (self.content, self.latent, self.audio, self.pitch):
            if network is not None:
                network.release()
                network.run = None
        self.choice = Choice(Closed(), self.placement.device, (), ())


# Each imports torch, which a voice whose networks were exported before never needs.


def _content(path: Path, version: str) -> "nn.Module":
    from .hubert import load

    return load(path, version)


def _pitch(path: Path) -> "nn.Module":
    from ..f0.rmvpe import load

    return load(path)


def _latent(voice: VoiceFile | OnnxVoice) -> "nn.Module":
    from .halves import LatentOf
    from .synthesizer import build

    return LatentOf(build(_own(voice)).front)


def _audio(voice: VoiceFile | OnnxVoice) -> "nn.Module":
    from .halves import AudioOf
    from .synthesizer import build

    return AudioOf(build(_own(voice)).back)


def _own(voice: VoiceFile | OnnxVoice) -> VoiceFile:
    """The file that our own networks are filled from; an export brings its networks along."""
    if isinstance(voice, OnnxVoice):
        raise BackendUnavailable(f"{voice.path.name} is an ONNX export, which runs in onnxruntime only")
    return voice


def _key(path: Path) -> str:
    """Names the exports of a file: its content and the revision of our networks."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    joined = REVISION + "".join(content_hash(file) for file in files)
    return hashlib.sha256(joined.encode()).hexdigest()[:24]
