"""Follows jobs to their end, by events and by asking, with bars on a terminal and lines elsewhere."""

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from myna.control.cli import output
from myna.control.client import Client
from myna.control.contract import JobInfo, JobProgress, JobRef
from myna.control.errors import MynaError

ENDED = frozenset({"done", "failed", "cancelled"})
ASK_EVERY_S = 2.0
ASK_AT_ONCE = 32
LINE_EVERY_S = 5.0
_BARS = 6


class Tally:
    """What is known of the jobs that are followed: pure, fed with events and answers."""

    def __init__(self, ids: Sequence[str], now: float) -> None:
        self.jobs: dict[str, JobInfo | None] = dict.fromkeys(ids)
        self.progress: dict[str, float] = {}
        self._began = now

    def take(self, job: JobInfo) -> bool:
        """Learn a job's state; false if it is not followed, or had ended already."""
        if job.id not in self.jobs:
            return False
        known = self.jobs[job.id]
        if known is not None and known.state in ENDED:
            return False
        self.jobs[job.id] = job
        if job.state in ENDED:
            self.progress.pop(job.id, None)
        elif job.progress is not None:
            self.progress[job.id] = max(job.progress, self.progress.get(job.id, 0.0))
        return True

    def take_progress(self, progress: JobProgress) -> None:
        """Learn how far a job is."""
        if progress.id in self.jobs and progress.id not in self.ended:
            self.progress[progress.id] = progress.progress

    @property
    def ended(self) -> dict[str, JobInfo]:
        """Jobs that have ended."""
        return {key: job for key, job in self.jobs.items() if job is not None and job.state in ENDED}

    @property
    def open(self) -> list[str]:
        """Ids of jobs that have not."""
        return [key for key, job in self.jobs.items() if job is None or job.state not in ENDED]

    @property
    def share(self) -> float:
        """How much of the whole is done, 0..1."""
        return (len(self.ended) + sum(self.progress.values())) / max(1, len(self.jobs))

    def remaining_s(self, now: float) -> float | None:
        """Seconds to go at the pace so far; None before there is a pace."""
        share = self.share
        return None if share <= 0 else (now - self._began) * (1 - share) / share

    def per_minute(self, now: float) -> float | None:
        """Jobs ended a minute so far."""
        ended = len(self.ended)
        return 60 * ended / (now - self._began) if ended and now > self._began else None

    def words(self, now: float) -> str:
        """One line: counts, rate, time to go, and why the first waiting job waits."""
        jobs = [job for job in self.jobs.values() if job is not None]
        failed = sum(job.state == "failed" for job in jobs)
        running = sum(job.state == "running" for job in jobs)
        waiting = next((job.reason for job in jobs if job.state == "waiting" and job.reason), None)
        rate, left = self.per_minute(now), self.remaining_s(now)
        parts = [f"{len(self.ended)}/{len(self.jobs)} ended", f"{running} running"]
        if failed:
            parts.append(f"{failed} failed")
        if rate is not None:
            parts.append(f"{rate:.3g}/min")
        if left is not None and self.open:
            parts.append(f"about {left:.0f} s to go")
        if waiting and not running:
            parts.append(f"waiting: {waiting}")
        return ", ".join(parts)


class View(Protocol):
    """Where progress is shown."""

    def show(self, tally: Tally, now: float) -> None:
        """Show how far all is."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def follow(
    client: Client,
    ids: Sequence[str],
    quiet: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> list[JobInfo]:
    """Wait until every job has ended; returns them in order. KeyboardInterrupt passes."""
    tally = Tally(ids, clock())
    with view(quiet) as shown, client.events(("job.state", "job.progress"), timeout_s=0.5) as events:
        asked_at = float("-inf")
        turn: deque[str] = deque()
        while tally.open:
            now = clock()
            if now - asked_at >= ASK_EVERY_S:  # also catches what ended before the subscription stood
                _ask(client, tally, turn)
                asked_at = now
                shown.show(tally, now)
                continue
            event = next(events)
            if event is None:
                continue
            if isinstance(event.message, JobInfo):
                tally.take(event.message)
            elif isinstance(event.message, JobProgress):
                tally.take_progress(event.message)
            if event.lost or event.reconnected:
                asked_at = float("-inf")
            shown.show(tally, clock())
        shown.show(tally, clock())
    return [job for job in tally.jobs.values() if job is not None]


def _ask(client: Client, tally: Tally, turn: deque[str]) -> None:
    """Ask about some of the open jobs, each in its turn: thousands at once would keep the daemon busy."""
    if not turn:
        turn.extend(tally.open)
    for _ in range(min(ASK_AT_ONCE, len(turn))):
        job = turn.popleft()
        if job in tally.ended:
            continue
        try:
            tally.take(client.call("jobs.show", JobRef(id=job), JobInfo))
        except MynaError as error:
            if error.code != "not_found":
                raise
            raise MynaError("not_found", f"Job {job} is gone from the daemon's store.", id=job) from error


def view(quiet: bool) -> View:
    """The view that fits: none, bars, or lines."""
    if quiet:
        return Lines(every_s=float("inf"))
    return Bars() if sys.stderr.isatty() else Lines(every_s=LINE_EVERY_S)


class Lines:
    """A line on stderr now and then."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._next: float | None = None
        self._last = ""

    def show(self, tally: Tally, now: float) -> None:
        """Say something if it is time, or all is over."""
        if self._every_s == float("inf"):
            return
        if self._next is None:
            self._next = now + self._every_s
        if now >= self._next or not tally.open:
            words = tally.words(now)
            if words != self._last:
                output.note(words)
            self._last = words
            self._next = now + self._every_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return


class Bars:
    """One bar for all, and one for each job that runs."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[words]}", markup=False),
            console=Console(stderr=True),
            transient=True,
        )
        self._all = self._progress.add_task("all", total=1.0, words="")
        self._bars: dict[str, Any] = {}

    def show(self, tally: Tally, now: float) -> None:
        """Move the bars."""
        self._progress.update(self._all, completed=tally.share, words=tally.words(now))
        running = list(tally.progress)[:_BARS]
        for job in [each for each in self._bars if each not in running]:
            self._progress.remove_task(self._bars.pop(job))
        for job in running:
            if job not in self._bars:
                info = tally.jobs[job]
                name = (info.input or info.output) if info is not None else job
                self._bars[job] = self._progress.add_task(output.printable(name[-32:]), total=1.0, words="")
            self._progress.update(self._bars[job], completed=tally.progress[job])

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def failure(jobs: Sequence[JobInfo]) -> MynaError | None:
    """One error for all jobs that did not succeed; None if all did."""
    failed = [job for job in jobs if job.state != "done"]
    if not failed:
        return None
    return MynaError(
        "failed",
        f"{len(failed)} of {len(jobs)} jobs did not succeed; `myna jobs retry ID` tries one again.",
        jobs=failed,
        done=len(jobs) - len(failed),
    )


def why(job: JobInfo) -> str:
    """The cause of a job's failure in words."""
    message = (job.error or {}).get("message")
    return str(message) if message else (job.reason or job.state)
