"""What dies, and what is left of the jobs: workers, the daemon, disks, and time run out."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest
import soundfile
from job_bench import Bench, until

from myna.control.contract import JobInfo, JobsList
from myna.control.errors import MynaError
from myna.daemon.jobs import convert, segments
from myna.daemon.jobs.messages import Order
from myna.daemon.jobs.store import Store
from myna.daemon.orders import PlacementOrder, VoiceOrder

HOST = """
import sys
from pathlib import Path
from job_bench import Bench

bench = Bench(Path(sys.argv[1]))
bench.open()
print("ready", flush=True)
sys.stdin.read()
"""


def kill_worker(bench: Bench, job: str) -> None:
    """Kill -9 the worker of a job, and wait for its successor."""
    pid = bench.jobs.worker_of(job)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: bench.jobs.worker_of(job) not in (pid, None), "another worker")


def quiet_run(bench: Bench, source: Path) -> bytes:
    """The bytes of an undisturbed run of the same job."""
    (job,) = bench.submit(bench.spec(source, "quiet.wav", "gated"))
    assert bench.ended(job).state == "done"
    return (bench.out / "quiet.wav").read_bytes()


def test_a_killed_worker_costs_one_segment_and_no_byte(bench: Bench) -> None:
    bench.open()
    bench.gate(999)
    source = bench.sound(seconds=100)
    quiet = quiet_run(bench, source)
    whole = bench.calls
    assert whole >= 5
    bench.gate(whole + 2)
    (job,) = bench.submit(bench.spec(source, voice="gated"))
    for segments_done in (2, 3):
        # Under way: a call for each finished segment, one for each killed, and the one that waits at the gate.
        under_way = whole + segments_done + (segments_done - 2) + 1
        until(lambda n=under_way: bench.calls == n, "a segment under way")  # type: ignore[misc]
        until(lambda n=segments_done: bench.jobs.show(job).segments_done == n, "the journal")  # type: ignore[misc]
        kill_worker(bench, job)
        bench.gate(under_way + 1)
    bench.gate(999)
    info = bench.ended(job)
    assert info.state == "done", info.error
    assert info.attempts == 3
    assert (bench.out / "out.wav").read_bytes() == quiet
    # Every segment once, and once more for each that was under way at a kill.
    assert bench.calls - whole == whole + 2
    assert info.result is not None
    assert info.result["segments"] == whole


def test_a_killed_daemon_costs_what_was_under_way(bench: Bench) -> None:
    bench.open()
    bench.gate(999)
    source = bench.sound(seconds=100)
    quiet = quiet_run(bench, source)
    whole = bench.calls
    bench.close()
    bench.open(start=False)
    job, other = bench.submit(bench.spec(source, voice="gated"), bench.spec(source, "other.wav", key="k"))
    bench.close()
    kills = 2
    for _ in range(kills):
        calls = bench.calls
        bench.gate(calls + 1)
        host = subprocess.Popen(
            [sys.executable, "-c", HOST, str(bench.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"]])},
        )  # fmt: skip
        try:
            until(lambda n=calls + 2: bench.calls == n, "a segment under way")  # type: ignore[misc]
            workers = psutil.Process(host.pid).children()
        finally:
            host.kill()
            host.communicate()
        _, alive = psutil.wait_procs(workers, timeout=10)
        assert not alive, "workers end with their daemon"
    bench.gate(999)
    bench.open()
    info = bench.ended(job)
    assert info.state == "done", info.error
    assert (bench.out / "out.wav").read_bytes() == quiet
    assert bench.ended(other).state == "done"
    assert (bench.out / "other.wav").read_bytes() == quiet
    assert bench.submit(bench.spec(source, "other.wav", key="k")) == (other,)
    assert bench.calls == 3 * whole + kills, "only what was under way was done twice"


def test_a_published_output_is_known_for_its_own_after_a_kill(bench: Bench) -> None:
    """The worker can die between the rename and its telling: the next attempt must not find `exists`."""
    source = bench.sound()
    order = Order(
        job="j1", attempt=1, kind="convert", input=str(source), output=str(bench.out / "out.wav"), exists="fail",
        format="auto", seconds=None, parameters={"pitch": 2.0}, voice=VoiceOrder(id="formant", engine="formant"),
        placement=PlacementOrder(), work_dir=str(bench.folder / "work"),
    )  # fmt: skip
    from myna.daemon.jobs.worker import Worker

    worker = Worker(open(os.devnull, "rb"), open(os.devnull, "wb"))  # noqa: SIM115
    first = convert.convert(order, worker.lend, lambda message: None, lambda: False)
    before = (bench.out / "out.wav").stat()
    second = convert.convert(
        msgspec.structs.replace(order, attempt=2), worker.lend, lambda message: pytest.fail("work"), lambda: False
    )
    assert (bench.out / "out.wav").stat().st_mtime_ns == before.st_mtime_ns
    assert second["output"] == first["output"]
    assert second["frames"] == first["frames"]
    worker._incoming.close()
    worker._outgoing.close()


@pytest.mark.parametrize("damage", ["cut", "flipped", "stale"])
def test_a_segment_that_is_not_whole_or_not_its_own_is_made_anew(bench: Bench, damage: str) -> None:
    bench.gate(1)
    bench.open()
    source = bench.sound(seconds=45)
    (job,) = bench.submit(bench.spec(source, voice="gated"))
    until(lambda: bench.jobs.show(job).segments_done == 1, "the first segment")
    bench.close()
    path = segments.segment_path(bench.state / "jobs" / "work" / job, 0)
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[-1000:]
    elif damage == "flipped":
        data[-1000] ^= 1
    else:
        bench.sound(seconds=45, seed=1)
    path.write_bytes(data)
    bench.gate(999)
    calls = bench.calls
    bench.open()
    info = bench.ended(job)
    assert info.state == "done", info.error
    assert info.segments is not None
    assert bench.calls - calls == info.segments
    quiet = quiet_run(bench, source)
    assert (bench.out / "out.wav").read_bytes() == quiet


@pytest.mark.parametrize(("voice", "name"), [("abort", "SIGABRT"), ("segfault", "SIGSEGV")])
def test_a_native_crash_is_told_with_its_signal_and_last_lines(bench: Bench, voice: str, name: str) -> None:
    bench.open()
    source = bench.sound()
    job, good = bench.submit(bench.spec(source, voice=voice), bench.spec(source, "good.wav"))
    info = bench.ended(job)
    assert info.state == "failed"
    assert info.attempts == 3
    assert info.error is not None
    assert info.error["code"] == "worker_crashed"
    facts = info.error["facts"]
    assert isinstance(facts, dict)
    assert facts["signal"] == name
    text = "\n".join(facts["last_lines"])
    assert ("the library gave up" in text) is (voice == "abort")
    assert "Fatal Python error" in text
    assert bench.ended(good).state == "done"
    assert [path.name for path in bench.out.iterdir()] == ["good.wav"]


def test_a_deaf_worker_is_killed_on_cancel_and_its_slot_is_free(bench: Bench) -> None:
    bench.open()
    source = bench.sound()
    deaf, good = bench.submit(bench.spec(source, voice="deaf"), bench.spec(source, "good.wav"))
    until((bench.folder / "deaf").exists, "a worker that hears nothing")
    pid = bench.jobs.worker_of(deaf)
    assert pid is not None
    assert bench.jobs.cancel(deaf).state == "running", "the truth is told: not over yet"
    assert bench.ended(deaf).state == "cancelled"
    assert not psutil.pid_exists(pid)
    assert bench.ended(good).state == "done"
    with pytest.raises(MynaError, match="already"):
        bench.jobs.cancel(deaf)


def test_cancel_between_segments_keeps_them_for_a_retry(bench: Bench) -> None:
    bench.gate(2)
    bench.open()
    source = bench.sound(seconds=60)
    job, waiting = bench.submit(bench.spec(source, voice="gated"), bench.spec(source, "w.wav"))
    until(lambda: bench.jobs.show(job).segments_done == 2, "two segments")
    until(lambda: bench.calls == 3, "the third")
    assert bench.jobs.cancel(waiting).state == "cancelled"
    bench.jobs.cancel(job)
    assert bench.ended(job).state == "cancelled"
    assert list(bench.out.glob("*")) == []
    bench.gate(999)
    calls = bench.calls
    assert bench.jobs.retry(job).state in ("queued", "waiting", "running")
    info = bench.ended(job)
    assert info.state == "done"
    assert info.segments is not None
    assert bench.calls - calls == info.segments - 2


def test_an_overdue_job_is_killed_and_told_why(bench: Bench) -> None:
    bench.gate(0)
    bench.settings = msgspec.convert({"jobs": {"run_budget_s": 0.3}}, type(bench.settings))
    bench.open()
    (job,) = bench.submit(bench.spec(bench.sound(), voice="gated"))
    info = bench.ended(job)
    assert info.state == "failed"
    assert info.error is not None
    assert info.error["code"] == "timed_out"
    facts = info.error["facts"]
    assert isinstance(facts, dict)
    assert facts["clock"] == "run"
    assert facts["verdict"] == "slow"  # its last unit is not five minutes old
    assert facts["budget_s"] == 0.3
    assert facts["memory"]["process_after"] == 0
    assert facts["memory"]["process_before"] > 1_000_000
    assert info.attempts == 1


def test_a_forced_close_interrupts_and_the_next_start_goes_on(bench: Bench) -> None:
    bench.gate(1)
    bench.open()
    source = bench.sound(seconds=45)
    (job,) = bench.submit(bench.spec(source, voice="gated"))
    until(lambda: bench.calls == 2, "the second segment")
    until(lambda: bench.jobs.show(job).segments_done == 1, "the journal")
    bench.close()
    bench.open(start=False)
    assert bench.jobs.show(job).state == "interrupted"
    bench.gate(999)
    bench.jobs.start()
    assert bench.ended(job).state == "done"


def test_closing_waits_for_what_runs(bench: Bench) -> None:
    queue = bench.open()
    first, second = bench.submit(bench.spec(bench.sound(), "1.wav"), bench.spec(bench.sound(), "2.wav"))
    until(lambda: bench.jobs.show(first).state in ("running", "done"), "a start")
    queue.close(force=False)
    bench.open(start=False)
    states = {bench.jobs.show(job).state for job in (first, second)}
    assert bench.jobs.show(first).state == "done"
    assert states <= {"done", "queued"}


def test_a_full_disk_under_the_store_is_told_and_nothing_is_taken(bench: Bench) -> None:
    bench.state.mkdir()
    if os.system(f"mount -t tmpfs -o size=256k none '{bench.state}' 2>/dev/null") != 0:
        pytest.skip("a small file system can't be mounted here")
    try:
        bench.open(start=False)
        source = bench.sound()
        specs = [bench.spec(source, f"{n}.wav") for n in range(100)]
        with pytest.raises(MynaError) as caught:
            all(bench.submit(*specs) for _ in range(100))
        assert caught.value.code == "state_unwritable"
        total = sum(bench.jobs.counts().values())
        assert total % 100 == 0, "all of a submission or none"
        bench.jobs.close()
        bench.queue = None
        os.system(f"mount -o remount,ro '{bench.state}'")
        with pytest.raises(MynaError) as read_only:
            bench.open(start=False)
        assert read_only.value.code == "state_unwritable"
    finally:
        bench.close()
        os.system(f"umount '{bench.state}'")


@pytest.mark.parametrize("keep", [0, 16])
def test_a_damaged_store_is_set_aside_and_the_queue_begins_anew(bench: Bench, keep: int) -> None:
    bench.open()
    first = bench.submit(bench.spec(bench.sound(), "first.wav"))
    bench.ended(*first)
    bench.close()
    path = bench.state / "jobs" / "jobs.sqlite3"
    whole = path.read_bytes()
    damaged = whole[:keep] + bytes(255 - byte for byte in whole[keep:4096]) + whole[4096:]
    path.write_bytes(damaged)
    bench.open()
    aside = bench.jobs.set_aside
    assert aside is not None
    assert aside.read_bytes() == damaged
    bench.ended(*bench.submit(bench.spec(bench.sound(), "second.wav")))
    assert (bench.out / "second.wav").exists()
    bench.close()
    bench.open(start=False)
    assert bench.jobs.set_aside is None
    assert sum(bench.jobs.counts().values()) == 1


def test_a_disk_that_fills_under_a_job_and_is_emptied_loses_nothing(bench: Bench) -> None:
    bench.state.mkdir()
    if os.system(f"mount -t tmpfs -o size=4m none '{bench.state}' 2>/dev/null") != 0:
        pytest.skip("a small file system can't be mounted here")
    try:
        bench.gate(1)
        bench.open()
        source = bench.sound(seconds=45)
        job, next_job = bench.submit(bench.spec(source, voice="gated"), bench.spec(source, "next.wav"))
        until(lambda: bench.calls == 2, "the second segment")
        until(lambda: bench.jobs.show(job).segments_done == 1, "the journal")
        filler = bench.state / "filler"
        with filler.open("wb", buffering=0) as file:
            free = True
            while free:
                try:
                    free = file.write(b"x" * 4096) == 4096
                except OSError:
                    free = False
        bench.gate(999)
        until(lambda: any(topic == "log" and "disk" in str(message) for topic, message in bench.events), "a word")
        until(lambda: bench.jobs.worker_of(job) is None, "the end of the attempt")
        assert bench.jobs.show(next_job).state == "waiting", "it would meet the same disk"
        filler.unlink()
        info = bench.ended(job)
        assert info.state == "done", info.error
        assert info.attempts == 2
        assert info.segments is not None
        assert bench.ended(next_job).state == "done"
        # The segment that found no room is made again.
        next_info = bench.jobs.show(next_job)
        assert bench.calls == info.segments + 1 + (next_info.segments or 0)
    finally:
        bench.close()
        os.system(f"umount '{bench.state}'")


def test_a_store_survives_its_process_and_learns(tmp_path: Path, bench: Bench) -> None:
    store = Store(tmp_path / "store")
    ((n, new),) = store.submit([(bench.spec("/in.wav", key="a"), "told")])
    assert new
    store.begin(n, 1, "cpu")
    store.journal(n, 1, [(0, 0.5), (1, 0.5)], 3, 0.6)
    # No close: as after kill -9.
    again = Store(tmp_path / "store")
    (row,) = again.give_back()
    assert (row.n, row.state, row.segments_done, row.segments, row.attempts) == (n, "queued", 2, 3, 1)
    assert again.attempts(n) == [(1, "interrupted", "cpu")]
    assert again.submit([(bench.spec("/in.wav", key="a"), "told")]) == [(n, False)]
    assert again.realtime_factor("plain", "cpu") is None
    again.learn("plain", "cpu", 100.0, 50.0)
    again.learn("plain", "cpu", 300.0, 50.0)
    assert again.realtime_factor("plain", "cpu") == pytest.approx(0.25)
    for extra in range(5):
        ((m, _),) = again.submit([(bench.spec(f"/{extra}.wav"), "told")])
        again.settle(m, 0, "cancelled")
    assert again.prune(keep=2) == 3
    assert again.row(n) is not None, "what is not at its end is never forgotten"
    store.close()
    again.close()


def test_flat_memory_over_a_long_file(bench: Bench) -> None:
    """Twenty minutes take hardly more memory than one: both ends are streamed."""
    bench.open()
    peaks = []
    for seconds in (60, 1200):
        source = bench.sound(f"{seconds}.wav", seconds=seconds, rate_hz=16000)
        (job,) = bench.submit(bench.spec(source, f"{seconds}.flac"))
        info = bench.ended(job, 120)
        assert info.state == "done", info.error
        assert info.result is not None
        peaks.append(info.result["memory"]["peak_rss_bytes"])  # type: ignore[index]
        assert soundfile.info(bench.out / f"{seconds}.flac").frames == seconds * 16000
    assert peaks[1] - peaks[0] < 30_000_000, peaks


def test_ten_thousand_jobs_are_taken_listed_and_kept(bench: Bench) -> None:
    bench.open(start=False)
    specs = [bench.spec("/none.wav", f"{n}.wav") for n in range(10_000)]
    ids = [job for at in range(0, len(specs), 2000) for job in bench.submit(*specs[at : at + 2000])]
    reply = bench.jobs.list(JobsList(limit=50))
    assert reply.total == 10_000
    assert [job.id for job in reply.jobs] == ids[-50:]
    bench.close()
    bench.open(start=False)
    assert [job.id for job in bench.jobs.list(JobsList(limit=10_000)).jobs] == ids


def _is_over(info: JobInfo) -> bool:
    return info.state in ("done", "failed", "cancelled")


def test_answers_do_not_wait_for_workers(bench: Bench) -> None:
    """While a worker hangs, every method answers; a deadline far above its cost, far below the hang."""
    bench.open()
    (job,) = bench.submit(bench.spec(bench.sound(), voice="deaf"))
    until((bench.folder / "deaf").exists, "a worker that hangs")
    began = time.monotonic()
    for _ in range(50):
        assert not _is_over(bench.jobs.show(job))
        bench.jobs.counts()
        bench.jobs.traces()
    assert time.monotonic() - began < 10
