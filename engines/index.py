"""Retrieval: pull content features towards the nearest ones that a voice was trained on."""

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .base import MissingAsset, ModelUnusable

Array = NDArray[np.float32]

NEIGHBOURS: Final = 8
_MAGICS: Final = (b"IwFl", b"IwFQ", b"IwPQ", b"IxFI", b"IxF2", b"IxFl", b"IxPq", b"IxPT", b"IHNf", b"IxMp", b"IxM2")


class Retrieval:
    """A voice's index. Not thread-safe."""

    def __init__(self, path: Path, features: int, threads: int = 1) -> None:
        """Open the faiss index in `path` for vectors of `features` values.

        Raises:
            ModelUnusable: missing, damaged, empty, or of another width.
            MissingAsset: faiss is not installed.
        """
        try:
            with path.open("rb") as file:
                head = file.read(4)
        except OSError as error:
            raise ModelUnusable(f"index {path} cannot be read: {error.strerror}", path=str(path)) from error
        if head not in _MAGICS:
            raise ModelUnusable(f"{path.name} is not a faiss index", path=str(path))
        try:
            import faiss
        except ImportError as error:
            raise MissingAsset(
                "retrieval needs the package faiss-cpu: pip install faiss-cpu", asset="faiss-cpu", where="pip"
            ) from error
        faiss.omp_set_num_threads(threads)
        try:
            self._index = faiss.read_index(str(path))
        except (RuntimeError, MemoryError) as error:
            detail = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ModelUnusable(f"index {path.name} is cut off or damaged ({detail})", path=str(path)) from error
        if self._index.d != features:
            raise ModelUnusable(
                f"index {path.name} holds vectors of {self._index.d} values; this voice has {features}", path=str(path)
            )
        if self._index.ntotal == 0:
            raise ModelUnusable(f"index {path.name} is empty", path=str(path))
        if hasattr(self._index, "make_direct_map"):
            self._index.make_direct_map()  # lets stored vectors be read back by their number

    @property
    def size(self) -> int:
        """Vectors held."""
        return int(self._index.ntotal)

    def neighbours(self, features: Array) -> tuple[Array, NDArray[np.int64]]:
        """Squared distances and numbers of the nearest stored vectors, each (frames, 8); −1 where there are fewer."""
        distances, numbers = self._index.search(np.ascontiguousarray(features, np.float32), NEIGHBOURS)
        return distances, numbers

    def blended(self, features: Array, rate: float, *, all_or_nothing: bool = False) -> Array:
        """Mix each frame with the inverse-square-weighted mean of its neighbours.

        Args:
            features: (frames, width).
            rate: 0 leaves the features, 1 replaces them.
            all_or_nothing: The original's rule: one frame with fewer than 8 neighbours leaves all as they are.

        Returns:
            (frames, width). A frame equal to a stored vector takes that vector (the original yields NaN); one
            with fewer neighbours uses those it has; one without any stays.
        """
        if rate <= 0 or features.shape[0] == 0:
            return features
        distances, numbers = self.neighbours(features)
        found = numbers >= 0
        if all_or_nothing and not found.all():
            return features
        rows, inverse = np.unique(np.where(found, numbers, numbers.max(initial=0)), return_inverse=True)
        stored = np.stack([self._index.reconstruct(int(row)) for row in rows])
        weights = neighbour_weights(distances, found)
        mean = np.einsum("fk,fkw->fw", weights, stored[inverse.reshape(numbers.shape)])
        mixed = np.float32(rate) * mean + np.float32(1.0 - rate) * features
        out: Array = np.where(found.any(axis=1, keepdims=True) & np.isfinite(mixed), mixed, features).astype(np.float32)
        return out


def neighbour_weights(distances: Array, found: NDArray[np.bool_]) -> Array:
    """Weights 1/d² over the neighbours that were found, summing to 1; exact hits share everything.

    Args:
        distances: Squared distances, (frames, neighbours).
        found: Which of them are neighbours at all.

    Returns:
        (frames, neighbours); a row of zeros where nothing was found.
    """
    d = np.where(found, distances.astype(np.float64), np.inf)
    hit = found & (d <= 0)
    with np.errstate(divide="ignore", over="ignore"):
        weights = np.where(hit.any(axis=1, keepdims=True), hit.astype(np.float64), 1.0 / np.square(d))
    total = weights.sum(axis=1, keepdims=True)
    return (weights / np.where(total > 0, total, 1.0)).astype(np.float32)
