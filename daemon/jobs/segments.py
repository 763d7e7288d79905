"""Cuts long audio at quiet points, and joins converted segments so that no seam can be measured."""

import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

Block = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """How long segments are. Constants of the format: other values give other bytes."""

    shortest_s: float = 8.0
    longest_s: float = 20.0
    quiet_ms: float = 60.0  # a cut wants this much quiet around it
    quiet_db: float = -20.0  # against the loud parts of the stretch
    fade_ms: float = 40.0  # overlap of two segments in the result
    search_ms: float = 10.0  # half a period of the lowest pitch (50 Hz): any phase is found within ±10 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Frame counts of the input that are whole numbers of output frames."""

    rate_in_hz: int
    rate_out_hz: int

    @property
    def step(self) -> int:
        """Smallest input length with a whole output length: 147 for 44.1 kHz to 48 kHz (160 out)."""
        return self.rate_in_hz // math.gcd(self.rate_in_hz, self.rate_out_hz)

    def out(self, frames: int) -> int:
        """Output frames of so many input frames (a multiple of `step`, or the end of the audio)."""
        return round(frames * self.rate_out_hz / self.rate_in_hz)

    def up(self, seconds: float) -> int:
        """A multiple of `step`, in input frames, of at least `seconds`."""
        return math.ceil(math.ceil(seconds * self.rate_in_hz) / self.step) * self.step


def quiet_point(audio: Block, first: int, grid: Grid, cutting: Cutting) -> int:
    """Where to cut a stretch: the middle of its quietest place, or its end where no place is quiet.

    Args:
        audio: The stretch, shape (frames,).
        first: Earliest cut, in frames.
        grid: Cuts are multiples of its step.
        cutting: How wide and how quiet a place must be.

    Returns:
        Frames from the start, a multiple of `grid.step`, in first..frames; the latest on a tie.
    """
    last = len(audio) // grid.step * grid.step
    first = math.ceil(first / grid.step) * grid.step
    if first >= last:
        return last
    half = max(1, round(cutting.quiet_ms / 2000 * grid.rate_in_hz))
    energy = np.concatenate([np.zeros(1), np.cumsum(np.square(audio, dtype=np.float64))])
    hop = max(1, round(0.005 * grid.rate_in_hz / grid.step)) * grid.step
    cuts = np.arange(first, last + 1, hop)
    low, high = np.maximum(cuts - half, 0), np.minimum(cuts + half, len(audio))
    power = (energy[high] - energy[low]) / (high - low)
    # Against the loud parts: the 90th percentile is not fooled by a pause in half of the stretch.
    quiet = np.percentile(power, 90) * 10 ** (cutting.quiet_db / 10)
    lowest = power.min()
    if lowest > quiet:
        return last
    return int(cuts[np.flatnonzero(power == lowest)[-1]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A segment's input: the part that is its own, with context on both sides.

    `audio` begins `before` frames before `start`; `end` is its own end. Frames count from the start of the input.
    """

    index: int
    start: int
    end: int
    before: int
    audio: Block
    last: bool


class Source(Protocol):
    """What segments are cut from."""

    def read(self, frames: int) -> Block:
        """Up to `frames` more; fewer only at the end."""
        ...


def stretches(
    source: Source, grid: Grid, context_s: float, cutting: Cutting, limit: int | None = None
) -> Iterator[Stretch]:
    """Cut a source as it is read: memory is one stretch and its contexts, however long the input is.

    Args:
        source: Read once, from start to end.
        grid: Rates of input and result.
        context_s: Seconds of context on either side of a segment, at least those of the joint.
        cutting: See there.
        limit: Frames after which the input counts as ended.
    """
    context, longest = grid.up(context_s), grid.up(cutting.longest_s)
    shortest = grid.up(cutting.shortest_s)
    held = np.zeros(0, np.float32)
    at = start = index = 0  # `held` begins at input frame `at`; the segment at `start`
    ended = False
    left = limit
    while True:
        want = start + longest + context - (at + len(held))
        while want > 0 and not ended:
            ask = min(want, 1 << 18) if left is None else min(want, 1 << 18, left)
            block = source.read(ask) if ask else np.zeros(0, np.float32)
            ended = len(block) < ask or ask == 0
            held = np.concatenate([held, block])
            want -= len(block)
            if left is not None:
                left -= len(block)
                ended = ended or left == 0
        whole = at + len(held)
        last = ended and whole - start <= longest
        end = whole if last else start + quiet_point(held[start - at : start - at + longest], shortest, grid, cutting)
        stop = min(whole, end + context)
        yield Stretch(index=index, start=start, end=end, before=start - at, audio=held[: stop - at], last=last)
        if last:
            return
        keep = max(at, end - context)
        held, at, start, index = held[keep - at :], keep, end, index + 1


# --- segment files --------------------------------------------------------------------------------------

_MAGIC = b"MYNASEG1"
_HEAD = struct.Struct("<8sII")


class Header(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a segment file says about itself. Frames are output frames."""

    mark: bytes  # of all that the bytes depend on: input, voice, parameters, place
    index: int
    start: int  # its own part within the result
    end: int
    before: int  # frames of the file ahead of `start`
    rate_hz: int
    last: bool
    work_s: float


def segment_path(folder: Path, index: int) -> Path:
    """The file of a segment."""
    return folder / f"{index:06d}.seg"


def write_segment(folder: Path, header: Header, audio: Block) -> None:
    """Publish a segment: temporary name, sync, rename. OSError if the disk refuses."""
    body = np.ascontiguousarray(audio, dtype="<f4").tobytes()
    head = msgspec.msgpack.encode(header)
    path = segment_path(folder, header.index)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(_HEAD.pack(_MAGIC, len(head), zlib.crc32(body, zlib.crc32(head))))
        file.write(head)
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def read_segment(path: Path) -> tuple[Header, Block] | None:
    """A segment file; None if there is none, or it is not whole."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(data) < _HEAD.size:
        return None
    magic, length, checksum = _HEAD.unpack_from(data)
    head, body = data[_HEAD.size : _HEAD.size + length], data[_HEAD.size + length :]
    if magic != _MAGIC or zlib.crc32(body, zlib.crc32(head)) != checksum or len(body) % 4:
        return None
    try:
        header = msgspec.msgpack.decode(head, type=Header)
    except msgspec.MsgspecError:
        return None
    return header, np.frombuffer(body, dtype="<f4").astype(np.float32)


# --- joints ---------------------------------------------------------------------------------------------


def best_lag(tail: Block, new: Block, search: int) -> tuple[int, float]:
    """Find the shift at which `new` continues the waveform of `tail`.

    Args:
        tail: What was there, shape (frames,).
        new: What comes, shape (frames + 2 × search,): at lag 0 it lies `search` frames in.
        search: Largest shift either way, in frames.

    Returns:
        The lag, in -search..search, and the normalised correlation there, in -1..1. Lag 0 where that is as good,
        and where either is silent or nothing fits (noise has no phase to meet).
    """
    a = tail.astype(np.float64)
    b = new.astype(np.float64)
    energy_a = float(a @ a)
    squares = np.concatenate([np.zeros(1), np.cumsum(b * b)])
    energy_b = squares[len(a) :] - squares[: len(squares) - len(a)]
    floor = 1e-9 * len(a)  # −90 dBFS
    if energy_a < floor or float(energy_b.max()) < floor:
        return 0, 0.0
    products = np.correlate(b, a, mode="valid")
    fit = products / np.sqrt(energy_a * np.maximum(energy_b, floor))
    best = int(np.argmax(fit))
    if fit[best] < 0.3 or fit[best] - fit[search] < 1e-3:
        best = search
    return best - search, float(fit[best])


def crossfade(tail: Block, new: Block, correlation: float) -> Block:
    """Fade from `tail` to `new`, shape (frames,) each, at constant power whatever their correlation.

    Equal signals (1) get equal gain, strangers (0) equal power: u² + v² + 2ρuv = 1 in between.
    """
    u = 0.5 - 0.5 * np.cos(np.pi * (np.arange(len(tail)) + 0.5) / len(tail))
    rho = min(1.0, max(0.0, correlation))
    norm = 1.0 / np.sqrt(u * u + (1 - u) * (1 - u) + 2 * rho * u * (1 - u))
    mixed: Block = (((1 - u) * tail + u * new) * norm).astype(np.float32)
    return mixed


def joint_frames(cutting: Cutting, rate_hz: int) -> tuple[int, int]:
    """Half the overlap, and the search, in output frames."""
    return round(cutting.fade_ms / 2000 * rate_hz), round(cutting.search_ms / 1000 * rate_hz)


def margin_s(cutting: Cutting) -> float:
    """Seconds of converted audio that a joint needs on either side of a cut."""
    return (cutting.fade_ms / 2 + 2 * cutting.search_ms) / 1000


def join(count: int, load: Callable[[int], tuple[Header, Block]], cutting: Cutting) -> Iterator[Block]:
    """The result, block by block: segments trimmed to their own parts, each joint aligned and crossfaded.

    A segment is shifted as a whole by at most `search`, so that its waveform meets the one before; shifts do not
    add up, as each is measured from the segment's own place. The first is never shifted, the length never changes.

    Args:
        count: How many segments, >= 1.
        load: Gives a segment by index.
        cutting: As they were cut with.
    """
    header, audio = load(0)
    half, search = joint_frames(cutting, header.rate_hz)
    lag, begin = 0, header.start
    for index in range(count):
        following = load(index + 1) if index + 1 < count else None
        offset = header.before - header.start + lag  # result frame → index into `audio`
        if following is None:
            yield _span(audio, begin + offset, header.end + offset)
            return
        next_header, next_audio = following
        cut = header.end
        # A segment may be shorter than a joint only at the very end of the input.
        fade = min(half, next_header.end - cut, cut - begin)
        yield _span(audio, begin + offset, cut - fade + offset)
        tail = _span(audio, cut - fade + offset, cut + fade + offset)
        base = next_header.before - next_header.start
        reach = min(search, cut - fade + base)
        candidates = _span(next_audio, cut - fade + base - reach, cut + fade + base + reach)
        lag, fit = best_lag(tail, candidates, reach) if fade else (0, 0.0)
        new = candidates[reach + lag : reach + lag + 2 * fade]
        if fade:
            yield crossfade(tail, new, fit)
        header, audio, begin = next_header, next_audio, cut + fade


def _span(audio: Block, first: int, end: int) -> Block:
    """A part of `audio`, continued by silence past its end."""
    part = audio[max(0, first) : max(0, end)]
    missing = end - first - len(part)
    return part if missing <= 0 else np.concatenate([part, np.zeros(missing, np.float32)])
