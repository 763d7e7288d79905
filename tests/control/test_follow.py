"""Following jobs: what is known of them, and how it is told."""

from myna.control import contract
from myna.control.cli.convert import CHUNK_JOBS, chunks
from myna.control.cli.follow import Lines, Tally, failure, why
from myna.control.contract import JobInfo, JobProgress, JobSpec


def job(id_: str, state: contract.JobState, **more: object) -> JobInfo:
    return JobInfo(id=id_, kind="convert", state=state, voice="v", input=f"{id_}.wav", output="o", **more)  # type: ignore[arg-type]


def progress(id_: str, share: float) -> JobProgress:
    return JobProgress(id=id_, progress=share, segments_done=0, segments=None, eta_s=None)


def test_a_tally_counts_only_its_own() -> None:
    tally = Tally(["a", "b"], now=0.0)
    assert not tally.take(job("other", "done"))
    assert tally.take(job("a", "running", progress=0.5))
    assert (tally.share, tally.open) == (0.25, ["a", "b"])
    assert tally.remaining_s(10.0) == 30.0
    tally.take_progress(progress("b", 0.5))
    tally.take_progress(progress("other", 0.5))
    assert tally.share == 0.5
    assert tally.take(job("a", "done"))
    assert (tally.share, tally.per_minute(30.0)) == (0.75, 2.0)


def test_what_has_ended_stays_so() -> None:
    tally = Tally(["a"], now=0.0)
    tally.take(job("a", "failed"))
    assert not tally.take(job("a", "running"))
    tally.take_progress(progress("a", 0.5))
    assert (tally.open, tally.share) == ([], 1.0)


def test_the_words_tell_why_all_wait() -> None:
    tally = Tally(["a", "b"], now=0.0)
    assert tally.remaining_s(5.0) is None
    tally.take(job("a", "waiting", reason="live_running"))
    assert tally.words(5.0) == "0/2 ended, 0 running, waiting: live_running"
    tally.take(job("b", "failed"))
    assert tally.words(60.0) == "1/2 ended, 0 running, 1 failed, 1/min, about 60 s to go, waiting: live_running"


def test_lines_come_now_and_then_and_at_the_end(capsys) -> None:  # type: ignore[no-untyped-def]
    tally = Tally(["a"], now=0.0)
    with Lines(every_s=5.0) as lines:
        for now in range(12):
            lines.show(tally, float(now))
        tally.take(job("a", "done"))
        lines.show(tally, 12.0)
    assert capsys.readouterr().err.splitlines() == ["0/1 ended, 0 running", "1/1 ended, 0 running, 5/min"]


def test_one_error_for_all_that_failed() -> None:
    assert failure([job("a", "done")]) is None
    error = failure([job("a", "done"), job("b", "failed"), job("c", "cancelled")])
    assert error is not None
    assert (error.code, error.facts["done"]) == ("failed", 1)
    assert why(job("b", "failed", error={"message": "no"})) == "no"
    assert why(job("b", "cancelled")) == "cancelled"


def test_chunks_fit_a_message() -> None:
    long = [JobSpec(output="o" * 4000, input="i" * 4000, key=str(number)) for number in range(300)]
    parts = list(chunks(long))
    assert [spec for part in parts for spec in part] == long
    assert len(parts) == 4
    short = [JobSpec(output="o")] * (CHUNK_JOBS + 1)
    assert [len(part) for part in chunks(short)] == [CHUNK_JOBS, 1]
    assert list(chunks([])) == []
