"""The bench measures what it says; how fast anything is, is not tested."""

import json
from pathlib import Path

import bench
import pytest

from myna.control.contract import LatencyParts, SessionStatus

TOOLS = Path(bench.__file__).parent


def figure(
    limit: float | None = 2.0, judged: str = "median", samples: tuple[float, ...] = (1.0, 2.0, 9.0)
) -> bench.Figure:
    return bench.Figure(name="thing", unit="ms", samples=samples, limit=limit, judged=judged)


def test_a_figure_is_judged_by_what_it_says() -> None:
    assert (figure().median, figure().p99) == (2.0, 9.0)
    assert figure().verdict == "ok"
    assert figure(judged="p99").verdict == "over"
    assert figure(limit=1.9).verdict == "over"
    assert figure(limit=None).verdict == ""


def test_the_table_shows_every_figure_with_its_limit() -> None:
    lines = bench.table([figure(), figure(judged="p99"), figure(limit=None)]).splitlines()
    assert len(lines) == 4
    assert lines[1].split() == ["thing,", "ms", "2", "9", "2", "ok", "(median)"]
    assert lines[2].endswith("over (p99)")
    assert lines[3].split() == ["thing,", "ms", "2", "9"]


def test_a_row_is_json_and_null_where_nothing_is_asked() -> None:
    row = json.loads(json.dumps(figure(limit=None).row()))
    assert row["limit"] is None
    assert row["verdict"] is None
    assert row["samples"] == 3


def test_a_delay_is_taken_apart_from_what_the_daemon_tells() -> None:
    told = LatencyParts(
        compute_ms=4.5, algorithmic_ms=70.0, device_in_ms=10.0, device_out_ms=0.0, prefill_ms=7.5, estimated_ms=87.5,
        peers_estimated_ms=110.0,
    )  # fmt: skip
    delay = bench.delay_of(SessionStatus(session="main", state="running", block_ms=20.0, latency=told))
    assert delay.stages_ms == 50.0
    assert delay.block_ms + delay.prefill_ms + delay.stages_ms + delay.devices_ms == delay.ours_ms
    assert "87.5" in bench.delay_table([delay])
    with pytest.raises(bench.NotMeasured):
        bench.delay_of(SessionStatus(session="main", state="running", block_ms=20.0))


@pytest.mark.parametrize(("voice", "block_ms"), [("neutral", 10.0), ("formant", 20.0)])
def test_every_block_of_the_loop_is_counted_once(voice: str, block_ms: float) -> None:
    spent = bench.loop_cpu_ms(bench.built_in(voice), block_ms, 5)
    assert len(spent) == 5
    assert min(spent) > 0.0


def test_a_busy_machine_is_told() -> None:
    assert bench.other_work(1.9, 2) is None
    assert bench.other_work(None, 2) is None
    assert "load 5.0 on 2 cores" in str(bench.other_work(5.0, 2))
    assert bench.machine()["cores"]


def test_speech_is_as_long_as_asked_and_no_silence() -> None:
    sound = bench.speech(0.5)
    assert sound.shape == (bench.RATE_HZ // 2,)
    assert abs(sound).max() > 0.01


def test_help_is_measured_by_the_processor() -> None:
    assert bench.help_cpu_s() > 0.0


def test_a_wrong_name_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(["lvie"])
    assert ended.value.code == 2
    assert "lvie" in capsys.readouterr().err


def test_what_cannot_be_measured_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(what: object, quick: bool) -> tuple[list[bench.Figure], list[bench.Delay]]:
        raise bench.NotMeasured("no daemon")

    monkeypatch.setattr(bench, "measure", measure)
    assert bench.main([]) == 1
    assert "no daemon" in capsys.readouterr().err
    monkeypatch.setattr(bench, "measure", lambda what, quick: ([figure()], []))
    assert bench.main(["live", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"][0]["verdict"] == "ok"


def test_the_other_benches_are_called_with_their_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []

    def call(command: list[str]) -> int:
        called.append(command)
        return 7

    monkeypatch.setattr(bench.subprocess, "call", call)
    assert bench.main(["rvc", "--blocks", "3"]) == 7
    assert called[0][1:] == [str(TOOLS / "bench_rvc.py"), "--blocks", "3"]
