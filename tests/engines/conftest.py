"""What tests of engines share: the measurements of the quality tool."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "quality.py"


@pytest.fixture(scope="session")
def quality() -> ModuleType:
    """The quality tool as a module; it needs nothing beyond the package until it is asked for opinions."""
    spec = importlib.util.spec_from_file_location("myna_quality_tool", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def envelope_delay(quality: ModuleType) -> Callable[..., float]:
    """Delay between two signals by their energy's course, in seconds."""
    measure: Callable[..., float] = quality.envelope_delay
    return measure
