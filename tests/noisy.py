"""Speech in steady noise, and how much of the noise is left in its pauses."""

import numpy as np
import soundfile
from laws import noise

from myna.dsp.resample import StreamingResampler
from myna.dsp.stage import Block, Stage


def speech(path: str, rate_hz: int) -> Block:
    """A recording at another rate, shape (frames,), without the resampler's delay."""
    audio, rate_in_hz = soundfile.read(path, dtype="float32")
    if rate_in_hz == rate_hz:
        return np.asarray(audio, np.float32)
    resampler = StreamingResampler(rate_in_hz, rate_hz)
    tail = np.zeros(rate_in_hz // 5, np.float32)
    out = np.concatenate([resampler.process(audio), resampler.process(tail)])
    return out[resampler.latency_frames :]


def in_noise(clean: Block, rate_hz: int, pause_s: float = 1.0) -> Block:
    """Noise at −46 dBFS throughout; silence, the speech, and silence again under it."""
    pause = np.zeros(round(pause_s * rate_hz), np.float32)
    sound = np.concatenate([pause, clean, pause])
    return sound + noise(len(sound), 11, 0.005)


def lowered_db(stage: Stage, noisy: Block, rate_hz: int, pause_s: float = 1.0) -> tuple[float, float]:
    """By how much a stage lowers the pauses' second halves, and the speech between, in dB."""
    lag = stage.latency_frames
    out = stage.process(np.concatenate([noisy, np.zeros(lag, np.float32)]))[lag:]
    pause, half = round(pause_s * rate_hz), round(0.5 * pause_s * rate_hz)
    ends = [slice(half, pause - half // 4), slice(len(noisy) - half, len(noisy) - half // 4)]
    quiet = [np.mean(np.concatenate([x[e] for e in ends]).astype(np.float64) ** 2) for x in (noisy, out)]
    loud = [np.mean(x[pause : len(noisy) - pause].astype(np.float64) ** 2) for x in (noisy, out)]
    return tuple(float(10 * np.log10(a / max(b, 1e-20))) for a, b in (quiet, loud))  # type: ignore[return-value]
