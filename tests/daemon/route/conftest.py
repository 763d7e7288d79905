"""A private desktop for each kind of sound server."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from desktop import PROGRAMS, Desktop

from tools.private_daemon import PrivateDaemon


@pytest.fixture(params=["pulseaudio", "pipewire"])
def desktop(request: pytest.FixtureRequest) -> Iterator[Desktop]:
    """A running desktop of each kind; skips aloud where its programs are missing."""
    missing = [program for program in PROGRAMS[request.param] if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed (python3 tools/dev.py setup --audio)")
    # A short path: sockets' names have 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="myna-") as folder:
        server = Desktop(request.param, Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.stop()


@pytest.fixture
def daemon(desktop: Desktop) -> Iterator[PrivateDaemon]:
    """One that plays into this desktop."""
    folder = desktop.folder / "myna"
    folder.mkdir()
    made = PrivateDaemon(folder, desktop.client)
    yield made
    # Whatever happened: nothing of it may outlive the test.
    for process in psutil.process_iter(["environ"]):
        if (process.info["environ"] or {}).get("MYNA_STATE_DIR") == str(made.state_dir):
            process.kill()
