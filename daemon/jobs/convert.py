"""The work of a conversion job, inside a worker: read, cut, convert, journal, join, publish."""

import hashlib
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import psutil
import soxr

from myna.daemon import media
from myna.daemon.jobs import segments
from myna.daemon.jobs.messages import FromWorker, Opened, Order, Standing, Unit
from myna.daemon.jobs.parameters import resolved
from myna.daemon.jobs.segments import Block, Cutting, Grid, Header
from myna.engines.base import EngineError, FileVoice, VoiceParameters

FORMAT_VERSION = 1  # of segment contents: another number means that old segments are made anew
PREVIEW_S = 10.0
INTENT = "publish.msgpack"
CUTTING = Cutting()


class GaveUp(Exception):
    """The order was called back."""


class WorkFolderUnwritable(Exception):
    """Segments can't be kept: the state folder is full or read-only."""


OpenVoice = Callable[[Order, VoiceParameters], AbstractContextManager[FileVoice]]


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """Written right before the output appears, so that a later attempt knows a published output for its own."""

    folder: str
    device: int
    inode: int
    result: dict[str, object]


def voice_parameters(order: Order) -> VoiceParameters:
    """How the voice of an order sounds."""
    return VoiceParameters(**resolved(order.voice.kept, order.parameters))  # type: ignore[arg-type]


def convert(
    order: Order,
    open_voice: OpenVoice,
    report: Callable[[FromWorker], None],
    stop: Callable[[], bool],
    cutting: Cutting = CUTTING,
) -> dict[str, object]:
    """Do an order; what earlier attempts finished is not done again.

    Args:
        order: What to do.
        open_voice: Lends the loaded voice.
        report: Takes news: the voice is open, a segment is finished.
        stop: Whether to give up, asked between units of work.
        cutting: How long input is cut.

    Returns:
        The result as users see it: where it is, what made it, how long it took.

    Raises:
        GaveUp: `stop` said so.
        MediaError, EngineError: the input, the output or the voice.
        WorkFolderUnwritable: the disk under the state folder.
    """
    work = Path(order.work_dir)
    try:
        work.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise WorkFolderUnwritable(str(error)) from error
    if (earlier := _published(work, order)) is not None:
        return earlier
    output = Path(order.output)
    policy = cast(media.Exists, order.exists)
    if media.target_path(output, policy) is None:
        return {"output": order.output, "skipped": True, "warnings": ["the output is there already"]}
    if policy == "overwrite" and _same_file(output, Path(order.input)):
        raise media.MediaError(
            "unwritable", "The output would take the place of its own input. Choose another name.", path=order.output
        )
    began = time.monotonic()
    with media.open_reader(order.input) as reader:
        _rehearse(output, order, reader.rate_hz)
        with open_voice(order, voice_parameters(order)) as voice:
            load_s = time.monotonic() - began
            limit = _limit(order, reader.rate_hz)
            frames = reader.frames if limit is None or reader.frames is None else min(limit, reader.frames)
            audio_s = frames / reader.rate_hz if frames is not None else reader.duration_s
            report(
                Opened(
                    job=order.job,
                    attempt=order.attempt,
                    load_s=load_s,
                    audio_s=audio_s,
                    facts=_facts(voice),
                )
            )
            worked = time.monotonic()
            task = _Task(order, voice, reader, work, report, stop, cutting, limit, frames)
            task.make_segments()
        result = task.assemble(output, policy)
    result["load_s"] = load_s
    result["run_s"] = time.monotonic() - worked
    return result


def _rehearse(output: Path, order: Order, rate_hz: int) -> None:
    """Begin the output and take it back: what can't be written is told now, not after hours of work."""
    file_format = media.format_of(output, order.format)  # type: ignore[arg-type]
    rate = media.writable_rate_hz(file_format, rate_hz)
    media.Writer(output, rate, file_format, exists="overwrite", token=order.job).abort()


class _Task:
    """One attempt under way."""

    def __init__(
        self,
        order: Order,
        voice: FileVoice,
        reader: media.Reader,
        work: Path,
        report: Callable[[FromWorker], None],
        stop: Callable[[], bool],
        cutting: Cutting,
        limit: int | None,
        frames: int | None,
    ) -> None:
        self.order, self.voice, self.reader, self.work = order, voice, reader, work
        self.report, self.stop, self.cutting, self.limit = report, stop, cutting, limit
        self.frames = frames
        self.grid = Grid(rate_in_hz=reader.rate_hz, rate_out_hz=voice.rate_hz or reader.rate_hz)
        self.facts = _facts(voice)
        self.mark = _mark(order, self.facts, self.grid, cutting)
        self.count = 0
        self.made = 0
        self.work_s = 0.0
        self.total_in = 0
        self.nonfinite = 0

    def make_segments(self) -> None:
        """Convert what no earlier attempt has, each segment published as it is done."""
        context_s = max(self.voice.context_ms / 1000, 0.0) + segments.margin_s(self.cutting)
        standing: list[int] = []
        for stretch in segments.stretches(self.reader, self.grid, context_s, self.cutting, self.limit):
            if self.stop():
                raise GaveUp
            self.count, self.total_in = stretch.index + 1, stretch.end
            if stretch.end == stretch.start == 0:
                raise media.MediaError(
                    "empty", f"{media.name_for_humans(Path(self.order.input))} holds no sound.", path=self.order.input
                )
            if (header := self._standing(stretch)) is not None:
                standing.append(stretch.index)
                self.work_s += header.work_s
                continue
            if standing:
                self._tell_standing(standing)
            self._make(stretch)
        if standing:
            self._tell_standing(standing)

    def _tell_standing(self, standing: list[int]) -> None:
        self.report(Standing(job=self.order.job, attempt=self.order.attempt, segments=list(standing)))
        standing.clear()

    def _standing(self, stretch: segments.Stretch) -> Header | None:
        found = segments.read_segment(segments.segment_path(self.work, stretch.index))
        if found is None:
            return None
        header = found[0]
        own = (self.mark, self.grid.out(stretch.start), self.grid.out(stretch.end), stretch.last)
        return header if (header.mark, header.start, header.end, header.last) == own else None

    def _make(self, stretch: segments.Stretch) -> None:
        audio = stretch.audio
        if stretch.last and stretch.index > 0:
            # A joint may shift the last segment by some milliseconds: let its end ring out.
            audio = np.concatenate([audio, np.zeros(self.grid.up(segments.margin_s(self.cutting)), np.float32)])
        began = time.monotonic()
        made = self.voice.convert(audio, self.grid.rate_in_hz)
        work_s = time.monotonic() - began
        wanted = self.grid.out(len(audio))
        if made.shape != (wanted,):
            raise EngineError(
                f"The engine {self.order.voice.engine!r} gave {made.shape} frames where {wanted} were due.",
                engine=self.order.voice.engine,
            )
        finite = np.isfinite(made)
        if not finite.all():
            self.nonfinite += int(made.size - np.count_nonzero(finite))
            made = np.where(finite, made, np.float32(0))
        before = self.grid.out(stretch.before)
        # Only what a joint can need is kept of the contexts.
        margin = round(segments.margin_s(self.cutting) * self.grid.rate_out_hz)
        core_end = before + self.grid.out(stretch.end) - self.grid.out(stretch.start)
        first, last = max(0, before - margin), min(len(made), core_end + margin)
        header = Header(
            mark=self.mark,
            index=stretch.index,
            start=self.grid.out(stretch.start),
            end=self.grid.out(stretch.end),
            before=before - first,
            rate_hz=self.grid.rate_out_hz,
            last=stretch.last,
            work_s=work_s,
        )
        try:
            segments.write_segment(self.work, header, made[first:last])
        except OSError as error:
            raise WorkFolderUnwritable(str(error)) from error
        self.made += 1
        self.work_s += work_s
        known = self.frames if self.frames else None
        progress = min(1.0, stretch.end / known) if known else (1.0 if stretch.last else 0.0)
        self.report(
            Unit(
                job=self.order.job,
                attempt=self.order.attempt,
                segment=stretch.index,
                segments=self.count if stretch.last else None,
                work_s=work_s,
                progress=progress,
            )
        )

    def _load(self, index: int) -> tuple[Header, Block]:
        found = segments.read_segment(segments.segment_path(self.work, index))
        if found is None or found[0].mark != self.mark:
            raise WorkFolderUnwritable(f"segment {index} is gone")
        return found

    def assemble(self, output: Path, policy: media.Exists) -> dict[str, object]:
        """Join the segments into the output, which appears whole."""
        file_format = media.format_of(output, self.order.format)  # type: ignore[arg-type]
        rate = media.writable_rate_hz(file_format, self.grid.rate_out_hz)
        writer = media.Writer(output, rate, file_format, self.reader.tags, exists=policy, token=self.order.job)
        with writer:
            resampler = (
                soxr.ResampleStream(self.grid.rate_out_hz, rate, 1, dtype="float32", quality="VHQ")
                if rate != self.grid.rate_out_hz
                else None
            )
            for block in segments.join(self.count, self._load, self.cutting):
                if self.stop():
                    raise GaveUp
                writer.write(block if resampler is None else resampler.resample_chunk(block))
            if resampler is not None:
                writer.write(resampler.resample_chunk(np.zeros(0, np.float32), last=True))
            result = self._result(writer, rate)
            part = output.with_name(f"{media.PART_PREFIX}{self.order.job}{media.PART_SUFFIX}").stat()
            intent = Intent(folder=str(output.parent), device=part.st_dev, inode=part.st_ino, result=result)
            _keep(self.work / INTENT, msgspec.msgpack.encode(intent))
            published = writer.commit()
        if published is None:
            return {"output": self.order.output, "skipped": True, "warnings": ["the output was there first"]}
        result["output"] = str(published)
        return result

    def _result(self, writer: media.Writer, rate: int) -> dict[str, object]:
        audio_s = self.total_in / self.grid.rate_in_hz
        warnings = [*self.reader.problems]
        if self.reader.nonfinite_samples:
            warnings.append(f"{self.reader.nonfinite_samples} samples of the input were NaN or infinite: made silent")
        if self.nonfinite:
            warnings.append(f"{self.nonfinite} samples from the voice were NaN or infinite: made silent")
        if writer.clipped_samples:
            warnings.append(f"{writer.clipped_samples} samples were over full scale: clipped")
        if rate != self.grid.rate_out_hz:
            warnings.append(f"{writer.format} can't hold {self.grid.rate_out_hz} Hz: resampled to {rate} Hz")
        if self.order.voice.unchanged:
            warnings.append("voice unchanged: this voice is the input by definition")
        return {
            "output": self.order.output,
            "format": writer.format,
            "rate_hz": rate,
            "frames": writer.frames,
            "audio_s": audio_s,
            "work_s": self.work_s,
            "realtime_factor": self.work_s / audio_s if audio_s > 0 else None,
            "segments": self.count,
            "segments_made": self.made,
            "voice_unchanged": self.order.voice.unchanged,
            "warnings": warnings,
            "memory": {"peak_rss_bytes": peak_rss_bytes()},
            **self.facts,
        }


def peak_rss_bytes() -> int:
    """The most memory that this process had, over its life."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource  # POSIX only

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _limit(order: Order, rate_hz: int) -> int | None:
    seconds = order.seconds
    if seconds is None and order.kind == "preview":
        seconds = PREVIEW_S
    return max(1, round(seconds * rate_hz)) if seconds is not None else None


def _facts(voice: FileVoice) -> dict[str, object]:
    facts = asdict(voice.facts)
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in facts.items()
        if name in ("engine", "device", "precision", "backend", "providers", "fallbacks", "notes")
    }


def _mark(order: Order, facts: dict[str, object], grid: Grid, cutting: Cutting) -> bytes:
    """A digest of all that a segment's bytes depend on; a stale segment never enters a result."""

    def identity(path: str) -> tuple[str, int, int]:
        try:
            found = os.stat(path)
        except OSError:
            return path, -1, -1
        return path, found.st_size, found.st_mtime_ns

    whole = (
        FORMAT_VERSION,
        _program(),  # another version of a voice gives other bytes
        identity(order.input),
        order.kind,
        order.seconds,
        sorted(resolved(order.voice.kept, order.parameters).items()),
        sorted((name, str(value)) for name, value in order.voice.defaults.items()),
        (order.voice.id, order.voice.engine, sorted(map(identity, order.voice.files.values()))),
        sorted((name, str(value)) for name, value in facts.items() if name != "notes"),
        (grid.rate_in_hz, grid.rate_out_hz),
        tuple(asdict(cutting).items()),
    )
    return hashlib.sha256(msgspec.msgpack.encode(whole, enc_hook=str)).digest()[:16]


@cache
def _program() -> str:
    """The version of myna that runs; empty where it is not installed."""
    try:
        return version("myna")
    except PackageNotFoundError:
        return ""


def _published(work: Path, order: Order) -> dict[str, object] | None:
    """The result of an attempt that was killed between publishing and saying so."""
    try:
        intent = msgspec.msgpack.decode((work / INTENT).read_bytes(), type=Intent)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    part = f"{media.PART_PREFIX}{order.job}{media.PART_SUFFIX}"
    named: str | None = None
    try:
        with os.scandir(intent.folder) as entries:
            for entry in entries:
                ours = entry.inode() == intent.inode and entry.name != part
                if ours and entry.stat(follow_symlinks=False).st_dev == intent.device:
                    named = entry.path
    except OSError:
        return None
    if named is None:
        return None
    # Linked under its name, and killed before the hidden name was removed.
    media.sweep_parts(Path(intent.folder), order.job)
    return {**intent.result, "output": named}


def _same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _keep(path: Path, data: bytes) -> None:
    part = path.with_suffix(".part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise WorkFolderUnwritable(str(error)) from error
