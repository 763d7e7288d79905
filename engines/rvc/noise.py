"""Noise that belongs to a place in time, so that rendering a stretch twice gives it the same noise."""

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

_CHUNK = 64  # rows drawn together: a generator costs about as much as a few hundred numbers
_KEPT = 16  # chunks remembered


class KeyedNoise:
    """Standard normal rows numbered from minus to plus infinity; row n is the same whenever it is asked for."""

    def __init__(self, key: int, width: int) -> None:
        self._key = key
        self._width = width
        self._chunks: OrderedDict[int, Array] = OrderedDict()

    def rows(self, first: int, count: int) -> Array:
        """Rows first … first + count − 1, (count, width), float32."""
        lowest, highest = first // _CHUNK, (first + count - 1) // _CHUNK
        made = np.concatenate([self._chunk(n) for n in range(lowest, highest + 1)])
        offset = first - lowest * _CHUNK
        return made[offset : offset + count]

    def _chunk(self, number: int) -> Array:
        known = self._chunks.get(number)
        if known is None:
            counter = np.array([0, number & (2**64 - 1), 0, 0], np.uint64)  # a list would pass through float
            bits = np.random.Philox(key=self._key, counter=counter)
            known = np.random.Generator(bits).standard_normal((_CHUNK, self._width), dtype=np.float32)
            self._chunks[number] = known
            while len(self._chunks) > _KEPT:
                self._chunks.popitem(last=False)
        else:
            self._chunks.move_to_end(number)
        return known
