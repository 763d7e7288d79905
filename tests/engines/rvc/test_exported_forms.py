"""Networks are written in another form for an export; it computes what the module itself does."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from myna.engines.rvc.decoder import Upsampling
from myna.engines.rvc.hubert import Convolutions


def traced(module: nn.Module, example: torch.Tensor) -> Any:
    """The module as exporters see it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tracing's age, and of every size taken for a constant
        record: Any = torch.jit.trace
        return record(module, (example,), check_trace=False)


def kinds(module: Any) -> set[str]:
    """The operations of a trace."""
    return {node.kind() for node in module.inlined_graph.nodes()}


# Kernel and rate of every layer of the known voices at 32, 40 and 48 kHz, of foreign ones, and of odd differences.
@pytest.mark.parametrize(
    ("kernel", "rate"),
    [
        (16, 10),
        (16, 8),
        (20, 10),
        (24, 12),
        (16, 12),
        (12, 6),
        (8, 4),
        (8, 2),
        (4, 2),
        (3, 3),
        (31, 5),
        (7, 4),
        (10, 7),
    ],
)
def test_an_upsampling_by_plain_convolutions_is_the_transposed_one(kernel: int, rate: int) -> None:
    torch.manual_seed(kernel * rate)
    layer = Upsampling(6, 5, kernel, rate).double().requires_grad_(False)
    made = traced(layer, torch.randn(1, 6, 8).double())
    assert ("aten::permute" in kinds(made)) == ((kernel - rate) % 2 == 0)
    for frames in (1, 2, 9):
        x = torch.randn(2, 6, frames).double()
        torch.testing.assert_close(made(x), layer(x), rtol=0, atol=1e-13)


def test_convolutions_over_images_are_those_over_time() -> None:
    torch.manual_seed(4)
    module = Convolutions(16, (10, 3, 3, 3, 3, 2, 2)).double().requires_grad_(False)
    norm = module.conv_layers[0][2]
    norm.weight.uniform_(0.5, 2.0)
    norm.bias.uniform_(-1.0, 1.0)
    made = traced(module, torch.randn(1, 3200).double())
    assert "aten::instance_norm" in kinds(made)
    wav = torch.randn(2, 5000).double() + 0.5  # an offset, which the norm must take out
    torch.testing.assert_close(made(wav), module(wav), rtol=0, atol=1e-12)
