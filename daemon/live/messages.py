"""What the supervisor and a live worker say to each other: the same msgpack as clients, on a private endpoint."""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from myna.control.contract import (
    CheckReply,
    LatencyReply,
    LatencyRequest,
    LiveDevices,
    LiveSettings,
    RecordReply,
    SessionStatus,
)
from myna.daemon.orders import PlacementOrder as PlacementOrder
from myna.daemon.orders import VoiceOrder as VoiceOrder
from myna.daemon.voices.values import in_force

DEVICE_HUNG = 75
"""Exit code of a worker that leaves a device behind which does not close; a fresh one waits for its return."""


class SessionConfig(Struct, frozen=True, kw_only=True):
    """Everything that a live session runs with. Frozen: a change is a new one, with a higher revision."""

    session: str
    voice: VoiceOrder
    placement: PlacementOrder = PlacementOrder()
    devices: LiveDevices = LiveDevices()
    settings: LiveSettings = LiveSettings()
    bypass: bool = False
    muted: bool = False
    monitor_consent: bool = False
    revision: int = 0

    @property
    def in_force(self) -> LiveSettings:
        """The settings that hold: the voice's own, where the session's are still at their defaults."""
        return in_force(self.settings, self.voice.kept)


# --- supervisor to worker -------------------------------------------------------------------------------


class Configure(Struct, tag="configure", frozen=True, kw_only=True):
    """Run with this configuration: the first one starts the session, later ones change it.

    A `resumed` session ran before, under another worker or before a login: a device that is not there is waited for.
    """

    id: int
    config: SessionConfig
    resumed: bool = False


class Record(Struct, tag="record", frozen=True, kw_only=True):
    """Start (path given) or stop a recording."""

    id: int
    path: str | None
    source: str


class MeasureLatency(Struct, tag="latency", frozen=True, kw_only=True):
    """Measure the loopback delay."""

    id: int
    request: LatencyRequest


class Check(Struct, tag="check", frozen=True, kw_only=True):
    """Time a voice over block lengths."""

    id: int
    voice: VoiceOrder


class Stop(Struct, tag="stop", frozen=True, kw_only=True):
    """Fade out, close the devices, end."""

    id: int


Order = Configure | Record | MeasureLatency | Check | Stop

# --- worker to supervisor -------------------------------------------------------------------------------


class Answer(Struct, tag="answer", frozen=True, kw_only=True):
    """The end of an order: an error has a code of control.errors."""

    id: int
    code: str | None = None
    message: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    record: RecordReply | None = None
    latency: LatencyReply | None = None
    check: CheckReply | None = None


class Report(Struct, tag="report", frozen=True, kw_only=True):
    """The session's state, sent at every change and about ten times a second."""

    status: SessionStatus
    changed: bool  # state, voice or devices changed: clients are told
    gate_open: bool | None = None


class Said(Struct, tag="said", frozen=True, kw_only=True):
    """A line for the log."""

    level: str
    message: str


Word = Answer | Report | Said


def _encode_other(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} does not cross to a worker")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_other)
_orders = msgspec.msgpack.Decoder(Order)
_words = msgspec.msgpack.Decoder(Word)


def encode(message: Order | Word) -> bytes:
    """Bytes of a message."""
    return _encoder.encode(message)


def decode_order(data: bytes) -> Order:
    """An order from bytes; msgspec.ValidationError if it is none."""
    return _orders.decode(data)


def decode_word(data: bytes) -> Word:
    """A worker's word from bytes; msgspec.ValidationError if it is none."""
    return _words.decode(data)
