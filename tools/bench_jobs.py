"""Times the job queue against what it promises: submit, list, memory, start of a warm worker, overhead, live beside it.

    python tools/bench_jobs.py [--jobs 10000] [--files 100] [--seconds 5] [--beside 60] [--json]

Overhead is what the queue (this process and its worker) takes for the files over what the bare engine takes for them
in one process, both one file at a time and in turns of twenty files: the median of the turns' ratios, in processor
time, which other work on the machine hardly moves, and in wall time, which means something on a quiet machine only
(workers are nice to others).

Live beside the queue is a session of the built-in voice in blocks of 20 ms, for as many seconds without jobs and then
with a job on every core: the 99th percentile of its blocks' compute as its worker tells it, and its slips.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import bench
import numpy as np
import psutil
import soundfile

from myna.control.contract import JobInfo, JobsList, JobSpec, JobsReply, JobsSubmit, JobsSubmitted, Message
from myna.daemon import media
from myna.daemon.jobs.parameters import resolved
from myna.daemon.jobs.queue import JobQueue
from myna.daemon.settings import Settings
from myna.daemon.voices.library import VoiceLibrary
from myna.daemon.voices.values import kept_values
from myna.engines import registry
from myna.engines.base import FileVoice, Placement, VoiceParameters

RATE_HZ = 16_000
VOICE = "deep"
TURN = 20  # files


class Told:
    """Hears the queue's events, and tells when a job has ended."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ended: dict[str, JobInfo] = {}

    def __call__(self, topic: str, message: Message) -> None:
        """Take an event."""
        if isinstance(message, JobInfo) and message.state in ("done", "failed", "cancelled"):
            with self._changed:
                self._ended[message.id] = message
                self._changed.notify_all()

    def ended(self, job: str) -> JobInfo:
        """Wait for a job. SystemExit if it is not done."""
        with self._changed:
            self._changed.wait_for(lambda: job in self._ended)
            info = self._ended[job]
        if info.state != "done":
            raise SystemExit(f"{job}: {info.error}")
        return info


def open_queue(state: Path, told: Told) -> JobQueue:
    """A queue with one worker at a time."""
    voices = VoiceLibrary(state, registry.specs())
    return JobQueue(state, Settings(), told, voices.resolve, cores=2)


def many(folder: Path, jobs: int) -> dict[str, float]:
    """Seconds to submit and to list many jobs, and what the process grew by."""
    queue = open_queue(folder / "many", Told())
    specs = tuple(
        JobSpec(input=str(folder / "none.wav"), output=str(folder / f"{n}.wav"), voice=VOICE) for n in range(jobs)
    )
    process = psutil.Process()
    before = process.memory_info().rss
    began = time.perf_counter()
    for at in range(0, jobs, 2000):
        queue.submit(JobsSubmit(jobs=specs[at : at + 2000]))
    submitted = time.perf_counter() - began
    began = time.perf_counter()
    reply = queue.list(JobsList(limit=10_000))
    listed = time.perf_counter() - began
    assert reply.total == jobs
    grown = process.memory_info().rss - before
    queue.close()
    return {
        "submit_s": submitted,
        "list_s": listed,
        "supervisor_growth_mb": grown / 1e6,
        "supervisor_rss_mb": process.memory_info().rss / 1e6,
    }


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """Processor seconds that these processes used so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def convert_bare(voice: FileVoice, inputs: list[Path], out: Path) -> None:
    """The engine alone, its reading and writing of the files included."""
    for path in inputs:
        with media.open_reader(path) as reader:
            made = voice.convert(reader.read(1 << 30), reader.rate_hz)
            with media.Writer(out / path.name, voice.rate_hz or reader.rate_hz, "wav") as writer:
                writer.write(made)
                writer.commit()


def overhead(inputs: list[Path], folder: Path) -> dict[str, float]:
    """Wall and processor seconds of both ways, and how fast a warm worker takes a job up."""
    asset = VoiceLibrary(folder / "voices", registry.specs()).resolve(VOICE)
    parameters = VoiceParameters(**resolved(kept_values(asset), {}))  # type: ignore[arg-type]
    voice = registry.find(asset.engine).open_file(asset, Placement(), parameters)
    told = Told()
    queue = open_queue(folder / "state", told)
    queue.start()
    spent: dict[str, list[float]] = {name: [] for name in ("bare_s", "bare_cpu_s", "queue_s", "queue_cpu_s")}

    def submit(name: str, paths: list[Path]) -> tuple[str, ...]:
        jobs = tuple(JobSpec(input=str(p), output=str(folder / name / p.name), voice=VOICE) for p in paths)
        return queue.submit(JobsSubmit(jobs=jobs)).ids

    def timed(name: str, work: Callable[[], object]) -> None:
        began, used = time.perf_counter(), cpu_seconds(processes)
        work()
        spent[f"{name}_s"].append(time.perf_counter() - began)
        spent[f"{name}_cpu_s"].append(cpu_seconds(processes) - used)

    try:
        (folder / "bare").mkdir()
        convert_bare(voice, inputs[:1], folder / "bare")
        told.ended(submit("warm", inputs[:1])[0])
        processes = [psutil.Process(), *psutil.Process().children()]
        for at in range(0, len(inputs), TURN):
            some = inputs[at : at + TURN]
            timed("bare", lambda some=some: convert_bare(voice, some, folder / "bare"))  # type: ignore[misc]
            timed("queue", lambda some=some: [told.ended(job) for job in submit("out", some)])  # type: ignore[misc]
        starts = []
        for n in range(10):
            submitted = time.time()
            info = told.ended(submit(f"start{n}", inputs[:1])[0])
            assert info.started_at is not None
            assert info.result is not None
            load = info.result["load_s"]
            assert isinstance(load, float)
            starts.append(info.started_at - submitted + load)
    finally:
        queue.close(force=True)
    overheads = {
        f"overhead_{name}_percent": 100 * float(np.median(np.divide(spent[f"queue{end}"], spent[f"bare{end}"])) - 1)
        for name, end in (("wall", "_s"), ("cpu", "_cpu_s"))
    }
    sums = {name: sum(each) for name, each in spent.items()}
    return {**sums, "warm_start_ms": 1000 * float(np.median(starts)), **overheads}


def beside(folder: Path, seconds: float) -> dict[str, float]:
    """A live session's compute without jobs and with one on every core, and its slips meanwhile."""
    cores = os.cpu_count() or 1
    folder.mkdir()
    (folder / "settings.toml").write_text(f"[compute]\ncpu_jobs = {cores}\n")
    long = folder / "long.wav"
    soundfile.write(long, bench.speech(30 * seconds), bench.RATE_HZ)
    with bench.daemon(folder), bench.session(folder, 3 * seconds + 60) as client:

        def watched() -> tuple[float, int]:
            """Median of the 99th percentiles told in that time, and the slips."""
            time.sleep(min(6.0, seconds))  # until the blocks of the time before are forgotten
            before, told, deadline = bench.state(client).xruns, [], time.monotonic() + seconds
            while time.monotonic() < deadline:
                time.sleep(1.0)
                if (p99_ms := bench.state(client).latency.compute_ms) is not None:
                    told.append(p99_ms)
            return float(np.median(told)), bench.state(client).xruns - before

        quiet_ms, quiet_slips = watched()
        specs = tuple(JobSpec(input=str(long), output=str(folder / f"{n}.wav"), voice=VOICE) for n in range(cores))
        ids = client.call("jobs.submit", JobsSubmit(jobs=specs), JobsSubmitted).ids
        busy_ms, busy_slips = watched()
        running = [each.state for each in client.call("jobs.list", JobsList(), JobsReply).jobs if each.id in ids]
        if running.count("running") != cores:
            raise SystemExit(f"the queue was not busy all the time: {running}; choose fewer seconds")
    return {
        "live_alone_p99_ms": quiet_ms,
        "live_beside_p99_ms": busy_ms,
        "live_beside_ratio": busy_ms / quiet_ms,
        "live_alone_slips": quiet_slips,
        "live_beside_slips": busy_slips,
    }


def main() -> int:
    """Entry."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--beside", type=float, default=60.0, help="seconds of a live session, 0: none")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="myna-bench-") as name:
        folder = Path(name)
        figures: dict[str, float] = many(folder, options.jobs)
        (folder / "in").mkdir()
        inputs = []
        t = np.arange(round(options.seconds * RATE_HZ)) / RATE_HZ
        for n in range(options.files):
            audio = 0.2 * np.sin(2 * np.pi * (100 + n) * t) * (np.sin(2 * np.pi * 0.5 * t) > -0.8)
            soundfile.write(folder / "in" / f"{n}.wav", audio.astype(np.float32), RATE_HZ)
            inputs.append(folder / "in" / f"{n}.wav")
        figures |= overhead(inputs, folder)
        if options.beside:
            figures |= beside(folder / "beside", options.beside)
    if options.json:
        print(json.dumps(figures))
    else:
        for key, value in figures.items():
            print(f"{key:22} {value:.3f}")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
