"""Check the tree without running it: format, lint, wheel, types, import rules, thin client.

Types and imports are checked on the built wheel, unpacked: the checkers cannot see through an editable
install, and the wheel is proved whole on the way. Run by `tools/dev.py check` in the environment.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

from check_packages import ROOMS, package_problems, wheel_problems

ROOT = Path(__file__).resolve().parent.parent
# Kept between runs, so that the type checker and pip start warm.
CACHE = ROOT / "build" / "check"
THIN_CLIENT = "import importlib.util as u; raise SystemExit(u.find_spec('numpy') is not None)"


def run(title: str, command: list[str], *, cwd: Path = ROOT, **environment: str) -> bool:
    """Run one check; prints a line for it, and its output if it failed."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    print(f"{'ok  ' if done.returncode == 0 else 'FAIL'} {title}", flush=True)
    if done.returncode:
        print(done.stdout, flush=True)
    return done.returncode == 0


def report(title: str, problems: list[str]) -> bool:
    """Print a check that was made here."""
    print(f"{'FAIL' if problems else 'ok  '} {title}", flush=True)
    for problem in problems:
        print(f"     {problem}", flush=True)
    return not problems


def build_wheel(scratch: Path) -> Path | None:
    """Build the wheel from a copy of the tree: a `build` folder of earlier days must not leak into it."""
    copy = scratch / "source"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, copy / name)
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd", "*.egg-info")
    for room in ROOMS:
        shutil.copytree(ROOT / room, copy / room, ignore=ignored)
    target = scratch / "wheel"
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(copy)]
    if not run("the wheel builds", command):
        return None
    return next(target.glob("*.whl"))


def unpack(wheel: Path) -> Path:
    """Unpack the wheel to a folder of constant name; returns it."""
    target = CACHE / "wheel"
    shutil.rmtree(target, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def client_python(base: list[str]) -> Path:
    """The interpreter of an environment with the thin client's dependencies alone, kept while they stay."""
    venv = CACHE / "client"
    stamp, key = (
        venv / "stamp",
        hashlib.sha256("\0".join([sys.version, str(venv), *base]).encode()).hexdigest(),
    )
    python = venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not (stamp.exists() and stamp.read_text() == key):
        shutil.rmtree(venv, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *base], check=True)
        stamp.write_text(key)
    return python


def check_client(wheel: Path) -> bool:
    """Install the wheel as a thin client and use it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    python = client_python(project["dependencies"])
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", str(wheel)]
    return (
        run("the wheel installs as a thin client", install)
        and run("the thin client brings no numpy", [str(python), "-c", THIN_CLIENT])
        and run("`myna --help` runs in the thin client", [str(python.with_name("myna")), "--help"], cwd=CACHE)
    )


def main() -> int:
    """Run every check; 0 if all passed."""
    # Bytecode beside the unpacked wheel would make the next unpacking slower for nothing.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    CACHE.mkdir(parents=True, exist_ok=True)
    passed = [
        run("format (ruff format)", [sys.executable, "-m", "ruff", "format", "--check", "."]),
        run("lint (ruff check)", [sys.executable, "-m", "ruff", "check", "."]),
        report("pyproject.toml names every package", package_problems(ROOT)),
    ]
    with tempfile.TemporaryDirectory(prefix="myna-check-") as folder:
        wheel = build_wheel(Path(folder))
        passed.append(wheel is not None)
        if wheel is not None:
            with zipfile.ZipFile(wheel) as archive:
                passed.append(report("the wheel is whole", wheel_problems(ROOT, archive.namelist())))
            unpacked = unpack(wheel)
            passed += [
                run("types (mypy --strict)", mypy_command(), cwd=unpacked, MYPYPATH=str(unpacked)),
                run("import rules (import-linter)", import_command(), cwd=unpacked, PYTHONPATH=str(unpacked)),
                check_client(wheel),
            ]
    print(
        "all checks passed" if all(passed) else f"{passed.count(False)} of {len(passed)} checks failed",
        flush=True,
    )
    return 0 if all(passed) else 1


def mypy_command() -> list[str]:
    """The type checker over the unpacked wheel; `myna` is a namespace package without a file of its own."""
    options = ["--strict", "--namespace-packages", "--explicit-package-bases"]
    files = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    return [sys.executable, "-m", "mypy", *options, *files, "-p", "myna"]


def import_command() -> list[str]:
    """The import rules over the unpacked wheel."""
    script = Path(sys.executable).with_name("lint-imports")
    return [str(script), "--config", str(ROOT / "pyproject.toml"), "--no-cache"]


if __name__ == "__main__":
    sys.exit(main())
