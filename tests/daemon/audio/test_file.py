"""Files and `null` as devices: exact sound, whole files, nothing lost however slow the reader is."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from myna.daemon.audio.backend import AudioStream, DeviceError, StreamRequest
from myna.daemon.audio.open import open_stream

RATE = 16000
DELAY = 1600
FADE = 64


def signal(seconds: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    rng = np.random.default_rng(5)
    return rng.uniform(-0.5, 0.5, round(seconds * RATE)).astype(np.float32)


@pytest.fixture
def speech(tmp_path: Path) -> Path:
    path = tmp_path / "in.wav"
    soundfile.write(path, signal(1.3), RATE, subtype="FLOAT")
    return path


def pass_through(stream: AudioStream, block: int = 320, limit_s: float = 20.0, busy_s: float = 0.0) -> str:
    """Copy the source to the sink DELAY frames later until the stream ends; returns why."""
    source, sink, into = stream.source, stream.sink, np.zeros(block, np.float32)
    assert source is not None
    assert sink is not None
    stream.start()
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if not source.wait(block, 20.0):
            if (reason := stream.ended()) is not None:
                return reason
            continue
        frames, position = source.read(into)
        if busy_s:
            time.sleep(busy_s)
        sink.write(position + DELAY, into[:frames])
    raise AssertionError("the stream did not end")


def check_output(path: Path) -> None:
    sent, (came, rate) = signal(1.3), soundfile.read(path, dtype="float32")
    assert rate == RATE
    assert len(came) >= len(sent) + DELAY
    np.testing.assert_array_equal(came[:DELAY], 0.0)
    step = 2.0**-23  # the output has 24 bits
    np.testing.assert_allclose(came[DELAY + FADE : DELAY + len(sent)], sent[FADE:], atol=step)
    np.testing.assert_array_equal(came[DELAY + len(sent) + FADE :], 0.0)


@pytest.mark.parametrize("busy_s", [0.0, 0.03])
def test_fast_files_lose_nothing_however_slow_the_reader_is(speech: Path, tmp_path: Path, busy_s: float) -> None:
    out = tmp_path / "out.wav"
    request = StreamRequest(input=f"file:{speech}", output=f"file:{out}", rate_hz=48000)
    stream = open_stream(request, fast=True)
    assert (stream.facts.rate_in_hz, stream.facts.duplex, stream.facts.host_api) == (RATE, True, "file")
    assert not out.exists()
    assert pass_through(stream, busy_s=busy_s) == "end_of_file"
    check_output(out)
    assert stream.sink is not None
    stats = stream.sink.stats()
    assert (stats["late_frames"], stats["in_dropped"], stats["out_full_frames"]) == (0, 0, 0)
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []
    stream.close()


def test_two_fast_runs_give_equal_bytes(speech: Path, tmp_path: Path) -> None:
    outputs = [tmp_path / "a.wav", tmp_path / "b.wav"]
    for out in outputs:
        stream = open_stream(StreamRequest(input=f"file:{speech}", output=f"file:{out}"), fast=True)
        assert pass_through(stream) == "end_of_file"
        stream.close()
    assert outputs[0].read_bytes() == outputs[1].read_bytes()


def test_paced_files_end_after_the_tail_was_played(speech: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.wav"
    stream = open_stream(StreamRequest(input=f"file:{speech}", output=f"file:{out}"))
    assert pass_through(stream) == "end_of_file"
    stream.close()
    sent, (came, _) = signal(1.3), soundfile.read(out, dtype="float32")
    assert len(came) >= len(sent) + RATE  # the drain
    assert stream.sink is not None
    if stream.sink.stats()["late_frames"] == 0:  # a loaded machine may make this thread late
        check_output(out)


def test_drain_is_as_long_as_the_longest_delay(speech: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.wav"
    stream = open_stream(StreamRequest(input=f"file:{speech}", output=f"file:{out}"), fast=True)
    source, sink, into = stream.source, stream.sink, np.zeros(800, np.float32)
    assert source is not None
    assert sink is not None
    stream.start()
    delay, deadline = 3 * RATE, time.monotonic() + 20.0  # three times the usual drain
    while stream.ended() is None and time.monotonic() < deadline:
        if source.wait(800, 20.0):
            frames, position = source.read(into)
            sink.write(position + delay, into[:frames])
    stream.close()
    came, _ = soundfile.read(out, dtype="float32")
    sent = signal(1.3)
    np.testing.assert_allclose(came[delay + FADE : delay + len(sent)], sent[FADE:], atol=2.0**-23)


def test_closing_early_keeps_what_was_played(speech: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.wav"
    stream = open_stream(StreamRequest(input=f"file:{speech}", output=f"file:{out}"))
    stream.start()
    assert stream.source is not None
    assert stream.source.wait(1600, 5000.0)
    stream.close()
    came, _ = soundfile.read(out, dtype="float32")
    assert 1600 <= len(came) < 1.3 * RATE
    stream.close()


def test_a_stream_never_started_leaves_no_threads(speech: Path, tmp_path: Path) -> None:
    before = threading.active_count()
    stream = open_stream(StreamRequest(input=f"file:{speech}", output=f"file:{tmp_path / 'out.wav'}"))
    stream.close()
    deadline = time.monotonic() + 5.0
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_null_is_silence_at_the_asked_rate_and_period() -> None:
    request = StreamRequest(input="null", output="null", rate_hz=44100, period_ms=5.0)
    stream = open_stream(request)
    assert (stream.facts.rate_out_hz, stream.facts.period_out_frames) == (44100, 220)
    source = stream.source
    assert source is not None
    stream.start()
    assert source.wait(441, 5000.0)
    into = np.ones(441, np.float32)
    assert source.read(into) == (441, 0)
    np.testing.assert_array_equal(into, 0.0)
    assert stream.ended() is None
    stream.close()


def test_fast_output_alone_plays_what_is_written(tmp_path: Path) -> None:
    out = tmp_path / "mon.flac"
    request = StreamRequest(input=None, output=f"file:{out}", want_input=False, rate_hz=RATE)
    stream = open_stream(request, fast=True)
    sink = stream.sink
    assert sink is not None
    assert stream.source is None
    stream.start()
    sink.write(0, np.full(RATE, 0.5, np.float32))
    deadline = time.monotonic() + 5.0
    while sink.stats()["played"] < RATE and time.monotonic() < deadline:
        time.sleep(0.005)
    stream.close()
    came, rate = soundfile.read(out, dtype="float32")
    assert (len(came), rate) == (RATE, RATE)
    np.testing.assert_array_equal(came[FADE:], 0.5)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (StreamRequest(input="file:/nowhere/x.wav", output="null"), "not_found"),
        (StreamRequest(input="file:", output="null"), "not_found"),
        (StreamRequest(input="null", output="file:/proc/x/y.wav"), "permission"),
        (StreamRequest(input="null", output="file:out.mp3", rate_hz=96000), "rate"),
        (StreamRequest(input="fake:mic", output="null"), "not_found"),
        (StreamRequest(input="null", output="null", want_input=False, want_output=False), "failed"),
    ],
)
def test_what_cannot_be_opened_says_why(request_: StreamRequest, reason: str, tmp_path: Path) -> None:
    with pytest.raises(DeviceError) as caught:
        open_stream(request_)
    assert caught.value.reason == reason


def test_something_else_than_sound_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "notes.wav"
    text.write_text("no sound at all " * 100)
    with pytest.raises(DeviceError) as caught:
        open_stream(StreamRequest(input=f"file:{text}", output="null"))
    assert caught.value.reason == "format"


def test_fast_is_refused_for_a_device() -> None:
    with pytest.raises(DeviceError, match="fast works with files only"):
        open_stream(StreamRequest(input="null", output="Speakers"), fast=True)
