"""What clients are told of a job: its state, and the error that ended it."""

from typing import cast

from myna.control.contract import JobInfo, JobKind, JobState
from myna.control.errors import MynaError
from myna.daemon.jobs import budget
from myna.daemon.jobs.scheduler import FREES, Reason, Stop
from myna.daemon.jobs.store import Row, decoded


def info_of(row: Row, reason: Reason | None, eta_s: float | None) -> JobInfo:
    """A job as it is stored, why it waits (None: nothing is in its way), and the seconds it still needs."""
    state = row.state if reason is None else "waiting"
    return JobInfo(
        id=row.id,
        kind=cast(JobKind, row.kind),
        state=cast(JobState, state),
        voice=row.voice,
        input=row.input,
        output=row.output,
        reason=reason,
        frees=FREES[reason] if reason is not None else None,
        progress=row.progress,
        segments_done=row.segments_done,
        segments=row.segments,
        attempts=row.attempts,
        error=decoded(row.error),
        submitted_at=row.submitted_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        eta_s=eta_s,
        result=decoded(row.result),
    )


def error_of(error: MynaError) -> dict[str, object]:
    """An error as the store keeps it."""
    return {"code": error.code, "message": error.message, "facts": error.facts}


def overdue(action: Stop, cpu_share: float | None) -> dict[str, object]:
    """Why a job was ended that took longer than it may, and what kept it."""
    verdict = budget.classify(since_unit_s=action.since_unit_s, cpu_share=cpu_share)
    what = "load its voice" if action.cause == "load" else "do its work"
    words = {
        "slow": "it was slow, but went on",
        "waiting_on_a_lock": "it waited for something and used no processor time",
        "stuck": "it used the processor without finishing anything",
    }[verdict]
    setting = "load_budget_s" if action.cause == "load" else "run_budget_s"
    return error_of(
        MynaError(
            "timed_out",
            f"The job had {action.budget_s or 0:.0f} s to {what} and took {action.spent_s:.0f} s: {words}."
            f" Retry it, or raise jobs.{setting}.",
            clock=action.cause,
            verdict=verdict,
            spent_s=round(action.spent_s, 3),
            budget_s=action.budget_s,
            since_unit_s=round(action.since_unit_s, 3),
            cpu_share=cpu_share,
            retryable=True,
        )
    )


def waited_too_long() -> dict[str, object]:
    """Why a job was ended that never got its turn."""
    return error_of(
        MynaError(
            "timed_out",
            "The job waited too long in a line that did not move. Retry it, or raise jobs.queue_budget_s.",
            clock="queue",
            retryable=True,
        )
    )
