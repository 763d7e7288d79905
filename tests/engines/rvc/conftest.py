"""One thread: eight suites share few cores, and sums in a fixed order give fixed bits. One watch over files."""

import pytest
import torch
from file_watch import Watch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def watch() -> Watch:
    """Hears of files while it looks."""
    return Watch()
