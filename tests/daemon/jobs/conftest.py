"""What the tests of jobs share: an engine in every worker, and a queue that is closed at the end."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_bench import Bench, install_engine


@pytest.fixture(scope="session", autouse=True)
def told_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Install the engine for every worker started here."""
    folder = tmp_path_factory.mktemp("site")
    install_engine(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A queue that is closed at the end."""
    made = Bench(tmp_path)
    yield made
    made.close()
