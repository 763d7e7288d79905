"""Whether the project file names every package of the tree, and the wheel holds every file of them."""

import tomllib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOMS = ("control", "daemon", "dsp", "engines")
PREFIX = "myna"
# What a package needs at run time or type checkers read; C sources need not be in a wheel.
SHIPPED = (".py", ".pyi", ".md", ".typed")


def tree_packages(root: Path) -> dict[str, str]:
    """Every package of the rooms: import name to folder, such as `myna.control.cli` to `control/cli`."""
    folders = sorted(init.parent.relative_to(root) for room in ROOMS for init in (root / room).rglob("__init__.py"))
    return {".".join((PREFIX, *folder.parts)): folder.as_posix() for folder in folders}


def package_problems(root: Path) -> list[str]:
    """What the project file gets wrong about the packages of the tree; empty when it is complete."""
    table = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    listed, mapped, present = set(table["packages"]), dict(table["package-dir"]), tree_packages(root)
    problems = [f"{name} is not in tool.setuptools.packages" for name in sorted(present.keys() - listed)]
    problems += [
        f"tool.setuptools.packages names {name}, which is not there" for name in sorted(listed - present.keys())
    ]
    for name, folder in present.items():
        if mapped.get(name) != folder:
            problems.append(f"tool.setuptools.package-dir must map {name} to {folder}, not {mapped.get(name)}")
    for room in ROOMS:
        for folder in sorted((root / room).rglob("*.py")):
            if not (folder.parent / "__init__.py").exists():
                problems.append(f"{folder.parent.relative_to(root).as_posix()} has modules but no __init__.py")
    return sorted(set(problems))


def wheel_problems(root: Path, names: Iterable[str]) -> list[str]:
    """What a wheel's list of files lacks, or holds beyond the tree; empty when it is whole.

    `names` are the archive's paths. The compiled core must be there, and nothing outside `myna/` and its
    metadata.
    """
    have = {name for name in names if not name.endswith("/")}
    want = {
        f"{PREFIX}/{path.relative_to(root).as_posix()}"
        for room in ROOMS
        for path in (root / room).rglob("*")
        if path.is_file() and path.suffix in SHIPPED and "__pycache__" not in path.parts
    }
    problems = [f"the wheel lacks {name}" for name in sorted(want - have)]
    extra = {name for name in have - want if PurePosixPath(name).suffix == ".py"}
    problems += [f"the wheel holds {name}, which is not in the tree" for name in sorted(extra)]
    outside = {name for name in have if PurePosixPath(name).parts[0] != PREFIX and ".dist-info/" not in name}
    problems += [f"the wheel writes outside {PREFIX}/: {name}" for name in sorted(outside)]
    if not any(name.startswith(f"{PREFIX}/daemon/_core.") and name.endswith((".so", ".pyd")) for name in have):
        problems.append("the wheel lacks the compiled myna/daemon/_core")
    return problems
