"""How long a job may take: pure arithmetic on seconds."""

from typing import Literal

Verdict = Literal["slow", "waiting_on_a_lock", "stuck"]

MARGIN = 4.0
FLOOR_S = 60.0  # a learned budget is never shorter: the first block of a cold page cache can take this long
FIRST_ACCELERATOR_S = 300.0
FIRST_CPU_S = 600.0
FIRST_CAP_S = 2 * 3600.0
USER_CAP_S = 6 * 3600.0
SILENT_S = 300.0  # past its budget a job lives on while a work unit finishes at least this often
LEAST_LIMIT_S = 30 * 60.0
FREE_CHARACTERS = 1200
RETRY_LEAST_S, RETRY_MOST_S = 5.0, 300.0


def run_budget(
    *,
    accelerator: bool,
    audio_s: float | None = None,
    characters: int | None = None,
    realtime_factor: float | None = None,
    user_s: float | None = None,
) -> float:
    """Seconds of work that a job may take before somebody looks at it.

    Args:
        accelerator: Whether it computes on a GPU.
        audio_s: Length of the audio, where known.
        characters: Length of the text, for speech.
        realtime_factor: Measured work seconds per audio second of this voice and device; None: never measured.
        user_s: The user's own setting; authoritative, at most six hours.

    Returns:
        Seconds. Example: 600 s of audio at a measured factor of 0.5 get 600 × 0.5 × 4 = 1200 s; unmeasured on
        a CPU they get 600 + (600 − 300) × 4 = 1800 s.
    """
    if user_s is not None and user_s > 0:
        return min(user_s, USER_CAP_S)
    if realtime_factor is not None and audio_s is not None:
        return max(FLOOR_S, audio_s * realtime_factor * MARGIN)
    budget = FIRST_ACCELERATOR_S if accelerator else FIRST_CPU_S
    if characters is not None and characters > FREE_CHARACTERS:
        # One second per 40 characters; on a CPU four seconds per character.
        budget += (characters - FREE_CHARACTERS) * (1 / 40 if accelerator else 4.0)
    if audio_s is not None and audio_s > 300:
        budget += (audio_s - 300) * (1.0 if accelerator else 4.0)
    return min(budget, FIRST_CAP_S)


def is_over(*, run_s: float, since_unit_s: float, budget_s: float, user_set: bool = False) -> bool:
    """Whether a running job has to be ended.

    Past its budget it lives on while work units finish, up to the larger of 30 minutes and three budgets; a
    budget that the user set is the end.

    Args:
        run_s: Seconds since its work began.
        since_unit_s: Seconds since its last finished work unit (or since it began).
        budget_s: See `run_budget`.
        user_set: The budget is the user's own.
    """
    if run_s <= budget_s:
        return False
    if user_set:
        return True
    return since_unit_s >= SILENT_S or run_s >= max(LEAST_LIMIT_S, 3 * budget_s)


def classify(*, since_unit_s: float, cpu_share: float | None) -> Verdict:
    """What kept an overdue job: units still came (slow), it slept (a lock), or it span without result (stuck).

    Args:
        since_unit_s: Seconds since its last finished work unit.
        cpu_share: Processor seconds per second that its worker used of late; None where not measured.
    """
    if since_unit_s < SILENT_S:
        return "slow"
    if cpu_share is not None and cpu_share < 0.02:
        return "waiting_on_a_lock"
    return "stuck"


def retry_after(*, ahead: int, slots: int, average_s: float | None) -> float:
    """Seconds after which a refused caller may try again: what is ahead over the slots, within 5..300."""
    wait = (average_s if average_s is not None else 10.0) * ahead / max(1, slots)
    return min(RETRY_MOST_S, max(RETRY_LEAST_S, wait))


def admit(*, waiting: int, incoming: int, room: int, slots: int, average_s: float | None) -> float | None:
    """None if `incoming` more may wait beside `waiting`, else the seconds after which there may be room."""
    if waiting + incoming <= room:
        return None
    return retry_after(ahead=waiting + incoming - room, slots=slots, average_s=average_s)
