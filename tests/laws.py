"""The laws that every stage must hold, as functions that tests run over all of them."""

from collections.abc import Callable, Iterable

import numpy as np

from myna.dsp.stage import Block, Stage

MakeStage = Callable[[], Stage]


def noise(frames: int, seed: int = 1, level: float = 0.1) -> Block:
    """White noise, the same for the same seed."""
    return (level * np.random.default_rng(seed).standard_normal(frames)).astype(np.float32)


def run_split(stage: Stage, signal: Block, sizes: Iterable[int]) -> Block:
    """Feed a signal in blocks of the given sizes (repeated for as long as it lasts)."""
    out, at, pattern = [], 0, list(sizes)
    turn = 0
    while at < len(signal):
        size = pattern[turn % len(pattern)]
        turn += 1
        block = signal[at : at + size]
        result = stage.process(block)
        assert result.dtype == np.float32
        assert result.shape == block.shape
        out.append(result.copy())
        at += size
    return np.concatenate(out)


def measured_latency(stage: Stage, probe: Block) -> int:
    """Lag at which the output resembles the input most, in frames."""
    out = stage.process(probe).astype(np.float64)
    size = 2 * len(probe)
    cross = np.fft.irfft(np.fft.rfft(out, size) * np.conj(np.fft.rfft(probe, size)), size)
    return int(np.argmax(cross[: len(probe)]))


def check_stage_laws(
    make_stage: MakeStage,
    rate_hz: int,
    *,
    signal: Block | None = None,
    tolerance: float = 1e-6,
    impulse: bool = True,
    wild: bool = True,
) -> None:
    """Hold a stage to all stage laws.

    Args:
        make_stage: Builds the stage, the same each time.
        rate_hz: Its rate.
        signal: What it is tried on, shape (frames,); None: 0.4 s of noise that begins and ends with silence.
        tolerance: Largest difference allowed where results must be equal: float32 rounding, by default.
        impulse: The stage passes single impulses; otherwise its delay is measured by correlation on `signal`.
        wild: Also try extremes (huge values, denormals, long zeros).
    """
    if signal is None:
        signal = noise(round(0.4 * rate_hz))
        signal[: rate_hz // 20] = 0.0
        signal[-rate_hz // 10 :] = 0.0
    whole = make_stage().process(signal)
    assert whole.dtype == np.float32
    assert whole.shape == signal.shape
    check_repeatable(make_stage, signal, whole)
    check_any_split(make_stage, signal, whole, tolerance)
    check_causal(make_stage, signal, whole, tolerance)
    check_reset(make_stage, signal, whole)
    check_latency(make_stage, rate_hz, signal, impulse)
    if wild:
        check_finite(make_stage, rate_hz)


def check_repeatable(make_stage: MakeStage, signal: Block, whole: Block) -> None:
    """Same start, same bits; the input is not written to, nor handed out."""
    kept = signal.copy()
    stage = make_stage()
    again = stage.process(signal)
    np.testing.assert_array_equal(signal, kept, "the input was written to")
    np.testing.assert_array_equal(again, whole, "two new stages differ")
    assert not np.shares_memory(again, signal), "the output is the input's memory"
    later = again.copy()
    stage.process(signal)
    np.testing.assert_array_equal(again, later, "a later call wrote to an earlier output")
    frozen = signal.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(make_stage().process(frozen), whole)


def check_any_split(make_stage: MakeStage, signal: Block, whole: Block, tolerance: float) -> None:
    """Any split into blocks gives the same output."""
    for sizes in ([0, 1, 0, 997], [480], [7, 13, 101, 1009], [1, 2, 3, 5, 4801], [len(signal) - 1, 1]):
        np.testing.assert_allclose(
            run_split(make_stage(), signal, sizes), whole, rtol=0, atol=tolerance, err_msg=f"split {sizes}"
        )
    few = min(len(signal), 700)
    single = run_split(make_stage(), signal[-few:], [1])
    np.testing.assert_allclose(single, make_stage().process(signal[-few:]), rtol=0, atol=tolerance)


def check_causal(make_stage: MakeStage, signal: Block, whole: Block, tolerance: float) -> None:
    """A longer input never changes earlier output."""
    for cut in (1, len(signal) // 3, len(signal) // 2 + 1):
        part = make_stage().process(signal[:cut])
        np.testing.assert_allclose(part, whole[:cut], rtol=0, atol=tolerance, err_msg=f"cut at {cut}")


def check_reset(make_stage: MakeStage, signal: Block, whole: Block) -> None:
    """`reset()` equals a new object, also in the middle of things, also twice."""
    stage = make_stage()
    latency = stage.latency_frames
    for heard in (signal[: len(signal) // 2], signal[:311], signal):
        stage.process(heard)
        stage.reset()
        assert stage.latency_frames == latency
    stage.reset()
    np.testing.assert_array_equal(stage.process(signal), whole, "a reset stage is not a new one")


def check_latency(make_stage: MakeStage, rate_hz: int, signal: Block, impulse: bool) -> None:
    """What goes in comes out exactly `latency_frames` later."""
    stage = make_stage()
    declared = stage.latency_frames
    assert declared >= 0
    if not impulse:
        assert measured_latency(stage, signal) == declared
        return
    probe = np.zeros(declared + rate_hz // 5, np.float32)
    at = rate_hz // 10 + 3
    probe[at] = 0.25
    out = stage.process(probe)
    assert np.max(np.abs(out)) > 0.0, "the impulse did not come out"
    assert int(np.argmax(np.abs(out))) == at + declared


def check_finite(make_stage: MakeStage, rate_hz: int) -> None:
    """Finite in, finite out, for whatever a float32 can hold."""
    for value in (1e30, -3e38, 1e-42):
        stage = make_stage()
        block = np.zeros(rate_hz // 10, np.float32)
        block[100:200] = value
        for heard in (block, np.zeros_like(block), noise(len(block))):
            with np.errstate(over="ignore"):
                assert np.isfinite(stage.process(heard)).all(), f"not finite after {value}"
