"""The parts of the live room by themselves."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import soundfile

from myna.control.contract import LatencyRequest, LiveDevices, LiveSettings, RecordReply, SessionStatus
from myna.daemon.audio.ring import make_core
from myna.daemon.live import messages as m
from myna.daemon.live.builder import ThreadBuilder
from myna.daemon.live.change import PIPELINE_SETTINGS, Change, change, with_parameters
from myna.daemon.live.delay import (
    BlockLength,
    ComputeTimes,
    Prefill,
    advice,
    fixed_prefill_ms,
    jitter_ms,
    peers_estimate_ms,
)
from myna.daemon.live.intake import Intake
from myna.daemon.live.outlet import DuplexOutlet
from myna.daemon.live.recorder import QUEUE_BLOCKS, Recorder

BASE = m.SessionConfig(session="s", voice=m.VoiceOrder(id="a", engine="fake"))


def changed(**settings: Any) -> m.SessionConfig:
    return msgspec.structs.replace(BASE, settings=msgspec.structs.replace(BASE.settings, **settings))


def test_every_setting_has_its_price() -> None:
    assert change(BASE, BASE) is Change.NOTHING
    values: dict[str, Any] = {
        "denoise_in": "spectral", "denoise_out": "rnnoise", "vad": True, "context_ms": 500.0, "crossfade_ms": 20.0,
        "f0_method": "dio", "block_ms": 40.0, "prefill_ms": 10.0, "unvoiced": "zero", "gate_db": -40.0,
        "monitor_source": "both", "limiter": False, "target_latency_ms": 200.0,
    }  # fmt: skip
    for field in msgspec.structs.fields(LiveSettings):
        value = values[field.name] if field.name in values else getattr(BASE.settings, field.name) + 1
        kind = change(BASE, changed(**{field.name: value}))
        assert kind is (Change.PIPELINE if field.name in PIPELINE_SETTINGS else Change.PARAMETERS), field.name
    for name in ("bypass", "muted", "monitor_consent"):
        assert change(BASE, msgspec.structs.replace(BASE, **{name: True})) is Change.PARAMETERS
    voice = m.VoiceOrder(id="b", engine="fake")
    assert change(BASE, msgspec.structs.replace(BASE, voice=voice)) is Change.PIPELINE
    devices = LiveDevices(input="x")
    assert change(BASE, msgspec.structs.replace(BASE, devices=devices, voice=voice)) is Change.DEVICES


def test_parameters_move_on_while_a_voice_loads() -> None:
    newest = msgspec.structs.replace(
        changed(vad=True, pitch=5.0), voice=m.VoiceOrder(id="b", engine="x"), muted=True, revision=7
    )
    mixed = with_parameters(BASE, newest)
    assert mixed.voice.id == "a"
    assert mixed.settings.vad is False
    assert (mixed.settings.pitch, mixed.muted, mixed.revision) == (5.0, True, 7)


def test_messages_survive_the_way_to_the_worker_and_back() -> None:
    config = msgspec.structs.replace(
        BASE, voice=m.VoiceOrder(id="a", engine="e", files={"model": "/x.pth"}, defaults={"pitch": 3})
    )
    orders: list[m.Order] = [
        m.Configure(id=1, config=config), m.Record(id=2, path=None, source="both"),
        m.MeasureLatency(id=3, request=LatencyRequest(bursts=5)), m.Check(id=4, voice=config.voice), m.Stop(id=5),
    ]  # fmt: skip
    for order in orders:
        assert m.decode_order(m.encode(order)) == order
    words: list[m.Word] = [
        m.Answer(id=1, code="failed", message="x", facts={"path": Path("/a")}),
        m.Report(status=SessionStatus(session="s", state="running"), changed=True, gate_open=None),
        m.Said(level="info", message="x"),
    ]
    for word in words:
        assert type(m.decode_word(m.encode(word))) is type(word)
    assert config.voice.asset().files == {"model": Path("/x.pth")}
    with pytest.raises(msgspec.ValidationError):
        m.decode_order(m.encode(words[0]))


def test_compute_times_keep_the_newest() -> None:
    times = ComputeTimes(4)
    assert times.percentile(50) is None
    for value in (100.0, 1.0, 2.0, 3.0, 4.0):
        times.add(value)
    assert times.percentile(100) == 4.0
    assert times.percentile(50, newest=1) == 4.0
    times.clear()
    assert times.percentile(99) is None


def test_prefill_rises_at_once_and_returns_after_an_overload() -> None:
    prefill = Prefill(10.0, 100.0)
    assert prefill.late(20.0, 10.0, 1.0, overload=True) == 31.0
    assert prefill.late(500.0, 31.0, 1.1, overload=True) == 100.0
    assert prefill.calm(8.0, 1.3, overload=False) == 100.0
    assert prefill.calm(8.0, 1.7, overload=False) == 10.0


def test_prefill_stays_up_when_misses_come_again() -> None:
    prefill = Prefill(10.0, 100.0)
    prefill.late(5.0, 10.0, 1.0, overload=False)
    assert prefill.calm(8.0, 60.0, overload=False) == 16.0
    assert prefill.calm(8.0, 62.0, overload=False) == 10.0
    prefill.late(5.0, 10.0, 300.0, overload=False)
    assert prefill.calm(8.0, 890.0, overload=False) == 16.0
    assert prefill.calm(8.0, 901.0, overload=False) == 10.0


def test_what_comes_very_late_once_is_not_waited_for() -> None:
    prefill = Prefill(10.0, 200.0)
    assert prefill.late(100.0, 10.0, 1.0, overload=False) == 111.0
    assert prefill.calm(8.0, 2.0, overload=False) == 10.0
    prefill.late(100.0, 10.0, 30.0, overload=False)
    assert prefill.calm(8.0, 89.0, overload=False) == 111.0
    assert prefill.calm(8.0, 91.0, overload=False) == 10.0


def test_prefill_returns_no_further_than_what_is_needed() -> None:
    prefill = Prefill(10.0, 100.0)
    prefill.late(60.0, 10.0, 1.0, overload=True)
    prefill.calm(25.0, 1.2, overload=False)
    assert prefill.calm(12.0, 1.8, overload=False) == 26.0


def test_a_block_grows_to_what_holds_and_only_where_that_helps() -> None:
    length = BlockLength((10.0, 20.0, 40.0))
    fixed_part = lambda ms: (6.0 + 0.05 * ms) / ms  # noqa: E731
    assert [length.missed(1.5, fixed_part, t) for t in (0.0, 0.1, 0.2)] == [None, None, 40.0]
    grows_along = BlockLength((10.0, 20.0, 40.0))
    assert [grows_along.missed(1.5, lambda ms: 0.5, t) for t in (0.0, 0.1, 0.2)] == [None] * 3
    not_loaded = BlockLength((10.0, 20.0, 40.0))
    assert [not_loaded.missed(0.3, fixed_part, t) for t in (0.0, 0.1, 0.2)] == [None] * 3
    assert length.calm(1.0, 30.0) is None
    assert length.calm(1.0, 61.0) == 20.0


def test_advice_names_the_block_and_admits_what_none_mends() -> None:
    assert advice(0.5, 20.0, 10.0) is None
    assert "block_ms=30" in (advice(0.9, 20.0, 18.0) or "")
    assert "no block length" in (advice(1.5, 1000.0, 1500.0) or "")
    assert jitter_ms(20.0, 10.0, True) == 10.0
    assert jitter_ms(25.0, 10.0, True) == jitter_ms(20.0, 10.0, False) == 15.0
    assert fixed_prefill_ms(100.0, 20.0, 10.0) == 130.0
    assert peers_estimate_ms(250.0, 50.0, 5.0, 5.0) == 570.0


def test_intake_cuts_blocks_and_tells_of_gaps() -> None:
    core = make_core(48000, 100, in_channels=1)
    intake = Intake(core, 48000, 48000, 960)
    ramp = np.arange(48000, dtype=np.float32)
    core.call(ramp[:1000], None, 1000)
    first = intake.take()
    assert first is not None
    assert (first.position, first.jumped, intake.take()) == (0, False, None)
    np.testing.assert_array_equal(first.block, ramp[:960])
    core.call(ramp[1000:5000], None, 4000)
    assert intake.backlog_frames == 4040 - 960
    assert intake.drop(2000) == 2000
    second = intake.take()
    assert second is not None
    assert (second.position, second.jumped) == (2960, True)
    np.testing.assert_array_equal(second.block, ramp[2960:3920])


def test_a_duplex_block_is_due_after_the_delay_and_late_frames_are_counted() -> None:
    core = make_core(48000, 500, in_channels=1, out_channels=1)
    outlet = DuplexOutlet(core, 960)
    assert outlet.write(0, np.full(480, 0.5, np.float32)) == 0
    out = np.zeros((2400, 1), np.float32)
    core.call(np.zeros((2400, 1), np.float32), out, 2400)
    assert not out[:960].any()
    assert out[1100, 0] == 0.5
    assert outlet.write(480, np.full(480, 0.5, np.float32)) == 480
    outlet.delay_frames = 1440
    outlet.write(4800, np.zeros(960, np.float32))
    assert outlet.settled


def test_the_builder_keeps_order_does_later_things_and_outlives_a_fault() -> None:
    builder = ThreadBuilder("test")
    done: list[str] = []
    ready = threading.Event()
    builder.later(0.02, ready.set)
    for name in "abc":
        builder.submit(lambda name=name: done.append(name))
    assert ready.wait(10.0)
    assert done == ["a", "b", "c"]
    builder.later(1000.0, lambda: done.append("never"))
    builder.submit(lambda: done.append("last"))
    assert builder.close(10.0)
    assert done[-1] == "last"
    builder.submit(lambda: done.append("too late"))
    assert done[-1] == "last"


class SlowDisk:
    """Writes nothing until it is let."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.go = threading.Event()
        self.frames = 0

    def write(self, block: Any) -> None:
        self.go.wait(20.0)
        self.frames += len(block)

    def close(self) -> None:
        Path(self.path).touch()

    path = ""


def test_a_slow_disk_drops_and_counts_and_holds_nobody_up(tmp_path: Path) -> None:
    disk = SlowDisk()
    recorder = Recorder(tmp_path / "a.wav", 48000, "converted", lambda *a, **k: disk)
    disk.path = str(recorder._part)
    block = np.zeros(480, np.float32)
    for _ in range(QUEUE_BLOCKS + 100):
        recorder.put(block, block)
    assert recorder.dropped_frames >= 98 * 480
    replies: list[RecordReply | Exception] = []
    recorder.finish(replies.append)
    assert not replies
    disk.go.set()
    recorder.join(20.0)
    (reply,) = replies
    assert isinstance(reply, RecordReply)
    assert reply.dropped_frames == recorder.dropped_frames
    assert reply.seconds == pytest.approx(disk.frames / 48000)


@pytest.mark.parametrize(
    ("source", "channels", "suffix"), [("input", 1, "wav"), ("converted", 1, "flac"), ("both", 2, "flac")]
)
def test_a_recording_appears_whole_under_its_name(tmp_path: Path, source: str, channels: int, suffix: str) -> None:
    path = tmp_path / f"take.{suffix}"
    recorder = Recorder(path, 48000, source)
    rng = np.random.default_rng(1)
    dry, wet = (rng.uniform(-0.5, 0.5, 4800).astype(np.float32) for _ in range(2))
    for at in range(0, 4800, 480):
        recorder.put(dry[at : at + 480], wet[at : at + 480])
    assert not path.exists()
    recorder.finish(lambda reply: None)
    recorder.join(20.0)
    audio, rate = soundfile.read(path, dtype="float32", always_2d=True)
    assert (rate, audio.shape) == (48000, (4800, channels))
    np.testing.assert_allclose(audio[:, -1], dry if source == "input" else wet, atol=1e-6)
    assert list(tmp_path.iterdir()) == [path]


def test_a_worker_with_the_built_in_voice_imports_nothing_heavy() -> None:
    """It is to be back at once after a crash: scipy.signal alone takes a second of a processor, and 45 MiB."""
    code = (
        "import sys, myna.daemon.live.worker, myna.engines.formant.voice; print([m for m in HEAVY if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", f"HEAVY = ('scipy', 'torch')\n{code}"], capture_output=True, text=True)
    assert (run.returncode, run.stdout.strip()) == (0, "[]"), run.stderr
