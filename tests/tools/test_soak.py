"""The soak holds on a sound session, and every one of its checks fails on what it is there to find."""

import argparse
import dataclasses
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

from myna.daemon.live.outlet import DriftingOutlet, DuplexOutlet
from myna.daemon.live.pipeline import LivePipeline
from myna.dsp.stage import Block
from tools.soak.__main__ import seconds
from tools.soak.laws import Record, find, growth, judge, level_db
from tools.soak.simulated_session import RATE, SIGNATURE_HZ, Ear, Soak, mirrored, noise_that_never_repeats
from tools.soak.table import Table

QUIET_S = (3.0, 5.0)


def good() -> Record:
    """A record in which every law holds."""
    return Record(
        title="good",
        silent_s=10.0,
        trace_db=-80.0,
        traces=5,
        bypass_db=[-6.0],
        delays_ms=[(470.0, 470.1)],
        starts_ms=[20.0, 21.0],
        period_ms=100.0,
        old_ms=[(470.0, 470.0)],
        held_ms=[470.0],
        back_s=[1.0],
        fed=1,
        hot=3,
        orders=3,
        voices_open=1,
        streams_open=2,
        memory_mib=[100.0] * 20,
        log_lines=3,
        events=Counter({"stall": 1}),
    )


def test_a_good_record_holds() -> None:
    table = judge(good())
    assert table.held
    assert table.failed == []


@pytest.mark.parametrize(
    ("law", "broken"),
    [
        ("1 fail closed: a silent voice", {"silent_peak": 1e-6}),
        ("1 fail closed: a silent voice", {"silent_s": 0.0}),
        ("1 fail closed: the signature tone", {"trace_db": -34.0}),
        ("1 fail closed: the signature tone", {"traces": 0}),
        ("1 the ear is not deaf", {"bypass_db": [-6.0, -6.0, -30.0]}),
        ("2 no stale sound", {"old_ms": [(470.0, 470.0), (1470.0, 470.0)]}),
        ("2 no stale sound", {"old_ms": []}),
        ("3, 7 the delay is the one told", {"delays_ms": [(470.0, 473.0)]}),
        ("3, 7 the delay is the one told", {"delays_ms": []}),
        ("3 bounded delay", {"held_ms": [470.0, 1301.0]}),
        ("3 back after every event", {"back_s": [0.0, 70.0]}),
        ("4 finite", {"nonfinite": 1}),
        ("4 finite", {"fed": 0}),
        ("5 equal settings", {"starts_ms": [20.0, 121.0]}),
        ("7 every order answered", {"unanswered": 1}),
        ("7 every order answered", {"refused": 1}),
        ("8 hot is hot", {"hot_gaps": 1}),
        ("voices let go of", {"voices_open": 2}),
        ("streams let go of", {"streams_open": 3}),
        ("memory is flat", {"memory_mib": [100.0 + n for n in range(20)]}),
        ("the log is no storm", {"log_lines": 12}),
    ],
)
def test_every_broken_law_is_reported_and_no_other(law: str, broken: dict[str, Any]) -> None:
    (failed,) = judge(dataclasses.replace(good(), **broken)).failed
    assert failed.startswith(law)


def test_a_record_of_nothing_holds_nothing() -> None:
    held = {law for law, held, _ in judge(Record()).rows if held}
    assert held == {"memory is flat"}  # nothing grew


def test_a_round_of_all_events_holds() -> None:
    soak = Soak(5, QUIET_S)
    for name in soak.round():
        soak.live_through(name)
    table = judge(soak.end("one round"))
    assert table.held, table.rows


def test_equal_seeds_play_equal_sound() -> None:
    digests = []
    for seed in (7, 7, 8):
        soak = Soak(seed, QUIET_S)
        for name in ("clocks apart", "overload", "all devices lost", "voice swap"):
            soak.live_through(name)
        digests.append(soak.digest)
    assert digests[0] == digests[1] != digests[2]


def test_a_raw_block_now_and_then_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    process = LivePipeline.process

    blocks = 0

    def leaky(self: LivePipeline, block: Block) -> Block:
        nonlocal blocks
        blocks += 1
        out = process(self, block)
        return out if blocks % 8 else block.copy()

    monkeypatch.setattr(LivePipeline, "process", leaky)
    soak = Soak(1, QUIET_S)
    while not soak.record.silent_s or not soak.record.traces:
        soak.live_through("stall")
    failed = judge(soak.end("leaky")).failed
    assert any("a silent voice" in law for law in failed)
    assert any("signature tone" in law for law in failed)


def test_old_sound_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    old: list[Block] = []

    def repeating(write: Any) -> Any:
        def late(self: Any, position: int, block: Block) -> int:
            old.append(block.copy())
            return int(write(self, position, old[-4] if len(old) > 4 and len(old[-4]) == len(block) else block))

        return late

    for outlet in (DuplexOutlet, DriftingOutlet):
        monkeypatch.setattr(outlet, "write", repeating(outlet.write))
    soak = Soak(1, QUIET_S)
    while not soak.record.old_ms:
        soak.live_through("stall")
    failed = judge(soak.end("stale")).failed
    assert any(law.startswith("2 ") for law in failed)
    assert any(law.startswith("3, 7 ") for law in failed)


def test_the_ear_hears_nan_and_the_faintest_sound() -> None:
    soak = Soak(1, QUIET_S)
    ear, sound = Ear(soak, "ear"), np.zeros(800, np.float32)
    soak.listens_for = "anything"
    ear(0, sound)
    assert soak.record.silent_peak == 0.0
    sound[5] = 1e-9
    ear(800, sound)
    assert soak.record.silent_peak == pytest.approx(1e-9)
    sound[5] = np.nan
    ear(1600, sound)
    assert soak.record.nonfinite == 1


def test_the_level_is_that_of_one_line() -> None:
    n = np.arange(800)
    tone = (0.5 * np.sin(2 * np.pi * SIGNATURE_HZ / RATE * n + 0.3)).astype(np.float32)
    assert level_db(tone, SIGNATURE_HZ, RATE) == pytest.approx(-6.02, abs=0.05)
    assert level_db(mirrored()(tone), SIGNATURE_HZ, RATE) < -80.0
    assert level_db(np.zeros(800, np.float32), SIGNATURE_HZ, RATE) == -200.0
    short = np.where(n < 440, tone, 0.0).astype(np.float32)
    short[:376] = 0.0  # 8 ms of it in 100
    assert level_db(short, SIGNATURE_HZ, RATE) > -30.0


def test_a_stretch_is_found_where_it_was_taken_from() -> None:
    source = noise_that_never_repeats()(1000, 20000)
    assert find(source[7000:7800], source)[0] == 7000
    assert find(-source[7000:7800], source)[1] > 0.999
    assert find(np.random.default_rng(9).standard_normal(800).astype(np.float32), source)[1] < 0.4


def test_growth_is_that_of_a_line() -> None:
    assert growth([5.0, 5.0, 5.0]) == 0.0
    assert growth([float(n) for n in range(100)]) == pytest.approx(75.0)


def test_durations_are_read() -> None:
    assert (seconds("90"), seconds("90s"), seconds("10m"), seconds("8h")) == (90.0, 90.0, 600.0, 28800.0)
    with pytest.raises(argparse.ArgumentTypeError):
        seconds("soon")


def test_the_table_is_told_in_words_or_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("title")
    table.add("law", True, "1 ms")
    assert table.tell()
    assert "holds  law  1 ms" in capsys.readouterr().out
    table.add("other", False, "9 ms")
    assert not table.tell(as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["held"] is False
    assert told["rows"][1] == {"law": "other", "held": False, "figure": "9 ms"}
