"""Jobs through real workers: results, refusals, bad input, and what nobody may ever see."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile
from job_bench import Bench, until

from myna.control.contract import JobProgress, JobsList
from myna.control.errors import MynaError


def test_a_job_gives_what_the_voice_gives_and_says_what_ran(bench: Bench) -> None:
    bench.open()
    source = bench.sound(seconds=45)
    (job,) = bench.submit(bench.spec(source))
    info = bench.ended(job)
    assert info.state == "done", info.error
    audio, rate = soundfile.read(bench.out / "out.wav", dtype="float32")
    wanted, _ = soundfile.read(source, dtype="float32")
    assert rate == 8000
    # 24 bit: half a step, and the crossfades add a rounding of float32.
    np.testing.assert_allclose(audio, wanted * 0.5, atol=1.5 / (1 << 23))
    assert info.result is not None
    assert info.result["device"] == "cpu"
    assert info.result["engine"] == "told"
    assert info.result["frames"] == len(wanted)
    assert info.result["segments"] == bench.calls >= 3
    assert info.segments == info.segments_done == bench.calls
    assert info.progress == 1.0
    assert not (bench.state / "jobs" / "work" / job).exists()
    progress = [m.progress for t, m in bench.events if t == "job.progress" and isinstance(m, JobProgress)]
    assert progress == sorted(progress)
    assert len(progress) == bench.calls
    (trace,) = bench.jobs.traces().traces
    assert (trace.job, trace.outcome, trace.engine, trace.segments) == (job, "done", "told", bench.calls)


def test_traces_hold_nothing_of_the_users(bench: Bench) -> None:
    bench.open()
    canary = "CANARY-7f3a"
    (bench.folder / "in").mkdir()
    (bench.folder / "in" / f"{canary}.wav").write_text(canary)
    jobs = bench.submit(
        bench.spec(bench.folder / "in" / f"{canary}.wav", f"{canary}.wav", voice=canary, key=canary),
        bench.spec(bench.sound(f"{canary}-2.wav"), f"{canary}-2.wav", voice=canary, key=f"{canary}-2"),
    )
    assert [bench.ended(job).state for job in jobs] == ["failed", "done"]
    traces = bench.jobs.traces().traces
    assert [t.error_code for t in traces] == ["failed", None]
    assert canary not in repr(traces)


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "mp3"])
def test_formats_by_suffix(bench: Bench, suffix: str) -> None:
    bench.open()
    (job,) = bench.submit(bench.spec(bench.sound(), f"out.{suffix}"))
    info = bench.ended(job)
    assert info.state == "done", info.error
    with soundfile.SoundFile(bench.out / f"out.{suffix}") as file:
        assert abs(len(file) - 16000) < 2500  # mp3 and ogg pad


def test_equal_jobs_give_equal_bytes_in_any_worker(bench: Bench) -> None:
    bench.open()
    source = bench.sound(seconds=30)
    specs = [bench.spec(source, f"{n}.flac") for n in range(3)]
    for job in bench.submit(*specs):
        assert bench.ended(job).state == "done"
    bench.close()
    bench.open()
    (again,) = bench.submit(bench.spec(source, "again.flac"))
    assert bench.ended(again).state == "done"
    contents = {path.read_bytes() for path in bench.out.iterdir()}
    assert len(contents) == 1


def test_a_preview_ends_after_its_seconds(bench: Bench) -> None:
    bench.open()
    (job,) = bench.submit(bench.spec(bench.sound(seconds=30), kind="preview", seconds=1.5))
    assert bench.ended(job).state == "done"
    assert soundfile.info(bench.out / "out.wav").frames == 12000


@pytest.mark.parametrize(
    ("policy", "state", "names"),
    [
        ("fail", "failed", {"out.wav"}),
        ("skip", "done", {"out.wav"}),
        ("overwrite", "done", {"out.wav"}),
        ("rename", "done", {"out.wav", "out (2).wav"}),
    ],
)
def test_what_is_there_already(bench: Bench, policy: str, state: str, names: set[str]) -> None:
    bench.open()
    bench.out.mkdir()
    (bench.out / "out.wav").write_text("mine")
    (job,) = bench.submit(bench.spec(bench.sound(), exists=policy))
    info = bench.ended(job)
    assert info.state == state
    assert {path.name for path in bench.out.iterdir()} == names
    assert ((bench.out / "out.wav").read_bytes() == b"mine") is (policy != "overwrite")
    if policy == "fail":
        assert info.error is not None
        assert info.error["code"] == "refused"
        assert bench.calls == 0
    if policy == "rename":
        assert info.result is not None
        assert info.result["output"] == str(bench.out / "out (2).wav")


def _bad_inputs(folder: Path) -> dict[str, tuple[Path, str, str]]:
    folder.mkdir(exist_ok=True)
    (folder / "empty.wav").touch()
    (folder / "text.wav").write_text("no sound at all, only words" * 20)
    (folder / "corrupt.flac").write_bytes(b"fLaC" + b"\xff" * 500)
    soundfile.write(folder / "silent.wav", np.zeros(0, np.float32), 8000)
    (folder / "folder.wav").mkdir()
    os.mkfifo(folder / "pipe.wav")
    return {
        "empty": (folder / "empty.wav", "failed", "empty"),
        "no frames": (folder / "silent.wav", "failed", "empty"),
        "text": (folder / "text.wav", "failed", "not_audio"),
        "corrupt": (folder / "corrupt.flac", "failed", "corrupt"),
        "folder": (folder / "folder.wav", "failed", "not_a_file"),
        "pipe": (folder / "pipe.wav", "failed", "not_a_file"),
        "vanished": (folder / "gone.wav", "not_found", "vanished"),
    }


def test_each_bad_input_fails_alone_with_its_code(bench: Bench) -> None:
    bench.open()
    good = bench.sound()
    bad = _bad_inputs(bench.folder / "in")
    specs = []
    for name, (path, _, _) in bad.items():
        specs += [bench.spec(path, f"bad {name}.wav"), bench.spec(good, f"good {name}.wav")]
    jobs = bench.submit(*specs)
    for job, good_job, (name, (_, code, reason)) in zip(jobs[::2], jobs[1::2], bad.items(), strict=True):
        info = bench.ended(job)
        assert info.state == "failed", name
        assert info.error is not None
        assert info.error["code"] == code, (name, info.error)
        facts = info.error["facts"]
        assert isinstance(facts, dict)
        assert facts["reason"] == reason, name
        assert info.attempts == 1
        assert bench.ended(good_job).state == "done"
    assert all(path.name.startswith("good") for path in bench.out.iterdir())


def test_short_and_damaged_input_gives_what_it_holds(bench: Bench) -> None:
    bench.open()
    one = bench.folder / "one.wav"
    soundfile.write(one, np.array([0.25], np.float32), 8000, subtype="FLOAT")
    cut = bench.sound("cut.wav")
    cut.write_bytes(cut.read_bytes()[:20_000])
    jobs = bench.submit(bench.spec(one, "one.wav"), bench.spec(cut, "cut.wav"))
    first, second = (bench.ended(job) for job in jobs)
    assert first.state == "done", first.error
    assert soundfile.info(bench.out / "one.wav").frames == 1
    assert second.state == "done", second.error
    assert second.result is not None
    assert "truncated" in str(second.result["warnings"])


@pytest.mark.parametrize(
    "name",
    ['it\'s "quoted".wav', "line\nbreak.wav", "-rf.wav", "🐦 señor.wav", "n" * 251 + ".wav", "%s $(x) `y`.wav"],
)
def test_any_name_is_a_name(bench: Bench, name: str) -> None:
    bench.open()
    (job,) = bench.submit(bench.spec(bench.sound(name), name))
    info = bench.ended(job)
    assert info.state == "done", info.error
    assert [path.name for path in bench.out.iterdir()] == [name]


def test_bad_outputs_fail_alone(bench: Bench) -> None:
    bench.open()
    source = bench.sound()
    (bench.folder / "plain file").touch()
    (bench.out / "taken.wav").mkdir(parents=True)
    jobs = bench.submit(
        bench.spec(source, output=str(bench.folder / "plain file" / "out.wav")),
        bench.spec(source, "taken.wav"),
        bench.spec(source, "n" * 252 + ".wav"),
        bench.spec(source, output=str(source), exists="overwrite"),
        bench.spec(source, output="/proc/out.wav"),
        bench.spec(source, output=str(source.parent / "deep" / "er" / "out.wav")),
    )
    ends = [bench.ended(job) for job in jobs]
    assert [end.state for end in ends] == ["failed"] * 5 + ["done"], [end.error for end in ends]
    assert [end.error["code"] for end in ends[:4] if end.error] == ["failed"] * 4
    assert bench.calls == 1, "what can't be written is found before the work"


def test_a_full_disk_is_told(bench: Bench, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if os.system(f"mount -t tmpfs -o size=64k none '{small}' 2>/dev/null") != 0:
        pytest.skip("a small file system can't be mounted here")
    try:
        bench.open()
        (job,) = bench.submit(bench.spec(bench.sound(seconds=10), output=str(small / "out.wav")))
        info = bench.ended(job)
        assert info.state == "failed"
        assert info.error is not None
        assert info.error["facts"]["reason"] == "disk_full"  # type: ignore[index]
        assert list(small.iterdir()) == []
    finally:
        bench.close()
        os.system(f"umount '{small}'")


@pytest.mark.parametrize(
    ("voice", "code", "reason"),
    [("oom", "compute_unavailable", "out_of_memory"), ("bug", "internal", None), ("short", "failed", None)],
)
def test_a_failing_voice_fails_its_job_only(bench: Bench, voice: str, code: str, reason: str | None) -> None:
    bench.open()
    source = bench.sound()
    bad, good = bench.submit(bench.spec(source, "bad.wav", voice), bench.spec(source, "good.wav"))
    info = bench.ended(bad)
    assert info.error is not None
    assert info.error["code"] == code
    if reason is not None:
        assert info.error["facts"]["reason"] == reason  # type: ignore[index]
    assert info.attempts == 1
    assert bench.ended(good).state == "done"
    assert [path.name for path in bench.out.iterdir()] == ["good.wav"]


def test_nan_from_a_voice_is_silence_and_told(bench: Bench) -> None:
    bench.open()
    (job,) = bench.submit(bench.spec(bench.sound(), voice="nan"))
    info = bench.ended(job)
    assert info.state == "done"
    assert not soundfile.read(bench.out / "out.wav")[0].any()
    assert info.result is not None
    assert "NaN" in str(info.result["warnings"])


def test_a_voice_removed_while_queued_fails_its_job(bench: Bench) -> None:
    bench.open(start=False)
    source = bench.sound()
    lost, kept = bench.submit(bench.spec(source, "a.wav", "other"), bench.spec(source, "b.wav"))
    bench.removed.add("other")
    bench.jobs.start()
    info = bench.ended(lost)
    assert info.error is not None
    assert info.error["code"] == "not_found"
    assert bench.ended(kept).state == "done"


def test_every_problem_of_a_submission_is_told_and_none_is_taken(bench: Bench) -> None:
    bench.open(start=False)
    source = bench.sound()
    with pytest.raises(MynaError) as caught:
        bench.submit(
            bench.spec(source, kind="speak"),
            bench.spec(source, parameters={"pich": 3, "formant": 99}),
            bench.spec("relative.wav"),
            bench.spec(source),
        )
    assert caught.value.code == "bad_request"
    problems = "\n".join(caught.value.facts["problems"])  # type: ignore[arg-type]
    for part in ("jobs[0].kind", "'pitch'", "jobs[1].parameters.formant", "jobs[2].input"):
        assert part in problems
    with pytest.raises(MynaError, match="nobody"):
        bench.submit(bench.spec(source), bench.spec(source, voice="nobody"))
    assert bench.jobs.list(JobsList()).total == 0


def test_a_key_names_one_job(bench: Bench) -> None:
    bench.open()
    source = bench.sound()
    ids = bench.submit(bench.spec(source, key="once"), bench.spec(source, key="once"))
    assert len(set(ids)) == 1
    assert bench.ended(ids[0]).state == "done"
    assert bench.submit(bench.spec(source, key="once")) == ids[:1]
    assert bench.calls == 1


def test_a_watcher_never_sees_half_a_file(bench: Bench) -> None:
    bench.open()
    bench.out.mkdir()
    source = bench.sound(seconds=30)
    seen: list[str] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            for path in bench.out.glob("[!.]*"):
                try:
                    frames = soundfile.info(path).frames
                except soundfile.SoundFileError as error:
                    frames = -1
                    seen.append(str(error))
                if frames != 240_000:
                    seen.append(f"{path.name}: {frames}")

    watcher = threading.Thread(target=watch)
    watcher.start()
    for job in bench.submit(*(bench.spec(source, f"{n}.flac") for n in range(6))):
        assert bench.ended(job).state == "done"
    over.set()
    watcher.join()
    assert seen == []


def test_the_list_tells_reasons_and_what_frees(bench: Bench) -> None:
    bench.gate(0)
    bench.open()
    source = bench.sound()
    first, second = bench.submit(bench.spec(source, "1.wav", "gated"), bench.spec(source, "2.wav", "gated"))
    until(lambda: bench.calls == 1, "the first call")
    waiting = bench.jobs.show(second)
    assert (waiting.state, waiting.reason) == ("waiting", "cpu_slots")
    assert waiting.frees
    assert bench.jobs.counts() == {"running": 1, "waiting": 1}
    reply = bench.jobs.list(JobsList(states=("waiting",)))
    assert [job.id for job in reply.jobs] == [second]
    assert [job.id for job in bench.jobs.list(JobsList(after=first)).jobs] == [second]
    with pytest.raises(MynaError, match="no job"):
        bench.jobs.show("j999")
    bench.gate(99)
    assert bench.ended(second).state == "done"
