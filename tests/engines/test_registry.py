"""Engines are found, broken ones are reported, and nothing heavy is imported on the way."""

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from myna.engines.base import BackendUnavailable
from myna.engines.formant import SPEC
from myna.engines.registry import BUILT_IN, GROUP, find, find_engines, problems, specs

HEAVY = ("torch", "onnxruntime", "openvino", "scipy", "faiss", "soundfile", "sounddevice")


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value, group=GROUP)


def test_the_built_in_voice_is_found_without_package_metadata() -> None:
    registry = find_engines([])
    assert registry.engines["formant"] is SPEC
    assert {"formant", "neutral", "deep", "whisper"} <= {asset.id for asset in registry.voices()}


def test_what_is_installed_is_what_the_fallback_table_says() -> None:
    registry = find_engines()
    assert registry.engines["formant"] is SPEC
    assert not set(registry.problems) & set(BUILT_IN)


def test_another_package_adds_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cawing_engine.py").write_text(
        "from dataclasses import replace\n"
        "from myna.engines.formant import SPEC as ours\n"
        "SPEC = replace(ours, name='caw', built_in=())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = find_engines([point("caw", "cawing_engine:SPEC")])
    assert registry.spec("caw").name == "caw"
    assert not registry.problems


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("raise RuntimeError('no licence')", "no licence"),
        ("import a_module_that_is_not_there", "a_module_that_is_not_there"),
        ("SPEC = 3", "not an EngineSpec"),
        ("", "SPEC"),
        ("from myna.engines.formant import SPEC", "calls itself 'formant'"),
        ("def", "SyntaxError"),
    ],
)
def test_a_broken_engine_is_reported_and_the_others_stay(
    source: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"broken_engine_{abs(hash(source))}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = find_engines([point("broken", f"{name}:SPEC")])
    assert told in registry.problems["broken"]
    assert "formant" in registry.engines
    with pytest.raises(BackendUnavailable, match="can't be used"):
        registry.spec("broken")


def test_nobody_takes_the_name_of_a_built_in_engine() -> None:
    registry = find_engines([point("formant", "elsewhere:SPEC")])
    assert registry.engines["formant"] is SPEC
    assert "taken" in registry.problems["formant (elsewhere:SPEC)"]


def test_the_process_wide_registry_is_looked_up_by_name() -> None:
    assert find("formant") is SPEC
    assert SPEC in specs()
    assert not set(problems()) & set(BUILT_IN)


def test_an_unknown_engine_is_named_with_those_there_are() -> None:
    with pytest.raises(BackendUnavailable, match="formant"):
        find_engines([]).spec("formnat")


def test_finding_engines_imports_nothing_heavy() -> None:
    program = (
        "import sys; from myna.engines.registry import find_engines; find_engines(); "
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]", ran.stdout
