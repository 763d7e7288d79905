"""Somebody at a desktop who speaks into the microphone."""

import subprocess
from pathlib import Path

import numpy as np
from desktop import Desktop
from numpy.typing import NDArray

RATE_HZ = 48_000
VOICED_HZ = 150.0


def voice(seconds: float) -> NDArray[np.float32]:
    """A voice-like sound: a pulse train with a few formants, which is anything but still."""
    t = np.arange(int(seconds * RATE_HZ)) / RATE_HZ
    sound = sum(np.sin(2 * np.pi * VOICED_HZ * k * t) / (1 + abs(k - 4)) for k in range(1, 20))
    return (0.1 * sound / np.abs(sound).max() * (1 + 0.3 * np.sin(2 * np.pi * 3 * t))).astype(np.float32)


def pitch_of(sound: NDArray[np.float32], rate_hz: int = RATE_HZ) -> float | None:
    """Fundamental in Hz by autocorrelation, None for silence."""
    if np.sqrt(np.mean(sound**2)) < 1e-4:
        return None
    spectrum = np.abs(np.fft.rfft(sound, 2 * sound.size)) ** 2
    correlation = np.fft.irfft(spectrum)[: sound.size]
    low, high = rate_hz // 500, rate_hz // 70
    return float(rate_hz / (low + np.argmax(correlation[low:high])))


def speak(desktop: Desktop, folder: Path, seconds: float) -> "subprocess.Popen[bytes]":
    """Play a voice into the desktop's microphone."""
    path = folder / "voice.raw"
    path.write_bytes(voice(seconds).tobytes())
    command = ["pacat", "-d", "speakers", "--raw", "--format=float32le", "--rate=48000", "--channels=1", str(path)]
    return subprocess.Popen(command, env=desktop.client, stderr=subprocess.DEVNULL)
