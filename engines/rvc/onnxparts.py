"""Run an exported voice: its two parts in onnxruntime, called like the networks of a `.pth` voice."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base import BackendUnavailable, ModelUnusable, OutOfMemory
from .backends.onnxruntime import provider_for
from .onnxfile import PORT, PRIOR_SCALE, OnnxVoice, parts

Array = NDArray[np.float32]
AnyArray = NDArray[np.generic]

EXPORT_NOTE = "an ONNX export: the voice itself runs in fp32 on onnxruntime, its sine and noise are made outside"
_TRIED_FRAMES = (64, 90)  # an export that kept the length it was traced at fails at one of two


class OnnxParts:
    """The loaded halves of a voice. Each takes any number of frames; calls are independent of one another."""

    def __init__(self, voice: OnnxVoice, threads: int, device: str = "cpu") -> None:
        """Load and try both, on the device if the installed onnxruntime has a provider for it, else on the CPU.

        Raises:
            ModelUnusable: onnxruntime refuses it, or it does not give what its description promises.
            MissingAsset, BackendUnavailable, OutOfMemory: it cannot be run here.
        """
        try:
            import onnxruntime
        except ImportError as error:
            raise BackendUnavailable("the package onnxruntime is not installed") from error
        self._runtime, self._voice = onnxruntime, voice
        self.fallbacks: tuple[str, ...] = ()  # why not on the device, in words
        self._asked: list[Any] = ["CPUExecutionProvider"]
        if device != "cpu":
            try:
                self._asked = [provider_for(onnxruntime, device), *self._asked]
            except BackendUnavailable as error:
                self.fallbacks = (f"not {device} for the voice itself: {error}",)
        self._scale = np.float32(1.0 if voice.scaled else PRIOR_SCALE)
        front, back = parts(voice)
        self._front = self._session(front, threads)
        self._back = self._session(back, threads)
        self.providers: tuple[str, ...] = tuple(self._back.get_providers())
        if len(self._asked) > 1 and self._asked[0][0] not in self.providers:
            self.fallbacks = (f"not {device} for the voice itself: onnxruntime left it for the CPU by itself",)
        for frames in _TRIED_FRAMES:
            self._try(frames)

    def latent(self, phone: Array, noise: Array, speaker: AnyArray, pitch: AnyArray | None = None) -> Array:
        """The latent of as many frames at the end as there is noise for.

        Args:
            phone: (1, frames, features).
            noise: Standard normal, (1, channels, n), n <= frames.
            speaker: (1,).
            pitch: Bins, (1, frames), of a voice with f0.

        Returns:
            (1, channels, n). An export draws the latent of the whole context; before the noise it is the mean.
        """
        frames, wanted = phone.shape[1], noise.shape[2]
        whole = np.zeros((1, noise.shape[1], frames), np.float32)
        whole[:, :, frames - wanted :] = noise * self._scale
        given: dict[str, AnyArray] = {
            "phone": phone,
            "lengths": np.array([frames], np.int64),
            "noise": whole,
            "speaker": speaker,
        }
        if pitch is not None:
            given["pitch"] = pitch
        return np.ascontiguousarray(self._run(self._front, given)[:, :, -wanted:])

    def audio(self, latent: Array, speaker: AnyArray, source: Array | None = None) -> Array:
        """(1, channels, n), (1,) and with f0 (1, 1, n × hop) → (1, 1, n × hop)."""
        given: dict[str, AnyArray] = {"latent": latent, "speaker": speaker}
        if source is not None:
            given["source"] = source
        return self._run(self._back, given).reshape(1, 1, -1)

    def _session(self, model: bytes, threads: int) -> Any:
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads = max(1, threads)
        options.inter_op_num_threads = 1
        options.enable_mem_pattern = len(self._asked) == 1  # DirectML refuses it
        options.log_severity_level = 3  # it warns of initializers that are not used
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            return self._runtime.InferenceSession(model, options, providers=self._asked)
        except MemoryError as error:
            raise OutOfMemory(f"no room in memory for {self._voice.path.name}") from error
        except Exception as error:  # onnxruntime's errors share no base class of their own
            raise self._unusable(error) from error

    def _run(self, session: Any, given: dict[str, AnyArray]) -> Array:
        return np.asarray(session.run(None, {PORT + role: value for role, value in given.items()})[0], np.float32)

    def _try(self, frames: int) -> None:
        voice, hop = self._voice, self._voice.rate_hz // 100
        speaker = np.zeros(1, np.int64)
        bins = np.full((1, frames), 60, np.int64) if voice.has_f0 else None
        source = np.zeros((1, 1, frames * hop), np.float32) if voice.has_f0 else None
        try:
            phone = np.zeros((1, frames, voice.features), np.float32)
            latent = self.latent(phone, np.zeros((1, voice.channels, frames), np.float32), speaker, bins)
            audio = self.audio(latent, speaker, source)
        except MemoryError as error:
            raise OutOfMemory(f"no room in memory for {voice.path.name}") from error
        except Exception as error:  # as above
            raise self._unusable(error) from error
        wanted = (1, voice.channels, frames), (1, 1, frames * hop)
        if (latent.shape, audio.shape) != wanted:
            raise ModelUnusable(
                f"{voice.path.name} makes {audio.shape} of {frames} frames, not {wanted[1]}", path=str(voice.path)
            )
        if not np.isfinite(audio).all():
            raise ModelUnusable(f"{voice.path.name} gives what is no sound", path=str(voice.path))

    def _unusable(self, error: Exception) -> ModelUnusable:
        lines = [line for line in str(error).splitlines() if line.strip()]
        told = lines[0].strip()[:300] if lines else type(error).__name__
        return ModelUnusable(f"onnxruntime cannot run {self._voice.path.name}: {told}", path=str(self._voice.path))
