"""The daemon's job queue: takes jobs from any thread, and runs them in one of its own."""

import logging
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from myna.control.contract import (
    FlushRow,
    JobInfo,
    JobsList,
    JobSpec,
    JobsReply,
    JobsSubmit,
    JobsSubmitted,
    LogLine,
    ModelInfo,
    TracesReply,
    UnloadRow,
)
from myna.control.errors import MynaError
from myna.daemon.jobs import budget
from myna.daemon.jobs.dispatch import Dispatch, Ended, News, Publish
from myna.daemon.jobs.folders import WorkFolders
from myna.daemon.jobs.scheduler import Cancel, Limits, LimitsChanged, LiveStarted, LiveStopped, RunNow, Submitted
from myna.daemon.jobs.store import Row, Store, job_id, number_of
from myna.daemon.jobs.submission import problems_in
from myna.daemon.orders import PlacementOrder
from myna.daemon.settings import Settings
from myna.engines.base import VoiceAsset

TICK_S = 1.0
ENDED = ("done", "failed", "cancelled")
PREVIEWS_PER_SLOT = 8  # a preview that would wait behind more is better refused than late
EVENTS_PER_SUBMIT = 64  # who submits thousands has their ids; the others learn of the rest as they start

log = logging.getLogger(__name__)


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
        settings: Settings,
        publish: Publish,
        resolve_voice: Callable[[str], VoiceAsset],
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
        folder = state_dir / "jobs"
        self._cores = cores or os.cpu_count() or 1
        self._settings = settings
        self._publish, self._resolve = publish, resolve_voice
        self._place = place or self._on_cpu
        self._lock = threading.RLock()
        self._inbox: queue.SimpleQueue[Ended | News | _Close | None] = queue.SimpleQueue()
        self._store = Store(folder)
        self._folders = WorkFolders(folder)
        self._dispatch = Dispatch(
            self._store,
            self._folders,
            self._limits(settings, {}),
            publish=publish,
            resolve=resolve_voice,
            place=self._place,
            post=self._inbox.put,
            unload_after_s=60.0 * settings.compute.unload_after_minutes,
        )
        self._thread: threading.Thread | None = None

    # --- settings ----------------------------------------------------------------------------------------

    def _on_cpu(self, engine: str) -> PlacementOrder:
        compute = self._settings.compute
        slots = compute.cpu_jobs or max(1, self._cores // 2)
        threads = compute.threads or max(1, self._cores // 2)
        return PlacementOrder(threads=max(1, threads // slots), backend=compute.backend)

    def _limits(self, settings: Settings, devices: dict[str, str]) -> Limits:
        return Limits(
            gpu_jobs=settings.compute.gpu_jobs,
            cpu_jobs=settings.compute.cpu_jobs or max(1, self._cores // 2),
            inference_jobs=settings.compute.inference_jobs,
            queue_s=settings.jobs.queue_budget_s,
            load_s=settings.jobs.load_budget_s,
            run_s=settings.jobs.run_budget_s or None,
            devices=devices,
        )

    def change_settings(self, settings: Settings) -> None:
        """Settings changed: they hold for what starts from now on."""
        with self._lock:
            self._settings = settings
            self._dispatch.unload_after_s = 60.0 * settings.compute.unload_after_minutes
            old = self._dispatch.scheduler.limits
            devices = {engine: self._place(engine).device for engine in old.devices}
            limits = replace(self._limits(settings, devices), paused=old.paused)
            self._dispatch.handle(LimitsChanged(limits=limits), start=False)
        self._inbox.put(None)

    def pause(self, on: bool) -> None:
        """Start nothing new (running jobs go on), or go on."""
        with self._lock:
            limits = replace(self._dispatch.scheduler.limits, paused=on)
            self._dispatch.handle(LimitsChanged(limits=limits), start=False)
        self._inbox.put(None)

    def _know_engine(self, engine: str) -> None:
        limits = self._dispatch.scheduler.limits
        if engine not in limits.devices:
            devices = {**limits.devices, engine: self._place(engine).device}
            self._dispatch.handle(LimitsChanged(limits=replace(limits, devices=devices)), start=False)

    # --- life --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take up what was left, and run."""
        with self._lock:
            if self._thread is not None:
                raise RuntimeError("the queue runs already")
            if self.set_aside is not None:
                log.warning("the job store was damaged; it lies in %s, and the queue begins anew", self.set_aside)
            waiting = self._store.give_back()
            self._store.prune()
            self._folders.sweep({row.n for row in waiting}, self._store.row)
            for row in waiting:
                self._know_engine(row.engine)
            for row in waiting:
                self._dispatch.handle(_submitted(row), start=False)
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
                    busy = self._dispatch.busy
                message = self._inbox.get(timeout=TICK_S if busy else None)
            except queue.Empty:
                message = None
            try:
                with self._lock:
                    if isinstance(message, _Close):
                        self._dispatch.begin_close(message.force)
                    elif isinstance(message, Ended):
                        self._dispatch.ended(message)
                    elif isinstance(message, News):
                        self._dispatch.news(message.message)
                    else:
                        self._dispatch.tick()
                    if self._dispatch.over:
                        break
            except Exception:  # one message is lost, told in the log; the queue serves the others
                log.exception("the job queue met a bug")
        self._dispatch.executor.shutdown(cancel_futures=True)

    @property
    def set_aside(self) -> Path | None:
        """Where a job store lies that was damaged when this daemon started."""
        return self._store.set_aside

    # --- what clients ask --------------------------------------------------------------------------------

    def submit(self, request: JobsSubmit) -> JobsSubmitted:
        """Take jobs, all or none; they survive whatever happens after the answer.

        Raises MynaError: `bad_request` naming every problem, `not_found` for a voice, `busy` with
        `retry_after_s`, `state_unwritable`.
        """
        engines = self._check(request.jobs)
        with self._lock:
            if self._dispatch.closing:
                raise MynaError("refused", "The daemon is shutting down. Submit again when it is back.")
            self._dispatch.save_again()
            self._admit(request.jobs)
            taken = self._store.submit([(spec, engines[spec.voice]) for spec in request.jobs])
            fresh = []
            for (n, new), spec in zip(taken, request.jobs, strict=True):
                if new:
                    self._know_engine(engines[spec.voice])
                    fresh.append(Submitted(job=job_id(n), order=n, kind=spec.kind, engine=engines[spec.voice]))
            # They enter the line at once; the queue's own thread starts them.
            for event in fresh:
                self._dispatch.handle(event, start=False)
            for event in fresh[:EVENTS_PER_SUBMIT]:
                self._dispatch.tell(event.job)
        self._inbox.put(None)
        return JobsSubmitted(ids=tuple(job_id(n) for n, _ in taken))

    def _check(self, specs: tuple[JobSpec, ...]) -> dict[str, str]:
        """The engine of each voice named, if nothing is wrong with any job."""
        problems = problems_in(specs)
        if problems:
            raise MynaError("bad_request", "No job was taken: " + "; ".join(problems), problems=problems)
        engines: dict[str, str] = {}
        for spec in specs:
            if spec.voice not in engines:
                engines[spec.voice] = self._resolve(spec.voice).engine
        return engines

    def _admit(self, specs: tuple[JobSpec, ...]) -> None:
        slots = self._dispatch.scheduler.slots("cpu")
        retry = budget.admit(
            waiting=self._dispatch.scheduler.waiting,
            incoming=len(specs),
            room=self._settings.jobs.max_waiting,
            slots=slots,
            average_s=self._dispatch.average_s,
        )
        if retry is None and (previews := sum(spec.kind == "preview" for spec in specs)):
            retry = budget.admit(
                waiting=self._dispatch.scheduler.waiting_of("preview"),
                incoming=previews,
                room=max(previews, PREVIEWS_PER_SLOT * slots),
                slots=slots,
                average_s=self._dispatch.average_s,
            )
        if retry is not None:
            raise MynaError("busy", f"The queue is full. Try again in {retry:.0f} s.", retry_after_s=round(retry, 1))

    def list(self, request: JobsList) -> JobsReply:
        """Jobs, newest last."""
        after = 0
        if request.after is not None:
            after = number_of(request.after)
        with self._lock:
            derived = bool({"queued", "waiting"} & set(request.states))
            stored = tuple({"queued" if state == "waiting" else state for state in request.states})
            rows = self._store.rows(stored, after, -1 if derived else request.limit)
            jobs = [self._dispatch.info(row) for row in rows]
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
            waiting = min(queued, self._dispatch.scheduler.blocked())
            counts.update({s: c for s, c in (("queued", queued - waiting), ("waiting", waiting)) if c})
        return counts

    def show(self, job: str) -> JobInfo:
        """One job. MynaError("not_found")."""
        with self._lock:
            return self._dispatch.info(self._dispatch.row(job))

    def cancel(self, job: str) -> JobInfo:
        """End a job: at once if it waits, within two seconds if it runs. Finished segments stay for a retry."""
        with self._lock:
            row = self._dispatch.row(job)
            if row.state in ENDED:
                raise MynaError("refused", f"Job {job} is {row.state} already.", job=job, state=row.state)
            self._dispatch.handle(Cancel(job=job), start=False)
            info = self._dispatch.info(self._dispatch.row(job))
        self._inbox.put(None)
        return info

    def retry(self, job: str) -> JobInfo:
        """Queue a failed or cancelled job again; what it had finished is not done again."""
        with self._lock:
            row = self._dispatch.row(job)
            if row.state not in ("failed", "cancelled"):
                text = f"Job {job} is {row.state}; only failed and cancelled jobs can be retried."
                raise MynaError("refused", text, job=job, state=row.state)
            self._store.retry(row.n)
            self._know_engine(row.engine)
            self._dispatch.handle(_submitted(self._dispatch.row(job)), start=False)
            self._dispatch.tell(job)
            info = self._dispatch.info(self._dispatch.row(job))
        self._inbox.put(None)
        return info

    def run_now(self, job: str) -> JobInfo:
        """Let a waiting job start beside a live session, or while the queue is paused."""
        with self._lock:
            row = self._dispatch.row(job)
            if row.state != "queued":
                raise MynaError("refused", f"Job {job} is {row.state}: it does not wait.", job=job, state=row.state)
            beside = self._dispatch.scheduler.reason(job) == "live_running"
            self._store.set_run_now(row.n)
            self._dispatch.handle(RunNow(job=job), start=False)
            if beside:
                text = f"Job {job} runs beside the live session: it may glitch."
                self._publish("log", LogLine(level="warning", message=text))
            info = self._dispatch.info(self._dispatch.row(job))
        self._inbox.put(None)
        return info

    def worker_of(self, job: str) -> int | None:
        """The process that runs a job; None while none does."""
        return self._dispatch.executor.pid_of(job)

    def traces(self) -> TracesReply:
        """The last jobs that ended."""
        with self._lock:
            return TracesReply(traces=self._store.traces())

    def models(self) -> tuple[ModelInfo, ...]:
        """What job workers hold in memory."""
        return self._dispatch.executor.models()

    def unload(self, model: ModelInfo) -> UnloadRow:
        """Let go of a model. Blocks until its worker has; not for the control thread."""
        return self._dispatch.executor.unload(model)

    def flush(self, unload: bool) -> tuple[FlushRow, ...]:
        """Let go of caches, and with `unload` of models, in every idle worker. Blocks."""
        return self._dispatch.executor.flush(unload)

    def live_started(self, device: str) -> None:
        """A live session computes on a device: new jobs there wait."""
        with self._lock:
            self._dispatch.handle(LiveStarted(device=device), start=False)

    def live_stopped(self, device: str) -> None:
        """A live session left a device."""
        with self._lock:
            self._dispatch.handle(LiveStopped(device=device), start=False)
        self._inbox.put(None)


def _submitted(row: Row) -> Submitted:
    return Submitted(
        job=row.id, order=row.n, kind=row.kind, engine=row.engine, attempts=row.attempts, run_now=bool(row.run_now)
    )
