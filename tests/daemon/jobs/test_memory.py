"""What job workers hold in memory: listed, refused while busy, let go of with measured figures."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from myna.control.contract import JobInfo, JobSpec, JobsSubmit
from myna.daemon.jobs.queue import JobQueue
from myna.daemon.settings import Settings
from myna.daemon.voices.library import VoiceLibrary
from myna.engines import registry


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[JobQueue]:
    """The queue as the daemon holds it, with the real voices."""
    state = tmp_path / "state"
    voices = VoiceLibrary(state, registry.specs())
    made = JobQueue(state, Settings(), lambda topic, message: None, voices.resolve, cores=2)
    made.start()
    yield made
    made.close(force=True)


def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_models_are_listed_refused_while_busy_and_unloaded(
    queue: JobQueue, speech_16k: NDArray[np.float32], tmp_path: Path
) -> None:
    short, long = tmp_path / "short.wav", tmp_path / "long.wav"
    soundfile.write(short, speech_16k[:16000], 16000)
    soundfile.write(long, np.resize(speech_16k, 40 * 16000), 16000)

    def convert(source: Path) -> str:
        spec = JobSpec(input=str(source), output=str(tmp_path / f"{source.stem}-out.wav"), voice="deep")
        return queue.submit(JobsSubmit(jobs=(spec,))).ids[0]

    def show(job: str) -> JobInfo:
        return queue.show(job)

    assert queue.models() == ()
    first = convert(short)
    until(lambda: show(first).state == "done")
    until(lambda: bool(queue.models()))
    (model,) = queue.models()
    assert (model.engine, model.device, model.busy, model.unloadable) == ("formant", "cpu", None, True)

    second = convert(long)
    until(lambda: show(second).state == "running")
    (busy,) = queue.models()
    assert (busy.busy, busy.unloadable) == ("busy:job", False)
    refused = queue.unload(busy)
    assert (refused.done, refused.reason) == (False, "busy:job")
    flushed = {row.worker: row for row in queue.flush(unload=False)}
    assert (flushed[busy.worker].outcome, flushed[busy.worker].reason) == ("deferred", "busy:job")
    until(lambda: show(second).state == "done")

    row = queue.unload(busy)
    assert row.done
    assert row.bytes_before is not None
    assert row.bytes_after is not None
    assert queue.models() == ()
    assert queue.unload(busy).reason == "not loaded"
    rows = queue.flush(unload=True)
    assert {row.outcome for row in rows} == {"done"}
    assert all(row.after["driver_free"] is None for row in rows)  # no driver was asked, so no figure is claimed
