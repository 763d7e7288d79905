"""Run the audio core's stress harness and its Python tests under the compiler's sanitizers.

Usage: python tools/sanitize_core.py [--callbacks N] [--skip-tests]
Needs gcc or clang with libasan, libubsan and libtsan (Linux). Exit status 0: nothing was found.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "daemon" / "audio_core.c"
STRESS = ROOT / "tools" / "core_stress.c"
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-missing-field-initializers"]


def run(title: str, command: list[str], **environment: str) -> bool:
    """Run one step, show its last lines; True if it succeeded."""
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        check=False,
    )
    print(f"{'ok  ' if done.returncode == 0 else 'FAIL'} {title}")
    shown = done.stdout.strip().splitlines()[-40 if done.returncode else -1 :]
    print("".join(f"     {line}\n" for line in shown), end="")
    return done.returncode == 0


def stress(compiler: str, scratch: Path, name: str, flags: list[str], callbacks: int) -> bool:
    """Build the C harness with `flags` and run it."""
    program = str(scratch / name)
    build = [compiler, "-std=c11", "-O1", "-g", *WARNINGS, "-Wno-unused-function", *flags]
    build += [str(STRESS), "-o", program, "-lm", "-lpthread"]
    return run(f"build {name}", build) and run(f"stress {name}", [program, str(callbacks)])


def python_tests(compiler: str, scratch: Path) -> bool:
    """The core's own tests on an instrumented extension, loaded in place of the installed one."""
    library = scratch / "_core.abi3.so"
    include = sysconfig.get_path("include")
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    build = [compiler, "-std=c11", "-O1", "-g", *WARNINGS, *flags, "-shared", "-fPIC", f"-I{include}"]
    if not run("build extension with address, undefined", [*build, str(CORE), "-o", str(library), "-lm"]):
        return False
    runtime = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    loader = (
        "import importlib.util, sys, pytest\n"
        "spec = importlib.util.spec_from_file_location('myna.daemon._core', sys.argv[1])\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "sys.modules['myna.daemon._core'] = module\n"
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', sys.argv[2]]))\n"
    )
    tests = str(ROOT / "tests" / "daemon" / "audio" / "test_core.py")
    return run(
        "core tests with address, undefined",
        [sys.executable, "-c", loader, str(library), tests],
        LD_PRELOAD=runtime,
        ASAN_OPTIONS="detect_leaks=0",  # the interpreter itself leaks at exit
        PYTHONMALLOC="malloc",
    )


def main() -> int:
    """Run all; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--callbacks", type=int, default=20000)
    parser.add_argument("--skip-tests", action="store_true", help="only the C harness")
    options = parser.parse_args()
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        print("no C compiler here")
        return 2
    with tempfile.TemporaryDirectory(prefix="myna-sanitize-") as name:
        scratch = Path(name)
        undefined = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
        good = [
            stress(compiler, scratch, "plain", ["-O2"], options.callbacks * 5),
            stress(compiler, scratch, "address-undefined", undefined, options.callbacks),
            stress(compiler, scratch, "thread", ["-fsanitize=thread"], options.callbacks),
        ]
        if not options.skip_tests:
            good.append(python_tests(compiler, scratch))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
