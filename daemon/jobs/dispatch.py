"""What happens to jobs: the scheduler's actions carried out on the store and the workers, and what comes of them."""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import msgspec

from myna.control.contract import JobInfo, JobProgress, JobSpec, LogLine, Message
from myna.control.errors import MynaError
from myna.daemon.jobs import budget
from myna.daemon.jobs.attempt import Attempt
from myna.daemon.jobs.executor import AttemptStopped, WorkerExecutor
from myna.daemon.jobs.folders import WorkFolders
from myna.daemon.jobs.messages import Done, FromWorker, Opened, Order, Standing, Unit
from myna.daemon.jobs.scheduler import (
    Crashed,
    Event,
    Failed,
    Finished,
    Held,
    Limits,
    Loaded,
    Requeue,
    Scheduler,
    Settle,
    Start,
    Stop,
    Tick,
    UnitDone,
    is_accelerator,
)
from myna.daemon.jobs.store import Row, Store, no_such_job, number_of
from myna.daemon.jobs.telling import error_of, info_of, overdue, waited_too_long
from myna.daemon.jobs.traces import trace_of
from myna.daemon.orders import PlacementOrder, VoiceOrder
from myna.engines.base import VoiceAsset

LONG_INPUT_S = 600.0

Publish = Callable[[str, Message], None]


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker let go of an attempt."""

    job: str
    attempt: int
    future: "Future[Done]"


@dataclass(frozen=True, slots=True)
class News:
    """A worker said something."""

    message: FromWorker


class Dispatch:
    """Owns what is at work. Its methods are called one at a time: whoever calls holds the queue's lock."""

    def __init__(
        self,
        store: Store,
        folders: WorkFolders,
        limits: Limits,
        *,
        publish: Publish,
        resolve: Callable[[str], VoiceAsset],
        place: Callable[[str], PlacementOrder],
        post: Callable[[Ended | News], None],
        unload_after_s: float,
    ) -> None:
        """Begin with nothing at work.

        Args:
            store: Where jobs are kept.
            folders: Where they leave what they have finished.
            limits: What may run beside what.
            publish: Takes (topic, message) of an event.
            resolve: Finds a voice by its id; MynaError("not_found") if there is none.
            place: Where an engine, by name, computes.
            post: Takes what workers say, in their threads; it comes back to `ended` or `news` under the lock.
            unload_after_s: A voice that nobody used for so long is let go; 0: never.
        """
        self.scheduler = Scheduler(limits)
        self.executor = WorkerExecutor()
        self.unload_after_s = unload_after_s
        self.average_s: float | None = None  # that a job takes
        self.closing = False
        self._store, self._folders = store, folders
        self._publish, self._resolve, self._place, self._post = publish, resolve, place, post
        self._running: dict[str, Attempt] = {}
        self._ends: dict[str, tuple[dict[str, object] | None, dict[str, object] | None]] = {}
        self._unsaved: deque[Callable[[], object]] = deque()
        self._advised: set[str] = set()
        self._disk_full = False

    # --- life --------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether it must be looked after every second."""
        return not self.scheduler.idle() or bool(self._unsaved) or self.executor.idle_workers() > 0

    @property
    def over(self) -> bool:
        """Whether it was closed and nothing runs any more."""
        return self.closing and not self.scheduler.active

    def begin_close(self, force: bool) -> None:
        """Start nothing more; with `force` interrupt what runs, to go on at the next start."""
        self.closing = True
        self._hold()
        if force:
            for job in self.scheduler.active:
                n, attempt = number_of(job), self.scheduler.attempt_of(job)
                self._save(lambda n=n, a=attempt: self._store.requeue(n, a, "interrupted", None))  # type: ignore[misc]
                self._running.pop(job, None)
            self.executor.shutdown(cancel_futures=True)
            self.scheduler = Scheduler(self.scheduler.limits)

    def tick(self) -> None:
        """What is due with time."""
        now = time.monotonic()
        self.save_again()
        if self._disk_full:
            self._look_for_room()
        for job, running in self._running.items():
            if running.wants_sample():
                used = self.executor.cpu_seconds(job)
                if used is not None:
                    running.cpu.append((now, used))
        self.handle(Tick())
        if self.unload_after_s > 0:
            self.executor.retire(self.unload_after_s)

    # --- telling -----------------------------------------------------------------------------------------

    def row(self, job: str) -> Row:
        """A job as it is stored. MynaError("not_found")."""
        row = self._store.row(number_of(job))
        if row is None:
            raise no_such_job(job)
        return row

    def info(self, row: Row) -> JobInfo:
        """A job as clients are told it."""
        reason = self.scheduler.reason(row.id) if row.state == "queued" else None
        running = self._running.get(row.id)
        return info_of(row, reason, running.eta_s() if running is not None else None)

    def tell(self, job: str) -> None:
        """Publish how a job stands."""
        with suppress(MynaError):
            self._publish("job.state", self.info(self.row(job)))

    # --- what happens ------------------------------------------------------------------------------------

    def handle(self, event: Event, start: bool = True) -> None:
        """Give an event to the scheduler and do what it says.

        Only the queue's own thread starts jobs: a worker dies with the thread that started it.
        """
        for action in self.scheduler.handle(event, time.monotonic(), start):
            match action:
                case Start():
                    self._start(action)
                case Stop():
                    self._stop(action)
                case Requeue():
                    self._requeue(action)
                case Settle():
                    self._settle(action)

    def _start(self, action: Start) -> None:
        job, n, attempt = action.job, number_of(action.job), action.attempt
        self._running[job] = Attempt(attempt, action.device)
        try:
            spec = self._store.spec(n)
            order = self._order(job, attempt, action.device, spec, self._resolve(spec.voice))
            self._store.begin(n, attempt, action.device)
            future = self.executor.submit(order, lambda message: self._post(News(message)))
        except MynaError as error:
            future = Future()
            future.set_exception(error)
        except OSError as error:  # no process could be made
            future = Future()
            future.set_exception(
                MynaError("failed", f"No worker could be started: {error}. Free memory or processes, then retry.")
            )
        future.add_done_callback(lambda done: self._post(Ended(job, attempt, done)))
        self.tell(job)

    def _order(self, job: str, attempt: int, device: str, spec: JobSpec, voice: VoiceAsset) -> Order:
        assert spec.input is not None  # checked at submit
        placement = self._place(voice.engine)
        return Order(
            job=job,
            attempt=attempt,
            kind=spec.kind,
            input=spec.input,
            output=spec.output,
            exists=spec.exists,
            format=spec.format,
            seconds=spec.seconds,
            parameters=dict(spec.parameters),
            voice=VoiceOrder.of(voice),
            placement=placement if placement.device == device else msgspec.structs.replace(placement, device=device),
            work_dir=str(self._folders.of(number_of(job))),
            unload_after_s=self.unload_after_s,
        )

    def _stop(self, action: Stop) -> None:
        if action.cause != "cancel":
            share = self._running[action.job].cpu_share(self.executor.cpu_seconds(action.job))
            self._ends[action.job] = (overdue(action, share), None)
        self.executor.stop(action.job, action.attempt)

    def news(self, message: FromWorker) -> None:
        """A worker's word on an attempt under way; of any other it is too late."""
        if not isinstance(message, Opened | Standing | Unit):
            return
        job, attempt = message.job, message.attempt
        running = self._running.get(job)
        if running is None or running.number != attempt:
            return
        n = number_of(job)
        if isinstance(message, Opened):
            row = self.row(job)
            running.opened_at, running.audio_s = time.monotonic(), message.audio_s
            running.progress = running.first_progress = row.progress or 0.0  # of earlier attempts
            self._advise(row, running, message.audio_s)
            allowed = budget.run_budget(
                accelerator=is_accelerator(running.device),
                audio_s=message.audio_s,
                realtime_factor=self._store.realtime_factor(row.voice, running.device),
                user_s=self.scheduler.limits.run_s,
            )
            self.handle(Loaded(job=job, attempt=attempt, budget_s=allowed))
            self.executor.warm()
        elif isinstance(message, Standing):
            self._save(lambda: self._store.stand(n, attempt, message.segments))
        else:
            running.progress = message.progress
            self._save(
                lambda: self._store.journal(
                    n, attempt, [(message.segment, message.work_s)], message.segments, message.progress
                )
            )
            self.handle(UnitDone(job=job, attempt=attempt))
            row = self.row(job)
            self._publish(
                "job.progress",
                JobProgress(
                    id=job,
                    progress=message.progress,
                    segments_done=row.segments_done,
                    segments=row.segments,
                    eta_s=running.eta_s(),
                ),
            )

    def _advise(self, row: Row, running: Attempt, audio_s: float | None) -> None:
        """Say once per engine that this will take long, before it does."""
        if row.engine in self._advised or running.device != "cpu" or (audio_s or 0.0) < LONG_INPUT_S:
            return
        factor = self._store.realtime_factor(row.voice, running.device)
        if factor is not None and factor < 0.5:
            return
        self._advised.add(row.engine)
        expected = f"about {(audio_s or 0) * factor / 60:.0f} min" if factor is not None else "a while"
        text = f"Job {row.id} has long input and runs on the processor: it will take {expected}."
        self._publish("log", LogLine(level="info", message=text))

    def ended(self, message: Ended) -> None:
        """A worker let go of an attempt: what came of it, for the scheduler."""
        job, attempt = message.job, message.attempt
        running = self._running.get(job)
        if running is None or running.number != attempt:
            return
        error = message.future.exception()
        if error is None:
            self._ends[job] = (None, message.future.result().result)
            self.handle(Finished(job=job, attempt=attempt))
        elif isinstance(error, AttemptStopped):
            told, _ = self._ends.get(job, (None, None))
            if told is not None:
                facts = cast("dict[str, object]", told["facts"])
                self._ends[job] = ({**told, "facts": {**facts, "memory": error.memory}}, None)
            self.handle(Crashed(job=job, attempt=attempt))
        elif isinstance(error, MynaError):
            if job not in self._ends:  # an overdue job that died of it keeps the reason it was ended for
                self._ends[job] = (error_of(error), None)
            crashed = error.code == "worker_crashed"
            if error.code == "state_unwritable":
                # The next job would meet the same disk: all wait for room, and this one goes on where it was.
                crashed = self._disk_full = True
                self._hold()
                self._publish("log", LogLine(level="error", message=error.message))
            self.handle((Crashed if crashed else Failed)(job=job, attempt=attempt))
        else:
            self._ends[job] = (error_of(MynaError("internal", f"A bug: {error!r}")), None)
            self.handle(Failed(job=job, attempt=attempt))

    def _requeue(self, action: Requeue) -> None:
        job, n = action.job, number_of(action.job)
        attempt = self.scheduler.attempt_of(job)
        error, _ = self._ends.pop(job, (None, None))
        self._running.pop(job, None)
        self._save(lambda: self._store.requeue(n, attempt, "crashed", error))
        if not self._disk_full:
            text = f"Job {job} lost its worker in attempt {attempt} and goes on where it was."
            self._publish("log", LogLine(level="warning", message=text))
        self.tell(job)

    def _settle(self, action: Settle) -> None:
        job, n = action.job, number_of(action.job)
        row = self.row(job)
        error, result = self._ends.pop(job, (None, None))
        running = self._running.get(job)
        if action.state == "cancelled":
            error = result = None
        elif action.cause == "queue":
            error = waited_too_long()
        queue_s = max(0.0, row.started_at - row.queued_at) if row.started_at is not None else None
        if result is not None:
            result = {**result, "queue_s": queue_s, "attempts": row.attempts}
            self._learn(row, running, result)
        trace = trace_of(
            job=job,
            kind=row.kind,
            outcome=action.state,
            device=running.device if running is not None else None,
            engine=row.engine,
            queue_s=queue_s,
            result=result,
            segments=row.segments_done,
            attempts=row.attempts,
            error_code=cast("str | None", error["code"]) if error is not None else None,
        )
        self._running.pop(job, None)
        self._save(lambda: self._store.settle(n, row.attempts, action.state, error=error, result=result, trace=trace))
        # Only now: until the end is on disk a restart would ask the work folder what happened.
        self._save(lambda: self._folders.clear(row, whole=action.state == "done"))
        self.tell(job)

    def _learn(self, row: Row, running: Attempt | None, result: dict[str, object]) -> None:
        audio_s, work_s, run_s = result.get("audio_s"), result.get("work_s"), result.get("run_s")
        if isinstance(run_s, float):
            self.average_s = run_s if self.average_s is None else 0.9 * self.average_s + 0.1 * run_s
        if running is not None and isinstance(audio_s, float) and isinstance(work_s, float) and audio_s > 1.0:
            self._save(lambda: self._store.learn(row.voice, running.device, audio_s, work_s))

    # --- disk --------------------------------------------------------------------------------------------

    def _save(self, deed: Callable[[], object]) -> None:
        """Write to the store; while it can't be written nothing new starts, and what is due is kept in order."""
        if not self._unsaved:
            try:
                deed()
            except MynaError as error:
                self._unsaved.append(deed)
                self._hold()
                self._publish("log", LogLine(level="error", message=error.message))
            return
        self._unsaved.append(deed)

    def save_again(self) -> None:
        """Write what is due, if anything is and it can be written by now."""
        if not self._unsaved:
            return
        while self._unsaved:
            try:
                self._unsaved[0]()
            except MynaError:
                return
            self._unsaved.popleft()
        self._hold()

    def _hold(self) -> None:
        """Start nothing while what comes of it could not be kept."""
        on = self.closing or self._disk_full or bool(self._unsaved)
        self.handle(Held(on=on), start=False)

    def _look_for_room(self) -> None:
        if self._folders.has_room():
            self._disk_full = False
            self._hold()
