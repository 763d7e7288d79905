"""The simulated devices behave as real ones do, on the real core."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from myna.daemon.audio.backend import DeviceError, StreamRequest
from myna.daemon.audio.fake import FakeAudio, FakeDevice, FakeStream, HandClock, noise, tone
from myna.daemon.audio.open import open_stream

FADE = 64
REQUEST = StreamRequest(input="mic", output="speakers")


def studio(**mic: object) -> FakeAudio:
    return FakeAudio(
        HandClock(),
        FakeDevice(name="mic", inputs=1, signal=noise(), **mic),  # type: ignore[arg-type]
        FakeDevice(name="speakers", outputs=2),
    )


def started(audio: FakeAudio, request: StreamRequest = REQUEST) -> FakeStream:
    stream = audio.open(request)
    assert isinstance(stream, FakeStream)
    stream.start()
    return stream


def copy_through(stream: FakeStream, delay: int) -> None:
    """Read all there is, write it `delay` frames later."""
    assert stream.source is not None
    assert stream.sink is not None
    into = np.zeros(1 << 16, np.float32)
    while stream.source.readable():
        frames, position = stream.source.read(into)
        stream.sink.write(position + delay, into[:frames])


def test_duplex_sound_arrives_after_the_delay() -> None:
    audio = studio()
    stream = started(audio)
    assert stream.facts.duplex
    for _ in range(100):
        audio.advance(0.01)
        copy_through(stream, 960)
    tape = audio._devices["speakers"].tape
    came, sent = tape.all(), noise()(tape.begin, tape.end - tape.begin)
    np.testing.assert_array_equal(came[960 + FADE :], sent[FADE:-960])
    assert audio.clock() == pytest.approx(1001.0)
    assert stream.sink is not None
    assert stream.sink.stats()["dry_events"] == 0


def test_an_hour_passes_with_drift_counted_to_the_frame() -> None:
    audio = studio(ppm=150.0)
    for device in audio._devices.values():
        device.keep_s = 1.0
    stream = started(audio, replace(REQUEST, period_ms=50.0))
    assert not stream.facts.duplex
    assert stream.source is not None
    assert stream.sink is not None
    for _ in range(3600):
        audio.advance(1.0)
        stream.source.discard(1 << 20)
    captured, played = stream.source.stamp()[1], stream.sink.stamp()[2]
    assert abs(played - 3600 * 48000) <= 2400
    assert abs(captured - 3600 * 48000 * (1 + 150e-6)) <= 2400
    assert stream.source.stamp()[0] == pytest.approx(4600e9, abs=51e6)


def test_jitter_delays_callbacks_and_loses_nothing() -> None:
    audio = studio(jitter_ms=8.0)
    stream = started(audio)
    gaps = []
    assert stream.source is not None
    last = 0
    for _ in range(400):
        audio.advance(0.005)
        now = stream.source.stamp()[0]
        if last and now != last:
            gaps.append(now - last)
        last = now
    assert max(gaps) > 12e6
    assert min(gaps) >= 0
    assert abs(stream.source.stamp()[1] - 96000) <= 960
    assert stream.source.stats()["max_gap_ns"] <= 18.01e6


def test_partial_periods_carry_the_same_sound() -> None:
    audio = studio(partial=(100, 380, 7, 473))
    stream = started(audio)
    audio.advance(0.5)
    assert stream.source is not None
    into = np.zeros(24000, np.float32)
    frames, _ = stream.source.read(into)
    begin = round(1000.0 * 48000)
    np.testing.assert_array_equal(into[:frames], noise()(begin, frames))


def test_stall_is_an_xrun_without_and_a_burst_with_the_missed_callbacks() -> None:
    for burst, expected in ((False, 0.9), (True, 1.0)):
        audio = studio()
        stream = started(audio)
        audio.advance(0.3)
        audio.stall("mic", 0.1, burst=burst)
        audio.advance(0.7)
        assert stream.source is not None
        assert stream.source.stamp()[1] == pytest.approx(expected * 48000, abs=480)
        assert stream.source.stats()["max_gap_ns"] >= 99e6
        assert stream.ended() is None


def test_a_long_stall_is_a_loss() -> None:
    audio = studio()
    stream = started(audio)
    audio.advance(0.1)
    audio.stall("mic", 2.0)
    audio.advance(0.4)
    assert stream.ended() is None
    audio.advance(0.3)
    assert stream.ended() == "lost"


def test_unplugged_is_lost_and_comes_back_by_name() -> None:
    audio = studio()
    stream = started(audio)
    audio.advance(0.1)
    device = audio.unplug("mic")
    assert stream.ended() == "lost"
    assert audio.advance(0.1) == 0
    stream.close()
    with pytest.raises(DeviceError) as caught:
        audio.open(REQUEST)
    assert caught.value.reason == "not_found"
    audio.plug(device)
    again = started(audio)
    assert audio.advance(0.1) == 10
    assert again.ended() is None
    assert audio.opened == 2


def test_renamed_default_and_rate_changes() -> None:
    audio = studio()
    audio.rename("mic", "headset")
    with pytest.raises(DeviceError):
        audio.open(REQUEST)
    audio.plug(FakeDevice(name="other mic", inputs=2, rate_hz=44100))
    audio.default_input = "other mic"
    stream = audio.open(StreamRequest(input=None, output="speakers"))
    assert (stream.facts.input, stream.facts.rate_in_hz, stream.facts.duplex) == ("other mic", 44100, False)
    stream.start()
    audio.set_rate("other mic", 96000)
    assert stream.ended() == "lost"
    assert [(d.name, d.is_default_input) for d in audio.devices() if d.inputs] == [
        ("headset", False),
        ("other mic", True),
    ]


@pytest.mark.parametrize("reason", ["busy", "permission"])
def test_refusing_devices(reason: str) -> None:
    audio = studio(refuses=reason)
    with pytest.raises(DeviceError) as caught:
        audio.open(REQUEST)
    assert caught.value.reason == reason


def test_an_error_on_every_call() -> None:
    audio = studio()
    stream = audio.open(REQUEST)
    audio.failing = "no_server"
    with pytest.raises(DeviceError):
        stream.start()
    with pytest.raises(DeviceError):
        audio.open(REQUEST)
    assert stream.ended() == "no_server"
    stream.close()


def test_suspend_jumps_the_clock_and_loses_the_streams() -> None:
    audio = studio()
    stream = started(audio)
    audio.advance(0.1)
    audio.suspend(3600.0)
    assert audio.clock() == pytest.approx(4600.1)
    assert stream.ended() == "lost"
    stream.close()
    started(audio)
    assert audio.advance(0.1) == 10


def test_a_cable_brings_the_output_back() -> None:
    audio = studio()
    audio.cable("speakers", "mic", 480)
    stream = started(audio)
    assert stream.sink is not None
    assert stream.source is not None
    stream.sink.write(0, np.full(4800, 0.25, np.float32))
    audio.advance(0.2)
    into = np.zeros(9600, np.float32)
    stream.source.read(into)
    np.testing.assert_array_equal(into[:480], 0.0)
    np.testing.assert_array_equal(into[480 + FADE : 480 + 4800], 0.25)


def test_lockstep_with_a_reader_on_its_own_thread_is_exact() -> None:
    audio = FakeAudio(
        None,
        FakeDevice(name="mic", inputs=1, signal=tone(440, 48000)),
        FakeDevice(name="speakers", outputs=1),
    )
    stream = open_stream(StreamRequest(input="fake:mic", output="fake:speakers"), fake=audio)
    assert stream.source is not None
    assert stream.sink is not None
    source, sink, into, stop = stream.source, stream.sink, np.zeros(960, np.float32), threading.Event()

    def loop() -> None:
        while not stop.is_set():
            if source.wait(960, 20.0):
                frames, position = source.read(into)
                sink.write(position + 960 + 480, into[:frames])

    thread = threading.Thread(target=loop)
    stream.start()
    thread.start()
    audio.advance(5.0, lockstep=True)
    stop.set()
    thread.join(5.0)
    stats = sink.stats()
    assert (stats["late_frames"], stats["dry_events"], stats["played"]) == (0, 0, 240000)
    tape = audio._devices["speakers"].tape.all()
    sent = tone(440, 48000)(1000 * 48000, 240000).astype(np.float32)
    np.testing.assert_array_equal(tape[1440 + FADE :], sent[FADE:-1440])
