"""The simulated device counts exactly, runs out like a real one, and fails when told."""

import gc

import pytest
import torch

from myna.daemon.compute.decision import ComputeSettings, decide
from myna.daemon.simulated import Act, SimulatedDevice

MB = 1 << 20


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv1d(1, 8, 9), torch.nn.ReLU(), torch.nn.Conv1d(8, 1, 9)).eval()


def test_bytes_are_counted_to_the_byte() -> None:
    device = SimulatedDevice(4)
    a, b = device.allocate(3 * MB), device.allocate(1)
    assert (device.allocated, device.free, device.peak) == (3 * MB + 1, MB - 1, 3 * MB + 1)
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 1.00 MiB.*4.00 MiB of which 1.00 MiB"):
        device.allocate(MB)
    assert device.allocated == 3 * MB + 1
    a.free()
    a.free()
    device.allocate(MB)
    assert device.allocated == MB + 1
    b.free()
    assert device.peak == 3 * MB + 1


def test_real_torch_code_is_counted_and_unchanged() -> None:
    device, model, audio = SimulatedDevice(64), net(), torch.randn(1, 1, 4096)
    expected = model(audio)
    with device.running(), torch.no_grad():
        result = model(audio)
    assert torch.equal(result, expected)
    assert device.allocated == result.untyped_storage().nbytes() == 4080 * 4
    # Both hidden layers were there at once: 8 channels of 4088 frames each.
    assert device.peak >= 2 * 8 * 4088 * 4
    assert device.counts["kernel"] >= 3
    assert device.busy_s > 0
    del result
    gc.collect()
    assert device.allocated == 0


def test_views_and_changes_in_place_take_no_room() -> None:
    device = SimulatedDevice(1)
    with device.running():
        a = torch.zeros(1000)
        b = a[10:20].view(2, 5)
        a += 1
    assert device.allocated == 4000
    del a
    gc.collect()
    assert device.allocated == 4000  # the view still holds it
    del b
    gc.collect()
    assert device.allocated == 0


def test_torch_code_runs_out_of_memory_and_goes_on_after_room_was_made() -> None:
    device = SimulatedDevice(1)
    held = device.allocate(MB - 1000)
    with device.running():
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(1000)
        gc.collect()
        assert device.allocated == MB - 1000
        held.free()
        kept = torch.zeros(1000)
    assert device.allocated == kept.nbytes


@pytest.mark.parametrize("act", ["allocation", "copy", "kernel"])
@pytest.mark.parametrize("nth", [1, 3])
def test_the_nth_act_fails_once(act: Act, nth: int) -> None:
    device = SimulatedDevice(16)
    expected = torch.OutOfMemoryError if act == "allocation" else RuntimeError
    done: list[torch.Tensor] = []

    def work() -> None:
        while len(done) < 10:
            done.append(torch.zeros(10).to(torch.float64))

    with device.running():
        device.fail(act, nth)
        with pytest.raises(expected, match="simulated failure"):
            work()
        again = torch.zeros(10).to(torch.float64)
    assert len(done) == ((nth - 1) // 2 if act != "copy" else nth - 1)
    assert again.dtype == torch.float64


def test_own_errors_and_wrong_numbers() -> None:
    device = SimulatedDevice(1)
    device.fail("kernel", 2, KeyError)
    device.kernel()
    with pytest.raises(KeyError):
        device.kernel()
    device.kernel()
    with pytest.raises(ValueError, match="first"):
        device.fail("kernel", 0)
    with pytest.raises(ValueError, match="memory"):
        SimulatedDevice(0)


def test_a_module_is_placed_whole_or_not_at_all() -> None:
    model = net()
    size = sum(p.nbytes for p in model.parameters())
    device = SimulatedDevice(1)
    held = device.place(model)
    assert device.allocated == size
    assert device.counts["copy"] == 4
    held.free()
    for act in ("allocation", "copy"):
        device.fail(act, 3)  # type: ignore[arg-type]
        with pytest.raises(RuntimeError):
            device.place(model)
        assert device.allocated == 0
    tied = torch.nn.ModuleList([model, model[0]])  # type: ignore[index]
    device.place(tied)
    assert device.allocated == size


def test_time_is_simulated() -> None:
    device = SimulatedDevice(1, kernel_us=10, copy_gb_per_s=1)
    device.copy(500_000_000)
    for _ in range(50_000):
        device.kernel()
    assert device.busy_s == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("memory_mb", "capability", "device"), [(8192, (8, 6), "cuda:0"), (2048, (8, 6), "cpu"), (8192, (5, 2), "cpu")]
)
def test_it_is_judged_like_a_real_card(memory_mb: int, capability: tuple[int, int], device: str) -> None:
    card = SimulatedDevice(memory_mb, capability=capability).card()
    assert decide([card], ComputeSettings()).device == device
