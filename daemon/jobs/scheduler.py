"""Which job runs where and when: a state object, events in, actions out; no clock, disk or process."""

from bisect import insort
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from myna.daemon.jobs import budget

Reason = Literal["paused", "live_running", "gpu_busy", "engine_busy", "cpu_slots", "inference_jobs"]
End = Literal["done", "failed", "cancelled"]
Phase = Literal["waiting", "loading", "running"]
Cause = Literal["cancel", "queue", "load", "run"]

FREES: dict[str, str] = {
    "paused": "the queue is paused, or waits for room on its disk (the log says so)",
    "live_running": "the live session on this device; stop it, or run this job now",
    "gpu_busy": "the job that runs on this device",
    "engine_busy": "the job that uses this engine on this device",
    "cpu_slots": "a job that runs on the processor",
    "inference_jobs": "the speech job that runs",
}
SPEECH = frozenset({"speak", "batch"})


def is_accelerator(device: str) -> bool:
    """Whether a compute device is not the CPU."""
    return device != "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds the queue; a change is a new value."""

    gpu_jobs: int = 1  # per card
    cpu_jobs: int = 1
    inference_jobs: int = 1  # speech
    paused: bool = False
    queue_s: float = 1800.0
    load_s: float = 1200.0
    run_s: float | None = None  # the user's own run budget
    crashes: int = 3  # in a row and without a finished unit between them: then the job fails
    previews_in_a_row: int = 8  # that may overtake an older job, so that previews can't starve it
    devices: Mapping[str, str] = field(default_factory=dict)  # compute device by engine
    device: str = "cpu"  # of engines not named there


# --- events ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A job that may run: new, given back by a dead daemon, or retried. `order` is its place in the line."""

    job: str
    order: int
    kind: str
    engine: str
    attempts: int = 0
    run_now: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An attempt has its voice loaded and begins to work."""

    job: str
    attempt: int
    budget_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitDone:
    """An attempt finished a unit of work."""

    job: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """An attempt has published its output."""

    job: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An attempt ended with an error that another attempt would meet again."""

    job: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """An attempt's worker is gone, or gave the attempt up because it was told to; its memory is measured back."""

    job: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """The user wants a job ended."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNow:
    """The user wants a job started beside a live session, or while the queue is paused."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStarted:
    """A live session uses a device."""

    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStopped:
    """A live session left a device."""

    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsChanged:
    """The settings changed."""

    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Nothing may start (the store can't be written, the daemon drains), or may again."""

    on: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time went on."""


Event = (
    Submitted | Loaded | UnitDone | Finished | Failed | Crashed | Cancel | RunNow | LiveStarted | LiveStopped
    | LimitsChanged | Held | Tick
)  # fmt: skip

# --- actions --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Begin an attempt on a device."""

    job: str
    attempt: int
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End a running attempt: it was cancelled, or is over a clock."""

    job: str
    attempt: int
    cause: Cause
    spent_s: float
    budget_s: float | None = None
    since_unit_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """A job came to its end. `cause` says why where it was stopped or waited too long."""

    job: str
    state: End
    cause: Cause | Literal["crash"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    """A job goes back to its place in the line after a crash."""

    job: str


Action = Start | Stop | Settle | Requeue


# --- state ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Job:
    id: str
    order: int
    kind: str
    engine: str
    device: str
    attempt: int
    run_now: bool
    since: float  # when its phase began
    phase: Phase = "waiting"
    crashes: int = 0
    last_unit: float = 0.0
    budget_s: float = 0.0
    stopping: Cause | None = None

    @property
    def rank(self) -> tuple[int, int]:
        """Previews first, then what the user wants now, then who came first."""
        return (0 if self.kind == "preview" else 1 if self.run_now else 2, self.order)


class Scheduler:
    """All jobs that are not at their end. Not thread-safe; every call takes the time it happens at."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._jobs: dict[str, _Job] = {}
        self._line: dict[str, list[tuple[tuple[int, int], str]]] = {}  # waiting jobs of a device, in order
        self._active: dict[str, _Job] = {}
        self._live: Counter[str] = Counter()
        self._held = False
        self._moved: dict[str, float] = {}  # when a device's line last moved, or had leave to stand still
        self._previews: Counter[str] = Counter()  # in a row, past an older job
        self._verdicts: dict[tuple[str, str, bool, bool], Reason | None] = {}  # between two events

    # --- what is -----------------------------------------------------------------------------------------

    def __contains__(self, job: str) -> bool:
        return job in self._jobs

    @property
    def active(self) -> tuple[str, ...]:
        """Jobs that hold a slot."""
        return tuple(self._active)

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return len(self._jobs) - len(self._active)

    def waiting_of(self, kind: str) -> int:
        """How many jobs of a kind wait."""
        return sum(1 for job in self._jobs.values() if job.kind == kind and job.phase == "waiting")

    def attempt_of(self, job: str) -> int:
        """The running (or last) attempt of a job."""
        return self._jobs[job].attempt

    def device_of(self, job: str) -> str:
        """Where a job runs or will run."""
        return self._jobs[job].device

    def reason(self, job: str) -> Reason | None:
        """Why a waiting job does not run; None if it runs, is unknown, or is next."""
        found = self._jobs.get(job)
        if found is None or found.phase != "waiting":
            return None
        key = (found.device, found.engine, found.run_now, found.kind in SPEECH)
        if key not in self._verdicts:
            self._verdicts[key] = self._blocked(found)
        blocked = self._verdicts[key]
        if blocked is None and self._line.get(found.device, [(None, "")])[0][1] != job:
            return "gpu_busy" if is_accelerator(found.device) else "cpu_slots"
        return blocked

    def blocked(self) -> int:
        """How many jobs wait with a reason: all but those that are next."""
        heads = [line[0][1] for line in self._line.values() if line]
        return self.waiting - sum(1 for job in heads if self.reason(job) is None)

    def slots(self, device: str) -> int:
        """How many jobs may run on a device."""
        return self.limits.gpu_jobs if is_accelerator(device) else self.limits.cpu_jobs

    def idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self._jobs

    # --- what happens ------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float, start: bool = True) -> list[Action]:
        """Take one event, return what is to be done about it, in order. Late and unknown events do nothing.

        With `start` false free slots stay free until the next event.
        """
        actions: list[Action] = []
        self._verdicts.clear()
        match event:
            case Submitted():
                self._submitted(event, now)
            case Loaded():
                if job := self._current(event.job, event.attempt):
                    if job.phase == "loading":
                        job.phase, job.since, job.last_unit = "running", now, now
                        job.budget_s = event.budget_s
                    self._moved[job.device] = now
            case UnitDone():
                if job := self._current(event.job, event.attempt):
                    job.last_unit, job.crashes = now, 0
                    self._moved[job.device] = now
            case Finished():
                # A job whose output is published is done, whatever it was told in the meantime.
                if job := self._current(event.job, event.attempt):
                    actions.append(self._settle(job, "done", None, now))
            case Failed():
                if job := self._current(event.job, event.attempt):
                    cancelled = job.stopping == "cancel"
                    state: End = "cancelled" if cancelled else "failed"
                    actions.append(self._settle(job, state, "cancel" if cancelled else None, now))
            case Crashed():
                if job := self._current(event.job, event.attempt):
                    actions.append(self._crashed(job, now))
            case Cancel():
                if job := self._jobs.get(event.job):
                    actions.extend(self._cancel(job, now))
            case RunNow():
                if (job := self._jobs.get(event.job)) and job.phase == "waiting" and not job.run_now:
                    self._leave_line(job)
                    job.run_now = True
                    self._enter_line(job)
            case LiveStarted():
                self._live[event.device] += 1
            case LiveStopped():
                if self._live[event.device] > 0:
                    self._live[event.device] -= 1
                self._moved[event.device] = now
            case LimitsChanged():
                self._limits_changed(event.limits, now)
            case Held():
                self._held = event.on
                for device in self._line:
                    self._moved[device] = now
            case Tick():
                actions.extend(self._clocks(now))
        if start:
            actions.extend(self._fill(now))
        return actions

    def _current(self, job_id: str, attempt: int) -> _Job | None:
        """The active job, if the event is about the attempt that runs now: news of a killed one is old."""
        job = self._active.get(job_id)
        return job if job is not None and job.attempt == attempt else None

    def _submitted(self, event: Submitted, now: float) -> None:
        if event.job in self._jobs:
            return
        device = self.limits.devices.get(event.engine, self.limits.device)
        job = _Job(event.job, event.order, event.kind, event.engine, device, event.attempts, event.run_now, since=now)
        self._jobs[job.id] = job
        self._enter_line(job)

    def _enter_line(self, job: _Job) -> None:
        insort(self._line.setdefault(job.device, []), (job.rank, job.id))

    def _leave_line(self, job: _Job) -> None:
        self._line[job.device].remove((job.rank, job.id))

    def _settle(self, job: _Job, state: End, cause: Cause | Literal["crash"] | None, now: float) -> Settle:
        if job.phase == "waiting":
            self._leave_line(job)
        self._active.pop(job.id, None)
        del self._jobs[job.id]
        self._moved[job.device] = now
        return Settle(job=job.id, state=state, cause=cause)

    def _crashed(self, job: _Job, now: float) -> Action:
        if job.stopping is not None:
            state: End = "cancelled" if job.stopping == "cancel" else "failed"
            return self._settle(job, state, job.stopping, now)
        job.crashes += 1
        if job.crashes >= self.limits.crashes:
            return self._settle(job, "failed", "crash", now)
        del self._active[job.id]
        job.phase, job.since = "waiting", now
        job.device = self.limits.devices.get(job.engine, self.limits.device)
        self._moved[job.device] = now
        self._enter_line(job)
        return Requeue(job=job.id)

    def _cancel(self, job: _Job, now: float) -> Iterator[Action]:
        if job.phase == "waiting":
            yield self._settle(job, "cancelled", "cancel", now)
        elif job.stopping is None:
            job.stopping = "cancel"
            yield Stop(job=job.id, attempt=job.attempt, cause="cancel", spent_s=now - job.since)

    def _limits_changed(self, limits: Limits, now: float) -> None:
        self.limits = limits
        for job in self._jobs.values():
            device = limits.devices.get(job.engine, limits.device)
            if job.phase == "waiting" and device != job.device:
                self._leave_line(job)
                job.device = device
                self._enter_line(job)
        for device in self._line:
            self._moved[device] = now

    # --- slots -------------------------------------------------------------------------------------------

    def _blocked(self, job: _Job) -> Reason | None:
        if self._held or (self.limits.paused and not job.run_now):
            return "paused"
        here = [other for other in self._active.values() if other.device == job.device]
        if is_accelerator(job.device):
            if self._live[job.device] and not job.run_now:
                return "live_running"
            if len(here) >= self.limits.gpu_jobs:
                return "gpu_busy"
            # On the CPU each slot is a worker of its own with its own engine; a card is shared by all of them.
            if any(other.engine == job.engine for other in here):
                return "engine_busy"
        elif len(here) >= self.limits.cpu_jobs:
            return "cpu_slots"
        if job.kind in SPEECH:
            speaking = sum(1 for other in self._active.values() if other.kind in SPEECH)
            if speaking >= self.limits.inference_jobs:
                return "inference_jobs"
        return None

    def _fill(self, now: float) -> Iterator[Action]:
        if self._held:
            return
        for device, line in self._line.items():
            free = self.slots(device) - sum(1 for job in self._active.values() if job.device == device)
            while free > 0 and (job := self._next(device, line)) is not None:
                self._leave_line(job)
                job.phase, job.since, job.last_unit = "loading", now, now
                job.attempt += 1
                self._active[job.id] = job
                self._moved[device] = now
                free -= 1
                yield Start(job=job.id, attempt=job.attempt, device=device)

    def _next(self, device: str, line: list[tuple[tuple[int, int], str]]) -> _Job | None:
        """The first in line that nothing blocks; past `previews_in_a_row` previews, the oldest other first."""
        preview: _Job | None = None
        verdicts: dict[tuple[str, bool, bool], bool] = {}  # thousands in line share a handful of verdicts
        for _, job_id in line:
            job = self._jobs[job_id]
            key = (job.engine, job.run_now, job.kind in SPEECH)
            if key not in verdicts:
                verdicts[key] = self._blocked(job) is not None
            if verdicts[key]:
                continue
            if job.kind != "preview":
                if preview is not None and self._previews[device] < self.limits.previews_in_a_row:
                    self._previews[device] += 1
                    return preview
                self._previews[device] = 0
                return job
            preview = preview or job
        if preview is not None:
            self._previews[device] = 0  # it overtook nobody
        return preview

    # --- clocks ------------------------------------------------------------------------------------------

    def _clocks(self, now: float) -> Iterator[Action]:
        yield from self._queue_clock(now)
        for job in self._active.values():
            if job.stopping is not None:
                continue
            spent, since_unit = now - job.since, now - job.last_unit
            if job.phase == "loading" and spent > self.limits.load_s:
                job.stopping = "load"
                yield Stop(
                    job=job.id, attempt=job.attempt, cause="load", spent_s=spent, budget_s=self.limits.load_s,
                    since_unit_s=since_unit,
                )  # fmt: skip
            elif job.phase == "running" and budget.is_over(
                run_s=spent,
                since_unit_s=since_unit,
                budget_s=job.budget_s,
                user_set=self.limits.run_s is not None,
            ):
                job.stopping = "run"
                yield Stop(
                    job=job.id, attempt=job.attempt, cause="run", spent_s=spent, budget_s=job.budget_s,
                    since_unit_s=since_unit,
                )  # fmt: skip

    def _queue_clock(self, now: float) -> Iterator[Action]:
        """Ends what waited too long in a line that does not move.

        The clock stands while the line moves (ten thousand files are not overdue because they are many), and
        while the user wants it to stand: paused, or a live session on the device.
        """
        for device, line in self._line.items():
            if self._held or self.limits.paused or (is_accelerator(device) and self._live[device]):
                self._moved[device] = now
                continue
            moved = self._moved.get(device, 0.0)
            if now - moved <= self.limits.queue_s:
                continue
            for _, job_id in list(line):
                job = self._jobs[job_id]
                if now - max(job.since, moved) > self.limits.queue_s:
                    last = self._moved.get(device, 0.0)
                    yield self._settle(job, "failed", "queue", now)
                    self._moved[device] = last  # an expiry is no movement
