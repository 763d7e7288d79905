"""Cuts and joints: where they fall, and that nobody can tell."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from myna.control.contract import LiveSettings
from myna.control.errors import MynaError
from myna.daemon.jobs.convert import voice_parameters
from myna.daemon.jobs.messages import Order
from myna.daemon.jobs.parameters import resolved
from myna.daemon.jobs.segments import (
    Cutting,
    Grid,
    Header,
    join,
    margin_s,
    read_segment,
    segment_path,
    stretches,
    write_segment,
)
from myna.daemon.live.pipeline import voice_parameters as live_parameters
from myna.daemon.orders import PlacementOrder, VoiceOrder
from myna.daemon.voices.values import in_force
from myna.engines import registry
from myna.engines.base import Placement, VoiceAsset

Sound = NDArray[np.float32]
RATE = 16000
CUTTING = Cutting(shortest_s=2.0, longest_s=4.0)


class Memory:
    """A source that is an array; counts what was read."""

    def __init__(self, sound: Sound) -> None:
        self.sound, self.at, self.largest = sound, 0, 0

    def read(self, frames: int) -> Sound:
        block = self.sound[self.at : self.at + frames]
        self.at += len(block)
        self.largest = max(self.largest, frames)
        return block


def held_note(seconds: float, hz: float = 180.0) -> Sound:
    t = np.arange(round(seconds * RATE)) / RATE
    return (0.2 * np.sum([np.sin(2 * np.pi * hz * k * t) / k for k in range(1, 12)], axis=0)).astype(np.float32)


def test_stretches_cover_the_input_without_gap_or_overlap() -> None:
    sound = held_note(23.0)
    grid = Grid(rate_in_hz=RATE, rate_out_hz=48000)
    found = list(stretches(Memory(sound), grid, 0.5, CUTTING))
    assert found[0].start == 0
    assert found[-1].end == len(sound)
    assert all(a.end == b.start for a, b in pairwise(found))
    assert [s.last for s in found] == [False] * (len(found) - 1) + [True]
    for s in found:
        np.testing.assert_array_equal(s.audio[s.before : s.before + s.end - s.start], sound[s.start : s.end])
        assert len(s.audio) <= grid.up(4.0) + 2 * grid.up(0.5)


def test_cuts_fall_into_pauses() -> None:
    sound = held_note(12.0)
    pauses = [(2.6, 2.9), (5.5, 5.8), (8.4, 8.7)]
    for begin, end in pauses:
        sound[round(begin * RATE) : round(end * RATE)] = 0.0
    found = list(stretches(Memory(sound), Grid(rate_in_hz=RATE, rate_out_hz=RATE), 0.5, CUTTING))
    cuts = [s.end / RATE for s in found[:-1]]
    assert all(any(begin <= cut <= end for begin, end in pauses) for cut in cuts)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_segment_is_not_taken_for_a_whole_one(tmp_path: Path, damage: str) -> None:
    stretch = next(iter(stretches(Memory(held_note(1.0)), Grid(rate_in_hz=RATE, rate_out_hz=RATE), 0.1, CUTTING)))
    header = Header(mark=b"m" * 16, index=0, rate_hz=RATE, start=0, end=stretch.end, before=0, last=True, work_s=0.0)
    write_segment(tmp_path, header, stretch.audio)
    path = segment_path(tmp_path, 0)
    found = read_segment(path)
    assert found is not None
    np.testing.assert_array_equal(found[1], stretch.audio)
    data = bytearray(path.read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "flip":
        data[-100] ^= 1
    else:
        data = bytearray()
    path.write_bytes(data)
    assert read_segment(path) is None


def test_no_cut_in_a_held_note_can_be_measured() -> None:
    """Half a minute without a quiet place is cut by length; neither a step nor a dip in level tells where."""
    sound = held_note(30.0)
    asset = VoiceAsset(id="formant", engine="formant")
    order = Order(
        job="j1", attempt=1, kind="convert", input="", output="", exists="fail", format="wav", seconds=None,
        parameters={"pitch": 4.0}, voice=VoiceOrder(id="formant", engine="formant"),
        placement=PlacementOrder(), work_dir="",
    )  # fmt: skip
    voice = registry.find("formant").open_file(asset, Placement(), voice_parameters(order))
    grid = Grid(rate_in_hz=RATE, rate_out_hz=voice.rate_hz or RATE)
    made: list[tuple[Header, Sound]] = []
    context_s = voice.context_ms / 1000 + margin_s(CUTTING)
    for s in stretches(Memory(sound), grid, context_s, CUTTING):
        tail = np.zeros(grid.up(margin_s(CUTTING)) if s.last else 0, np.float32)
        header = Header(
            mark=b"", index=s.index, start=grid.out(s.start), end=grid.out(s.end), before=grid.out(s.before),
            rate_hz=grid.rate_out_hz, last=s.last, work_s=0.0,
        )  # fmt: skip
        made.append((header, voice.convert(np.concatenate([s.audio, tail]), RATE)))
    joined = np.concatenate(list(join(len(made), lambda n: made[n], CUTTING)))
    assert len(joined) == len(sound)
    cuts = [header.end for header, _ in made[:-1]]
    assert len(cuts) >= 7
    inside = slice(RATE, -RATE)
    bend = np.abs(np.diff(joined.astype(np.float64), 2))
    window = RATE // 50
    level = 10 * np.log10(np.convolve(np.square(joined, dtype=np.float64), np.ones(window) / window, "same") + 1e-12)
    middle = float(np.median(level[inside]))
    spread = float(np.percentile(np.abs(level[inside] - middle), 99.9))
    for cut in cuts:
        near = slice(cut - RATE // 10, cut + RATE // 10)
        assert float(np.max(bend[near])) <= 1.1 * float(np.percentile(bend[inside], 99.9))
        assert float(np.max(np.abs(level[near] - middle))) <= spread + 0.5


@pytest.mark.parametrize("name", ["deep", "bright", "breathy", "robot", "neutral"])
def test_a_built_in_voice_sounds_alike_live_and_from_files(name: str) -> None:
    """What the voice is by itself counts once, and what is asked is added to it, in both."""
    spec = registry.find("formant")
    asset = next(each for each in spec.built_in if each.id == name)
    sound = held_note(2.0)
    order = Order(
        job="j1", attempt=1, kind="convert", input="", output="", exists="fail", format="wav", seconds=None,
        parameters={"pitch": 1.0}, voice=VoiceOrder.of(asset), placement=PlacementOrder(), work_dir="",
    )  # fmt: skip
    from_file = spec.open_file(order.voice.asset(), Placement(), voice_parameters(order)).convert(sound, RATE)
    session = in_force(LiveSettings(pitch=1.0), order.voice.kept)
    live = spec.open_live(order.voice.asset(), Placement(), live_parameters(session), RATE)
    late = live.latency_frames
    heard = live.process(np.concatenate([sound, np.zeros(late, np.float32)]))[late:]
    np.testing.assert_allclose(heard, from_file, atol=1e-6)


# What a description written by hand may hold, and no voice may decide.
NO_VOICES = {"style": "any", "monitor_source": "input", "limiter": False, "gain_out_db": 12.0}


def test_what_is_kept_with_a_voice_counts_below_what_a_job_asks() -> None:
    asset = VoiceAsset(id="alice", engine="rvc", defaults={"pitch": 12.0, "index_rate": 0.3, **NO_VOICES})
    kept = VoiceOrder.of(asset).kept
    assert kept == {"pitch": 12.0, "index_rate": 0.3}
    assert resolved(kept, {"pitch": 0.0})["pitch"] == 0.0
    assert resolved(kept, {})["pitch"] == 12.0
    assert resolved(kept, {})["index_rate"] == 0.3
    assert resolved({}, {})["index_rate"] == 0.75
    with pytest.raises(MynaError, match="pitch") as refused:
        VoiceOrder.of(VoiceAsset(id="alice", engine="rvc", defaults={"pitch": "high"}))
    assert refused.value.code == "bad_request"
