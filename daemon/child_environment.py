"""The environment of a process that computes."""

import os

QUIET = {
    # Idle OpenMP threads that spin at their barriers cost most on a machine that has other work.
    "OMP_WAIT_POLICY": "PASSIVE",
    # numpy's products are small here; for each its second thread spins on for some 25 ms. Measured on an RVC voice at
    # 250 ms blocks: 127 of 282 CPU-ms a block, for nothing.
    "OPENBLAS_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}


def child_environment(**more: str) -> dict[str, str]:
    """This process's own variables, with `more`, and what keeps libraries from spinning unless the user set it."""
    return {**QUIET, **os.environ, **more}
