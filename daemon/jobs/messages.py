"""What the queue and its workers say to each other: msgpack frames on private pipes, typed on both sides."""

import struct
from collections.abc import Callable
from typing import IO

import msgspec
from msgspec import Struct

from myna.control.contract import JobKind, ModelInfo, ParamValue
from myna.daemon.orders import PlacementOrder, VoiceOrder

MAX_FRAME_BYTES = 1 << 20
_LENGTH = struct.Struct(">I")

Figures = dict[str, int | float | None]


# --- to a worker ----------------------------------------------------------------------------------------


class Order(Struct, frozen=True, kw_only=True, tag="order"):
    """Do this attempt of this job."""

    job: str
    attempt: int
    kind: JobKind
    input: str
    output: str
    exists: str
    format: str
    seconds: float | None
    parameters: dict[str, ParamValue]
    voice: VoiceOrder
    placement: PlacementOrder
    work_dir: str
    unload_after_s: float = 0.0  # voices that were idle for so long go when this is done; 0: never


class StopOrder(Struct, frozen=True, kw_only=True, tag="stop"):
    """Give this attempt up at the next chance."""

    job: str
    attempt: int


class AskUnload(Struct, frozen=True, kw_only=True, tag="unload"):
    """Let go of a model."""

    ask: int
    id: str


class AskFlush(Struct, frozen=True, kw_only=True, tag="flush"):
    """Let go of caches, and with `unload` of idle models."""

    ask: int
    unload: bool


class Quit(Struct, frozen=True, kw_only=True, tag="quit"):
    """End when the current order is done."""


ToWorker = Order | StopOrder | AskUnload | AskFlush | Quit

# --- from a worker --------------------------------------------------------------------------------------


class Ready(Struct, frozen=True, kw_only=True, tag="ready"):
    """All that a job needs is imported."""

    pid: int


class Opened(Struct, frozen=True, kw_only=True, tag="opened"):
    """The voice is loaded, the input is open: work begins. `standing` segments of earlier attempts hold."""

    job: str
    attempt: int
    load_s: float
    audio_s: float | None
    facts: dict[str, object]


class Standing(Struct, frozen=True, kw_only=True, tag="standing"):
    """Segments of earlier attempts that were found whole and are used as they are."""

    job: str
    attempt: int
    segments: list[int]


class Unit(Struct, frozen=True, kw_only=True, tag="unit"):
    """A segment is published in the work folder."""

    job: str
    attempt: int
    segment: int
    segments: int | None
    work_s: float
    progress: float


class Done(Struct, frozen=True, kw_only=True, tag="done"):
    """The output is published."""

    job: str
    attempt: int
    result: dict[str, object]


class Fault(Struct, frozen=True, kw_only=True, tag="fault"):
    """The attempt failed for a reason that has a code."""

    job: str
    attempt: int
    code: str
    message: str
    facts: dict[str, object]


class Stopped(Struct, frozen=True, kw_only=True, tag="stopped"):
    """The attempt was given up as asked."""

    job: str
    attempt: int


class Models(Struct, frozen=True, kw_only=True, tag="models"):
    """What the worker holds in memory, told after each order and each unloading."""

    models: list[ModelInfo]


class Answer(Struct, frozen=True, kw_only=True, tag="answer"):
    """Memory was let go of; figures in bytes as measured, None where there was nothing to ask."""

    ask: int
    done: bool
    before: dict[str, int | None]
    after: dict[str, int | None]


FromWorker = Ready | Opened | Standing | Unit | Done | Fault | Stopped | Models | Answer

_encoder = msgspec.msgpack.Encoder(enc_hook=str)
to_worker: "msgspec.msgpack.Decoder[ToWorker]" = msgspec.msgpack.Decoder(ToWorker)
from_worker: "msgspec.msgpack.Decoder[FromWorker]" = msgspec.msgpack.Decoder(FromWorker)


class BadFrame(Exception):
    """The other end sent what is no message; it is not to be trusted any further."""


def write_message(pipe: IO[bytes], message: ToWorker | FromWorker) -> None:
    """Write one frame whole. OSError if the other end is gone."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise BadFrame(f"a message of {len(body)} bytes")
    pipe.write(_LENGTH.pack(len(body)) + body)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> bytes | None:
    """Read one frame; None at the end, also where it breaks off in the middle."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise BadFrame(f"a frame of {length} bytes")
    body = pipe.read(length)
    return body if len(body) == length else None


def each_from_worker(pipe: IO[bytes], take: Callable[[FromWorker], None]) -> None:
    """Hand on every message of a worker until its end. BadFrame on one that is none."""
    try:
        while (body := read_frame(pipe)) is not None:
            take(from_worker.decode(body))
    except msgspec.MsgspecError as error:
        raise BadFrame(str(error)) from error


def each_to_worker(pipe: IO[bytes], take: Callable[[ToWorker], None]) -> None:
    """Hand on every message for a worker until its end. BadFrame on one that is none."""
    try:
        while (body := read_frame(pipe)) is not None:
            take(to_worker.decode(body))
    except msgspec.MsgspecError as error:
        raise BadFrame(str(error)) from error
