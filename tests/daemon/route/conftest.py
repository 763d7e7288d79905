"""A private desktop for each kind of sound server."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from desktop import PROGRAMS, Desktop


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
