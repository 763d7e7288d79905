"""Runs orders in processes that can be killed: the face of concurrent.futures over workers of our own."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import IO, cast

import msgspec
import psutil

from myna.control.contract import FlushRow, ModelInfo, UnloadRow
from myna.control.errors import MynaError
from myna.daemon.child_environment import child_environment
from myna.daemon.jobs import messages
from myna.daemon.jobs.messages import (
    Answer,
    AskFlush,
    AskUnload,
    Done,
    Fault,
    FromWorker,
    Models,
    Order,
    Quit,
    Ready,
    StopOrder,
    Stopped,
    ToWorker,
)

ASK_S = 0.7  # a worker that was asked to stop gets this long before it is terminated
TERMINATE_S = 0.7  # and this long after that before it is killed: under two seconds in all
LAST_LINES = 40
FREE_S = 20.0  # longest that letting go of memory may take
FAILED_STARTS = 3  # spares that die before they are ready, in a row: then no more are made ahead

log = logging.getLogger(__name__)

Report = Callable[[FromWorker], None]


class AttemptStopped(Exception):
    """The attempt was ended because it was told to; `memory` is what was measured afterwards."""

    def __init__(self, memory: dict[str, int | None]) -> None:
        super().__init__("stopped")
        self.memory = memory


class _Worker:
    """One process and the threads that listen to it."""

    def __init__(
        self,
        number: int,
        on_message: Callable[["_Worker", FromWorker], None],
        on_exit: Callable[["_Worker"], None],
    ) -> None:
        self.name = f"job-worker-{number}"
        self.order: Order | None = None
        self.future: Future[Done] | None = None
        self.report: Report | None = None
        self.device: str | None = None  # of its last order; None: it never had one
        self.models: list[ModelInfo] = []  # what it told that it holds
        self.idle_since = time.monotonic()
        self.ready = threading.Event()
        self.gone = threading.Event()
        self.stopping = False
        self.doomed = False  # about to be terminated: gets no order any more
        self.memory_before: int | None = None  # measured right before it was ended
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        self._sending = threading.Lock()
        self._on_message, self._on_exit = on_message, on_exit
        self.process = subprocess.Popen(
            [sys.executable, "-m", "myna.daemon.jobs.worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=child_environment(PYTHONFAULTHANDLER="1"),
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._stdin: IO[bytes] = self.process.stdin
        self._stdout: IO[bytes] = self.process.stdout
        self._stderr: IO[bytes] = self.process.stderr
        self._errors = threading.Thread(target=self._read_errors, name=f"{self.name}-errors", daemon=True)
        self._errors.start()
        self._messages = threading.Thread(target=self._read_messages, name=self.name, daemon=True)
        self._messages.start()

    def send(self, message: ToWorker) -> bool:
        """Whether the message could be handed over."""
        with self._sending:
            try:
                messages.write_message(self._stdin, message)
            except (OSError, ValueError):
                return False
            return True

    def _read_errors(self) -> None:
        with self._stderr:
            for line in self._stderr:
                self.lines.append(line.decode("utf-8", "replace").rstrip()[:500])

    def _read_messages(self) -> None:
        try:
            messages.each_from_worker(self._stdout, lambda message: self._on_message(self, message))
        except messages.BadFrame as error:
            self.lines.append(f"spoke nonsense: {error}")
            self.process.kill()
        self.process.wait()
        self._errors.join(0.5)
        self.gone.set()
        self._on_exit(self)
        for pipe in (self._stdin, self._stdout):
            with suppress(OSError):
                pipe.close()

    def exit_facts(self) -> dict[str, object]:
        """How the process ended, for a program."""
        code = self.process.returncode
        facts: dict[str, object] = {"last_lines": list(self.lines)}
        if code is not None and code < 0:
            with suppress(ValueError):
                facts["signal"] = signal.Signals(-code).name
            facts.setdefault("signal", str(-code))
        else:
            facts["exit_code"] = code
        return facts

    def end(self) -> None:
        """Terminate, then kill. Returns when the process is gone."""
        self.memory_before = _memory(self.process.pid)
        for deed, wait_s in ((self.process.terminate, TERMINATE_S), (self.process.kill, 10.0)):
            if self.gone.is_set():
                break
            deed()
            self.gone.wait(wait_s)


def _memory(pid: int) -> int | None:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None


class WorkerExecutor:
    """Runs orders on workers of its own; one order per worker at a time, one warm spare.

    `submit` gives a Future as any executor does, but takes an order (paths and numbers) instead of a callable:
    nothing else crosses to another process. How many run at once is the caller's (the scheduler's) decision.
    """

    def __init__(self, *, spare: bool = True) -> None:
        self._spare = spare
        self._lock = threading.RLock()
        self._workers: list[_Worker] = []
        self._made = 0
        self._failed_starts = 0
        self._closed = False
        self._asks: dict[int, tuple[_Worker, Future[Answer]]] = {}
        self._asked = 0

    # --- orders ------------------------------------------------------------------------------------------

    def submit(self, order: Order, report: Report) -> "Future[Done]":
        """Begin an order at once. `report` gets its news, on another thread, before the future is set.

        The future ends with Done, or raises MynaError (the attempt failed; `worker_crashed` if its process died)
        or AttemptStopped.
        """
        future: Future[Done] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._closed:
                raise RuntimeError("the executor is shut down")
            worker = self._pick(order.placement.device)
            worker.order, worker.future, worker.report = order, future, report
            worker.device = order.placement.device
            worker.stopping = False
        # If it is dead already its exit ends the future.
        worker.send(order)
        return future

    def _pick(self, device: str) -> _Worker:
        """An idle worker that was on this device (its voice may be loaded), else the spare, else a new one."""
        idle = [w for w in self._workers if w.order is None and not (w.stopping or w.doomed) and not w.gone.is_set()]
        for worker in sorted(idle, key=lambda w: -w.idle_since):
            if worker.device == device:
                return worker
        for worker in idle:
            if worker.device is None:
                return worker
        return self._start()

    def _start(self) -> _Worker:
        self._made += 1
        worker = _Worker(self._made, self._on_message, self._on_exit)
        self._workers.append(worker)
        return worker

    def warm(self) -> None:
        """Make sure that a spare is there, or on its way. Called when there is work, not before."""
        with self._lock:
            if self._closed or not self._spare or self._failed_starts >= FAILED_STARTS:
                return
            if not any(w.order is None and not w.gone.is_set() and not w.stopping for w in self._workers):
                self._start()

    def stop(self, job: str, attempt: int) -> None:
        """End an attempt: it is asked, then terminated, then killed, within two seconds. Returns at once."""
        with self._lock:
            worker = self._of(job, attempt)
            if worker is None or worker.stopping:
                return
            worker.stopping = True
        threading.Thread(
            target=self._stop, args=(worker, job, attempt), name=f"{worker.name}-stop", daemon=True
        ).start()

    def _stop(self, worker: _Worker, job: str, attempt: int) -> None:
        worker.send(StopOrder(job=job, attempt=attempt))
        deadline = time.monotonic() + ASK_S
        while time.monotonic() < deadline:
            if worker.gone.wait(0.02):
                return
            with self._lock:
                if worker is not self._of(job, attempt):
                    return  # it gave up as asked, and stays
        with self._lock:
            if worker is not self._of(job, attempt):
                return
            worker.doomed = True
        worker.end()

    def _of(self, job: str, attempt: int) -> _Worker | None:
        for worker in self._workers:
            if worker.order is not None and (worker.order.job, worker.order.attempt) == (job, attempt):
                return worker
        return None

    def pid_of(self, job: str) -> int | None:
        """The process that runs a job."""
        with self._lock:
            for worker in self._workers:
                if worker.order is not None and worker.order.job == job:
                    return worker.process.pid
        return None

    def pids(self) -> tuple[int, ...]:
        """All worker processes."""
        with self._lock:
            return tuple(worker.process.pid for worker in self._workers)

    def cpu_seconds(self, job: str) -> float | None:
        """Processor time that a job's worker used so far."""
        pid = self.pid_of(job)
        if pid is None:
            return None
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            return None
        return float(times.user + times.system)

    # --- news --------------------------------------------------------------------------------------------

    def _on_message(self, worker: _Worker, message: FromWorker) -> None:
        if isinstance(message, Ready):
            worker.ready.set()
            with self._lock:
                self._failed_starts = 0
            return
        if isinstance(message, Answer):
            with self._lock:
                _, answer = self._asks.pop(message.ask, (None, None))
            if answer is not None:
                answer.set_result(message)
            return
        if isinstance(message, Models):
            worker.models = message.models
            return
        with self._lock:
            order, future, report = worker.order, worker.future, worker.report
            if order is None or future is None or report is None:
                return
            if (message.job, message.attempt) != (order.job, order.attempt):
                return
            if isinstance(message, Done | Fault | Stopped):
                worker.order = worker.future = worker.report = None
                worker.stopping = False
                worker.idle_since = time.monotonic()
        if isinstance(message, Done):
            future.set_result(message)
        elif isinstance(message, Fault):
            future.set_exception(_error_of(message))
        elif isinstance(message, Stopped):
            memory = {"process_before": None, "process_after": _memory(worker.process.pid)}
            future.set_exception(AttemptStopped(memory))
        else:
            report(message)

    def _on_exit(self, worker: _Worker) -> None:
        with self._lock:
            if worker in self._workers:
                self._workers.remove(worker)
            future, stopping = worker.future, worker.stopping
            worker.order = worker.future = worker.report = None
            if not worker.ready.is_set() and not stopping and not self._closed:
                self._failed_starts += 1
                log.warning("%s died at its start: %s", worker.name, worker.exit_facts())
            lost = [ask for ask, (asked, _) in self._asks.items() if asked is worker]
            answers = [self._asks.pop(ask)[1] for ask in lost]
        for answer in answers:
            answer.set_exception(MynaError("worker_crashed", "The worker ended before it could answer."))
        if future is None:
            return
        if stopping:
            memory = {
                "process_before": worker.memory_before,
                "process_after": _memory(worker.process.pid) or 0,  # it was waited for: nothing is left
                "system_available": int(psutil.virtual_memory().available),
            }
            future.set_exception(AttemptStopped(memory))
        else:
            future.set_exception(crash_error(worker.exit_facts()))

    # --- memory ------------------------------------------------------------------------------------------

    def models(self) -> tuple[ModelInfo, ...]:
        """What all workers hold, as they told it last; what a running order uses is busy."""
        found = []
        with self._lock:
            for worker in self._workers:
                for model in worker.models:
                    busy = worker.order is not None
                    found.append(
                        msgspec.structs.replace(
                            model,
                            id=f"{worker.name}:{model.id}",
                            worker=worker.name,
                            busy="busy:job" if busy else None,
                            unloadable=not busy,
                            why_not="busy:job: wait for the job, or cancel it" if busy else None,
                        )
                    )
        return tuple(found)

    def unload(self, model: ModelInfo, timeout_s: float = FREE_S) -> UnloadRow:
        """Have the idle worker that holds a model let go of it. Blocks until it has; not for the control thread."""
        with self._lock:
            worker = next((w for w in self._workers if w.name == model.worker), None)
            if worker is not None and worker.order is not None:
                return UnloadRow(id=model.id, done=False, reason="busy:job")
        if worker is None:
            return UnloadRow(id=model.id, done=True, reason="not loaded")
        name = model.id.removeprefix(f"{worker.name}:")
        try:
            answer = self._ask(worker, lambda ask: AskUnload(ask=ask, id=name)).result(timeout_s)
        except (MynaError, TimeoutError) as error:
            return UnloadRow(id=model.id, done=False, reason=str(error) or "the worker did not answer")
        return UnloadRow(
            id=model.id,
            done=True,
            reason=None if answer.done else "not loaded",
            bytes_before=answer.before["process"],
            bytes_after=answer.after["process"],
        )

    def flush(self, unload: bool, timeout_s: float = FREE_S) -> tuple[FlushRow, ...]:
        """Have every idle worker let go of caches (and voices); a row for each worker. Blocks."""
        rows: list[FlushRow] = []
        with self._lock:
            workers = [w for w in self._workers if w.ready.is_set() and not w.stopping]
        for worker in workers:
            if worker.order is not None:
                figures: dict[str, int | None] = {"process": _memory(worker.process.pid)}
                rows.append(
                    FlushRow(worker=worker.name, outcome="deferred", reason="busy:job", before=figures, after=figures)
                )
                continue
            try:
                answer = self._ask(worker, lambda ask: AskFlush(ask=ask, unload=unload)).result(timeout_s)
            except (MynaError, TimeoutError) as error:
                reason = str(error) or "the worker did not answer"
                rows.append(FlushRow(worker=worker.name, outcome="failed", reason=reason))
            else:
                rows.append(FlushRow(worker=worker.name, outcome="done", before=answer.before, after=answer.after))
        return tuple(rows)

    def _ask(self, worker: _Worker, make: Callable[[int], ToWorker]) -> "Future[Answer]":
        answer: Future[Answer] = Future()
        with self._lock:
            self._asked += 1
            self._asks[self._asked] = (worker, answer)
            message = make(self._asked)
        worker.send(message)  # if it is dead, its exit ends the future
        return answer

    def idle_workers(self) -> int:
        """How many workers have nothing to do."""
        with self._lock:
            return sum(1 for worker in self._workers if worker.order is None)

    def retire(self, idle_s: float) -> int:
        """Let workers go that had nothing to do for so long, the spare too. Returns how many."""
        now = time.monotonic()
        with self._lock:
            tired = [
                w
                for w in self._workers
                if w.order is None and not w.stopping and w.ready.is_set() and now - w.idle_since >= idle_s
            ]
            for worker in tired:
                worker.stopping = True
        for worker in tired:
            worker.send(Quit())
        return len(tired)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all workers: what runs is waited for, or with `cancel_futures` killed."""
        with self._lock:
            self._closed = True
            workers = list(self._workers)
        for worker in workers:
            if cancel_futures and worker.order is not None:
                worker.stopping = True
                worker.process.kill()
            else:
                worker.send(Quit())
        if not wait:
            return
        for worker in workers:
            patience = 5.0 if worker.order is None or cancel_futures else None
            if not worker.gone.wait(patience):
                worker.process.kill()
                worker.gone.wait(5.0)


def _error_of(fault: Fault) -> MynaError:
    return MynaError(
        fault.code, fault.message, **{k: v for k, v in fault.facts.items() if k not in ("code", "message")}
    )


def crash_error(facts: dict[str, object]) -> MynaError:
    """What is told of a worker that died under its job."""
    cause = str(facts.get("signal") or f"exit code {facts.get('exit_code')}")
    hint = ""
    if cause == "SIGKILL":
        hint = " If nobody killed it, the system ran out of memory: run fewer jobs at once."
    lines = cast("list[str]", facts.get("last_lines") or [])
    # A native abort is followed by stacks; the line before them says more than the last one of those.
    telling = next((at for at, line in enumerate(lines) if line.startswith("Fatal Python error")), len(lines))
    last = f" Its last words: {lines[telling - 1]}" if telling > 0 else ""
    return MynaError("worker_crashed", f"The worker died ({cause}).{hint}{last}", **facts)
