"""Measures how the built-in voice sounds: opinion score, pitch error, likeness to the input, cost, delay.

Run: python tools/quality.py [--voice V] [--pitch N] [--formant N] [--offsets MS,MS…] [--json]
One opinion of DNSMOS on a short recording moves by up to 0.9 between inaudible variants. So every recording is judged
several times, its start left out by each of the offsets, and the mean over all recordings is given.
DNSMOS marks pulses near 60 Hz down: austen_0880 (median f0 80 Hz) just played slower by 5 semitones loses 1.4, by
WORLD's offline synthesis 1.3, by ours, whose pulses are dispersed, 0.4. So look at the losses by recording below -3.
The f0 tracker errs at voicing's edges: WORLD's offline synthesis has 9.6 % gross errors at +5 and 13.7 % at -5; ours
moves by half a point with such small things as the rate.
Needs onnxruntime and speechmos (its DNSMOS model) and pyworld-prebuilt (an f0 tracker that is not ours).
"""

import argparse
import importlib.util
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from myna.engines.base import Placement, VoiceAsset, VoiceParameters
from myna.engines.formant import SPEC

Audio = NDArray[np.float64]

SPEECH = Path(__file__).parent.parent / "tests" / "data" / "speech"
JUDGED_HZ = 16000  # the rate of DNSMOS, and of the recordings
MODEL_FRAMES = 144160  # 9.01 s, what one look of DNSMOS takes
FRAME_S = 0.050
LAG_S = 0.005
SILENT_DB = -60.0
GROSS_CENTS = 50.0
OFFSETS_MS = (0.0, 50.0, 100.0, 150.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What was measured; None: it could not be."""

    voice: str
    pitch: float  # semitones asked for, on top of the voice's own
    formant: float
    rate_hz: int
    dnsmos_in: float | None
    dnsmos_out: float | None
    dnsmos_loss: float | None
    dnsmos_loss_by_recording: dict[str, float] | None
    dnsmos_offsets_ms: tuple[float, ...]  # what of each start was left out; scores are means over these
    f0_median_cents: float | None
    f0_gross_percent: float | None
    correlation: float  # largest of any 50 ms frame with the input within ±5 ms of the delay
    correlation_p95: float
    block_ms: float
    cpu_ms_mean: float
    cpu_ms_p99: float
    cpu_percent: float
    delay_declared_ms: float
    delay_measured_ms: float | None


def largest_correlations(heard: Audio, spoken: Audio, rate_hz: int) -> Audio:
    """Normalised correlation of each 50 ms frame of the output with the input, the largest of all lags ±5 ms.

    Args:
        heard: Input, shape (frames,).
        spoken: Output with its delay taken out, shape (frames,).
        rate_hz: Their rate.

    Returns:
        One figure per frame (every 12.5 ms) in which both are above -60 dBFS.
    """
    size, lag = round(FRAME_S * rate_hz), round(LAG_S * rate_hz)
    silent = 10 ** (SILENT_DB / 20)
    found = []
    for at in range(lag, min(len(heard), len(spoken)) - size - lag, size // 4):
        frame = spoken[at : at + size]
        if np.sqrt(np.mean(frame**2)) < silent or np.sqrt(np.mean(heard[at : at + size] ** 2)) < silent:
            continue
        views = np.lib.stride_tricks.sliding_window_view(heard[at - lag : at + size + lag], size)
        energy = np.einsum("ij,ij->i", views, views) * (frame @ frame)
        found.append(float(np.max(np.abs(views @ frame) / np.sqrt(np.maximum(energy, 1e-30)))))
    return np.array(found)


class Opinion:
    """DNSMOS overall score, by the model in the speechmos package."""

    def __init__(self) -> None:
        """Load the model.

        Raises:
            ImportError: a package is missing; the message names the cure.
        """
        spec = importlib.util.find_spec("speechmos")
        if spec is None or spec.submodule_search_locations is None:
            raise ImportError("DNSMOS needs the package speechmos: pip install --no-deps speechmos")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        folder = Path(next(iter(spec.submodule_search_locations)))
        self._model = onnxruntime.InferenceSession(
            str(folder / "dnsmos_models" / "sig_bak_ovr.onnx"), options, providers=["CPUExecutionProvider"]
        )

    def __call__(self, audio: Audio) -> float:
        """Score speech at 16 kHz, shape (frames,)."""
        while len(audio) < MODEL_FRAMES:
            audio = np.concatenate((audio, audio))
        scores = []
        for at in range(0, len(audio) - MODEL_FRAMES + 1, JUDGED_HZ):
            look = np.clip(audio[at : at + MODEL_FRAMES], -1, 1).astype(np.float32)[None]
            raw = float(self._model.run(None, {"input_1": look})[0][0][2])
            scores.append(np.polyval([-0.06766283, 1.11546468, 0.04602535], raw))  # the model's calibration
        return float(np.mean(scores))

    def averaged(self, audio: Audio, offsets_ms: tuple[float, ...]) -> float:
        """Mean score of speech at 16 kHz, shape (frames,), over several places to begin."""
        return float(np.mean([self(audio[round(ms * JUDGED_HZ / 1000) :]) for ms in offsets_ms]))


def f0_errors(heard: Audio, spoken: Audio, semitones: float) -> Audio:
    """How far the output's f0 is from the input's moved by `semitones`, in cents, where both are voiced.

    Raises:
        ImportError: pyworld is missing; the message names the cure.
    """
    try:
        import pyworld
    except ImportError as error:
        raise ImportError("f0 errors need WORLD: pip install pyworld-prebuilt") from error
    ratio = 2 ** (semitones / 12)
    tracks = []
    for audio, scale in ((heard, 1.0), (spoken, ratio)):
        f0, at = pyworld.dio(
            audio, JUDGED_HZ, f0_floor=60 * min(scale, 1), f0_ceil=500 * max(scale, 1), frame_period=5.0
        )
        tracks.append(pyworld.stonemask(audio, f0, at, JUDGED_HZ))
    frames = min(len(t) for t in tracks)
    before, after = (t[:frames] for t in tracks)
    both = (before > 0) & (after > 0)
    return np.asarray(1200 * np.log2(after[both] / (before[both] * ratio)), np.float64)


def envelope_delay(heard: Audio, spoken: Audio, rate_hz: int, longest_s: float = 0.1) -> float:
    """Delay of the output by its energy's course, in seconds: waveforms need not resemble each other."""
    step = rate_hz // 1000
    courses = []
    for audio in (heard, spoken):
        power = np.add.reduceat(audio**2, np.arange(0, len(audio) - step, step))
        course = np.log(np.convolve(power, np.hanning(11), "same") + 1e-6)
        courses.append(course - course.mean())
    lags = range(int(longest_s * 1000))
    frames = min(len(c) for c in courses) - len(lags)
    match = [float(courses[0][:frames] @ courses[1][lag : lag + frames]) for lag in lags]
    best = int(np.argmax(match))
    if not 0 < best < len(match) - 1:
        return best / 1000
    left, top, right = match[best - 1 : best + 2]
    return (best + 0.5 * (left - right) / (left - 2 * top + right)) / 1000


def find_voice(name: str) -> VoiceAsset:
    """A built-in voice by name.

    Raises:
        KeyError: there is none; the message lists them.
    """
    for asset in SPEC.built_in:
        if asset.id == name:
            return asset
    raise KeyError(f"no built-in voice {name!r}; there are {', '.join(a.id for a in SPEC.built_in)}")


def measure(
    asset: VoiceAsset,
    pitch: float = 0.0,
    formant: float = 0.0,
    rate_hz: int = 48000,
    block_ms: float = 20.0,
    opinion: bool = True,
    offsets_ms: tuple[float, ...] = OFFSETS_MS,
) -> Quality:
    """Run all recordings through a live voice and measure what comes out.

    Args:
        asset: A built-in voice.
        pitch: Semitones, added to the voice's own.
        formant: Semitones, added to the voice's own.
        rate_hz: Rate of the live session.
        block_ms: Length of its blocks.
        opinion: Ask DNSMOS, which takes longest.
        offsets_ms: How much of each recording's start is left out, once for each opinion asked.
    """
    parameters = VoiceParameters(pitch=pitch, formant=formant)
    judge = Opinion() if opinion else None
    shift = 0.0
    if not asset.unchanged:
        own = asset.defaults.get("pitch", 0.0)
        shift = pitch + (float(own) if isinstance(own, int | float) else 0.0)
    tracked = asset.defaults.get("style", "natural") in ("natural", "unchanged", "breathy")
    before, after = {}, {}
    cents, likeness, delays, spent = [], [], [], []
    block = round(block_ms * rate_hz / 1000)
    late = 0
    for path in sorted(SPEECH.glob("*.flac")):
        recorded, recorded_hz = soundfile.read(path, dtype="float64")
        live = soxr.resample(recorded, recorded_hz, rate_hz).astype(np.float32)
        voice = SPEC.open_live(asset, Placement(), parameters, rate_hz)
        late = voice.latency_frames
        fed = np.concatenate((live, np.zeros(late + block - (len(live) + late) % block, np.float32)))
        parts = []
        for at in range(0, len(fed), block):
            begin = time.thread_time()
            parts.append(voice.process(fed[at : at + block]))
            spent.append(1000 * (time.thread_time() - begin))
        raw = np.concatenate(parts).astype(np.float64)
        delays.append(1000 * envelope_delay(live.astype(np.float64), raw, rate_hz))
        spoken = soxr.resample(raw[late : late + len(live)], rate_hz, JUDGED_HZ)
        heard = soxr.resample(live.astype(np.float64), rate_hz, JUDGED_HZ)
        likeness.append(largest_correlations(heard, spoken, JUDGED_HZ))
        if tracked:
            cents.append(f0_errors(heard, spoken, shift))
        if judge is not None:
            before[path.stem] = judge.averaged(heard, offsets_ms)
            after[path.stem] = judge.averaged(spoken, offsets_ms)
    errors = np.concatenate(cents) if cents else None
    figures = np.concatenate(likeness)
    mean = float(np.mean(spent))
    dry, wet = (float(np.mean([*scores.values()])) if scores else None for scores in (before, after))
    return Quality(
        voice=asset.id,
        pitch=pitch,
        formant=formant,
        rate_hz=rate_hz,
        dnsmos_in=dry,
        dnsmos_out=wet,
        dnsmos_loss=None if dry is None or wet is None else dry - wet,
        dnsmos_loss_by_recording={name: before[name] - after[name] for name in before} if before else None,
        dnsmos_offsets_ms=offsets_ms if before else (),
        f0_median_cents=float(np.median(np.abs(errors))) if errors is not None else None,
        f0_gross_percent=float(100 * np.mean(np.abs(errors) > GROSS_CENTS)) if errors is not None else None,
        correlation=float(figures.max()),
        correlation_p95=float(np.percentile(figures, 95)),
        block_ms=block_ms,
        cpu_ms_mean=mean,
        cpu_ms_p99=float(np.percentile(spent, 99)),
        cpu_percent=100 * mean / block_ms,
        delay_declared_ms=1000 * late / rate_hz,
        delay_measured_ms=float(np.mean(delays)),
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure as asked and print; 1 if a package is missing, 2 on wrong usage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--voice", default="formant", help="a built-in voice")
    parser.add_argument("--pitch", type=float, default=0.0, help="semitones, added to the voice's own")
    parser.add_argument("--formant", type=float, default=0.0, help="semitones, added to the voice's own")
    parser.add_argument("--rate", type=int, default=48000, help="Hz of the live session")
    parser.add_argument("--block-ms", type=float, default=20.0)
    parser.add_argument("--no-opinion", action="store_true", help="leave out DNSMOS, which takes longest")
    parser.add_argument(
        "--offsets",
        type=_milliseconds,
        default=OFFSETS_MS,
        metavar="MS,MS…",
        help="starts at which DNSMOS is asked; the mean is given (default: 0,50,100,150)",
    )
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    try:
        asset = find_voice(asked.voice)
        found = measure(
            asset,
            asked.pitch,
            asked.formant,
            asked.rate,
            asked.block_ms,
            opinion=not asked.no_opinion,
            offsets_ms=asked.offsets,
        )
    except (KeyError, ImportError) as error:
        print(error.args[0], file=sys.stderr)
        return 2 if isinstance(error, KeyError) else 1
    if asked.json:
        print(json.dumps(asdict(found), indent=2))
        return 0
    for name, value in asdict(found).items():
        print(f"{name:24} {_shown(value)}")
    if found.dnsmos_offsets_ms:
        count = len(found.dnsmos_offsets_ms)
        print(f"DNSMOS figures are means over all recordings, each judged from {count} starting points.")
    return 0


def _milliseconds(text: str) -> tuple[float, ...]:
    offsets = tuple(float(part) for part in text.split(","))
    if not all(0 <= ms <= 1000 for ms in offsets):
        raise argparse.ArgumentTypeError("offsets are milliseconds, 0 to 1000")
    return offsets


def _shown(value: object) -> str:
    if value is None:
        return "not measured"
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, dict):
        return " ".join(f"{name} {_shown(one)}" for name, one in value.items())
    if isinstance(value, tuple):
        return " ".join(f"{one:g}" for one in value) or "not measured"
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
