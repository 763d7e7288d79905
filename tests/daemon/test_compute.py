"""Where to compute: recorded machines of many kinds, and each rule by itself."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from myna.control.errors import MynaError
from myna.daemon import settings
from myna.daemon.compute import answers, probe, recordings
from myna.daemon.compute.cards import Card, TorchBuild
from myna.daemon.compute.decision import ComputeSettings, chunk_s, covers, decide, judge
from myna.daemon.compute.discovery import Discovery, ToolOutput, discover
from myna.daemon.compute.findings import findings
from myna.daemon.compute.visibility import filter_by_environment, visible
from myna.daemon.placing import Placing
from myna.engines import registry

CASES = recordings.recorded_cases()


def test_there_are_many_recordings() -> None:
    assert len(CASES) >= 30


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_machine(case: str) -> None:
    recording = recordings.load_recording(case)
    expect = recording["expect"]
    machine, run = recordings.playback(recording)
    found = discover(machine, run, ask_torch=True)
    decision = decide(found.cards, ComputeSettings(**recording["settings"]), found.torch)
    assert (decision.device, decision.precision, decision.chunk_s) == (
        expect["device"],
        expect["precision"],
        expect["chunk_s"],
    )
    assert [v.usable for v in decision.verdicts] == expect["usable"]
    assert all(v.reason.startswith(("used", "not used")) for v in decision.verdicts)
    assert len(decision.fallbacks) == expect.get("fallbacks", 0)
    assert decision.live_allowed is expect.get("live", True)
    if "idle" in expect:
        assert decision.gpu_left_idle is expect["idle"]
    if "method" in expect:
        assert found.method == expect["method"]
    told = " ".join(n.message for n in found.notes)
    for part in expect.get("notes", []):
        assert part in told
    rows = findings(found, decision)
    assert rows[0].facts["device"] == expect["device"]
    assert rows[0].level == ("ok" if not decision.fallbacks else "warning" if decision.live_allowed else "error")
    assert len(rows) >= 1 + len(found.cards)
    assert (rows[0].cure is None) is (rows[0].level == "ok")
    assert recordings.simulate(case, ComputeSettings(**recording["settings"])) == rows


def test_mixed_vendors_follow_the_installed_torch() -> None:
    machine, run = recordings.playback(recordings.load_recording("nvidia_and_amd"))
    cards = discover(machine, run).cards
    assert [c.kind for c in cards] == ["cuda", "rocm"]
    hip = TorchBuild(version="2.6.0+rocm6.2", hip="6.2")
    assert decide(cards, ComputeSettings(), hip).card == cards[1]
    assert decide(cards, ComputeSettings()).card == cards[0]


def test_a_tool_is_asked_once_and_torch_only_when_needed() -> None:
    asked: list[str] = []
    machine, run = recordings.playback(recordings.load_recording("rtx_4090"))

    def counting(command: object, timeout_s: float) -> ToolOutput:
        asked.append(command[0])  # type: ignore[index]
        assert timeout_s == (90.0 if command == ("torch-child",) else 10.0)
        return run(command, timeout_s)  # type: ignore[arg-type]

    discover(machine, counting)
    assert asked == ["nvidia-smi", "amd-smi", "rocm-smi"]


# --- CUDA_VISIBLE_DEVICES -------------------------------------------------------------------------------

FOUR = [Card(kind="cuda", index=n, name=f"card {n}", uuid=f"GPU-{c}", memory_mb=8192, capability=(8, 6))
        for n, c in enumerate(("aaaa1111", "aabb2222", "cccc3333", "dddd4444"))]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 1, 2, 3]), ("", []), ("-1", []), ("NoDevFiles", []), ("all", []), ("0", [0]), ("2,0", [2, 0]),
        (" 3 , 1 ", [3, 1]), ("0,9,1", [0]), ("9,0", []), ("0,-1,1", [0]), ("1,x,2", [1]), ("0,,1", [0]),
        ("0,1,0,2", [0, 1]), ("GPU-cccc3333", [2]), ("GPU-c", [2]), ("gpu-D", [3]), ("GPU-aa", []),
        ("GPU-aab,GPU-aaa", [1, 0]), ("3,GPU-c,GPU-zz,0", [3, 2]), ("GPU-c,2", [2]), ("00,01", [0, 1]),
        ("0.5", []), ("MIG-GPU-aaaa1111/1/0", []), ("cccc3333", []), ("+1", [1]), ("1;2", []),
    ],
)  # fmt: skip
def test_visible_devices_in_all_forms(value: str | None, expected: list[int]) -> None:
    got = visible(FOUR, value)
    seen = [c for c in got if c.hidden is None]
    assert [int(c.name[-1]) for c in seen] == expected
    assert [c.index for c in seen] == list(range(len(expected)))
    assert len(got) == 4
    assert all("CUDA_VISIBLE_DEVICES" in (c.hidden or "") for c in got[len(seen) :])


def test_one_mig_instance_at_most() -> None:
    parts = [Card(kind="cuda", index=0, name=f"part {n}", uuid=f"MIG-{n}{n}", mig=True) for n in range(3)]
    cards = [*parts, Card(kind="cuda", index=1, name="whole", uuid="GPU-1")]
    names = lambda value: [c.name for c in visible(cards, value) if c.hidden is None]  # noqa: E731
    assert names(None) == ["part 0", "whole"]
    assert names("MIG-2") == ["part 2"]
    assert names("MIG-2,MIG-1") == ["part 2"]
    assert names("0") == ["part 0"]
    assert names("1,MIG-1") == ["whole", "part 1"]


def test_amd_filters_stack() -> None:
    cards = [Card(kind="rocm", index=n, name=f"card {n}", memory_mb=9000) for n in range(4)]
    names = lambda **env: [  # noqa: E731
        c.name[-1] for c in filter_by_environment(cards, env) if c.hidden is None
    ]
    assert names() == ["0", "1", "2", "3"]
    assert names(ROCR_VISIBLE_DEVICES="3,1", HIP_VISIBLE_DEVICES="1") == ["1"]
    assert names(CUDA_VISIBLE_DEVICES="2") == ["2"]
    assert names(CUDA_VISIBLE_DEVICES="2", HIP_VISIBLE_DEVICES="0") == ["0"]


# --- rules ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "name", "memory_mb", "usable", "precision"),
    [
        ((5, 2), "x", 8192, False, "fp32"), ((5, 3), "x", 8192, False, "fp32"), ((6, 0), "x", 8192, False, "fp32"),
        ((6, 1), "x", 8192, True, "fp32"), ((6, 2), "x", 8192, True, "fp16"), ((7, 0), "x", 8192, True, "fp16"),
        ((7, 5), "NVIDIA GeForce GTX 1650 SUPER", 4096, True, "fp32"), ((7, 5), "Tesla T4", 15360, True, "fp16"),
        ((9, 0), "x", 3000, False, "fp32"), ((9, 0), "x", 3839, False, "fp32"), ((9, 0), "x", 3840, True, "fp16"),
        ((12, 0), "x", None, True, "fp16"), (None, "x", 8192, False, "fp32"),
    ],
)  # fmt: skip
def test_rules_for_cuda(
    capability: tuple[int, int] | None, name: str, memory_mb: int | None, usable: bool, precision: str
) -> None:
    verdict = judge(Card(kind="cuda", index=0, name=name, memory_mb=memory_mb, capability=capability), None)
    assert (verdict.usable, verdict.precision) == (usable, precision)
    # A card that the user names is used all the same, in fp32.
    named = decide([verdict.card], ComputeSettings(device="cuda:0"))
    assert (named.device, named.precision) == ("cuda:0", precision)
    assert named.fallbacks == ()


def test_rules_for_the_others() -> None:
    assert judge(Card(kind="xpu", index=0, name="x", memory_mb=8192, fp16=False), None).precision == "fp32"
    assert judge(Card(kind="xpu", index=0, name="x", memory_mb=8192, fp16=True), None).precision == "fp16"
    assert not judge(Card(kind="xpu", index=0, name="x", memory_mb=2048, fp16=True), None).usable
    assert not judge(Card(kind="rocm", index=0, name="x", memory_mb=2048), None).usable
    mac = Card(kind="mps", index=0, name="M1", memory_mb=65536)
    assert decide([mac], ComputeSettings()).device == "cpu"
    assert decide([mac], ComputeSettings(device="mps")).double_on_cpu


def test_the_best_of_several() -> None:
    def card(index: int, capability: tuple[int, int], memory_mb: int) -> Card:
        return Card(kind="cuda", index=index, name=str(index), capability=capability, memory_mb=memory_mb)

    cards = [card(0, (7, 5), 49152), card(1, (8, 6), 8192), card(2, (8, 6), 24576), card(3, (8, 6), 24576)]
    assert decide(cards, ComputeSettings()).device == "cuda:2"  # capability, then memory, then order
    assert decide(cards, ComputeSettings(device="cuda")).device == "cuda:2"
    assert decide([Card(kind="dml", index=0, name="d"), *cards], ComputeSettings()).device == "cuda:2"


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("asked", ["cuda:7", "xpu:0", "mps", "dml", "cuda:x", "gpu"])
def test_a_missing_device_is_told_loudly(asked: str, allowed: bool) -> None:
    decision = decide(FOUR, ComputeSettings(device=asked, allow_cpu_fallback=allowed))
    assert decision.device == "cpu"
    assert asked in decision.fallbacks[0]
    assert decision.live_allowed is allowed
    finding = findings(Discovery(cards=tuple(FOUR), method="x"), decision)[0]
    assert finding.level == ("warning" if allowed else "error")
    assert "cuda:3" in (finding.cure or "")


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_forced_precision(precision: str) -> None:
    on_card = decide(FOUR, ComputeSettings(precision=precision))
    assert (on_card.precision, on_card.fallbacks) == (precision, ())
    cards = [Card(kind="mps", index=0, name="M1")]
    decision = decide(cards, ComputeSettings(device="mps", precision=precision))
    assert decision.precision == "fp32"
    assert len(decision.fallbacks) == (precision != "fp32")
    assert decision.live_allowed
    on_cpu = decide(cards, ComputeSettings(device="cpu", precision=precision))
    assert on_cpu.precision == ("bf16" if precision == "bf16" else "fp32")  # whether it has bf16 is found at load
    assert len(on_cpu.fallbacks) == (precision == "fp16")
    assert on_cpu.live_allowed


def test_int8_is_for_the_cpu() -> None:
    assert decide([], ComputeSettings(precision="int8")).precision == "int8"
    on_card = decide(FOUR, ComputeSettings(precision="int8"))
    assert on_card.precision == "fp16"
    assert on_card.fallbacks == ("fp16 instead of int8: only the CPU computes in it",)
    assert on_card.live_allowed


def test_on_the_cpu_the_precision_is_left_to_the_engine_and_told_so() -> None:
    decision = decide([], ComputeSettings())
    assert decision.precision == "auto"
    finding = findings(Discovery(cards=(), method="x"), decision)[0]
    assert "in bf16 where the CPU" in finding.message
    assert finding.facts["precision"] == "auto"


@pytest.mark.parametrize(
    ("archs", "capability", "covered"),
    [
        (("sm_80",), (8, 6), True), (("sm_86",), (8, 0), False), (("sm_75",), (8, 6), False),
        (("compute_75",), (8, 6), True), (("compute_90",), (8, 6), False), (("sm_90a",), (9, 0), True),
        (("sm_90a",), (9, 1), False), (("sm_100",), (10, 3), True), (("sm_120",), (10, 0), False),
        (("compute_120",), (12, 1), True), ((), (8, 6), False), (("nonsense",), (8, 6), False),
        (("sm_50", "sm_60"), (6, 1), True), ((), None, True),
    ],
)  # fmt: skip
def test_what_a_build_covers(archs: tuple[str, ...], capability: tuple[int, int] | None, covered: bool) -> None:
    card = Card(kind="cuda", index=0, name="x", memory_mb=8192, capability=capability)
    assert covers(archs, card) is covered
    if capability is not None and not covered:
        build = TorchBuild(version="2", cuda="12", archs=archs)
        named = decide([card], ComputeSettings(device="cuda:0"), build)
        assert named.device == "cpu"
        assert "no code" in named.fallbacks[0]


def test_rocm_builds_cover_by_name() -> None:
    card = Card(kind="rocm", index=0, name="x", arch="gfx90a:sramecc+:xnack-")
    assert covers(("gfx90a", "gfx1100"), card)
    assert not covers(("gfx906",), card)


@pytest.mark.parametrize(
    ("memory_mb", "precision", "expected"),
    [(4096, "fp16", 30), (4096, "fp32", 30), (8192, "fp16", 60), (8192, "bf16", 60), (8192, "fp32", 38),
     (None, "fp32", 38)],
)  # fmt: skip
def test_chunk_sizes(memory_mb: int | None, precision: str, expected: float) -> None:
    assert chunk_s(memory_mb, precision) == expected


# --- parsers never raise --------------------------------------------------------------------------------

GARBAGE = ["", "\n\n", "{", "[", "null", "[1, null, {}]", '{"card0": 3, "gpu_data": {}}', "0, x", ",,,,,,,",
           "\0\ufffd", "a" * 5000, '{"card0": {"VRAM Total Memory (B)": "?"}}', '[{"gpu": "0"}]', "<a><b></a>",
           '0, "x']  # fmt: skip


@pytest.mark.parametrize("text", GARBAGE)
def test_garbage_is_no_card_and_no_error(text: str) -> None:
    assert answers.parse_nvidia_csv(text)[0] == []
    assert answers.parse_nvidia_xml(text) == {}
    assert answers.parse_nvidia_list(text) == {}
    assert answers.parse_amd_smi(text) == []
    assert all(c.memory_mb is None for c in answers.parse_rocm_smi(text))
    assert answers.parse_torch_child(text, None)[0] == []
    assert answers.parse_torch_version(text) is None


def test_torch_version_files() -> None:
    new = (
        "from typing import Optional\n\n__all__ = ['__version__', 'debug']\n__version__ = '2.6.0+cu124'\n"
        "debug = False\ncuda: Optional[str] = '12.4'\ngit_version = 'abc'\nhip: Optional[str] = None\n"
    )
    build = answers.parse_torch_version(new)
    assert build == TorchBuild(version="2.6.0+cu124", cuda="12.4")
    assert build.kind == "cuda"
    old = answers.parse_torch_version("__version__ = '1.12.1+rocm5.1.1'\ncuda = None\nhip = '5.1.20531'\n")
    assert old is not None
    assert old.kind == "rocm"
    xpu = answers.parse_torch_version(
        "__version__ = '2.6.0+xpu'\ncuda: Optional[str] = None\nxpu: Optional[str] = '2025'\n"
    )
    assert xpu is not None
    assert xpu.kind == "xpu"


# --- the edge -------------------------------------------------------------------------------------------


def test_real_tools() -> None:
    run = probe.run_tool
    assert run(("no-such-tool-anywhere", "-x"), 1.0).outcome == "missing"
    said = run((sys.executable, "-c", "import sys; print('out'); print('\\xe9', file=sys.stderr); sys.exit(3)"), 20.0)
    assert (said.outcome, said.code, said.stdout) == ("ran", 3, "out\n")
    assert run((sys.executable, "-c", "import threading; threading.Event().wait()"), 0.2).outcome == "timeout"


def test_a_tool_that_cannot_be_started(tmp_path: Path) -> None:
    broken = tmp_path / "nvidia-smi"
    broken.write_bytes(b"\x7fELF not really")
    broken.chmod(0o755)
    assert probe.run_tool((str(broken),), 5.0).outcome == "failed"


def test_discovery_of_this_machine_imports_no_torch() -> None:
    code = (
        "import sys; from myna.daemon.compute import probe as p;"
        "from myna.daemon.compute.decision import ComputeSettings as S;"
        "found, decision = p.probe(S()); assert 'torch' not in sys.modules and 'numpy' not in sys.modules;"
        "print(decision.device, found.method)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_this_machine_records_itself_and_plays_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "installed_torch", lambda: None)  # its child would import torch for seconds
    told = recordings.record("here")
    path = tmp_path / "here.json"
    path.write_text(json.dumps(told))
    here = recordings.simulate(str(path), ask_torch=False)
    found, decision = probe.probe(ComputeSettings())
    assert here == findings(found, decision)


def test_bad_recordings(tmp_path: Path) -> None:
    with pytest.raises(MynaError) as caught:
        recordings.simulate("no_such_machine")
    assert caught.value.code == "not_found"
    assert "rtx_4090" in str(caught.value)
    for text in ("", "[]", '{"machine": {"system": "linux", "colour": 1}}', '{"tools": {}}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(MynaError) as caught:
            recordings.simulate(str(tmp_path / "bad.json"))
        assert caught.value.code == "bad_request"


@pytest.mark.parametrize(("asked", "allowed"), [("auto", True), ("dml", False)])
def test_an_engine_that_cannot_use_the_card_found_computes_on_the_cpu(
    asked: str, allowed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A named device that can't be used keeps a live voice from starting, as one that is missing does."""
    found = decide([Card(kind="dml", index=0, name="d")], ComputeSettings(device=asked))
    monkeypatch.setattr(probe, "probe", lambda _: (None, found))
    known = registry.find("rvc")
    narrow = replace(known, capabilities=replace(known.capabilities, devices=frozenset({"cpu", "cuda"})))
    monkeypatch.setattr("myna.daemon.placing.registry.find", lambda name: narrow if name == "narrow" else known)
    placing = Placing(settings.ComputeSettings(device=asked), tmp_path)
    placing.start()
    assert placing.job("rvc").device == "dml"
    order = placing.job("narrow")
    assert (order.device, order.precision) == ("cpu", "auto")
    if allowed:
        assert placing.live("narrow").fallbacks == (
            "computing on the CPU instead of dml: the engine rvc can't use dml",
        )
    else:
        with pytest.raises(MynaError, match="can't use dml") as refused:
            placing.live("narrow")
        assert refused.value.code == "compute_unavailable"


@pytest.mark.parametrize(
    ("cores", "asked", "threads"),
    [(1, 0, 1), (2, 0, 2), (3, 0, 2), (4, 0, 2), (6, 0, 3), (16, 0, 4), (2, 1, 1), (8, 6, 6)],
)
def test_a_live_voice_has_two_threads_where_there_are_two_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cores: int, asked: int, threads: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    placing = Placing(settings.ComputeSettings(threads=asked), tmp_path)
    assert placing.live("formant").threads == threads
