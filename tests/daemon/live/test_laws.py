"""Fail closed, no stale sound, finite: in every state and through every fault, checked on what was played."""

import itertools

import numpy as np
import pytest

from myna.daemon.audio.fake import noise, silence, tone
from myna.daemon.live.messages import VoiceOrder
from myna.dsp.stage import Block
from tools.live_rig import Behaviour, Rig, declared_ms, delay_ms

FADE = 64


def mute_engine() -> Behaviour:
    """A voice that says nothing: whatever is heard then is the raw input."""
    return Behaviour(shape=np.zeros_like)


def voice(name: str, **defaults: float) -> VoiceOrder:
    return VoiceOrder(id=name, engine="fake", defaults=defaults)


@pytest.mark.parametrize("duplex", [True, False])
def test_the_raw_voice_is_never_heard_outside_bypass(duplex: bool) -> None:
    rig = Rig(mic={"signal": noise(0.5), "ppm": 0.0 if duplex else 70.0}, engine=mute_engine())
    rig.start(devices={"monitor": "fake:ear"})
    dice = np.random.default_rng(4)

    def slow() -> None:
        rig.engine.compute = lambda frames, rate: dice.uniform(0.5, 3.0) * frames / rate

    def fail() -> None:
        rig.engine.raises = RuntimeError("a fault of the voice")

    def mend() -> None:
        rig.engine.raises = None
        rig.engine.compute = lambda frames, rate: 0.05 * frames / rate

    def bad_input() -> None:
        rig.mic.signal = lambda first, frames: np.full(frames, np.nan)

    def good_input() -> None:
        rig.mic.signal = noise(0.5)

    events = [
        lambda: rig.order(voice=voice(f"v{dice.integers(9)}", latency_ms=float(dice.integers(50)))),
        lambda: rig.order(settings={"block_ms": float(dice.choice([10, 20, 60]))}),
        lambda: rig.order(settings={"gate_db": float(dice.integers(-60, -5))}),
        lambda: rig.order(settings={"rms_mix": 0.5, "denoise_in": "spectral"}),
        lambda: rig.order(settings={"denoise_in": "off", "denoise_out": "spectral", "gain_out_db": 6.0}),
        lambda: rig.order(muted=bool(dice.integers(2))),
        lambda: rig.order(settings={"monitor_source": "both"}),  # without consent
        slow, fail, mend, bad_input, good_input, mend,
        lambda: (rig.audio.unplug("mic"), rig.run(0.4), rig.audio.plug(rig.mic)),
        lambda: (rig.audio.unplug("ear"), rig.run(0.4), rig.audio.plug(rig.ear)),
        lambda: rig.audio.suspend(30.0),
        lambda: rig.audio.stall("mic", 0.3),
    ]  # fmt: skip
    for device in (rig.out, rig.ear):
        device.on_play = lambda first, sound: loud.append(float(np.max(np.abs(sound))))
    loud: list[float] = []
    for event in itertools.chain(events, (events[i] for i in dice.integers(len(events), size=60))):
        event()
        rig.run(float(dice.uniform(0.05, 0.6)))
        assert max(loud, default=0.0) == 0.0
        loud.clear()
    mend()
    good_input()
    rig.run(65.0)  # the longest wait before a failing voice is loaded again
    assert rig.status.state == "running"
    assert max(loud) == 0.0
    rig.order(bypass=True, muted=False)
    rig.run(1.0)
    assert max(loud) > 0.3  # the test would notice
    rig.order(bypass=False)
    rig.run(0.5)
    loud.clear()
    rig.run(1.0)
    assert max(loud) == 0.0


def test_the_monitor_plays_the_input_only_with_consent() -> None:
    rig = Rig(mic={"signal": noise(0.5)}, engine=mute_engine())
    rig.start(devices={"monitor": "fake:ear"}, settings={"monitor_source": "input"})
    rig.run(1.0)
    assert not rig.played(0.9, rig.ear).any()
    rig.order(monitor_consent=True)
    rig.run(1.0)
    assert np.max(np.abs(rig.played(0.5, rig.ear))) > 0.3
    assert not rig.played(0.9).any()
    rig.audio.unplug("mic")
    rig.run(0.5)
    rig.audio.plug(rig.mic)
    rig.run(2.0)  # consent was given for this session: it outlives a lost device
    assert np.max(np.abs(rig.played(0.5, rig.ear))) > 0.3


def test_bypass_is_aligned_with_the_voice_and_crossfaded() -> None:
    rig = Rig(mic={"signal": tone(441.0, 48000, 0.3)}).start(voice=voice("v", latency_ms=37.0))
    rig.run(1.0)
    at = rig.clock()
    for on in (True, False, True, False):
        rig.order(bypass=on)
        rig.run(0.4)
        assert rig.status.bypass is on
    sound = rig.played_since(at).astype(np.float64)
    # Voice and input are the same tone at the same delay: a switch between them leaves no trace.
    residue = sound[2:] - 2 * np.cos(2 * np.pi * 441 / 48000) * sound[1:-1] + sound[:-2]
    assert np.max(np.abs(residue)) < 1e-5


def test_mute_fades_to_exact_silence_and_back() -> None:
    rig = Rig(mic={"signal": tone(441.0, 48000)}).start()
    rig.run(0.5)
    at = rig.clock()
    rig.order(muted=True)
    rig.run(0.3)
    assert not rig.played(0.15).any()
    rig.order(muted=False)
    rig.run(0.3)
    sound = rig.played_since(at)
    assert np.max(np.abs(sound[-4800:])) > 0.49
    assert np.max(np.abs(np.diff(sound))) < 1.5 * 0.5 * 2 * np.pi * 441 / 48000


def test_after_a_pause_a_loss_or_a_sleep_nothing_old_is_played() -> None:
    for event in ("loss", "sleep", "stall", "stop"):
        rig = Rig(mic={"signal": noise(0.5)}).start(voice=voice("v", latency_ms=60.0), settings={"block_ms": 40.0})
        rig.run(1.0)
        if event == "loss":
            rig.audio.unplug("out")
            rig.mic.signal = silence
            rig.run(1.0)
            rig.audio.plug(rig.out)
        elif event == "sleep":
            rig.mic.signal = silence
            rig.audio.suspend(100.0)
        elif event == "stall":
            rig.mic.signal = silence
            rig.audio.stall("mic", 0.2)
        else:
            rig.session.stop()
            rig.mic.signal = silence
        at = rig.clock()
        rig.run(3.0)
        if event == "stop":
            assert rig.out.tape.end <= at * 48000
            continue
        late = rig.played_since(at)
        if event == "stall":  # a stall of 0.2 s: what had been said before it may still come out in time
            late = late[round(0.4 * 48000) :]
        assert not late[FADE:].any(), event


def test_a_late_worker_never_repeats_a_block() -> None:
    table = np.random.default_rng(3).uniform(-0.5, 0.5, 10 * 48000).astype(np.float32)  # never twice the same
    rig = Rig(mic={"signal": lambda first, frames: table[np.arange(first, first + frames) % len(table)]}).start()
    rig.run(0.5)
    rig.engine.compute = lambda frames, rate: 2.5 * frames / rate
    rig.run(1.5)  # while the delay moves to what the overload needs, a block is stretched
    at = rig.clock()
    rig.run(5.0)
    sound = rig.played_since(at)
    assert rig.status.state == "degraded"
    frames = [sound[k : k + 480] for k in range(0, len(sound) - 480, 480)]
    # Loud throughout: the few frames of a fade's end are alike by chance.
    loud = [f / np.linalg.norm(f) for f in frames if np.sqrt(np.mean(f.reshape(4, 120) ** 2, 1)).min() > 0.1]
    scores = np.abs(np.array(loud) @ np.array(loud).T) - np.eye(len(loud))
    assert len(loud) > 20
    assert np.max(scores) < 0.5


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38, 1e30])
def test_bad_input_gives_silence_and_is_forgotten(bad: float) -> None:
    rig = Rig(mic={"signal": noise(0.2)})
    rig.start(
        voice=voice("v", latency_ms=30.0),
        settings={"gate_db": -60.0, "rms_mix": 0.5, "denoise_in": "spectral", "denoise_out": "spectral"},
    )
    rig.run(1.0)
    good, before = rig.mic.signal, np.sqrt(np.mean(rig.played(0.5) ** 2))
    rig.mic.signal = lambda first, frames: np.where(np.arange(frames) % 3 == 0, bad, 0.1)
    rig.run(1.0)
    assert np.isfinite(rig.played(1.5)).all()
    assert np.max(np.abs(rig.played(1.5))) <= 1.0
    rig.mic.signal = good
    rig.run(3.0)
    assert np.sqrt(np.mean(rig.played(0.5) ** 2)) == pytest.approx(before, rel=0.5)
    assert rig.status.state == "running"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_voice_that_returns_nan_is_silent_and_counted(bad: float) -> None:
    rig = Rig(mic={"signal": noise(0.2)}).start()
    rig.run(0.5)

    def spoil(out: Block) -> Block:
        out = out.copy()
        out[::7] = bad
        return out

    rig.engine.shape = spoil
    rig.run(0.5)
    assert not rig.played(0.3).any()
    assert rig.status.nonfinite_blocks > 10
    rig.engine.shape = None
    rig.run(0.5)
    assert delay_ms(rig)[0] == pytest.approx(declared_ms(rig), abs=0.1)


def test_a_voice_that_fails_is_silent_told_and_loaded_anew() -> None:
    rig = Rig(mic={"signal": noise(0.2)}).start()
    rig.run(0.5)
    rig.engine.raises = RuntimeError("the card fell off the bus")
    rig.run(1.0)
    assert not rig.played(0.8).any()
    assert rig.status.state == "degraded"
    assert rig.status.faults > 40
    assert "fell off the bus" in (rig.status.advice or "")
    rig.run(1.5)  # two seconds of nothing but faults
    assert rig.status.state == "reconnecting"
    assert "fell off the bus" in (rig.status.stop_reason or "")
    rig.run(30.0)
    assert rig.engine.opened < 12  # loading is dear: not at every turn
    rig.engine.raises = None
    rig.run(65.0)
    assert rig.status.state == "running"
    assert delay_ms(rig)[0] == pytest.approx(declared_ms(rig), abs=0.1)


def test_the_gate_is_exactly_silent_and_keeps_onsets() -> None:
    rate, quiet = 48000, noise(10 ** (-70 / 20))
    word = 0.3 * np.sin(2 * np.pi * 220 / rate * np.arange(rate // 2))
    words_at = 1003 * rate

    def signal(first: int, frames: int) -> Block:
        out = np.array(quiet(first, frames), np.float32)
        index = np.arange(first, first + frames) - words_at
        inside = (index >= 0) & (index < len(word))
        out[inside] += word[index[inside]].astype(np.float32)
        return out

    rig = Rig(mic={"signal": signal}).start(settings={"gate_db": -45.0})
    rig.run(2.0)
    assert not rig.played(1.0).any()
    assert rig.session.gate_open is False
    rig.run(3.0)
    sound = rig.out.tape.at(words_at, rate)
    delay = round(declared_ms(rig) * rate / 1000)
    loud = np.flatnonzero(np.abs(sound) > 0.7 * np.max(np.abs(word[:240])))
    onset = int(loud[0]) - delay
    assert onset < 0.005 * rate
    assert not rig.played(0.5).any()


def test_zeros_in_give_zeros_out() -> None:
    rig = Rig().start(settings={"gate_db": -50.0, "denoise_in": "spectral", "rms_mix": 0.5, "vad": False})
    rig.run(2.0)
    assert not rig.out.tape.all().any()


def test_a_swap_has_no_gap_and_no_stale_context() -> None:
    rig = Rig(mic={"signal": tone(300.0, 48000)}).start(voice=voice("one", gain=0.5, latency_ms=30.0))
    rig.run(1.0)
    at = rig.clock()
    answers = rig.order(voice=voice("two", gain=0.25, latency_ms=30.0))
    rig.run(1.0)
    assert answers == [None]
    assert rig.status.voice == "two"
    sound = rig.played_since(at)
    envelope = np.array([np.max(np.abs(sound[k : k + 480])) for k in range(0, len(sound) - 480, 480)])
    assert np.min(envelope) > 0.24 * 0.5  # never a gap
    assert np.all(np.diff(envelope) < 0.01)  # and only ever towards the new one
    assert envelope[-1] == pytest.approx(0.125, abs=0.01)
    assert (rig.engine.opened, rig.engine.closed) == (2, 1)
    assert rig.status.xruns == 0
    # Silence, then a swap: nothing of the tone is left anywhere.
    rig.mic.signal = silence
    rig.run(1.0)
    rig.order(voice=voice("three", latency_ms=50.0))
    rig.run(1.0)
    assert not rig.played(1.0).any()


def test_the_first_sound_after_the_start_is_faded_in() -> None:
    rig = Rig(mic={"signal": lambda first, frames: np.full(frames, 0.5)}).start()
    rig.run(0.5)
    assert np.max(np.abs(np.diff(rig.out.tape.all()))) < 0.5 * 4 / FADE


def test_finite_words_about_hot_changes() -> None:
    """Every hot setting, changed while a tone runs: applied, without a gap or a step."""
    rig = Rig(mic={"signal": tone(300.0, 48000, 0.3)}).start()
    rig.run(0.5)
    at = rig.clock()
    for settings in (
        {"gain_in_db": 3.0}, {"gain_out_db": -6.0}, {"rms_mix": 0.5}, {"rms_mix": 1.0}, {"pitch": 3.0},
        {"gate_db": -60.0}, {"gate_db": "off"}, {"limiter": False}, {"limiter": True},
        {"denoise_out": "spectral"}, {"denoise_out": "off"}, {"vad": False}, {"gain_in_db": 0.0},
        {"crossfade_ms": 60.0}, {"context_ms": 400.0},
    ):  # fmt: skip
        answers = rig.order(settings=settings)
        rig.run(0.4)
        assert answers == [None], settings
        for name, value in settings.items():
            assert getattr(rig.status.settings, name) == value
    sound = rig.played_since(at)
    assert np.max(np.abs(np.diff(sound))) < 0.03
    assert rig.status.xruns == 0
    assert rig.running.pipeline.newest_voice.parameters.pitch == 3.0  # type: ignore[attr-defined]


def test_what_is_kept_with_a_voice_holds_until_the_session_says_otherwise() -> None:
    rig = Rig(mic={"signal": tone(300.0, 48000, 0.3)}).start()
    rig.run(0.3)

    def heard_by() -> tuple[float, float]:
        rig.run(0.5)
        used = rig.running.pipeline.newest_voice.parameters  # type: ignore[attr-defined]
        assert rig.status.settings is not None
        assert (used.pitch, used.index_rate) == (rig.status.settings.pitch, rig.status.settings.index_rate)
        return used.pitch, used.index_rate

    assert heard_by() == (0.0, 0.0)
    rig.order(voice=VoiceOrder(id="alice", engine="fake", kept={"pitch": 12.0, "index_rate": 0.3}))
    assert heard_by() == (12.0, 0.3)
    rig.order(settings={"pitch": -2.0})
    assert heard_by() == (-2.0, 0.3)
    rig.order(settings={"pitch": 0.0})
    assert heard_by() == (12.0, 0.3)
    rig.order(voice=VoiceOrder(id="bob", engine="fake"))
    assert heard_by() == (0.0, 0.0)
    assert rig.status.xruns == 0
