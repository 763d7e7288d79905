"""How much better consecutive renders join when phase and noise run on than when they restart."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from myna.dsp.sola import Sola
from myna.engines.rvc.checkpoint import open_voice
from myna.engines.rvc.noise import KeyedNoise
from myna.engines.rvc.render import SineTrack, Span, span_until, stretched
from myna.engines.rvc.source import Merge, restarting
from myna.engines.rvc.synthesizer import build

Array = NDArray[np.float32]
GOLDEN = Path(__file__).parents[2] / "golden"
HOP, RATE = 400, 40000
MERGE = Merge(3.0, 0.0)


def curve(frames: int) -> Array:
    """A gliding voice with unvoiced gaps."""
    t = np.arange(frames)
    hz = 150 + 40 * np.sin(t / 13)
    return np.where(t % 50 < 42, hz, 0).astype(np.float32)


def correlation(a: Array, b: Array) -> float:
    return float(np.dot(a, b) / max(np.sqrt(np.dot(a, a) * np.dot(b, b)), 1e-12))


def test_source_continues_across_renders_and_matches_one_long_render() -> None:
    f0 = curve(200)
    long = SineTrack(MERGE, KeyedNoise(1, HOP)).source(f0, 0, Span(0, 200, HOP, HOP))
    track = SineTrack(MERGE, KeyedNoise(1, HOP))
    for end in range(20, 201, 10):
        piece = track.source(f0[:end], 0, span_until(end, 16, HOP, HOP))
        assert np.abs(piece - long[(end - 16) * HOP : end * HOP]).max() < 1e-5
        track.advance(f0[:end], 0, end + 10 - 16)


@pytest.mark.parametrize("step", [357, 449])
def test_source_continues_with_a_moved_formant_and_keeps_its_pitch(step: int) -> None:
    f0 = np.full(400, 200.0, np.float32)
    track = SineTrack(Merge(0.01, 0.0), KeyedNoise(1, HOP))
    span = span_until(300, 200, HOP, step)
    made = track.source(f0, 0, span)
    spectrum = np.abs(np.fft.rfft((made - made.mean()) * np.hanning(made.shape[0])))
    # On the stretched axis 10 ms last `step` samples, so 200 Hz repeat every step / 2 samples.
    assert abs(made.shape[0] / np.argmax(spectrum) - step / 2) < 1.0
    next_span = span_until(310, 200, HOP, step)
    track.advance(f0, 0, 250)
    again = track.source(f0, 0, next_span)
    shared = made.shape[0] - (next_span.start_sample - span.start_sample)
    assert np.abs(again[:shared] - made[-shared:]).max() < 1e-5


def test_a_day_of_phase_stays_exact() -> None:
    track = SineTrack(Merge(1.0, 0.0), KeyedNoise(1, HOP))
    day = 24 * 3600 * 100
    track.reset(day)
    f0 = np.full(40, 123.4, np.float32)
    made = track.source(f0, day - 40, span_until(day, 20, HOP, HOP))
    assert np.isfinite(made).all()
    reference = SineTrack(Merge(1.0, 0.0), KeyedNoise(1, HOP))
    reference.reset(0)
    other = reference.source(f0, -40, span_until(0, 20, HOP, HOP))
    assert np.abs(np.abs(made).max() - np.abs(other).max()) < 0.02


def test_noise_belongs_to_its_place() -> None:
    noise = KeyedNoise(7, 5)
    whole = noise.rows(-100, 300)
    for first in (-100, -3, 0, 63, 64, 150):
        assert np.array_equal(KeyedNoise(7, 5).rows(first, 20), whole[first + 100 : first + 120])
    assert abs(whole.mean()) < 0.1
    assert abs(whole.std() - 1) < 0.1
    assert not np.array_equal(KeyedNoise(8, 5).rows(0, 4), whole[100:104])


def test_stretching_without_a_shift_is_a_copy() -> None:
    z = np.random.default_rng(0).standard_normal((4, 30)).astype(np.float32)
    assert np.array_equal(stretched(z, 100, Span(105, 20, HOP, HOP)), z[:, 5:25])
    assert np.array_equal(stretched(z, 100, Span(125, 10, HOP, HOP))[:, -1], z[:, -1])  # held beyond the end
    ramp = np.arange(30, dtype=np.float32)[None]
    moved = stretched(ramp, 0, Span(5, 10, HOP, 449))[0]
    assert np.allclose(np.diff(moved), HOP / 449, atol=1e-3)


def test_renders_join_better_than_the_original_s() -> None:
    """Overlaps of consecutive renders, ours and the original's way, over a golden voice.

    Printed and held: correlation at lag 0 where they are crossfaded, and the lags that the crossfade chooses.
    """
    import torch

    voice = build(open_voice(GOLDEN / "synth" / "v2_40k_f0.pth"))
    assert voice.merge is not None
    f0, total, tail, block, extra = curve(300), 60, 16, 10, 4
    sid = torch.zeros(1, dtype=torch.int64)
    z_all = np.random.default_rng(5).standard_normal((1, voice.channels, 300)).astype(np.float32)
    track = SineTrack(voice.merge, KeyedNoise(1, HOP))
    draw = np.random.default_rng(9)
    ours_sola, theirs_sola = Sola(block * HOP, 5 * HOP, HOP), Sola(block * HOP, 5 * HOP, HOP)
    scores: dict[str, list[float]] = {"ours": [], "theirs": []}
    lags: dict[str, list[int]] = {"ours": [], "theirs": []}
    last: dict[str, Array] = {}
    for end in range(total, 300, block):
        span = span_until(end, tail + extra, HOP, HOP)
        source = track.source(f0[:end], 0, span)
        track.advance(f0[:end], 0, end + block - tail)
        z = torch.from_numpy(z_all[:, :, end - tail - extra : end])
        ours = voice.back(z, sid, torch.from_numpy(source)[None, None])[0, 0].numpy()[extra * HOP :]
        noise = draw.standard_normal(tail * HOP).astype(np.float32)
        restarted = restarting(f0[end - tail : end], HOP, RATE, noise, voice.merge)
        theirs = voice.back(z[:, :, extra:], sid, torch.from_numpy(restarted)[None, None])[0, 0].numpy()
        for name, made, sola in (("ours", ours, ours_sola), ("theirs", theirs, theirs_sola)):
            if name in last:
                before = last[name][block * HOP : (block + 5) * HOP]
                scores[name].append(correlation(before - before.mean(), made[: 5 * HOP] - made[: 5 * HOP].mean()))
            last[name] = made
            sola.process(made)
            lags[name].append(sola.last_lag)
    told = {name: (round(float(np.mean(scores[name])), 3), int(np.max(np.abs(lags[name])))) for name in scores}
    print(f"correlation at lag 0 and largest lag: {told}")
    assert np.mean(scores["ours"]) > 0.95
    assert np.mean(scores["ours"]) > np.mean(scores["theirs"]) + 0.1
    assert max(lags["ours"]) <= min(8, max(lags["theirs"]))
