"""The demo: starts the daemon, runs speech through the live loop in real time, measures its delay, plots both.

    python tools/demo.py [--out DIR] [--voice V] [--pitch N]

Needs no sound card: microphone and output are files, paced by the clock. What it starts, it ends.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import soundfile
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
mpl.use("Agg")
from matplotlib import pyplot as plt  # the backend is chosen first

from myna.dsp.correlation import cross_correlation
from tools.private_daemon import LIVE, PrivateDaemon, Unexpected

SPEECH = Path(__file__).resolve().parent.parent / "tests" / "data" / "speech"
Sound = NDArray[np.float32]
console = Console()


class DemoFailed(Exception):
    """A step did not do what it should; the message says which and what was seen."""


def speak_through(
    daemon: PrivateDaemon, voice: str, pitch: float, source: Path, target: Path, what: str
) -> dict[str, Any]:
    """Run one file through the live loop at the clock's pace; the last status while it ran."""
    settings = ["--pitch", str(pitch), "--set", "block_ms=20"]
    daemon.myna("up", "--voice", voice, "--input", f"file:{source}", "--output", f"file:{target}", *settings)
    seconds = soundfile.info(source).duration
    status: dict[str, Any] = {}
    deadline = time.monotonic() + seconds + 20.0
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task(what, total=seconds)
        while time.monotonic() < deadline:
            session = daemon.session()
            if session["state"] not in LIVE:
                break
            status = session
            progress.update(bar, completed=min(seconds, session["seconds"] or 0.0))
            time.sleep(0.1)
        else:
            raise DemoFailed(f"the session did not end with its file: {status}")
    if not target.exists():
        raise DemoFailed(f"{target} was not written")
    return status


def measured_delay_ms(source: Path, target: Path) -> float:
    """Delay from one file to another that holds the same sound, by cross-correlation of their waveforms."""
    (before, rate), (after, _) = (soundfile.read(p, dtype="float32") for p in (source, target))
    scores = cross_correlation(after, before)
    return float(1000.0 * np.argmax(np.abs(scores)) / rate)


def plot(source: Path, target: Path, delay_ms: float, status: dict[str, Any], where: Path) -> None:
    """Both waveforms and spectrograms, and what the delay is made of."""
    figure, axes = plt.subplots(3, 1, figsize=(10, 9), constrained_layout=True)
    for axis, path, name in ((axes[0], source, "microphone"), (axes[1], target, "converted")):
        sound, rate = soundfile.read(path, dtype="float32")
        floor = 1e-6 * np.random.default_rng(0).standard_normal(len(sound))  # exact silence has no decibels
        axis.specgram(sound + floor, NFFT=512, Fs=rate, noverlap=384, cmap="magma", vmin=-140, vmax=-30)
        axis.set(title=name, ylabel="Hz", xlabel="s", ylim=(0, min(5000, rate / 2)))
    latency = status["latency"]
    usual = latency["peers_estimated_ms"]
    parts = {"block and stages": latency["algorithmic_ms"], "prefill": latency["prefill_ms"]}
    left = 0.0
    for name, value in parts.items():
        axes[2].barh(["Myna, from its parts"], [value], left=left, label=name)
        left += value
    axes[2].barh(["Myna, measured"], [delay_ms], color="black")
    if usual is not None:
        axes[2].barh(["usual scheme, same block (before its voice's own delay)"], [usual], color="gray")
    axes[2].set(title=f"delay: {delay_ms:.1f} ms measured", xlabel="ms")
    axes[2].legend(loc="lower right")
    figure.savefig(where, dpi=110)
    plt.close(figure)


def run(daemon: PrivateDaemon, out: Path, voice: str, pitch: float) -> None:
    """All of it. DemoFailed at the first thing that is not as it should be."""
    out.mkdir(parents=True, exist_ok=True)
    source = SPEECH / "austen_0920.flac"
    converted, neutral = out / "converted.wav", out / "neutral.wav"
    picture = out / "demo.png"
    for old in (converted, neutral, picture):
        old.unlink(missing_ok=True)
    status = speak_through(daemon, voice, pitch, source, converted, f"live, voice {voice}, pitch {pitch:+g}")
    if status.get("faults") or status.get("nonfinite_blocks"):
        raise DemoFailed(f"the loop had faults: {status}")
    # The voice `neutral` passes through the same stages at the same delay, and keeps the waveform to measure it by.
    short = SPEECH / "austen_0880.flac"
    daemon.myna("live", "stop")
    still = speak_through(daemon, "neutral", 0.0, short, neutral, "measuring the delay")
    delay_ms = measured_delay_ms(short, neutral)
    sound, _ = soundfile.read(converted, dtype="float32")
    level_db = 20 * np.log10(max(float(np.sqrt(np.mean(np.square(sound)))), 1e-9))
    if level_db < -60:
        raise DemoFailed(f"the converted voice is silent ({level_db:.0f} dBFS)")
    plot(source, converted, delay_ms, still, picture)
    estimated = still["latency"]["estimated_ms"]
    console.print(f"voice          {voice}, pitch {pitch:+g} semitones, block {status['block_ms']:g} ms")
    console.print(f"compute        {status['load']:.0%} of the block (p95), on {status['device']}")
    console.print(f"delay          {delay_ms:.1f} ms measured, {estimated:.1f} ms from its parts")
    console.print(f"gaps           {status['xruns']}")
    console.print(f"converted      {converted}")
    console.print(f"plot           {picture}")


def main() -> int:
    """Exit code: 0 if every step did what it should."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results (default: out)")
    parser.add_argument("--voice", default="formant")
    parser.add_argument("--pitch", type=float, default=4.0)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="myna-demo-") as folder,
        PrivateDaemon(Path(folder), os.environ) as daemon,
    ):
        try:
            run(daemon, options.out.resolve(), options.voice, options.pitch)
        except (DemoFailed, Unexpected) as error:
            console.print(f"[red]The demo failed:[/red] {error}", highlight=False)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
