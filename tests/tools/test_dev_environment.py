"""The environment's stamp, its extras, and where torch comes from."""

import shutil
from pathlib import Path

import dev_environment as env
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "daemon").mkdir()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(ROOT / "daemon/audio_core.c", tmp_path / "daemon")
    return tmp_path


def test_the_key_is_constant_and_moves_with_each_input(tree: Path) -> None:
    first = env.stamp_key(tree)
    assert env.stamp_key(tree) == first
    core = tree / "daemon/audio_core.c"
    core.write_text(core.read_text() + "\n")
    second = env.stamp_key(tree)
    project = tree / "pyproject.toml"
    project.write_text(project.read_text() + "\n")
    assert len({first, second, env.stamp_key(tree)}) == 3


def test_the_key_depends_on_the_place(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "tree"
    shutil.copytree(tree, elsewhere)
    assert env.stamp_key(elsewhere) != env.stamp_key(tree)


def test_only_new_extras_are_installed_while_the_key_holds() -> None:
    stamp: dict[str, object] = {"key": "k", "extras": ["daemon"]}
    assert env.missing_extras(stamp, "k", ["daemon"]) == []
    assert env.missing_extras(stamp, "k", ["dev", "daemon"]) == ["dev"]


def test_a_changed_key_installs_all_that_was_there_again() -> None:
    assert env.missing_extras({"key": "old", "extras": ["rvc"]}, "new", ["daemon"]) == ["daemon", "rvc"]
    assert env.missing_extras(None, "new", ["daemon"]) == ["daemon"]


@pytest.mark.parametrize("content", ["", "{", "[]", "3"])
def test_a_damaged_stamp_is_no_stamp(tmp_path: Path, content: str) -> None:
    stamp = tmp_path / "stamp"
    stamp.write_text(content)
    assert env.read_stamp(stamp) is None


def test_torch_is_asked_for_as_a_cpu_build_first_and_only_where_wanted() -> None:
    assert env.torch_requirements(["daemon"], "Linux", None) == []
    assert [line[-1] for line in env.torch_requirements(["rvc"], "Linux", None)] == [
        "torch==2.13.0+cpu",
        "torch==2.13.0",
    ]
    assert env.torch_requirements(["rvc"], "Darwin", None) == [["torch==2.13.0"]]
    assert env.torch_requirements(["rvc"], "Linux", "file:///x")[0][:2] == ["--index-url", "file:///x"]
