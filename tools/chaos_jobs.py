"""Converts many files while their workers and their daemon are killed -9 at random, and counts what it cost.

    python tools/chaos_jobs.py [--files 200] [--kills 50] [--seconds 2] [--daemons 0.3] [--seed 0] [--json]

First a quiet run, then the same files with kills. Afterwards every job must be done, every output equal to the
quiet run's, byte for byte, and a watcher of the folder must never have seen a file that was not whole. The jobs
run in a process of their own, that holds the queue as the daemon does. Exit code 1 if anything was lost. Do not edit
the voice's code while it runs: workers started later would give other bytes.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import soundfile

from myna.control.contract import JobInfo, JobsList, JobSpec, JobsSubmit
from myna.daemon.jobs.queue import JobQueue
from myna.daemon.settings import Settings
from myna.daemon.voices.library import VoiceLibrary
from myna.engines import registry

RATE_HZ = 16_000
LONG_S = 30.0
DEADLINE_S = 3600.0


def open_queue(state: Path) -> JobQueue:
    """The queue of a state folder."""
    voices = VoiceLibrary(state, registry.specs())
    return JobQueue(state, Settings(), lambda topic, message: None, voices.resolve)


def host(state: Path) -> None:
    """Hold the queue until killed."""
    open_queue(state).start()
    print("ready", flush=True)
    threading.Event().wait()


def make_inputs(folder: Path, files: int, seconds: float, seed: int) -> list[Path]:
    """Voiced sounds with pauses; every twentieth is long enough for several segments."""
    folder.mkdir(parents=True)
    numbers = np.random.default_rng(seed)
    paths = []
    for n in range(files):
        length = max(seconds, LONG_S) if n % 20 == 9 else seconds
        t = np.arange(round(length * RATE_HZ)) / RATE_HZ
        pitch = numbers.uniform(90, 240)
        tone = sum(np.sin(2 * np.pi * pitch * k * t) / k for k in range(1, 9))
        audio = 0.15 * tone * (np.sin(2 * np.pi * 0.4 * t + numbers.uniform(0, 6)) > -0.8)
        path = folder / f"{n:04d}.wav"
        soundfile.write(path, audio.astype(np.float32), RATE_HZ)
        paths.append(path)
    return paths


def submit(state: Path, inputs: list[Path], out: Path) -> list[str]:
    """Submit a conversion of every file."""
    queue = open_queue(state)
    try:
        specs = tuple(
            JobSpec(input=str(path), output=str(out / path.with_suffix(".flac").name), voice="deep") for path in inputs
        )
        ids: list[str] = []
        for at in range(0, len(specs), 2000):
            ids.extend(queue.submit(JobsSubmit(jobs=specs[at : at + 2000])).ids)
        return ids
    finally:
        queue.close(force=True)


class Host:
    """The process that holds the queue, started again when it was killed."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self.start()

    def start(self) -> None:
        """Start it, and wait until it runs."""
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--host", str(self._state)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            raise SystemExit("the host did not start")

    def workers(self) -> list[psutil.Process]:
        """Its workers, as far as they still run."""
        try:
            return list(psutil.Process(self.process.pid).children())
        except psutil.Error:
            return []

    def kill(self) -> None:
        """Kill -9."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Watcher:
    """Looks at the output folder all the time, and keeps what was not whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._over = threading.Event()
        self.looked = 0
        self.broken: list[str] = []
        self._whole: dict[tuple[str, int], int] = {}
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.002):
            for path in self._folder.glob("[!.]*"):
                size = path.stat().st_size
                if (path.name, path.stat().st_ino) in self._whole:
                    # A published file never changes.
                    if self._whole[path.name, path.stat().st_ino] != size:
                        self.broken.append(path.name)
                    continue
                try:
                    audio, _ = soundfile.read(path)
                    if len(audio) == 0:
                        self.broken.append(path.name)
                except soundfile.SoundFileError:
                    self.broken.append(path.name)
                self._whole[path.name, path.stat().st_ino] = size
            self.looked += 1

    def end(self) -> None:
        """Stop looking."""
        self._over.set()
        self._thread.join()


def finish(state: Path, out: Path, inputs: int, kills: int, share_of_daemons: float, seed: int) -> dict[str, int]:
    """Run what waits in a state folder, with so many kills spread over the run."""
    numbers = random.Random(seed)
    counts = {"worker_kills": 0, "daemon_kills": 0}
    out.mkdir(parents=True, exist_ok=True)
    running = Host(state)
    deadline = time.monotonic() + DEADLINE_S
    while len(list(out.glob("[!.]*"))) < inputs:
        if time.monotonic() > deadline:
            raise SystemExit("not done within an hour")
        done = counts["worker_kills"] + counts["daemon_kills"]
        # As many kills as there should be at this much of the work, each after a random moment of it.
        due = kills * (len(list(out.glob("[!.]*"))) + 1) / inputs
        if done < kills and done < due:
            time.sleep(numbers.uniform(0.0, 0.4))
            if numbers.random() < share_of_daemons:
                running.kill()
                counts["daemon_kills"] += 1
                running.start()
            elif workers := running.workers():
                numbers.choice(workers).kill()
                counts["worker_kills"] += 1
        else:
            time.sleep(0.02)
    running.kill()
    return counts


def settle(state: Path, jobs: list[str]) -> list[JobInfo]:
    """Wait until the queue itself says that all jobs are at their end."""
    queue = open_queue(state)
    queue.start()
    try:
        deadline = time.monotonic() + 300
        while True:
            reply = queue.list(JobsList(limit=10_000))
            ended = [job for job in reply.jobs if job.state in ("done", "failed", "cancelled")]
            if len(ended) == len(jobs):
                return ended
            if time.monotonic() > deadline:
                raise SystemExit(f"only {len(ended)} of {len(jobs)} jobs came to an end")
            time.sleep(0.05)
    finally:
        queue.close(force=True)


def main() -> int:
    """Entry."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--daemons", type=float, default=0.3, help="share of kills that hit the daemon")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--host", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.host is not None:
        host(options.host)
        return 0
    with tempfile.TemporaryDirectory(prefix="myna-chaos-") as name:
        root = Path(name)
        inputs = make_inputs(root / "in", options.files, options.seconds, options.seed)
        began = time.monotonic()
        quiet_jobs = submit(root / "quiet", inputs, root / "out-quiet")
        finish(root / "quiet", root / "out-quiet", len(inputs), 0, 0.0, options.seed)
        quiet_s = time.monotonic() - began
        quiet = settle(root / "quiet", quiet_jobs)
        (root / "out").mkdir()
        watcher = Watcher(root / "out")
        try:
            began = time.monotonic()
            jobs = submit(root / "state", inputs, root / "out")
            counts = finish(root / "state", root / "out", len(inputs), options.kills, options.daemons, options.seed)
            chaos_s = time.monotonic() - began
            ended = settle(root / "state", jobs)
        finally:
            watcher.end()
        unequal = [
            path.name
            for path in (root / "out-quiet").iterdir()
            if not (root / "out" / path.name).exists() or (root / "out" / path.name).read_bytes() != path.read_bytes()
        ]
        leftovers = [path.name for path in (root / "out").glob(".*")]
        report: dict[str, object] = {
            "files": len(inputs),
            **counts,
            "done": sum(job.state == "done" for job in ended),
            "quiet_done": sum(job.state == "done" for job in quiet),
            "attempts": sum(job.attempts for job in ended),
            "segments": sum(job.segments or 0 for job in ended),
            "unequal": unequal,
            "half_files_seen": watcher.broken,
            "looks": watcher.looked,
            "leftovers": leftovers,
            "quiet_s": round(quiet_s, 1),
            "chaos_s": round(chaos_s, 1),
            "failed": {job.id: job.error for job in ended if job.state != "done"},
        }
    if options.json:
        print(json.dumps(report, default=str))
    else:
        for key, value in report.items():
            print(f"{key:16} {value}")
    whole = report["done"] == report["quiet_done"] == len(inputs)
    return 0 if whole and not (unequal or watcher.broken or leftovers) else 1


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
