"""The interface of an audio backend: how the live worker sees sound devices."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from myna.daemon._core import Core


class DeviceError(Exception):
    """A device could not be found, opened or kept.

    `reason` is one of: not_found, busy, permission, rate, format, lost, no_server, failed. `facts` may list near
    names. The message names the device and the cure.
    """

    def __init__(self, reason: str, message: str, /, **facts: object) -> None:
        super().__init__(message)
        self.reason = reason
        self.facts: dict[str, object] = facts


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest:
    """What a session asks of a backend. Names, never indices; None as a name is the system's default."""

    input: str | None
    output: str | None
    host_api: str | None = None
    want_input: bool = True
    want_output: bool = True
    rate_hz: int | None = None  # None: the device's own
    period_ms: float = 10.0
    input_channels: tuple[int, ...] | None = None  # 0-based; None: all that the device has (at most 2)
    capacity_ms: float = 4000.0  # of each ring
    one_clock: bool = False  # both devices are known to share a clock, whatever their names tell


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFacts:
    """What was opened, as the host API tells it; None where it does not tell."""

    input: str | None
    output: str | None
    host_api: str
    rate_in_hz: int | None
    rate_out_hz: int | None
    period_in_frames: int | None
    period_out_frames: int | None
    device_in_ms: float | None
    device_out_ms: float | None
    duplex: bool  # both directions in one callback, on one clock
    realtime: str = "not asked"


class AudioStream(Protocol):
    """An open pair of directions (or one of them). `source` and `sink` are the same Core when duplex."""

    @property
    def facts(self) -> StreamFacts: ...

    @property
    def source(self) -> Core | None:
        """Core whose input ring the loop reads."""
        ...

    @property
    def sink(self) -> Core | None:
        """Core whose output ring the loop writes."""
        ...

    def start(self) -> None:
        """Let callbacks begin. DeviceError if the device refuses."""
        ...

    def ended(self) -> str | None:
        """None while it runs; else why it ended: `end_of_file`, `lost`, …. Never blocks."""
        ...

    def close(self) -> None:
        """Stop and release; never raises, never hangs for more than a second."""
        ...


class AudioBackend(Protocol):
    """A family of devices: `portaudio`, `file`, `null`, `fake`."""

    name: str

    def open(self, request: StreamRequest) -> AudioStream:
        """Open, but do not start. DeviceError if it can't be."""
        ...


Clock = Callable[[], float]
"""Seconds, monotonic."""
