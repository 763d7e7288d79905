"""What all tests share: where their data lies."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

TESTS = Path(__file__).parent


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
