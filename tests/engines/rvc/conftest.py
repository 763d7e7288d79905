"""One thread: eight suites share few cores, and sums in a fixed order give fixed bits."""

import torch

torch.set_num_threads(1)
