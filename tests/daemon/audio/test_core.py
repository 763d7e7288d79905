"""The native core: rings, fades, counters and stamps, driven by hand through the very callback."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from myna.daemon._core import Core

FADE = 64
Samples = NDArray[np.float32]


def make(capacity: int = 4096, inputs: int = 1, outputs: int = 1, rate_hz: float = 48000.0) -> Core:
    return Core(
        rate_hz=rate_hz,
        in_channels=inputs,
        out_channels=outputs,
        in_map=tuple(range(inputs)),
        out_map=tuple(range(outputs)),
        capacity_frames=capacity,
    )


def turn(core: Core, frames: int, heard: Samples | None = None, now_ns: int = 0) -> Samples:
    """One mono callback; returns what it played."""
    out = np.full(frames, 9.0, np.float32)
    inp = np.zeros(frames, np.float32) if heard is None else heard
    assert core.call(inp, out, frames, now_ns) == 0
    return out


def ramp(begin: int, frames: int) -> Samples:
    """A value for each position, exact in float32, never 0."""
    return ((np.arange(begin, begin + frames) * 7919 % 65521 + 1) / 65536).astype(np.float32)


def test_input_comes_with_positions_through_many_wraps() -> None:
    core, into, at = make(256), np.zeros(500, np.float32), 0
    for frames in itertools.islice(itertools.cycle((1, 7, 64, 113, 200, 256, 3)), 200):
        turn(core, frames, ramp(at, frames))
        assert core.readable() == frames
        got, position = core.read(into)
        assert (got, position) == (frames, at)
        np.testing.assert_array_equal(into[:got], ramp(at, frames))
        at += frames
    assert core.stats()["in_dropped"] == 0
    assert core.stats()["captured"] == core.stats()["read"] == at


def test_full_input_ring_drops_until_it_was_emptied_and_shows_the_gap() -> None:
    core, into = make(256), np.zeros(1000, np.float32)
    turn(core, 200, ramp(0, 200))
    turn(core, 100, ramp(200, 100))  # 56 fit
    assert core.read(into[:150]) == (150, 0)
    turn(core, 40, ramp(300, 40))  # room again, but not emptied: still one stretch
    assert core.readable() == 106
    assert core.wait(500, 0)  # a gap must be taken before more can come
    assert core.read(into) == (106, 150)
    np.testing.assert_array_equal(into[:106], ramp(150, 106))
    assert not core.wait(1, 0)
    turn(core, 30, ramp(340, 30))
    assert core.read(into) == (30, 340)
    np.testing.assert_array_equal(into[:30], ramp(340, 30))
    stats = core.stats()
    assert (stats["in_dropped"], stats["in_full_events"]) == (84, 1)
    assert stats["captured"] == stats["read"] + stats["in_dropped"] == 370


def test_discard_skips_and_positions_go_on() -> None:
    core, into = make(), np.zeros(100, np.float32)
    turn(core, 300, ramp(0, 300))
    assert core.discard(120) == 120
    assert core.read(into) == (100, 120)
    np.testing.assert_array_equal(into, ramp(120, 100))
    assert core.discard(1000) == 80
    assert core.discard(1) == 0


def test_channel_maps_mix_down_and_spread() -> None:
    core = Core(rate_hz=48000, in_channels=4, out_channels=3, in_map=(1, 3), out_map=(0, 2), capacity_frames=256)
    heard = np.zeros((100, 4), np.float32)
    heard[:, 0], heard[:, 1], heard[:, 2], heard[:, 3] = 9.0, 0.5, 9.0, -0.25
    out = np.full((100, 3), 9.0, np.float32)
    core.write(0, np.ones(256, np.float32))
    core.call(heard, out, 100)
    into = np.zeros(100, np.float32)
    core.read(into)
    np.testing.assert_array_equal(into, np.full(100, 0.125, np.float32))
    np.testing.assert_array_equal(out[:, 1], 0.0)
    np.testing.assert_array_equal(out[:, 0], out[:, 2])
    np.testing.assert_array_equal(out[FADE:, 0], 1.0)


def test_delay_between_positions_is_constant() -> None:
    delay, core, into, heard, played = 700, make(2048), np.zeros(2048, np.float32), [], []
    rng, at = np.random.default_rng(1), 0
    for frames in rng.integers(1, 300, 400):
        heard.append(ramp(at, int(frames)))
        played.append(turn(core, int(frames), heard[-1]))
        at += int(frames)
        got, position = core.read(into)
        assert core.write(position + delay, into[:got]) == got
    sent, came = np.concatenate(heard), np.concatenate(played)
    np.testing.assert_array_equal(came[:delay], 0.0)
    np.testing.assert_array_equal(came[delay + FADE :], sent[FADE : len(sent) - delay])
    assert core.stats()["dry_events"] == 0


def test_dry_ring_fades_out_within_64_frames_and_in_again_by_itself() -> None:
    core = make()
    core.write(0, np.ones(300, np.float32))
    core.write(500, np.ones(300, np.float32))
    out = turn(core, 1000)
    np.testing.assert_allclose(out[:FADE], np.arange(1, FADE + 1) / FADE)
    np.testing.assert_array_equal(out[FADE:300], 1.0)
    np.testing.assert_allclose(out[300 : 300 + FADE], np.arange(FADE - 1, -1, -1) / FADE)
    np.testing.assert_array_equal(out[300 + FADE : 500], 0.0)
    np.testing.assert_allclose(out[500 : 500 + FADE], np.arange(1, FADE + 1) / FADE)
    np.testing.assert_array_equal(out[800 + FADE :], 0.0)
    stats = core.stats()
    assert (stats["dry_events"], stats["dry_frames"]) == (2, 400)


@pytest.mark.parametrize("gap", [1, 2, 10, 63, 64, 65, 200])
def test_no_step_at_any_gap(gap: int) -> None:
    core, step = make(), 1.0 / FADE + 1e-6
    at, pieces = 0, []
    for _ in range(20):  # full scale on both sides of every gap
        core.write(at, np.ones(90, np.float32))
        at += 90 + gap
        pieces.append(turn(core, 90 + gap))
    out = np.concatenate([np.zeros(1, np.float32), *pieces])
    assert np.max(np.abs(np.diff(out))) <= step
    assert np.max(out) <= 1.0 + 1e-6


def test_late_frames_are_skipped_and_counted() -> None:
    core = make()
    core.write(0, np.ones(100, np.float32))
    turn(core, 100)
    assert core.write(50, ramp(50, 100)) == 50  # half of it is past
    assert core.stats()["late_frames"] == 50
    assert core.write(20, ramp(20, 80)) == 0
    assert core.stats()["late_frames"] == 130
    out = turn(core, 60)
    np.testing.assert_array_equal(out[:50], ramp(100, 50))  # on the sound that went before: no fade
    assert core.stats()["dry_frames"] == 10


def test_what_was_written_is_not_rewritten() -> None:
    core = make()
    assert core.write(0, np.full(200, 0.5, np.float32)) == 200
    assert core.write(100, np.full(200, 0.25, np.float32)) == 100
    out = turn(core, 300)
    np.testing.assert_array_equal(out[FADE:200], 0.5)
    np.testing.assert_array_equal(out[200:300], 0.25)
    assert core.stats()["late_frames"] == 0


def test_frames_beyond_the_ring_are_dropped_and_counted() -> None:
    core = make(256)
    assert core.write(0, np.ones(300, np.float32)) == 256
    assert core.write(256, np.ones(10, np.float32)) == 0
    assert core.write(5000, np.ones(10, np.float32)) == 0
    assert core.stats()["out_full_frames"] == 64
    turn(core, 100)
    assert core.write(256, np.ones(300, np.float32)) == 100


def test_rewind_forgets_what_was_not_played_and_is_not_dry() -> None:
    core = make()
    core.write(0, np.ones(1000, np.float32))
    turn(core, 300)
    assert core.rewind() == 700
    assert core.rewind() == 0
    out = turn(core, 300)
    np.testing.assert_allclose(out[:FADE], np.arange(FADE - 1, -1, -1) / FADE)
    np.testing.assert_array_equal(out[FADE:], 0.0)
    assert core.stats()["dry_frames"] == 0
    assert core.write(700, np.full(200, 0.5, np.float32)) == 200
    out = turn(core, 300)
    np.testing.assert_array_equal(out[:100], 0.0)  # nothing of the 700 comes back
    np.testing.assert_array_equal(out[100 + FADE :], 0.5)
    turn(core, 10)
    assert core.stats()["dry_events"] == 1


def test_silence_fades_out_and_in_while_positions_go_on() -> None:
    core = make()
    core.write(0, np.ones(2000, np.float32))
    turn(core, 200)
    core.silence(True)
    out = turn(core, 500)
    np.testing.assert_allclose(out[:FADE], np.arange(FADE - 1, -1, -1) / FADE)
    np.testing.assert_array_equal(out[FADE:], 0.0)
    core.silence(False)
    out = turn(core, 200)
    np.testing.assert_allclose(out[:FADE], np.arange(1, FADE + 1) / FADE)
    assert core.stats()["played"] == 900
    assert core.stats()["dry_frames"] == 0


def test_before_the_first_write_nothing_is_dry() -> None:
    core = make()
    np.testing.assert_array_equal(turn(core, 1000), 0.0)
    core.write(1100, np.ones(100, np.float32))
    turn(core, 200)
    assert core.stats()["dry_frames"] == 0
    turn(core, 5)
    turn(core, 5)
    stats = core.stats()
    assert (stats["dry_frames"], stats["dry_events"]) == (10, 1)


def test_nonfinite_samples_become_zero_and_are_counted() -> None:
    core = make(inputs=2)
    heard = np.full((10, 2), 0.5, np.float32)
    heard[3, 0], heard[4], heard[5, 1] = np.nan, np.inf, -np.inf
    core.call(heard, np.zeros((10, 1), np.float32), 10)
    into = np.zeros(10, np.float32)
    core.read(into)
    np.testing.assert_array_equal(into, np.array([0.5, 0.5, 0.5, 0.25, 0, 0.25, 0.5, 0.5, 0.5, 0.5], np.float32))
    assert core.stats()["nonfinite_in"] == 4
    sound = np.ones(100, np.float32)
    sound[70], sound[80] = np.nan, np.inf
    core.write(10, sound)
    out = turn2(core, 100)
    assert np.isfinite(out).all()
    assert (out[70], out[71], out[80]) == (0.0, 1.0, 0.0)
    assert core.stats()["nonfinite_out"] == 2


def turn2(core: Core, frames: int) -> Samples:
    out = np.zeros(frames, np.float32)
    core.call(None, out, frames)
    return out


def test_huge_finite_samples_stay_finite() -> None:
    core = make(inputs=2)
    core.call(np.full((4, 2), 3e38, np.float32), np.zeros(4, np.float32), 4)
    into = np.zeros(4, np.float32)
    core.read(into)
    np.testing.assert_allclose(into, 3e38)


def test_stamp_and_gaps_come_from_the_given_clock() -> None:
    core = make()
    assert core.stamp() == (0, 0, 0)
    turn(core, 480, now_ns=1_000_000_000)
    assert core.stamp() == (1_000_000_000, 480, 480)
    turn(core, 480, now_ns=1_010_000_000)
    turn(core, 240, now_ns=1_035_000_000)
    assert core.stamp() == (1_035_000_000, 1200, 1200)
    stats = core.stats()
    assert (stats["callbacks"], stats["max_gap_ns"]) == (3, 25_000_000)
    assert 0 <= stats["max_callback_ns"] < 1_000_000_000


def test_one_direction_only() -> None:
    mic, speaker = make(outputs=0), make(inputs=0)
    mic.call(ramp(0, 50), None, 50)
    assert (mic.readable(), mic.stats()["played"]) == (50, 0)
    with pytest.raises(ValueError, match="no output"):
        mic.write(0, ramp(0, 5))
    speaker.write(0, np.ones(100, np.float32))
    out = np.zeros(100, np.float32)
    speaker.call(None, out, 100)
    assert (out[99], speaker.readable(), speaker.stamp()[1:]) == (1.0, 0, (0, 100))
    with pytest.raises(ValueError, match="no input"):
        speaker.read(out)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capacity_frames": 1000}, "power of two"),
        ({"capacity_frames": 0}, "power of two"),
        ({"in_map": (2,)}, "in_map: channel 2"),
        ({"out_map": (-1,)}, "out_map: channel -1"),
        ({"in_map": ()}, "in_map: 0 entries"),
        ({"out_channels": 0}, "out_map: 1 entries"),
        ({"in_channels": 65}, "at most 64"),
        ({"rate_hz": float("nan")}, "rate_hz"),
        ({"in_channels": 0, "out_channels": 0, "in_map": (), "out_map": ()}, "direction"),
    ],
)
def test_a_wrong_core_cannot_be_made(change: dict[str, object], message: str) -> None:
    right: dict[str, object] = {
        "rate_hz": 48000.0,
        "in_channels": 2,
        "out_channels": 2,
        "in_map": (0, 1),
        "out_map": (0,),
        "capacity_frames": 1024,
    }
    with pytest.raises(ValueError, match=message):
        Core(**{**right, **change})  # type: ignore[arg-type]


def test_wrong_buffers_are_refused() -> None:
    core = make(inputs=2)
    with pytest.raises(TypeError, match="float32"):
        core.write(0, np.zeros(4))
    with pytest.raises(TypeError, match="float32"):
        core.read(bytearray(16))
    with pytest.raises((BufferError, ValueError)):
        core.read(np.zeros(4, np.float32)[::2])
    with pytest.raises(ValueError, match="too few"):
        core.call(np.zeros(4, np.float32), np.zeros(4, np.float32), 4)
    with pytest.raises(ValueError, match="too few"):
        core.call(np.zeros(8, np.float32), np.zeros(3, np.float32), 4)
    frozen = np.zeros(4, np.float32)
    frozen.flags.writeable = False
    assert core.write(0, frozen) == 4
    with pytest.raises((BufferError, ValueError)):
        core.read(frozen)
    assert core.stats()["callbacks"] == 0


class Twin:
    """The core's contract in plain Python, frame by frame."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.waiting: list[tuple[int, float]] = []
        self.sound: dict[int, float] = {}
        self.captured = self.played = self.written = 0
        self.first: int | None = None
        self.dropping = self.silent = self.in_dry = False
        self.last = self.held = 0.0
        self.rising = self.falling = 0
        self.counts = dict.fromkeys(
            ("in_dropped", "in_full_events", "late_frames", "dry_frames", "dry_events", "out_full_frames"), 0
        )

    def call(self, heard: Samples) -> list[float]:
        if self.dropping and not self.waiting:
            self.dropping = False
        for sample in heard:
            if not self.dropping and len(self.waiting) == self.capacity:
                self.dropping = True
                self.counts["in_full_events"] += 1
            if self.dropping:
                self.counts["in_dropped"] += 1
            else:
                self.waiting.append((self.captured, float(sample)))
            self.captured += 1
        return [self._play() for _ in heard]

    def _play(self) -> float:
        value = None if self.silent else self.sound.pop(self.played, None)
        if value is not None:
            self.rising, self.falling = min(FADE, self.rising + 1), max(0, self.falling - 1)
            self.last = value * self.rising / FADE + self.held * self.falling / FADE
            self.in_dry = False
        else:
            if self.rising:
                self.held, self.falling, self.rising = self.last, FADE, 0
            self.falling = max(0, self.falling - 1)
            self.last = self.held * self.falling / FADE
            dry = not self.silent and self.first is not None and self.played >= self.first
            self.counts["dry_frames"] += dry
            self.counts["dry_events"] += dry and not self.in_dry
            self.in_dry = dry
        self.played += 1
        return self.last

    def read(self, frames: int) -> list[tuple[int, float]]:
        taken, self.waiting = self.waiting[:frames], self.waiting[frames:]
        return taken

    def write(self, position: int, frames: Samples) -> int:
        placed = 0
        for at, value in enumerate(frames, position):
            if at < self.played:
                self.counts["late_frames"] += 1
            elif at >= self.played + self.capacity:
                self.counts["out_full_frames"] += 1
            elif at >= self.written:
                self.sound[at] = float(value)
                self.first = at if self.first is None else self.first
                self.written = at + 1
                placed += 1
        return placed

    def rewind(self) -> int:
        gone, self.first = max(0, self.written - self.played), None
        self.sound = {at: value for at, value in self.sound.items() if at < self.played}
        self.written = min(self.written, self.played)
        return gone


@pytest.mark.parametrize("seed", range(80))
def test_equals_its_slow_twin_through_anything(seed: int) -> None:
    rng = np.random.default_rng(seed)
    capacity = int(2 ** rng.integers(0, 9))
    core, twin, into = make(capacity), Twin(capacity), np.zeros(400, np.float32)
    for _ in range(120):
        match rng.integers(0, 12):
            case 0 | 1 | 2 | 3:
                heard = rng.uniform(-1, 1, int(rng.integers(0, 150))).astype(np.float32)
                np.testing.assert_allclose(turn(core, len(heard), heard), twin.call(heard), atol=1e-6)
            case 4 | 5:
                want = int(rng.integers(0, 400))
                got, position = core.read(into[:want])
                expected = twin.read(want)
                assert got == len(expected)
                if got:
                    assert position == expected[0][0]
                    np.testing.assert_array_equal(into[:got], np.array([v for _, v in expected], np.float32))
            case 6 | 7 | 8 | 9:
                position = twin.written + int(rng.choice([0, 0, 0, 5, -20, 90, -200]))
                if rng.integers(0, 4) == 0:
                    position = twin.played + int(rng.integers(-100, 100))
                sound = rng.uniform(-1, 1, int(rng.integers(0, 200))).astype(np.float32)
                assert core.write(position, sound) == twin.write(position, sound)
            case 10:
                assert core.rewind() == twin.rewind()
            case 11:
                twin.silent = bool(rng.integers(0, 3) == 0)
                core.silence(twin.silent)
        stats = core.stats()
        assert {name: stats[name] for name in twin.counts} == twin.counts
        assert (stats["played"], stats["captured"], core.readable()) == (
            twin.played,
            twin.captured,
            len(twin.waiting),
        )


def test_what_was_written_before_a_freeze_is_not_played_after_it() -> None:
    for gap_ms, played in ((499, True), (501, False)):
        core, now = make(4096), 1_000_000_000
        core.write(0, np.full(300, 0.5, np.float32))
        assert turn(core, 100, now_ns=now)[-1] == 0.5
        now += gap_ms * 1_000_000
        assert turn(core, 100, now_ns=now).any() == played
        core.write(300, np.full(200, 0.25, np.float32))  # what comes after it is
        now += 2_000_000
        assert turn(core, 100, now_ns=now).any() == played
        assert turn(core, 100, now_ns=now + 2_000_000)[-1] == 0.25
