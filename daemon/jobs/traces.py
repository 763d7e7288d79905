"""What is remembered of a job that ended: figures and words of a closed vocabulary, nothing of the user's."""

import re
from typing import cast

from myna.control.contract import JobKind, JobState, Trace
from myna.control.errors import CODES

_DEVICE = re.compile(r"cpu|mps|dml|(cuda|xpu):\d{1,3}")
_ENGINE = re.compile(r"[a-z][a-z0-9-]{0,31}")


def trace_of(
    *,
    job: str,
    kind: str,
    outcome: str,
    device: str | None,
    engine: str | None,
    queue_s: float | None,
    result: dict[str, object] | None,
    segments: int,
    attempts: int,
    error_code: str | None,
) -> Trace:
    """The trace of a job; a word that is not of the vocabulary becomes null."""
    figures = result or {}
    return Trace(
        job=job,
        kind=cast(JobKind, kind),
        outcome=cast(JobState, outcome),
        device=device if device is not None and _DEVICE.fullmatch(device) else None,
        engine=engine if engine is not None and _ENGINE.fullmatch(engine) else None,
        queue_s=queue_s,
        load_s=_figure(figures.get("load_s")),
        run_s=_figure(figures.get("run_s")),
        audio_s=_figure(figures.get("audio_s")),
        segments=segments,
        attempts=attempts,
        error_code=error_code if error_code in CODES else None,
    )


def _figure(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
