"""Retrieval stays finite whatever the index and the query are."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from myna.engines.base import ModelUnusable
from myna.engines.index import Retrieval, neighbour_weights

faiss = pytest.importorskip("faiss", reason="the package faiss-cpu is not installed")
Array = NDArray[np.float32]
GOLDEN = Path(__file__).parents[1] / "golden"


def stored(path: Path, vectors: Array, lists: int = 0) -> Path:
    """An index of these vectors: flat, or in `lists` cells."""
    width = vectors.shape[1]
    index = faiss.IndexFlatL2(width)
    if lists:
        index = faiss.IndexIVFFlat(index, width, lists)
        index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(path))
    return path


@pytest.fixture
def vectors() -> Array:
    return np.random.default_rng(0).standard_normal((100, 16)).astype(np.float32)


@pytest.mark.parametrize("lists", [0, 1, 4])
def test_blend_equals_a_slow_twin(tmp_path: Path, vectors: Array, lists: int) -> None:
    retrieval = Retrieval(stored(tmp_path / "i.index", vectors, lists), 16)
    queries = np.random.default_rng(1).standard_normal((7, 16)).astype(np.float32)
    mixed = retrieval.blended(queries, 0.6)
    distances, numbers = retrieval.neighbours(queries)
    for row, query in enumerate(queries):
        found = [(d, n) for d, n in zip(distances[row], numbers[row], strict=True) if n >= 0]
        weights = np.array([1 / float(d) ** 2 for d, _ in found])
        mean = (weights[:, None] / weights.sum() * vectors[[n for _, n in found]]).sum(0)
        np.testing.assert_allclose(mixed[row], 0.6 * mean + 0.4 * query, atol=1e-4)


def test_exact_hits_take_the_vector(tmp_path: Path, vectors: Array) -> None:
    retrieval = Retrieval(stored(tmp_path / "i.index", vectors), 16)
    np.testing.assert_allclose(retrieval.blended(vectors[3:6], 1.0), vectors[3:6], atol=1e-6)


def test_fewer_than_eight_neighbours(tmp_path: Path, vectors: Array) -> None:
    retrieval = Retrieval(stored(tmp_path / "i.index", vectors[:3]), 16)
    query = vectors[50:52]
    mixed = retrieval.blended(query, 1.0)
    assert np.isfinite(mixed).all()
    assert not np.array_equal(mixed, query)
    assert np.array_equal(retrieval.blended(query, 1.0, all_or_nothing=True), query)


def test_queries_that_are_not_finite_or_far_stay_as_they_are(tmp_path: Path, vectors: Array) -> None:
    retrieval = Retrieval(stored(tmp_path / "i.index", vectors), 16)
    query = np.full((2, 16), 1e25, np.float32)
    assert np.isfinite(retrieval.blended(query, 0.5)).all()
    query[0, 0] = np.nan
    mixed = retrieval.blended(query, 0.5)
    assert mixed.shape == query.shape
    assert np.isfinite(mixed[1]).all()


def test_weights() -> None:
    found = np.array([[True, True, False], [True, True, True], [False, False, False]])
    weights = neighbour_weights(np.array([[1, 2, 3], [0, 0, 5], [1, 1, 1]], np.float32), found)
    np.testing.assert_allclose(weights, [[0.8, 0.2, 0], [0.5, 0.5, 0], [0, 0, 0]], atol=1e-6)


def test_rate_zero_and_no_frames(tmp_path: Path, vectors: Array) -> None:
    retrieval = Retrieval(stored(tmp_path / "i.index", vectors), 16)
    assert retrieval.size == 100
    assert retrieval.blended(vectors, 0.0) is vectors
    assert retrieval.blended(vectors[:0], 0.5).shape == (0, 16)


def test_bad_indexes_say_why(tmp_path: Path, vectors: Array) -> None:
    good = stored(tmp_path / "good.index", vectors)
    with pytest.raises(ModelUnusable, match="16 values; this voice has 768"):
        Retrieval(good, 768)
    with pytest.raises(ModelUnusable, match="is empty"):
        Retrieval(stored(tmp_path / "empty.index", vectors[:0]), 16)
    with pytest.raises(ModelUnusable, match="cannot be read"):
        Retrieval(tmp_path / "nowhere.index", 16)
    cut = tmp_path / "cut.index"
    cut.write_bytes(good.read_bytes()[:900])
    with pytest.raises(ModelUnusable, match="cut off or damaged"):
        Retrieval(cut, 16)
    text = tmp_path / "text.index"
    text.write_text("hello")
    with pytest.raises(ModelUnusable, match="not a faiss index"):
        Retrieval(text, 16)
