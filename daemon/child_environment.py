"""The environment of a process that computes."""

import os
from typing import Final

QUIET: Final = {
    # Idle OpenMP threads that spin at their barriers cost most on a machine that has other work.
    "OMP_WAIT_POLICY": "PASSIVE",
    # numpy's products are small here; for each its second thread spins on for some 25 ms. Measured on an RVC voice at
    # 250 ms blocks: 127 of 282 CPU-ms a block, for nothing.
    "OPENBLAS_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}
# The cards were numbered by nvidia-smi, which goes by their slots; by itself CUDA begins with the fastest.
NUMBERED: Final = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def child_environment(**more: str) -> dict[str, str]:
    """This process's own variables, with `more` and what children need.

    That is: what keeps libraries from spinning, unless the user set it, and the daemon's numbering of cards, always.
    """
    return {**QUIET, **os.environ, **NUMBERED, **more}
