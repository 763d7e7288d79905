"""The repository's virtual environment: made once, known by a stamp, renewed when its inputs change."""

import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"

# The CPU build is asked for first: on Linux the plain release brings gigabytes of CUDA libraries.
TORCH = "2.13.0"
TEST_ONLY = ("speechmos", "pyworld-prebuilt")


def venv_python(venv: Path) -> Path:
    """The interpreter of an environment."""
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def stamp_key(root: Path) -> str:
    """A fingerprint of all that an installed environment depends on.

    The project file, the sources of every extension module, the interpreter, and the place (an environment
    that was moved or copied is broken).
    """
    project = root / "pyproject.toml"
    parsed = tomllib.loads(project.read_text(encoding="utf-8"))
    extensions = parsed.get("tool", {}).get("setuptools", {}).get("ext-modules", [])
    digest = hashlib.sha256()
    for name in ["pyproject.toml", *sorted(s for module in extensions for s in module["sources"])]:
        source = root / name
        digest.update(name.encode() + b"\0")
        digest.update(source.read_bytes() if source.exists() else b"absent")
    facts = [sys.version, sys.implementation.cache_tag, platform.machine(), str(root), TORCH, *TEST_ONLY]
    digest.update("\0".join(map(str, facts)).encode())
    return digest.hexdigest()


def missing_extras(stamp: Mapping[str, object] | None, key: str, wanted: Iterable[str]) -> list[str]:
    """The extras to install now: all known and wanted when the fingerprint changed, else the new ones.

    An empty list means that the environment is as it should be.
    """
    had: list[str] = []
    if stamp is not None and isinstance(extras := stamp.get("extras"), list):
        had = [str(name) for name in extras]
    if stamp is None or stamp.get("key") != key:
        return sorted({*had, *wanted})
    return sorted(set(wanted) - set(had))


def torch_requirements(extras: Iterable[str], system: str, index: str | None) -> list[list[str]]:
    """Arguments for pip, best first, that install torch; an empty list where no torch is wanted."""
    if "rvc" not in extras:
        return []
    if index:
        return [["--index-url", index, f"torch=={TORCH}"]]
    plain = [f"torch=={TORCH}"]
    return [[f"torch=={TORCH}+cpu"], plain] if system == "Linux" else [plain]


def read_stamp(path: Path) -> dict[str, object] | None:
    """The stamp of an environment, or None if there is none or it cannot be read."""
    try:
        stamp = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) else None


def fail(message: str) -> None:
    """End with a message for the developer."""
    sys.exit(f"dev.py: {message}")


def pip(python: Path, *arguments: str, quiet_failure: bool = False) -> bool:
    """Run pip; False on failure if that is allowed, else the end with what pip said."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode and not quiet_failure:
        sys.stderr.write(done.stdout)
        fail(f"pip failed: {' '.join(arguments)}")
    return done.returncode == 0


def make_venv(venv: Path) -> Path:
    """Make the environment if there is none that runs; returns its interpreter."""
    python = venv_python(venv)
    if python.exists():
        probe = [str(python), "-c", "import sys; print(*sys.version_info[:2])"]
        found = subprocess.run(probe, capture_output=True, text=True)
        if found.returncode == 0 and found.stdout.split() == [str(n) for n in sys.version_info[:2]]:
            return python
        print(f"dev.py: {venv} is of another Python or broken; making it anew", flush=True)
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        fail(
            f"this Python has no venv module. Debian, Ubuntu: apt-get install python{version}-venv "
            f"(or python3-venv), then run this again"
        )
    if venv.exists():
        shutil.rmtree(venv)
    print(f"dev.py: making {venv}", flush=True)
    done = subprocess.run([sys.executable, "-m", "venv", str(venv)], capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(venv, ignore_errors=True)
        fail(f"the environment could not be made:\n{done.stdout}{done.stderr}")
    return python


def prepare(extras: Iterable[str], venv: Path = VENV) -> Path:
    """Bring the environment up to date; returns its interpreter. A second call costs a hash of two files."""
    stamp_path = venv / "myna-stamp.json"
    key = stamp_key(ROOT)
    stamp = read_stamp(stamp_path) if venv_python(venv).exists() else None
    install = missing_extras(stamp, key, extras)
    if not install:
        return venv_python(venv)
    python = make_venv(venv)
    print(f"dev.py: installing myna[{','.join(install)}] into {venv} (once)", flush=True)
    stamp_path.unlink(missing_ok=True)
    pip(python, "install", "--upgrade", "pip", "setuptools>=77", "wheel")
    has_torch = subprocess.run(
        [str(python), "-c", "import importlib.util as u; raise SystemExit(not u.find_spec('torch'))"]
    )
    if has_torch.returncode:
        install_torch(python, install)
    # Without isolation: the environment's own setuptools was upgraded above, and a second copy takes time.
    pip(python, "install", "--no-build-isolation", "-e", f".[{','.join(install)}]")
    if "dev" in install:
        pip(python, "install", *TEST_ONLY)
    had = [] if stamp is None else [str(name) for name in stamp.get("extras", [])]  # type: ignore[attr-defined]
    stamp_path.write_text(json.dumps({"key": key, "extras": sorted({*had, *install})}), encoding="utf-8")
    return python


def install_torch(python: Path, extras: Iterable[str]) -> None:
    """Install torch's CPU build where torch is wanted and offered, the plain release else."""
    choices = torch_requirements(extras, platform.system(), os.environ.get("MYNA_TORCH_INDEX"))
    for number, arguments in enumerate(choices):
        last = number == len(choices) - 1
        if last and number:
            print(
                "dev.py: pip finds no CPU build of torch; the plain release may take gigabytes. "
                "MYNA_TORCH_INDEX=URL names an index that has one",
                flush=True,
            )
        if pip(python, "install", *arguments, quiet_failure=not last):
            return
