"""Graph replay by its rules, with a capturer that records calls instead of kernels."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from myna.engines.graphs import GraphReplay, allowed, limit_from_environment


@dataclass(frozen=True)
class Value:
    """Something with a tensor's key."""

    number: float
    shape: tuple[int, ...] = (1,)
    dtype: str = "f4"
    device: str = "sim:0"


class Recorded:
    def __init__(self, owner: "Simulated", call: Callable[..., Any]) -> None:
        self.owner, self.call = owner, call

    def replay(self, inputs: Sequence[Any]) -> Any:
        self.owner.replayed += 1
        if self.owner.fail_replay:
            raise RuntimeError("device lost")
        return self.call(*inputs)


class Simulated:
    """A capturer that counts, and fails on demand."""

    def __init__(self) -> None:
        self.warmed: list[int] = []
        self.captured = 0
        self.replayed = 0
        self.fail_capture = self.fail_replay = False
        self.threads: set[int] = set()

    def warm_up(self, call: Callable[..., Any], inputs: Sequence[Any], runs: int) -> None:
        self.warmed.append(runs)
        for _ in range(runs):
            call(*inputs)

    def capture(self, call: Callable[..., Any], inputs: Sequence[Any]) -> Recorded:
        if self.fail_capture:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.captured += 1
        self.threads.add(threading.get_ident())
        return Recorded(self, call)


def doubled(value: Value) -> float:
    return 2 * value.number


def test_captured_once_per_shape_then_replayed() -> None:
    device = Simulated()
    replay = GraphReplay(doubled, device, limit=8)
    assert replay.prepare(Value(1))
    assert device.warmed == [3]
    for n in range(5):
        assert replay(Value(n)) == 2 * n
    assert replay.prepare(Value(7))
    assert (device.captured, device.replayed) == (1, 5)
    assert (replay.counts.captures, replay.counts.replays, replay.counts.eager) == (1, 5, 0)


def test_a_call_never_captures() -> None:
    device = Simulated()
    replay = GraphReplay(doubled, device, limit=8)
    assert replay(Value(3)) == 6
    replay.prepare(Value(1))
    assert replay(Value(3, shape=(2,))) == 6  # another shape: eager, not a capture in the audio path
    assert device.captured == 1
    assert replay.counts.eager == 2


def test_values_are_inputs_and_shape_type_and_device_are_keys() -> None:
    keys = {
        GraphReplay.key([Value(1)]),
        GraphReplay.key([Value(2)]),
        GraphReplay.key([Value(1, shape=(2,))]),
        GraphReplay.key([Value(1, dtype="f2")]),
        GraphReplay.key([Value(1, device="sim:1")]),
    }
    assert len(keys) == 4


def test_the_least_recently_used_graph_goes() -> None:
    device = Simulated()
    replay = GraphReplay(doubled, device, limit=2)
    a, b, c = (Value(1, shape=(n,)) for n in (1, 2, 3))
    replay.prepare(a)
    replay.prepare(b)
    replay(a)
    replay.prepare(c)
    assert replay.counts.evictions == 1
    replay(a)
    replay(c)
    assert replay.counts.eager == 0
    replay(b)
    assert replay.counts.eager == 1


def test_a_failed_capture_is_remembered_and_never_fails_a_block() -> None:
    device = Simulated()
    device.fail_capture = True
    replay = GraphReplay(doubled, device, limit=8)
    assert not replay.prepare(Value(1))
    device.fail_capture = False
    assert not replay.prepare(Value(1))  # not tried again
    assert replay(Value(4)) == 8
    assert "capturing" in next(iter(replay.counts.failures.values()))


def test_a_failed_replay_falls_back_for_good() -> None:
    device = Simulated()
    replay = GraphReplay(doubled, device, limit=8)
    replay.prepare(Value(1))
    device.fail_replay = True
    assert replay(Value(4)) == 8
    assert replay(Value(5)) == 10
    assert device.replayed == 1


def test_another_thread_runs_eagerly() -> None:
    device = Simulated()
    replay = GraphReplay(doubled, device, limit=8)
    replay.prepare(Value(1))
    results: list[object] = []

    def elsewhere() -> None:
        results.append(replay.prepare(Value(1, shape=(9,))))
        results.append(replay(Value(4)))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(10)
    assert results == [False, 8]
    assert device.replayed == 0


def test_dropped_graphs_are_captured_anew() -> None:
    device = Simulated()
    replay = GraphReplay(doubled, device, limit=8)
    replay.prepare(Value(1))
    replay.drop()
    assert replay(Value(1)) == 2
    assert device.replayed == 0
    replay.prepare(Value(1))
    assert device.captured == 2


@pytest.mark.parametrize(("text", "limit"), [("3", 3), ("0", 8), ("-1", 8), ("many", 8), ("", 8)])
def test_limit_from_the_environment(monkeypatch: pytest.MonkeyPatch, text: str, limit: int) -> None:
    monkeypatch.setenv("MYNA_CUDA_GRAPH_CACHE", text)
    assert limit_from_environment() == limit


def test_old_cards_may_not_capture() -> None:
    assert not allowed((7, 5))
    assert allowed((7, 5), override=True)
    assert allowed((8, 0))
    assert allowed((9, 0))


@pytest.mark.gpu
def test_real_cuda_graph_equals_eager() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU here")
    from myna.engines.graphs import CudaCapturer

    layer = torch.nn.Conv1d(8, 8, 3, padding=1).cuda().eval().requires_grad_(False)
    replay = GraphReplay(layer, CudaCapturer("cuda:0"))
    assert replay.prepare(torch.zeros(1, 8, 100, device="cuda:0"))
    for _ in range(3):
        x = torch.randn(1, 8, 100, device="cuda:0")
        assert torch.allclose(replay(x), layer(x), atol=1e-5)
    assert replay.counts.replays == 3
