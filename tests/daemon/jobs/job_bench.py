"""An engine that does as told, found as any other package's engine is, and a queue to run it in."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import soundfile

from myna.control.contract import JobInfo, JobSpec, JobsSubmit, Message
from myna.control.errors import MynaError
from myna.daemon.jobs.queue import JobQueue
from myna.daemon.settings import Settings
from myna.engines.base import VoiceAsset

# Its voices: `plain` halves the sound; `gated` does so as often as its gate file says and then waits; the others
# go wrong as they are named.
ENGINE = """
import os, time
from pathlib import Path
import numpy as np
from myna.engines.base import Capabilities, EngineError, EngineSpec, OutOfMemory, VoiceFacts


class Voice:
    rate_hz = None
    context_ms = 100.0
    facts = VoiceFacts(engine="told", device="cpu", precision="fp32", backend="numpy")

    def __init__(self, asset):
        self.asset = asset

    def convert(self, audio, rate_hz):
        folder = Path(self.asset.defaults["folder"])
        kind = self.asset.id
        with open(folder / "calls", "a") as calls:
            calls.write(f"{len(audio)}\\n")
        if kind == "gated":
            while (folder / "calls").read_text().count("\\n") > int((folder / "gate").read_text() or 0):
                time.sleep(0.005)
        if kind == "deaf":
            import signal
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            (folder / "deaf").touch()
            while True:
                time.sleep(0.01)
        if kind == "abort":
            os.write(2, b"the library gave up\\n")
            os.abort()
        if kind == "segfault":
            import ctypes
            ctypes.string_at(0)
        if kind == "nan":
            return np.full(len(audio), np.nan, np.float32)
        if kind == "short":
            return audio[:-1]
        if kind == "oom":
            raise OutOfMemory("no room", wanted=1)
        if kind == "bug":
            raise KeyError("surprise")
        return audio * np.float32(0.5)

    def close(self):
        pass


SPEC = EngineSpec(
    name="told",
    capabilities=Capabilities(live=False, file=True, hop_ms=10.0, parameters=frozenset({"pitch"})),
    built_in=(),
    check=lambda asset: (),
    open_live=None,
    open_file=lambda asset, placement, parameters: Voice(asset),
)
"""


def install_engine(folder: Path) -> None:
    """Put the engine where an interpreter with `folder` on its path finds it: a module, and its entry point."""
    (folder / "told_engine.py").write_text(ENGINE)
    info = folder / "told_engine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: told-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[myna.engines]\ntold = told_engine:SPEC\n")


def until(condition: Callable[[], bool], what: str, deadline_s: float = 30.0) -> None:
    """Wait for a condition, with a deadline."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline_s} s for {what}")
        time.sleep(0.005)


class Bench:
    """A queue in a folder of its own, with the engine's voices and what it publishes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state, self.out = folder / "state", folder / "out"
        self.events: list[tuple[str, Message]] = []
        self.settings = Settings()
        self.removed: set[str] = set()
        self.cores = 2
        self.queue: JobQueue | None = None
        (folder / "calls").touch()

    def resolve(self, voice: str) -> VoiceAsset:
        if voice in self.removed or voice == "nobody":
            raise MynaError("not_found", f"There is no voice {voice!r}.")
        if voice == "formant":
            return VoiceAsset(id="formant", engine="formant")
        return VoiceAsset(id=voice, engine="told", defaults={"folder": str(self.folder)})

    def open(self, start: bool = True) -> JobQueue:
        """A queue on this folder; the one before must be closed."""
        self.queue = JobQueue(
            self.state,
            self.settings,
            lambda topic, message: self.events.append((topic, message)),
            self.resolve,
            cores=self.cores,
        )
        if start:
            self.queue.start()
        return self.queue

    def close(self) -> None:
        """End the queue, if one is open."""
        if self.queue is not None:
            self.queue.close(force=True)
            self.queue = None

    @property
    def jobs(self) -> JobQueue:
        """The open queue."""
        assert self.queue is not None
        return self.queue

    def gate(self, calls: int) -> None:
        """How many calls of `convert` the voice `gated` may finish, in all."""
        part = self.folder / "gate.part"
        part.write_text(str(calls))
        part.replace(self.folder / "gate")

    @property
    def calls(self) -> int:
        """How often `convert` was called, in all workers."""
        return (self.folder / "calls").read_text().count("\n")

    def sound(self, name: str = "in.wav", seconds: float = 2.0, rate_hz: int = 8000, seed: int = 0) -> Path:
        """A file of noise with pauses."""
        frames = round(seconds * rate_hz)
        audio = np.random.default_rng(seed).standard_normal(frames).astype(np.float32) * 0.1
        audio *= np.sin(np.arange(frames) * (2 * np.pi * 0.23 / rate_hz)) > -0.9
        path = self.folder / "in" / name
        path.parent.mkdir(exist_ok=True)
        soundfile.write(path, audio, rate_hz, subtype="FLOAT", format="WAV")
        return path

    def spec(self, source: Path | str, output: str = "out.wav", voice: str = "plain", **more: object) -> JobSpec:
        """A conversion of a file into the output folder."""
        values = {"input": str(source), "output": str(self.out / output), "voice": voice, **more}
        return msgspec.convert(values, JobSpec)

    def submit(self, *specs: JobSpec) -> tuple[str, ...]:
        """Submit jobs."""
        return self.jobs.submit(JobsSubmit(jobs=specs)).ids

    def ended(self, job: str, deadline_s: float = 30.0) -> JobInfo:
        """Wait for the end of a job."""
        until(lambda: self.jobs.show(job).state in ("done", "failed", "cancelled"), f"the end of {job}", deadline_s)
        return self.jobs.show(job)
