"""The daemon's job queue: store, scheduler and executor under one lock, driven by one thread."""

import logging
import os
import queue
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from myna.control.contract import (
    FlushRow,
    JobInfo,
    JobKind,
    JobProgress,
    JobsList,
    JobSpec,
    JobsReply,
    JobsSubmit,
    JobsSubmitted,
    JobState,
    LogLine,
    Message,
    ModelInfo,
    TracesReply,
    UnloadRow,
)
from myna.control.errors import MynaError
from myna.daemon.jobs import budget, scheduler
from myna.daemon.jobs.executor import AttemptStopped, WorkerExecutor
from myna.daemon.jobs.messages import Done, FromWorker, Opened, Order, Standing, Unit
from myna.daemon.jobs.parameters import problems_of
from myna.daemon.jobs.scheduler import (
    Cancel,
    Crashed,
    Failed,
    Finished,
    Held,
    Limits,
    LimitsChanged,
    LiveStarted,
    LiveStopped,
    Loaded,
    Requeue,
    RunNow,
    Scheduler,
    Settle,
    Start,
    Stop,
    Submitted,
    Tick,
    UnitDone,
)
from myna.daemon.jobs.store import Row, Store, decoded, job_id, job_number
from myna.daemon.jobs.traces import trace_of
from myna.daemon.orders import PlacementOrder, VoiceOrder

if TYPE_CHECKING:  # engines.base loads numpy, which the supervisor has no use for
    from myna.daemon.settings import Settings
    from myna.engines.base import VoiceAsset

TICK_S = 1.0
ENDED = ("done", "failed", "cancelled")
PREVIEWS_PER_SLOT = 8  # a preview that would wait behind more is better refused than late
LEFTOVERS_KEPT_S = 24 * 3600.0  # finished segments of failed and cancelled jobs, for a retry
CPU_SAMPLE_S = 5.0
ROOM_BYTES = 1 << 20  # that a disk must take before it counts as having room again
LONG_INPUT_S = 600.0
EVENTS_PER_SUBMIT = 64  # who submits thousands has their ids; the others learn of the rest as they start

log = logging.getLogger(__name__)

Publish = Callable[[str, Message], None]


@dataclass(slots=True)
class _Running:
    """What is known of an attempt while it runs; lost with the daemon, and not missed."""

    attempt: int
    device: str
    opened_at: float | None = None
    audio_s: float | None = None
    progress: float = 0.0
    first_progress: float = 0.0
    cpu: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=3))


@dataclass(frozen=True, slots=True)
class _Ended:
    job: str
    attempt: int
    future: "Future[Done]"


@dataclass(frozen=True, slots=True)
class _News:
    message: FromWorker


@dataclass(frozen=True, slots=True)
class _Close:
    force: bool


class JobQueue:
    """Takes jobs, keeps them whatever dies, and runs them.

    All public methods may be called from any thread and answer in milliseconds; `publish` is called from the
    queue's own thread or from the caller's, never while the caller waits for a worker.
    """

    def __init__(
        self,
        state_dir: Path,
        settings: "Settings",
        publish: Publish,
        resolve_voice: "Callable[[str], VoiceAsset]",
        *,
        place: Callable[[str], PlacementOrder] | None = None,
        cores: int | None = None,
    ) -> None:
        """Open (or make) the queue of a state folder; nothing runs before `start`.

        Args:
            state_dir: Private folder of the daemon; ours is `jobs` in it.
            settings: The daemon's settings.
            publish: Takes (topic, message) of an event.
            resolve_voice: Finds a voice by its id; MynaError("not_found") if there is none.
            place: Where an engine, by name, computes; None: everything on the CPU.
            cores: Processor cores to count with; None: this machine's.

        Raises MynaError("state_unwritable").
        """
        self._folder = state_dir / "jobs"
        self._cores = cores or os.cpu_count() or 1
        self._settings = settings
        self._publish, self._resolve = publish, resolve_voice
        self._place = place or self._on_cpu
        self._lock = threading.RLock()
        self._inbox: queue.SimpleQueue[_Ended | _News | _Close | None] = queue.SimpleQueue()
        self._store = Store(self._folder)
        self._scheduler = Scheduler(self._limits(settings, {}))
        self._executor = WorkerExecutor()
        self._running: dict[str, _Running] = {}
        self._ends: dict[str, tuple[dict[str, object] | None, dict[str, object] | None]] = {}
        self._unsaved: deque[Callable[[], object]] = deque()
        self._average_s: float | None = None
        self._advised: set[str] = set()
        self._disk_full = False
        self._closing = False
        self._thread: threading.Thread | None = None

    # --- settings ----------------------------------------------------------------------------------------

    def _on_cpu(self, engine: str) -> PlacementOrder:
        compute = self._settings.compute
        slots = compute.cpu_jobs or max(1, self._cores // 2)
        threads = compute.threads or max(1, self._cores // 2)
        return PlacementOrder(threads=max(1, threads // slots), backend=compute.backend)

    def _limits(self, settings: "Settings", devices: dict[str, str]) -> Limits:
        return Limits(
            gpu_jobs=settings.compute.gpu_jobs,
            cpu_jobs=settings.compute.cpu_jobs or max(1, self._cores // 2),
            inference_jobs=settings.compute.inference_jobs,
            queue_s=settings.jobs.queue_budget_s,
            load_s=settings.jobs.load_budget_s,
            run_s=settings.jobs.run_budget_s or None,
            devices=devices,
        )

    def change_settings(self, settings: "Settings") -> None:
        """Settings changed: they hold for what starts from now on."""
        with self._lock:
            self._settings = settings
            old = self._scheduler.limits
            devices = {engine: self._place(engine).device for engine in old.devices}
            limits = replace(self._limits(settings, devices), paused=old.paused)
            self._handle(LimitsChanged(limits=limits), start=False)
        self._inbox.put(None)

    def pause(self, on: bool) -> None:
        """Start nothing new (running jobs go on), or go on."""
        with self._lock:
            self._handle(LimitsChanged(limits=replace(self._scheduler.limits, paused=on)), start=False)
        self._inbox.put(None)

    def _know_engine(self, engine: str) -> None:
        limits = self._scheduler.limits
        if engine not in limits.devices:
            devices = {**limits.devices, engine: self._place(engine).device}
            self._handle(LimitsChanged(limits=replace(limits, devices=devices)), start=False)

    # --- life --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take up what was left, and run."""
        with self._lock:
            if self._thread is not None:
                raise RuntimeError("the queue runs already")
            waiting = self._store.give_back()
            self._store.prune()
            self._sweep({row.n for row in waiting})
            for row in waiting:
                self._know_engine(row.engine)
            for row in waiting:
                self._handle(_submitted(row), start=False)
            self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
            self._thread.start()

    def close(self, force: bool = False) -> None:
        """End: running jobs are waited for, or with `force` interrupted (they go on at the next start)."""
        thread = self._thread
        if thread is not None:
            self._inbox.put(_Close(force))
            thread.join()
            self._thread = None
        with self._lock:
            self._store.close()

    def _run(self) -> None:
        # Workers die with the thread that started them, so this one starts them all.
        self._inbox.put(None)
        while True:
            try:
                with self._lock:
                    busy = not self._scheduler.idle() or bool(self._unsaved) or self._executor.idle_workers() > 0
                message = self._inbox.get(timeout=TICK_S if busy else None)
            except queue.Empty:
                message = None
            try:
                with self._lock:
                    if isinstance(message, _Close):
                        self._begin_close(message.force)
                    elif isinstance(message, _Ended):
                        self._ended(message)
                    elif isinstance(message, _News):
                        self._news(message.message)
                    else:
                        self._tick()
                    if self._closing and not self._scheduler.active:
                        break
            except Exception:  # one message is lost, told in the log; the queue serves the others
                log.exception("the job queue met a bug")
        self._executor.shutdown(cancel_futures=True)

    def _begin_close(self, force: bool) -> None:
        self._closing = True
        self._hold()
        if force:
            for job in self._scheduler.active:
                n, attempt = _number(job), self._scheduler.attempt_of(job)
                self._save(lambda n=n, a=attempt: self._store.requeue(n, a, "interrupted", None))  # type: ignore[misc]
                self._forget_running(job)
            self._executor.shutdown(cancel_futures=True)
            self._scheduler = Scheduler(self._scheduler.limits)

    def _tick(self) -> None:
        now = time.monotonic()
        if self._unsaved:
            self._save_again()
        if self._disk_full:
            self._look_for_room()
        for job, running in self._running.items():
            if not running.cpu or now - running.cpu[-1][0] >= CPU_SAMPLE_S:
                used = self._executor.cpu_seconds(job)
                if used is not None:
                    running.cpu.append((now, used))
        self._handle(Tick())
        minutes = self._settings.compute.unload_after_minutes
        if minutes > 0:
            self._executor.retire(minutes * 60)

    # --- what clients ask --------------------------------------------------------------------------------

    def submit(self, request: JobsSubmit) -> JobsSubmitted:
        """Take jobs, all or none; they survive whatever happens after the answer.

        Raises MynaError: `bad_request` naming every problem, `not_found` for a voice, `busy` with
        `retry_after_s`, `state_unwritable`.
        """
        engines = self._check(request.jobs)
        with self._lock:
            if self._closing:
                raise MynaError("refused", "The daemon is shutting down. Submit again when it is back.")
            if self._unsaved:
                self._save_again()
            self._admit(request.jobs)
            taken = self._store.submit([(spec, engines[spec.voice]) for spec in request.jobs])
            fresh = []
            for (n, new), spec in zip(taken, request.jobs, strict=True):
                if new:
                    self._know_engine(engines[spec.voice])
                    fresh.append(Submitted(job=job_id(n), order=n, kind=spec.kind, engine=engines[spec.voice]))
            # They enter the line at once; the queue's own thread starts them.
            for event in fresh:
                self._handle(event, start=False)
            for event in fresh[:EVENTS_PER_SUBMIT]:
                self._tell(event.job)
        self._inbox.put(None)
        return JobsSubmitted(ids=tuple(job_id(n) for n, _ in taken))

    def _check(self, specs: tuple[JobSpec, ...]) -> dict[str, str]:
        """The engine of each voice named, if nothing is wrong with any job."""
        problems: list[str] = []
        engines: dict[str, str] = {}
        for at, spec in enumerate(specs):
            where = f"jobs[{at}]"
            if spec.kind not in ("convert", "preview"):
                problems.append(f"{where}.kind: {spec.kind!r} is not in this version; convert and preview are")
            for name, path in (("input", spec.input), ("output", spec.output)):
                if path is None:
                    problems.append(f"{where}.{name}: a path is needed")
                elif "\0" in path:
                    problems.append(f"{where}.{name}: a path can't hold a NUL character")
                elif not os.path.isabs(path):
                    problems.append(f"{where}.{name}: a full path is needed: the daemon is in another folder")
            problems += [f"{where}.{problem}" for problem in problems_of(spec.parameters)]
            if len(problems) > 100:
                break
        if problems:
            raise MynaError("bad_request", "No job was taken: " + "; ".join(problems), problems=problems)
        for spec in specs:
            if spec.voice not in engines:
                engines[spec.voice] = self._resolve(spec.voice).engine
        return engines

    def _admit(self, specs: tuple[JobSpec, ...]) -> None:
        slots = self._scheduler.slots("cpu")
        retry = budget.admit(
            waiting=self._scheduler.waiting,
            incoming=len(specs),
            room=self._settings.jobs.max_waiting,
            slots=slots,
            average_s=self._average_s,
        )
        if retry is None and (previews := sum(spec.kind == "preview" for spec in specs)):
            retry = budget.admit(
                waiting=self._scheduler.waiting_of("preview"),
                incoming=previews,
                room=max(previews, PREVIEWS_PER_SLOT * slots),
                slots=slots,
                average_s=self._average_s,
            )
        if retry is not None:
            raise MynaError("busy", f"The queue is full. Try again in {retry:.0f} s.", retry_after_s=round(retry, 1))

    def list(self, request: JobsList) -> JobsReply:
        """Jobs, newest last."""
        after = 0
        if request.after is not None:
            after = _number(request.after)
        with self._lock:
            derived = bool({"queued", "waiting"} & set(request.states))
            stored = tuple({"queued" if state == "waiting" else state for state in request.states})
            rows = self._store.rows(stored, after, -1 if derived else request.limit)
            jobs = [self._info(row) for row in rows]
            if derived:
                jobs = [job for job in jobs if job.state in request.states]
            total = len(jobs)
            jobs = jobs[: request.limit] if after else jobs[-request.limit :]
            counts = self.counts()
        if not derived:
            total = sum(counts.get(state, 0) for state in request.states or counts)
        return JobsReply(jobs=tuple(jobs), total=total, counts=counts)

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        with self._lock:
            counts = self._store.counts()
            queued = counts.pop("queued", 0)
            waiting = min(queued, self._scheduler.blocked())
            counts.update({s: c for s, c in (("queued", queued - waiting), ("waiting", waiting)) if c})
        return counts

    def show(self, job: str) -> JobInfo:
        """One job. MynaError("not_found")."""
        with self._lock:
            return self._info(self._row(job))

    def cancel(self, job: str) -> JobInfo:
        """End a job: at once if it waits, within two seconds if it runs. Finished segments stay for a retry."""
        with self._lock:
            row = self._row(job)
            if row.state in ENDED:
                raise MynaError("refused", f"Job {job} is {row.state} already.", job=job, state=row.state)
            self._handle(Cancel(job=job), start=False)
            info = self._info(self._row(job))
        self._inbox.put(None)
        return info

    def retry(self, job: str) -> JobInfo:
        """Queue a failed or cancelled job again; what it had finished is not done again."""
        with self._lock:
            row = self._row(job)
            if row.state not in ("failed", "cancelled"):
                text = f"Job {job} is {row.state}; only failed and cancelled jobs can be retried."
                raise MynaError("refused", text, job=job, state=row.state)
            self._store.retry(row.n)
            self._know_engine(row.engine)
            self._handle(_submitted(self._row(job)), start=False)
            self._tell(job)
            info = self._info(self._row(job))
        self._inbox.put(None)
        return info

    def run_now(self, job: str) -> JobInfo:
        """Let a waiting job start beside a live session, or while the queue is paused."""
        with self._lock:
            row = self._row(job)
            if row.state != "queued":
                raise MynaError("refused", f"Job {job} is {row.state}: it does not wait.", job=job, state=row.state)
            beside = self._scheduler.reason(job) == "live_running"
            self._store.set_run_now(row.n)
            self._handle(RunNow(job=job), start=False)
            if beside:
                text = f"Job {job} runs beside the live session: it may glitch."
                self._publish("log", LogLine(level="warning", message=text))
            info = self._info(self._row(job))
        self._inbox.put(None)
        return info

    def worker_of(self, job: str) -> int | None:
        """The process that runs a job; None while none does."""
        return self._executor.pid_of(job)

    def traces(self) -> TracesReply:
        """The last jobs that ended."""
        with self._lock:
            return TracesReply(traces=self._store.traces())

    def models(self) -> tuple[ModelInfo, ...]:
        """What job workers hold in memory."""
        return self._executor.models()

    def unload(self, model: ModelInfo) -> UnloadRow:
        """Let go of a model. Blocks until its worker has; not for the control thread."""
        return self._executor.unload(model)

    def flush(self, unload: bool) -> tuple[FlushRow, ...]:
        """Let go of caches, and with `unload` of models, in every idle worker. Blocks."""
        return self._executor.flush(unload)

    def live_started(self, device: str) -> None:
        """A live session computes on a device: new jobs there wait."""
        with self._lock:
            self._handle(LiveStarted(device=device), start=False)

    def live_stopped(self, device: str) -> None:
        """A live session left a device."""
        with self._lock:
            self._handle(LiveStopped(device=device), start=False)
        self._inbox.put(None)

    # --- telling -----------------------------------------------------------------------------------------

    def _row(self, job: str) -> Row:
        row = self._store.row(_number(job))
        if row is None:
            raise MynaError("not_found", f"There is no job {job!r}. `myna jobs` lists them.", job=job)
        return row

    def _info(self, row: Row) -> JobInfo:
        state, reason = row.state, None
        if state == "queued":
            reason = self._scheduler.reason(row.id)
            state = "waiting" if reason is not None else "queued"
        running = self._running.get(row.id)
        return JobInfo(
            id=row.id,
            kind=cast(JobKind, row.kind),
            state=cast(JobState, state),
            voice=row.voice,
            input=row.input,
            output=row.output,
            reason=reason,
            frees=scheduler.FREES[reason] if reason is not None else None,
            progress=row.progress,
            segments_done=row.segments_done,
            segments=row.segments,
            attempts=row.attempts,
            error=decoded(row.error),
            submitted_at=row.submitted_at,
            started_at=row.started_at,
            finished_at=row.finished_at,
            eta_s=_eta(running) if running is not None else None,
            result=decoded(row.result),
        )

    def _tell(self, job: str) -> None:
        with suppress(MynaError):
            self._publish("job.state", self._info(self._row(job)))

    # --- what happens ------------------------------------------------------------------------------------

    def _handle(self, event: scheduler.Event, start: bool = True) -> None:
        """Give an event to the scheduler and do what it says.

        Only the queue's own thread starts jobs: a worker dies with the thread that started it.
        """
        for action in self._scheduler.handle(event, time.monotonic(), start):
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
        job, n, attempt = action.job, _number(action.job), action.attempt
        self._running[job] = _Running(attempt, action.device)
        try:
            spec = self._store.spec(n)
            order = self._order(job, attempt, action.device, spec, self._resolve(spec.voice))
            self._store.begin(n, attempt, action.device)
            future = self._executor.submit(order, lambda message: self._inbox.put(_News(message)))
        except MynaError as error:
            future = Future()
            future.set_exception(error)
        except OSError as error:  # no process could be made
            future = Future()
            future.set_exception(
                MynaError("failed", f"No worker could be started: {error}. Free memory or processes, then retry.")
            )
        future.add_done_callback(lambda done: self._inbox.put(_Ended(job, attempt, done)))
        self._tell(job)

    def _order(self, job: str, attempt: int, device: str, spec: JobSpec, voice: "VoiceAsset") -> Order:
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
            work_dir=str(self._work_dir(_number(job))),
            unload_after_s=60.0 * self._settings.compute.unload_after_minutes,
        )

    def _work_dir(self, n: int) -> Path:
        return self._folder / "work" / job_id(n)

    def _stop(self, action: Stop) -> None:
        if action.cause != "cancel":
            self._ends[action.job] = (self._overdue(action), None)
        self._executor.stop(action.job, action.attempt)

    def _overdue(self, action: Stop) -> dict[str, object]:
        running = self._running[action.job]
        share: float | None = None
        used = self._executor.cpu_seconds(action.job)
        if used is not None and running.cpu and time.monotonic() - running.cpu[0][0] > 1.0:
            share = max(0.0, used - running.cpu[0][1]) / (time.monotonic() - running.cpu[0][0])
        verdict = budget.classify(since_unit_s=action.since_unit_s, cpu_share=share)
        what = "load its voice" if action.cause == "load" else "do its work"
        words = {
            "slow": "it was slow, but went on",
            "waiting_on_a_lock": "it waited for something and used no processor time",
            "stuck": "it used the processor without finishing anything",
        }[verdict]
        setting = "load_budget_s" if action.cause == "load" else "run_budget_s"
        return _error(
            MynaError(
                "timed_out",
                f"The job had {action.budget_s or 0:.0f} s to {what} and took {action.spent_s:.0f} s: {words}."
                f" Retry it, or raise jobs.{setting}.",
                clock=action.cause,
                verdict=verdict,
                spent_s=round(action.spent_s, 3),
                budget_s=action.budget_s,
                since_unit_s=round(action.since_unit_s, 3),
                cpu_share=share,
                retryable=True,
            )
        )

    def _news(self, message: FromWorker) -> None:
        if not isinstance(message, Opened | Standing | Unit):
            return
        job, attempt = message.job, message.attempt
        running = self._running.get(job)
        if running is None or running.attempt != attempt:
            return
        n = _number(job)
        if isinstance(message, Opened):
            row = self._row(job)
            running.opened_at, running.audio_s = time.monotonic(), message.audio_s
            running.progress = running.first_progress = row.progress or 0.0  # of earlier attempts
            self._advise(row, running, message.audio_s)
            allowed = budget.run_budget(
                accelerator=scheduler.is_accelerator(running.device),
                audio_s=message.audio_s,
                realtime_factor=self._store.realtime_factor(row.voice, running.device),
                user_s=self._scheduler.limits.run_s,
            )
            self._handle(Loaded(job=job, attempt=attempt, budget_s=allowed))
            self._executor.warm()
        elif isinstance(message, Standing):
            self._save(lambda: self._store.stand(n, attempt, message.segments))
        else:
            running.progress = message.progress
            self._save(
                lambda: self._store.journal(
                    n, attempt, [(message.segment, message.work_s)], message.segments, message.progress
                )
            )
            self._handle(UnitDone(job=job, attempt=attempt))
            row = self._row(job)
            self._publish(
                "job.progress",
                JobProgress(
                    id=job,
                    progress=message.progress,
                    segments_done=row.segments_done,
                    segments=row.segments,
                    eta_s=_eta(running),
                ),
            )

    def _advise(self, row: Row, running: _Running, audio_s: float | None) -> None:
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

    def _ended(self, message: _Ended) -> None:
        job, attempt = message.job, message.attempt
        running = self._running.get(job)
        if running is None or running.attempt != attempt:
            return
        error = message.future.exception()
        if error is None:
            self._ends[job] = (None, message.future.result().result)
            self._handle(Finished(job=job, attempt=attempt))
        elif isinstance(error, AttemptStopped):
            told, _ = self._ends.get(job, (None, None))
            if told is not None:
                facts = cast("dict[str, object]", told["facts"])
                self._ends[job] = ({**told, "facts": {**facts, "memory": error.memory}}, None)
            self._handle(Crashed(job=job, attempt=attempt))
        elif isinstance(error, MynaError):
            if job not in self._ends:  # an overdue job that died of it keeps the reason it was ended for
                self._ends[job] = (_error(error), None)
            crashed = error.code == "worker_crashed"
            if error.code == "state_unwritable":
                # The next job would meet the same disk: all wait for room, and this one goes on where it was.
                crashed = self._disk_full = True
                self._hold()
                self._publish("log", LogLine(level="error", message=error.message))
            self._handle((Crashed if crashed else Failed)(job=job, attempt=attempt))
        else:
            self._ends[job] = (_error(MynaError("internal", f"A bug: {error!r}")), None)
            self._handle(Failed(job=job, attempt=attempt))

    def _requeue(self, action: Requeue) -> None:
        job, n = action.job, _number(action.job)
        attempt = self._scheduler.attempt_of(job)
        error, _ = self._ends.pop(job, (None, None))
        self._forget_running(job)
        self._save(lambda: self._store.requeue(n, attempt, "crashed", error))
        if not self._disk_full:
            text = f"Job {job} lost its worker in attempt {attempt} and goes on where it was."
            self._publish("log", LogLine(level="warning", message=text))
        self._tell(job)

    def _settle(self, action: Settle) -> None:
        job, n = action.job, _number(action.job)
        row = self._row(job)
        error, result = self._ends.pop(job, (None, None))
        running = self._running.get(job)
        if action.state == "cancelled":
            error = result = None
        elif action.cause == "queue":
            error = _error(
                MynaError(
                    "timed_out",
                    "The job waited too long in a line that did not move. Retry it, or raise jobs.queue_budget_s.",
                    clock="queue",
                    retryable=True,
                )
            )
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
        self._forget_running(job)
        self._save(lambda: self._store.settle(n, row.attempts, action.state, error=error, result=result, trace=trace))
        # Only now: until the end is on disk a restart would ask the work folder what happened.
        self._save(lambda: self._clear(row, whole=action.state == "done"))
        self._tell(job)

    def _learn(self, row: Row, running: _Running | None, result: dict[str, object]) -> None:
        audio_s, work_s, run_s = result.get("audio_s"), result.get("work_s"), result.get("run_s")
        if isinstance(run_s, float):
            self._average_s = run_s if self._average_s is None else 0.9 * self._average_s + 0.1 * run_s
        if running is not None and isinstance(audio_s, float) and isinstance(work_s, float) and audio_s > 1.0:
            self._save(lambda: self._store.learn(row.voice, running.device, audio_s, work_s))

    def _forget_running(self, job: str) -> None:
        self._running.pop(job, None)

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

    def _save_again(self) -> None:
        while self._unsaved:
            try:
                self._unsaved[0]()
            except MynaError:
                return
            self._unsaved.popleft()
        self._hold()

    def _hold(self) -> None:
        """Start nothing while what comes of it could not be kept."""
        on = self._closing or self._disk_full or bool(self._unsaved)
        self._handle(Held(on=on), start=False)

    def _look_for_room(self) -> None:
        """Find out whether the state folder can be written again, by writing to it."""
        probe = self._folder / "room.part"
        try:
            with probe.open("wb") as file:
                file.write(bytes(ROOM_BYTES))
                file.flush()
                os.fsync(file.fileno())
            self._disk_full = False
            self._hold()
        except OSError:
            pass
        finally:
            with suppress(OSError):
                probe.unlink(missing_ok=True)

    def _clear(self, row: Row, whole: bool) -> None:
        """Remove what a job left on the way: its hidden output, and once it is done its segments."""
        if row.attempts:
            part = Path(row.output).parent / f".myna-{row.id}.part"
            with suppress(OSError, ValueError):
                part.unlink(missing_ok=True)
        if whole:
            shutil.rmtree(self._work_dir(row.n), ignore_errors=True)

    def _sweep(self, waiting: set[int]) -> None:
        """Remove work folders that nobody will ask for any more."""
        try:
            folders = list((self._folder / "work").iterdir())
        except FileNotFoundError:
            return
        for folder in folders:
            n = job_number(folder.name)
            if n is not None and n in waiting:
                continue
            row = self._store.row(n) if n is not None else None
            retryable = row is not None and row.state in ("failed", "cancelled")
            if row is not None and retryable and time.time() - (row.finished_at or 0.0) < LEFTOVERS_KEPT_S:
                continue
            shutil.rmtree(folder, ignore_errors=True)


def _number(job: str) -> int:
    number = job_number(job)
    if number is None:
        raise MynaError("not_found", f"There is no job {job!r}. `myna jobs` lists them.", job=job)
    return number


def _submitted(row: Row) -> Submitted:
    return Submitted(
        job=row.id, order=row.n, kind=row.kind, engine=row.engine, attempts=row.attempts, run_now=bool(row.run_now)
    )


def _error(error: MynaError) -> dict[str, object]:
    return {"code": error.code, "message": error.message, "facts": error.facts}


def _eta(running: _Running) -> float | None:
    """Seconds left, from the progress of this attempt; None before there was any."""
    if running.opened_at is None or running.progress <= running.first_progress:
        return None
    spent = time.monotonic() - running.opened_at
    return spent * (1.0 - running.progress) / (running.progress - running.first_progress)
