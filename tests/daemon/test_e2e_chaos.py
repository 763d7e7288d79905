"""A real sound server, worker and supervisor that freeze, go and come back: told, silent meanwhile, then as before."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
from live_daemon import TOLD_TOO_MUCH_MS, Daemon, raw_share
from numpy.typing import NDArray

from tools.audio_server import OUT_CABLE, VIRTUAL_MIC, AudioServer
from tools.cable import RATE, Heard, correlate, noise, play_and_hear

pytestmark = pytest.mark.e2e

Sound = NDArray[np.float32]
LIVE = ("running", "degraded")
BACK_S = 40.0
SAID_S, PAUSE_S = 2.0, 3.5
IN_FLIGHT_S = 0.6  # that what was said may still be heard after it: the delay, and room for a busy machine


@pytest.fixture
def daemon(server: AudioServer, tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(server, tmp_path) as made:
        made.up("--voice", "deep")
        settled(made)
        yield made
        server.signal(signal.SIGCONT)


@pytest.fixture
def said(speech_16k: Sound) -> Sound:
    """Two seconds of speech, and a pause in which nothing may be heard but its end."""
    speech = np.asarray(soxr.resample(speech_16k, 16000, RATE), np.float32)[: round(SAID_S * RATE)]
    return np.concatenate([speech, np.zeros(round(PAUSE_S * RATE), np.float32)])


def settled(daemon: Daemon) -> dict[str, Any]:
    """The status once the session runs and has converted a second of sound since it began."""
    return daemon.until(lambda s: s["state"] in LIVE and s["blocks"] > 50, BACK_S)


@contextmanager
def frozen(stop: Callable[[int], None]) -> Iterator[None]:
    """Something is stopped meanwhile, and goes on whatever happens."""
    stop(signal.SIGSTOP)
    try:
        yield
    finally:
        stop(signal.SIGCONT)


def delay_beside_prefill_ms(daemon: Daemon) -> float:
    """The delay by noise under bypass, without the part that a busy machine may raise."""
    daemon.myna("live", "bypass", "on")
    heard, status = daemon.hear_calmly(noise(1.0))
    daemon.myna("live", "bypass", "off")
    delay_ms, peak = heard.delay_ms()
    assert peak > 0.95
    return delay_ms - float(status["latency"]["prefill_ms"])


def assert_nothing_old(heard: Heard) -> None:
    """Once the speech is over and its delay is past, the far end is silent."""
    loud = np.flatnonzero(np.abs(heard.near) > 0.01)
    assert len(loud), "nothing was said"
    late = heard.far[int(loud[-1]) + round(IN_FLIGHT_S * RATE) : len(heard.near)]
    assert len(late) > RATE
    assert np.max(np.abs(late)) < 1e-3


def assert_converted(server: AudioServer, daemon: Daemon, said: Sound) -> None:
    """The voice is heard, and it is not the raw one."""
    heard = play_and_hear(server, said[: round(SAID_S * RATE)])
    delay_ms = daemon.session()["latency"]["estimated_ms"]
    assert float(np.sqrt(np.mean(np.square(heard.far)))) > 0.003
    assert raw_share(heard, delay_ms - TOLD_TOO_MUCH_MS) < 0.9
    assert correlate(heard.near, heard.far)[1] < 0.9


def while_speaking(act: Callable[[], None]) -> Callable[[], None]:
    """`act` once a good part of the speech was said, on the caller's thread."""

    def later() -> None:
        threading.Event().wait(0.6 * SAID_S)
        act()

    return later


def test_a_frozen_server_is_told_and_brings_nothing_old(server: AudioServer, daemon: Daemon, said: Sound) -> None:
    before_ms = delay_beside_prefill_ms(daemon)
    lost: list[dict[str, Any]] = []

    def freeze() -> None:
        with frozen(server.signal):
            lost.append(daemon.until(lambda s: s["state"] == "reconnecting", 20.0))

    heard = play_and_hear(server, said, during=while_speaking(freeze))
    assert lost[0]["stop_reason"]
    settled(daemon)
    assert raw_share(heard, before_ms) < 0.9
    assert_nothing_old(heard)
    assert_converted(server, daemon, said)
    assert delay_beside_prefill_ms(daemon) == pytest.approx(before_ms, abs=25.0)


def test_a_frozen_worker_is_silent_and_brings_nothing_old(server: AudioServer, daemon: Daemon, said: Sound) -> None:
    before_ms = delay_beside_prefill_ms(daemon)
    worker = int(daemon.session()["pid"])

    def freeze() -> None:
        with frozen(lambda number: os.kill(worker, number)):
            began_s = time.monotonic()
            while time.monotonic() - began_s < 2.0:  # meanwhile the supervisor answers
                assert daemon.myna("status")["pid"]

    heard = play_and_hear(server, said, during=while_speaking(freeze))
    settled(daemon)
    assert raw_share(heard, before_ms) < 0.9
    assert_nothing_old(heard)
    assert_converted(server, daemon, said)
    assert delay_beside_prefill_ms(daemon) == pytest.approx(before_ms, abs=25.0)


def test_a_frozen_supervisor_leaves_the_voice_alone(server: AudioServer, daemon: Daemon, said: Sound) -> None:
    before = daemon.session()
    supervisor = int(daemon.myna("status")["pid"])
    with frozen(lambda number: os.kill(supervisor, number)):
        heard = play_and_hear(server, np.tile(said[: round(SAID_S * RATE)], 2))
        assert daemon.myna("live", "state", code=3)["error"]["code"] == "unreachable"
    assert float(np.sqrt(np.mean(np.square(heard.far)))) > 0.003
    assert raw_share(heard, before["latency"]["estimated_ms"] - TOLD_TOO_MUCH_MS) < 0.9
    after = settled(daemon)
    assert after["pid"] == before["pid"]
    assert after["restarts"] == 0
    assert after["blocks"] > before["blocks"]


def test_a_server_that_stops_and_starts_has_the_delay_from_before(
    server: AudioServer, daemon: Daemon, said: Sound
) -> None:
    before_ms = delay_beside_prefill_ms(daemon)
    server.kill()
    lost = daemon.until(lambda s: s["state"] == "reconnecting", 20.0)
    assert lost["stop_reason"]
    server.start()
    settled(daemon)
    assert_converted(server, daemon, said)
    assert delay_beside_prefill_ms(daemon) == pytest.approx(before_ms, abs=25.0)


def test_a_device_that_goes_and_comes_back_is_told_and_never_replaced(
    server: AudioServer, daemon: Daemon, said: Sound
) -> None:
    before_ms = delay_beside_prefill_ms(daemon)
    server.unplug(OUT_CABLE)
    lost = daemon.until(lambda s: s["state"] == "reconnecting", 20.0)
    assert lost["stop_reason"]
    assert not server.pactl("list", "short", "sink-inputs")  # the server offers another sink, which is not taken
    server.plug(OUT_CABLE, VIRTUAL_MIC)
    settled(daemon)
    assert_converted(server, daemon, said)
    assert delay_beside_prefill_ms(daemon) == pytest.approx(before_ms, abs=25.0)
