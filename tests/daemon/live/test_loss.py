"""Loss and return: silent, told, back by itself with nominal delay; and orders that arrive in the worst moment."""

import numpy as np
import pytest

from myna.control.errors import MynaError
from myna.daemon.audio.fake import FakeDevice, noise, silence
from myna.daemon.live.messages import VoiceOrder
from myna.engines.base import ModelUnusable, ParameterRefused
from tools.live_rig import Rig, declared_ms, delay_ms

NOISE = {"signal": noise()}


def test_devices_gone_and_back_a_hundred_times_in_any_order() -> None:
    rig = Rig(mic=NOISE).start(devices={"monitor": "fake:ear"})
    dice = np.random.default_rng(2)
    away: dict[str, FakeDevice] = {}
    for _ in range(100):
        name = str(dice.choice(["mic", "out", "ear"]))
        if name in away:
            rig.audio.plug(away.pop(name))
        else:
            away[name] = rig.audio.unplug(name)
        rig.run(float(dice.uniform(0.0, 0.7)))
    for device in away.values():
        rig.audio.plug(device)
    rig.run(3.0)
    assert rig.status.state == "running"
    assert rig.status.monitor == "ear"
    assert delay_ms(rig)[0] == pytest.approx(declared_ms(rig), abs=0.1)
    assert rig.engine.opened == 1
    assert len(rig.audio._streams) == 2  # every lost one was closed
    assert len(rig.builders) == 2
    assert len(rig.loops) == 1


@pytest.mark.parametrize("reason", ["busy", "no_server", "permission", "failed"])
def test_an_error_on_every_call_costs_little_and_mends_itself(reason: str) -> None:
    rig = Rig(mic=NOISE).start()
    rig.run(0.5)
    rig.audio.failing = reason
    rig.run(60.0)
    assert rig.status.state == "reconnecting"
    assert reason in (rig.status.stop_reason or "")
    assert len(rig.logged) < 5  # a storm of errors is one line
    rig.audio.failing = None
    rig.run(3.0)
    assert rig.status.state == "running"
    assert rig.status.stop_reason is None


def test_busy_at_start_is_told_and_tried_again() -> None:
    rig = Rig(mic=NOISE)
    rig.mic.refuses = "busy"
    answers = rig.order()
    rig.turn()
    (error,) = answers
    assert isinstance(error, MynaError)
    assert (error.code, error.facts["reason"]) == ("device_unavailable", "busy")
    assert rig.status.state == "reconnecting"
    rig.mic.refuses = None
    rig.run(3.0)
    assert rig.status.state == "running"


def test_a_wrong_name_at_start_fails_and_a_right_one_starts() -> None:
    rig = Rig()
    answers = rig.order(devices={"input": "fake:mike"})
    rig.turn()
    assert isinstance(answers[0], MynaError)
    assert rig.status.state == "failed"
    assert rig.order(devices={"input": "fake:mic"}) == []
    rig.run(0.5)
    assert rig.status.state == "running"


def test_no_other_device_is_taken_without_consent() -> None:
    rig = Rig(mic=NOISE)
    rig.audio.plug(FakeDevice(name="other mic", inputs=1))
    rig.start()
    rig.run(0.5)
    rig.audio.unplug("mic")
    rig.run(30.0)
    assert rig.status.state == "reconnecting"
    assert rig.out.tape.end < (rig.clock() - 29.0) * 48000  # nothing was played since
    assert "'other mic'" in (rig.status.stop_reason or "")


@pytest.mark.parametrize("sleep_s", [3.0, 40000.0])
@pytest.mark.parametrize("lost", [True, False])
def test_suspend_and_resume(sleep_s: float, lost: bool) -> None:
    rig = Rig(mic={**NOISE, "ppm": 50.0}).start()
    rig.run(2.0)
    rig.audio.suspend(sleep_s, lost=lost)
    rig.run(4.0)
    assert rig.status.state == "running"
    assert delay_ms(rig)[0] == pytest.approx(declared_ms(rig), abs=2.0)


def test_frozen_callbacks_are_a_loss() -> None:
    rig = Rig(mic=NOISE).start()
    rig.run(0.5)
    rig.audio.stall("mic", 5.0)
    rig.run(2.0)
    assert ("reconnecting", "the device was lost (lost)") in rig.states
    assert rig.status.state == "running"


def test_the_monitors_loss_never_stops_the_session() -> None:
    rig = Rig(mic=NOISE).start(devices={"monitor": "fake:ear"})
    rig.run(1.0)
    assert rig.status.monitor == "ear"
    assert rig.played(0.3, rig.ear).any()
    rig.audio.unplug("ear")
    rig.run(5.0)
    assert rig.status.state == "running"
    assert rig.status.monitor is None
    assert rig.status.xruns == 0
    assert sum("monitor" in message for _, message in rig.logged) == 2
    rig.audio.plug(rig.ear)
    rig.run(2.0)
    assert rig.status.monitor == "ear"
    assert rig.played(0.3, rig.ear).any()
    assert len(rig.states) == 4  # starting, loading, warming, running, and nothing since


def test_the_monitor_is_no_later_for_a_block_that_was_longer() -> None:
    rig = Rig(mic=NOISE).start(settings={"block_ms": 20.0}, devices={"monitor": "fake:ear"})

    def heard_after_s() -> float:
        rig.mic.signal = silence
        rig.run(1.5)
        rig.mic.signal = NOISE["signal"]
        rig.run(1.0)
        return float(np.argmax(rig.played(1.0, rig.ear) != 0.0)) / 48000

    before_s = heard_after_s()
    rig.order(settings={"block_ms": 200.0})
    assert heard_after_s() > before_s + 0.1
    rig.order(settings={"block_ms": 20.0})
    assert heard_after_s() == pytest.approx(before_s, abs=0.02)


def test_changes_while_the_device_is_away_are_taken_on_return() -> None:
    rig = Rig(mic=NOISE).start()
    rig.run(0.5)
    rig.audio.unplug("mic")
    rig.run(0.5)
    assert rig.status.state == "reconnecting"
    hot = rig.order(settings={"gain_out_db": -6.0}, muted=True)
    built = rig.order(voice=VoiceOrder(id="two", engine="fake", defaults={"gain": 0.5}))
    rig.run(0.1)
    assert hot == built == [None]
    rig.audio.plug(rig.mic)
    rig.run(2.0)
    assert (rig.status.voice, rig.status.muted, rig.status.settings.gain_out_db) == ("two", True, -6.0)
    assert not rig.played(0.5).any()


def test_other_devices_while_the_old_one_is_away() -> None:
    rig = Rig(mic=NOISE)
    rig.audio.plug(FakeDevice(name="mic2", inputs=1, signal=noise()))
    rig.start()
    rig.run(0.5)
    rig.audio.unplug("mic")
    rig.run(0.5)
    answers = rig.order(devices={"input": "fake:mic2"})
    rig.run(0.1)
    assert answers == [None]
    assert (rig.status.state, rig.status.input) == ("running", "mic2")


def test_an_order_in_the_moment_of_the_loss_is_answered() -> None:
    rig = Rig(mic=NOISE).start()
    rig.run(0.5)
    rig.audio.unplug("mic")  # the loop has not noticed yet
    rig.running.loop.stopping = False
    hot = rig.order(settings={"gain_out_db": -3.0})
    voice = rig.order(voice=VoiceOrder(id="two", engine="fake"))
    rig.run(1.0)
    assert hot == voice == [None]
    rig.audio.plug(rig.mic)
    rig.run(2.0)
    assert (rig.status.state, rig.status.voice, rig.status.settings.gain_out_db) == ("running", "two", -3.0)
    assert rig.engine.opened - rig.engine.closed == 1


def test_stop_while_reconnecting_ends_everything() -> None:
    rig = Rig(mic=NOISE).start(devices={"monitor": "fake:ear"})
    rig.run(0.5)
    rig.audio.unplug("mic")
    rig.run(0.5)
    rig.session.stop()
    rig.audio.plug(rig.mic)
    rig.run(5.0)
    assert rig.status.state == "stopped"
    assert not rig.audio._streams
    assert rig.engine.opened == rig.engine.closed
    assert not rig.loops
    assert not rig.builders


def test_a_voice_that_fails_to_load_leaves_the_old_one() -> None:
    rig = Rig(mic=NOISE).start()
    rig.run(0.5)
    rig.engine.refuses["bad"] = ModelUnusable("damaged")
    good = rig.config
    answers = rig.order(voice=VoiceOrder(id="bad", engine="fake"))
    hot = rig.order(settings={"gain_out_db": -6.0})  # while the bad one loads
    rig.run(0.5)
    assert isinstance(answers[0], ModelUnusable)
    assert hot == [None]
    assert (rig.status.voice, rig.status.state, rig.status.settings.gain_out_db) == ("one", "running", -6.0)
    rig.audio.unplug("mic")
    rig.run(0.5)
    rig.audio.plug(rig.mic)
    rig.run(2.0)
    assert (rig.status.voice, rig.status.state) == ("one", "running")
    rig.config = good
    assert rig.order(settings={"pitch": 2.0}) == []
    rig.run(0.1)
    assert rig.status.settings.pitch == 2.0
    assert rig.engine.opened - rig.engine.closed == 1


def test_refused_devices_leave_the_old_ones_running() -> None:
    for devices, refuses in (({"input": "fake:none"}, None), ({"output": "fake:ear"}, "busy")):
        rig = Rig(mic=NOISE)
        rig.ear.refuses = refuses
        rig.start()
        rig.run(0.5)
        answers = rig.order(devices=devices)
        rig.run(1.0)
        assert isinstance(answers[0], MynaError)
        assert answers[0].code == "device_unavailable"
        assert (rig.status.state, rig.status.input, rig.status.output) == ("running", "mic", "out")
        assert delay_ms(rig)[0] == pytest.approx(declared_ms(rig), abs=0.1)
        assert rig.engine.opened == 1


def test_other_devices_are_opened_before_the_old_ones_are_closed() -> None:
    rig = Rig(mic=NOISE).start()
    rig.run(0.5)
    answers = rig.order(devices={"output": "fake:ear"})
    rig.run(1.0)
    assert answers == [None]
    assert rig.status.output == "ear"
    assert rig.played(0.3, rig.ear).any()
    assert len(rig.audio._streams) == 1
    assert [state for state, _ in rig.states] == ["starting", "loading", "warming", "running"]
    assert rig.engine.opened == 1


def test_a_value_that_the_voice_refuses_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(mic=NOISE).start()
    rig.run(0.5)
    voice = rig.running.ready.voice

    def refuse(parameters: object) -> None:
        raise ParameterRefused(f"no such speaker: {parameters}")

    monkeypatch.setattr(voice, "set", refuse)
    answers = rig.order(settings={"speaker_id": 99, "gain_out_db": -60.0})
    rig.run(0.5)
    assert isinstance(answers[0], ParameterRefused)
    assert rig.status.state == "running"
    assert rig.status.settings.speaker_id == 0
    assert np.max(np.abs(rig.played(0.2))) > 0.09


def test_an_exception_of_ours_in_the_loop_is_a_loss_that_mends_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(mic=NOISE).start()
    rig.run(0.5)

    def broken(position: int, block: object) -> int:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(rig.running.outlet, "write", broken)
    worker = rig.loops[0]
    rig.audio.advance(0.05)
    reason = worker.loop.run(lambda: None)
    assert "ZeroDivisionError" in reason
    rig.loops.remove(worker)
    worker.ended(reason)
    assert rig.status.state == "reconnecting"
    rig.run(1.0)
    assert rig.status.state == "running"


def test_a_rate_change_of_the_device_is_followed() -> None:
    rig = Rig(mic=NOISE).start()
    rig.run(0.5)
    for name in ("mic", "out"):
        rig.audio.set_rate(name, 44100)
    rig.run(2.0)
    assert (rig.status.state, rig.status.rate_hz) == ("running", 44100)
    assert rig.engine.opened == 2  # a voice is made for one rate


def test_devices_error_names_its_reason() -> None:
    rig = Rig().start()
    rig.run(0.2)
    rig.mic.refuses = "permission"
    rig.audio._end_streams_of(rig.mic, "lost")
    rig.run(1.0)
    assert "permission" in (rig.status.stop_reason or "")
