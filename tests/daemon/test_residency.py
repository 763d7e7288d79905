"""What a job worker keeps in memory: leases, the last three voices, unloading, and figures that are true."""

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from myna.daemon.jobs.resident import ResidentVoices, memory_figures
from myna.engines.base import Block, SharedModel, VoiceFacts


class Voice:
    """A voice that only knows whether it is open."""

    rate_hz = None
    context_ms = 0.0

    def __init__(self, device: str = "cpu", size: int | None = 100, shared: tuple[SharedModel, ...] = ()) -> None:
        self.facts = VoiceFacts(
            engine="fake", device=device, precision="fp32", backend="none", model_bytes=size, shared=shared
        )
        self.open = True

    def convert(self, audio: Block, rate_hz: int) -> Block:
        return np.copy(audio)

    def close(self) -> None:
        assert self.open, "closed twice"
        self.open = False


class Spared(Exception):
    """An end of work that does not put the voice in doubt."""


class Shelf:
    """A ResidentVoices with a hand-driven clock that remembers every voice it loaded."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.voices = ResidentVoices(clock=lambda: self.now)
        self.loaded: dict[str, list[Voice]] = {}

    def use(self, name: str, inside: Callable[[], None] = lambda: None, voice: Voice | None = None) -> None:
        def load() -> Voice:
            made = voice or Voice()
            self.loaded.setdefault(name, []).append(made)
            return made

        with self.voices.lend(name.encode(), name, "fake", load, (Spared,)) as lent:
            assert lent is self.loaded[name][-1]
            inside()

    def ids(self) -> list[str]:
        return [row.id for row in self.voices.rows()]


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def test_a_voice_is_loaded_once_and_kept(shelf: Shelf) -> None:
    for _ in range(3):
        shelf.use("a")
    assert len(shelf.loaded["a"]) == 1
    assert shelf.loaded["a"][0].open


def test_the_three_most_recent_stay(shelf: Shelf) -> None:
    for name in ("a", "b", "c", "a", "d"):
        shelf.use(name)
    assert shelf.ids() == ["c", "a", "d"]
    assert not shelf.loaded["b"][0].open
    assert all(shelf.loaded[n][0].open for n in "acd")


def test_the_idle_clock_starts_when_the_use_ends(shelf: Shelf) -> None:
    def long_work() -> None:
        shelf.now += 3600.0
        (row,) = shelf.voices.rows()
        assert (row.busy, row.unloadable) == ("busy:job", False)
        assert "busy:job" in (row.why_not or "")

    shelf.use("a", long_work)
    (row,) = shelf.voices.rows()
    assert (row.loaded_at, row.last_used) == (1000.0, 4600.0)
    assert (row.busy, row.unloadable, row.why_not) == (None, True, None)


def test_nothing_in_use_is_ever_closed(shelf: Shelf) -> None:
    def crowd() -> None:
        assert shelf.voices.unload("a") is False
        for name in ("b", "c", "d", "e"):
            shelf.use(name)
        shelf.voices.unload(None)
        assert shelf.ids() == ["a"]
        assert shelf.loaded["a"][0].open

    shelf.use("a", crowd)
    assert shelf.loaded["a"][0].open
    assert not any(shelf.loaded[n][0].open for n in "bcde")


def test_unloading_by_name_and_all(shelf: Shelf) -> None:
    for name in ("a", "b"):
        shelf.use(name)
    assert shelf.voices.unload("nobody") is False
    assert shelf.voices.unload("a") is True
    assert shelf.voices.unload("a") is False
    assert shelf.ids() == ["b"]
    assert shelf.voices.unload(None) is True
    assert shelf.ids() == []
    shelf.use("a")
    assert [v.open for v in shelf.loaded["a"]] == [False, True]


def test_what_voices_hold_together_is_one_row_that_goes_with_its_holders(shelf: Shelf) -> None:
    encoder = SharedModel(id="hubert_base.pt", model_bytes=900)
    shelf.use("a", voice=Voice(shared=(encoder,)))
    shelf.use("b", voice=Voice(shared=(encoder,)))
    shelf.use("c")
    rows = {row.id: row for row in shelf.voices.rows()}
    assert list(rows) == ["a", "b", "c", "hubert_base.pt"]
    assert (rows["hubert_base.pt"].ram_bytes, rows["hubert_base.pt"].unloadable) == (900, True)

    def lent() -> None:
        row = shelf.voices.rows()[-1]
        assert (row.id, row.busy, row.unloadable) == ("hubert_base.pt", "busy:job", False)
        assert shelf.voices.unload("hubert_base.pt") is False
        assert shelf.ids() == ["b", "c", "a", "hubert_base.pt"]

    shelf.use("a", lent)
    assert shelf.voices.unload("hubert_base.pt") is True
    assert shelf.ids() == ["c"]


def test_a_voice_goes_when_it_was_idle_for_long_while_others_work(shelf: Shelf) -> None:
    shelf.use("a")
    shelf.now += 500.0
    shelf.use("b")
    assert shelf.voices.retire(600.0) is False
    shelf.now += 100.0

    def lent() -> None:  # its clock starts when its use ends
        shelf.now += 1000.0
        assert shelf.voices.retire(600.0) is True
        assert shelf.ids() == ["b"]

    shelf.use("b", lent)
    assert shelf.voices.retire(600.0) is False


def test_a_failure_throws_the_voice_away_unless_it_is_spared(shelf: Shelf) -> None:
    def fail(error: type[Exception]) -> Callable[[], None]:
        def inside() -> None:
            raise error

        return inside

    with pytest.raises(Spared):
        shelf.use("a", fail(Spared))
    assert shelf.ids() == ["a"]
    with pytest.raises(ZeroDivisionError):
        shelf.use("a", fail(ZeroDivisionError))
    assert shelf.ids() == []
    assert not shelf.loaded["a"][0].open
    shelf.use("a")
    assert len(shelf.loaded["a"]) == 2


def test_a_voice_that_cannot_be_loaded_leaves_nothing(shelf: Shelf) -> None:
    def load() -> Voice:
        raise MemoryError

    with pytest.raises(MemoryError), shelf.voices.lend(b"x", "x", "fake", load, ()):
        pass
    assert shelf.ids() == []


def test_bytes_stand_where_they_are_and_unknown_is_null(shelf: Shelf) -> None:
    shelf.use("cpu", voice=Voice("cpu", 100))
    shelf.use("gpu", voice=Voice("cuda:0", 200))
    shelf.use("untold", voice=Voice("cpu", None))
    sizes = {r.id: (r.device_bytes, r.ram_bytes) for r in shelf.voices.rows()}
    assert sizes == {"cpu": (None, 100), "gpu": (200, None), "untold": (None, None)}


def test_figures_are_measured_or_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    figures = memory_figures()
    assert figures["process"] is not None
    assert figures["process"] > 1 << 20
    assert {k: v for k, v in figures.items() if k != "process"} == dict.fromkeys(
        ("allocated", "reserved", "driver_free")
    )
    assert "torch" not in sys.modules


LET_GO = """
from myna.daemon.jobs.resident import let_go, memory_figures
before = memory_figures()["process"]
blocks = [bytearray(1000) for _ in range(200_000)]
keep = blocks[-1]
full = memory_figures()["process"]
del blocks
let_go()
print(full - before, memory_figures()["process"] - before)
"""


def test_letting_go_gives_memory_back_to_the_system() -> None:
    """Small blocks are freed but for the one at the heap's top, in a process whose heap nobody else uses."""
    done = subprocess.run([sys.executable, "-c", LET_GO], capture_output=True, text=True, check=True, timeout=60)
    grown, left = map(int, done.stdout.split())
    assert grown > 150 << 20
    assert left < 40 << 20
