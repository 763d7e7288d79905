"""What all tests share: where their data lies."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

TESTS = Path(__file__).parent


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """What a test, or a command run within it, sets in the environment ends with it; none starts with MYNA_ set."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("MYNA_")]:
        del os.environ[name]
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of golden data."""
    return TESTS / "golden"


@pytest.fixture(scope="session")
def speech_dir() -> Path:
    """Folder of real speech, 16 kHz mono FLAC."""
    return TESTS / "data" / "speech"


@pytest.fixture(scope="session")
def speech_16k(speech_dir: Path) -> NDArray[np.float32]:
    """A woman reading, about 7 s, shape (frames,), 16 kHz."""
    audio, _ = soundfile.read(speech_dir / "austen_0870.flac", dtype="float32")
    return np.asarray(audio, np.float32)
