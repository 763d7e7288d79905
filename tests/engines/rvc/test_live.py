"""The live voice: contexts that move by exactly a block, waves that join, silence that costs nothing."""

import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_models import EAGER, GOLDEN, PLAIN, asset

from myna.engines.base import MissingAsset, ModelUnusable, ParameterRefused, Placement, VoiceAsset, VoiceParameters
from myna.engines.rvc import SPEC
from myna.engines.rvc.live import RvcLive
from myna.engines.rvc.rates import whole

Array = NDArray[np.float32]
RATE = 48000
BLOCK = 4800


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def speech(speech_16k: Array) -> Array:
    return whole(speech_16k[16000:48000], 16000, RATE)


def opened(folder: Path, voice: str = "v1_40k_f0", rate_hz: int = RATE, **parameters: object) -> RvcLive:
    chosen: VoiceParameters = replace(PLAIN, context_ms=300.0, **parameters)  # type: ignore[arg-type]
    return RvcLive(asset(folder, voice), EAGER, chosen, rate_hz)


def run(live: RvcLive, sound: Array, block: int = BLOCK) -> Array:
    return np.concatenate([live.process(b) for b in blocks(sound, block)])


def blocks(sound: Array, block: int = BLOCK) -> Iterable[Array]:
    return (sound[i : i + block] for i in range(0, sound.shape[0] - block + 1, block))


@pytest.mark.parametrize("voice", ["v1_32k_f0", "v1_40k_f0", "v1_48k_f0", "v1_40k_nof0"])
@pytest.mark.parametrize("rate_hz", [16000, 44100, 48000])
def test_every_kind_of_voice_sounds(folder: Path, speech: Array, voice: str, rate_hz: int) -> None:
    sound = whole(speech[: RATE // 2], RATE, rate_hz)
    out = run(opened(folder, voice, rate_hz), sound, rate_hz // 10)
    assert out.shape == (rate_hz // 10 * 5,)
    assert out.dtype == np.float32
    assert np.isfinite(out).all()
    assert out[-rate_hz // 10 :].std() > 0.01


def test_same_start_same_bits_and_reset_equals_new(folder: Path, speech: Array) -> None:
    live = opened(folder)
    first = run(live, speech[: 6 * BLOCK])
    live.reset()
    assert np.array_equal(run(live, speech[: 6 * BLOCK]), first)
    assert np.array_equal(run(opened(folder), speech[: 6 * BLOCK]), first)


def test_input_is_not_written_and_later_input_changes_nothing_earlier(folder: Path, speech: Array) -> None:
    kept = speech[: 4 * BLOCK].copy()
    first = run(opened(folder), kept)
    assert np.array_equal(kept, speech[: 4 * BLOCK])
    assert np.array_equal(run(opened(folder), speech[: 6 * BLOCK])[: 4 * BLOCK], first)


def test_empty_block(folder: Path) -> None:
    assert opened(folder).process(np.zeros(0, np.float32)).shape == (0,)


def test_each_block_costs_one_pass_of_each_network(folder: Path, speech: Array) -> None:
    live = opened(folder)
    live.prepare(BLOCK)
    counts: dict[str, int] = {}
    made = live._models.stage

    def stage(network, shapes):  # type: ignore[no-untyped-def]
        counts[network.role] = counts.get(network.role, 0) + 1
        return made(network, shapes)

    live._models.stage = stage  # type: ignore[method-assign]
    stages_before = len(live._models._stages)
    for formant in (0.0, 1.0, -2.0, 2.0):
        live.set(replace(live._parameters, formant=formant, pitch=formant * 3))
        live.process(speech[:BLOCK])
    assert counts == {"content": 4, "latent": 4, "audio": 4}
    assert len(live._models._stages) == stages_before  # a moved formant is an input, not another shape


def test_silence_rings_out_then_costs_nothing_and_still_moves_time(folder: Path, speech: Array) -> None:
    live = opened(folder)
    run(live, speech[: 6 * BLOCK])
    rendered, silent = live.rendered_blocks, np.zeros(BLOCK, np.float32)
    tail = live.tail_frames
    out = run(live, np.zeros(20 * BLOCK, np.float32))
    assert not out[tail:].any()
    assert live.rendered_blocks - rendered <= 2
    frame = live._frame
    live.process(silent)
    assert live._frame == frame + 10
    assert not live._heard[-300 * 16 :].any()
    # What is said after the pause is said after the pause: nothing of the time before it comes back.
    other = opened(folder)
    run(other, np.zeros(27 * BLOCK, np.float32))
    onset = speech[8 * BLOCK : 12 * BLOCK]
    again, fresh = run(live, onset), run(other, onset)
    assert np.array_equal(live._f0_hz[-30:], other._f0_hz[-30:])
    assert np.abs(again).max() > 0
    assert np.corrcoef(again[2 * BLOCK :], fresh[2 * BLOCK :])[0, 1] > 0.5  # only the sine's phase differs


def test_a_fresh_voice_is_silent_for_silence_without_inference(folder: Path) -> None:
    live = opened(folder)
    assert not run(live, np.zeros(5 * BLOCK, np.float32)).any()
    assert live.rendered_blocks == 0


def test_what_is_not_finite_neither_leaves_nor_stays(folder: Path, speech: Array) -> None:
    live = opened(folder)
    run(live, speech[: 4 * BLOCK])
    bad = speech[4 * BLOCK : 5 * BLOCK].copy()
    bad[100:200], bad[300] = np.nan, np.inf
    assert np.isfinite(live.process(bad)).all()
    out = run(live, speech[5 * BLOCK : 9 * BLOCK])
    assert np.isfinite(out).all()
    assert np.abs(out).max() > 0


def test_full_scale_and_beyond_stays_finite(folder: Path) -> None:
    loud = np.where(np.arange(4 * BLOCK) // 200 % 2, 40.0, -40.0).astype(np.float32)
    assert np.isfinite(run(opened(folder), loud)).all()


def test_a_failed_block_moves_every_context_on_all_the_same(folder: Path, speech: Array) -> None:
    live = opened(folder)
    run(live, speech[: 3 * BLOCK])
    made, frame = live._models.stage, live._frame

    def broken(network, shapes):  # type: ignore[no-untyped-def]
        raise RuntimeError("the device fell off")

    live._models.stage = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        live.process(speech[3 * BLOCK : 4 * BLOCK])
    live._models.stage = made  # type: ignore[method-assign]
    assert live._frame == frame + 10
    resampled = whole(speech[: 4 * BLOCK], RATE, 16000)
    delay = 16  # the resampler's, at 16 kHz
    assert np.abs(live._heard[-1000:] - resampled[-1000 - delay : -delay]).max() < 1e-3
    assert np.isfinite(live.process(speech[4 * BLOCK : 5 * BLOCK])).all()


def test_block_length_changes_on_the_fly(folder: Path, speech: Array) -> None:
    live = opened(folder)
    for block in (4800, 9600, 2400, 14400, 4800):
        live.prepare(block)
        out = run(live, speech[: 2 * block], block)
        assert out.shape == (2 * block,)
        assert np.isfinite(out).all()


def test_a_new_block_length_continues_what_would_have_been_played_next(folder: Path, speech: Array) -> None:
    live = opened(folder)
    first = run(live, speech[: 4 * BLOCK])
    assert live._sola is not None
    next_up = live._sola._tail.copy()
    second = live.process(speech[4 * BLOCK : 6 * BLOCK])
    # The first frames of the new length come from the crossfade's start, which is all of the old tail.
    assert np.abs(second[:24] - next_up[:24]).max() < 0.05
    steps = np.abs(np.diff(np.concatenate((first, second))))
    assert steps[4 * BLOCK - 1] <= steps.max()
    assert np.array_equal(live._sola.resized(4800, 4800, 480)._tail[2400:], np.zeros(2400, np.float32))


def test_preparing_another_length_beside_a_running_block(folder: Path, speech: Array) -> None:
    live, alone = opened(folder), opened(folder)
    live.process(speech[:BLOCK])
    alone.process(speech[:BLOCK])
    failed: list[BaseException] = []

    def prepare() -> None:
        try:
            for block in (9600, 14400, 2400):
                live.prepare(block)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=prepare)
    thread.start()
    heard = [live.process(b) for b in blocks(speech[BLOCK : 6 * BLOCK])]
    thread.join(60)
    assert not thread.is_alive()
    assert not failed
    assert np.array_equal(np.concatenate(heard), run(alone, speech[BLOCK : 6 * BLOCK]))


def test_reset_lets_go_of_lengths_that_are_not_in_use(folder: Path, speech: Array) -> None:
    live = opened(folder)
    for block in (9600, BLOCK):
        live.process(speech[:block])
    assert len(live._models._stages) == 6
    live.reset()
    assert len(live._models._stages) == 3


def test_latency_is_constant_for_a_block_length_and_follows_the_crossfade(folder: Path, speech: Array) -> None:
    live = opened(folder)
    live.process(speech[:BLOCK])
    assert live.latency_frames == 2400 + 480 + 48  # crossfade, search, the resampler to 16 kHz
    live.set(replace(live._parameters, crossfade_ms=20.0))
    assert live.latency_frames == 960 + 480 + 48
    assert np.isfinite(live.process(speech[BLOCK : 2 * BLOCK])).all()


def test_output_is_late_by_the_declared_latency(folder: Path) -> None:
    """A burst after silence comes out where the latency says, within the search and one frame of 10 ms."""
    live = opened(folder, "v1_40k_nof0")
    sound = np.zeros(14 * BLOCK, np.float32)
    begin = 6 * BLOCK
    sound[begin : begin + 3 * BLOCK] = 0.3 * np.random.default_rng(2).standard_normal(3 * BLOCK)
    out = run(live, sound)
    heard = np.flatnonzero(np.abs(out) > 0)
    assert heard.size
    # Voices with random weights hum in silence too, so only the span that is rendered at all can be held.
    assert heard[0] >= begin - BLOCK
    assert heard[-1] <= begin + 3 * BLOCK + live.tail_frames


@pytest.mark.parametrize("parameters", [{"speaker_id": 3}, {"speaker_id": -1}, {"formant": 2.5}, {"pitch": 25.0}])
def test_values_the_voice_cannot_take_are_refused_before_and_while_running(
    folder: Path, parameters: dict[str, object]
) -> None:
    with pytest.raises(ParameterRefused) as caught:
        opened(folder, **parameters)
    assert caught.value.facts["parameter"] == next(iter(parameters))
    live = opened(folder)
    before = live._parameters
    with pytest.raises(ParameterRefused):
        live.set(replace(before, **parameters))  # type: ignore[arg-type]
    assert live._parameters is before


def test_unknown_pitch_method_lists_those_that_are_there(folder: Path) -> None:
    with pytest.raises(ParameterRefused, match="swift"):
        opened(folder, f0_method="yin")


def test_missing_models_are_named(folder: Path) -> None:
    whole_asset = asset(folder)
    files = {k: v for k, v in whole_asset.files.items() if k != "embedder"}
    with pytest.raises(MissingAsset, match=r"hubert_base\.pt.*ContentVec") as caught:
        RvcLive(VoiceAsset(id="x", engine="rvc", files=files), EAGER, PLAIN, RATE)
    assert caught.value.facts["asset"] == "hubert_base.pt"
    with pytest.raises(MissingAsset, match=r"rmvpe\.pt"):
        RvcLive(whole_asset, EAGER, replace(PLAIN, f0_method="rmvpe"), RATE)
    problems = SPEC.check(VoiceAsset(id="x", engine="rvc", files=files))
    assert any("hubert_base.pt" in p for p in problems)
    assert SPEC.check(whole_asset) == ()


def test_an_encoder_that_does_not_fit_is_refused(folder: Path) -> None:
    files = dict(asset(folder).files)
    files["model"] = GOLDEN / "synth" / "v2_40k_f0.pth"
    with pytest.raises(ModelUnusable, match=r"9 layers|features"):
        RvcLive(VoiceAsset(id="x", engine="rvc", files=files), EAGER, PLAIN, RATE)


@pytest.mark.parametrize("rate_hz", [11025, 22050 + 1])
def test_rates_without_whole_frames_are_refused(folder: Path, rate_hz: int) -> None:
    with pytest.raises(ParameterRefused, match="multiples of 100"):
        opened(folder, rate_hz=rate_hz)


def test_blocks_of_odd_lengths_are_refused(folder: Path) -> None:
    with pytest.raises(ParameterRefused, match="10 ms"):
        opened(folder).process(np.zeros(1000, np.float32))


def test_rmvpe_and_dio_drive_the_voice(folder: Path, speech: Array) -> None:
    for method in ("rmvpe", "dio", "harvest", "pm"):
        live = RvcLive(asset(folder, rmvpe=True), EAGER, replace(PLAIN, f0_method=method, context_ms=300.0), RATE)
        assert f"pitch by {method}" in live.facts.notes
        out = run(live, speech[: 4 * BLOCK])
        assert np.isfinite(out).all()


def test_a_bad_index_is_named_once_and_the_voice_runs_without(folder: Path, speech: Array) -> None:
    wrong = asset(folder, index=GOLDEN / "index_v2.index")  # 768 wide, the voice has 256
    live = RvcLive(wrong, EAGER, replace(PLAIN, index_rate=0.5, context_ms=300.0), RATE)
    assert [n for n in live.facts.notes if "without retrieval" in n and "768" in n]
    assert np.array_equal(run(live, speech[: 3 * BLOCK]), run(opened(folder), speech[: 3 * BLOCK]))


def test_facts_tell_what_runs(folder: Path) -> None:
    facts = RvcLive(asset(folder), Placement(backend="eager", precision="bf16"), PLAIN, RATE).facts
    assert (facts.engine, facts.device, facts.backend, facts.precision) == ("rvc", "cpu", "eager", "fp32")
    assert facts.model_bytes


def test_pitch_and_autotune_move_what_is_heard(folder: Path, speech: Array) -> None:
    live = opened(folder, pitch=12.0)
    raw = np.array([0, 100, 200, 0], np.float32)
    assert live._moved(raw).tolist() == [0, 200, 400, 0]
    live.set(replace(live._parameters, pitch=0.0, autotune=1.0))
    assert abs(live._moved(np.array([445.0], np.float32))[0] - 440) < 0.01
    live.set(replace(live._parameters, autotune=0.0, unvoiced="original"))
    assert live._moved(raw).tolist() == [100, 100, 200, 200]
