"""A real sound server for tests of the whole daemon."""

from collections.abc import Iterator

import pytest

from tools.audio_server import AudioServer, missing_programs


@pytest.fixture
def server() -> Iterator[AudioServer]:
    """PulseAudio with its cables; skips aloud where it is not installed."""
    if missing := missing_programs("pulse"):
        pytest.skip(f"no PulseAudio to test with: {', '.join(missing)} not installed")
    with AudioServer("pulse") as running:
        yield running
