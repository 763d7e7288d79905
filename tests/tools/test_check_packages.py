"""The list of packages is complete, and a wheel that is not whole is found out."""

import shutil
import tomllib
from pathlib import Path

import pytest
from check_packages import package_problems, tree_packages, wheel_problems

ROOT = Path(__file__).resolve().parents[2]


def test_the_project_file_names_every_package_of_the_tree() -> None:
    assert package_problems(ROOT) == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for folder in project["tool"]["setuptools"]["package-dir"].values():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").touch()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_a_new_package_has_to_be_named(tree: Path) -> None:
    assert package_problems(tree) == []
    (tree / "dsp/filters").mkdir()
    (tree / "dsp/filters/__init__.py").touch()
    assert any("myna.dsp.filters is not in" in problem for problem in package_problems(tree))


def test_a_folder_of_modules_that_is_no_package_is_found(tree: Path) -> None:
    (tree / "dsp/loose").mkdir()
    (tree / "dsp/loose/module.py").touch()
    assert package_problems(tree) == ["dsp/loose has modules but no __init__.py"]


def test_a_package_that_went_away_is_found(tree: Path) -> None:
    shutil.rmtree(tree / "daemon/service")
    assert any("names myna.daemon.service, which is not there" in problem for problem in package_problems(tree))


def test_a_whole_wheel_passes_and_each_defect_is_named(tree: Path) -> None:
    whole = [f"myna/{folder}/__init__.py" for folder in tree_packages(tree).values()]
    whole += ["myna/daemon/_core.abi3.so", "myna-0.1.0.dist-info/METADATA"]
    assert wheel_problems(tree, whole) == []
    assert wheel_problems(tree, whole[1:]) == ["the wheel lacks myna/control/__init__.py"]
    assert wheel_problems(tree, [n for n in whole if "_core" not in n]) == [
        "the wheel lacks the compiled myna/daemon/_core"
    ]
    assert wheel_problems(tree, [*whole, "daemon/x.so"]) == ["the wheel writes outside myna/: daemon/x.so"]
    assert wheel_problems(tree, [*whole, "myna/old.py"]) == ["the wheel holds myna/old.py, which is not in the tree"]
