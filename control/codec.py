"""The codec of the wire: frames to checked messages and back, with every problem reported at once."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any, NamedTuple, TypeVar, cast

import msgspec
from msgspec import Meta, Struct, inspect

from myna.control.contract import MAGIC, MAX_MESSAGE_BYTES, METHODS, PROTOCOL_VERSION, Message
from myna.control.errors import CODES, MynaError

MAX_DEPTH = 16
"""Deepest nesting of a message; the contract's own messages need 5."""
MAX_PROBLEMS = 50
"""Problems listed of one message; a hostile one could have a million."""

M = TypeVar("M", bound=Struct)
Methods = Mapping[str, tuple[type[Message], type[Message]]]


class RequestHeader(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Second frame of a request."""

    id: Annotated[int, Meta(ge=0, le=2**63 - 1)]  # chosen by the client, echoed in the reply
    method: Annotated[str, Meta(min_length=1, max_length=64)]
    protocol: Annotated[int, Meta(ge=0, le=65535)]


class ReplyHeader(Struct, frozen=True, kw_only=True):
    """Second frame of a reply; `id` is null where the request's could not be read."""

    id: int | None
    ok: bool
    protocol: int


class Fault(Struct, frozen=True, kw_only=True):
    """Body of a reply that is not ok."""

    code: str
    message: str
    facts: dict[str, Any] = msgspec.field(default_factory=dict)

    def error(self) -> MynaError:
        """This fault as the exception it was; a code of a newer daemon reads as `failed`."""
        error = MynaError(self.code if self.code in CODES else "failed", self.message)
        error.facts = dict(self.facts)
        if error.code != self.code:
            error.facts["unpublished_code"] = self.code
        return error


class Problem(NamedTuple):
    """What is wrong with one field; `field` is its dotted path, empty for the message itself."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field or 'message'}: {self.message}"


# --- encoding -------------------------------------------------------------------------------------------


def _plain(value: object) -> object:
    """What msgpack has no type for travels as its text."""
    return str(value)


def pack(value: object) -> bytes:
    """`value` in msgpack. MynaError `too_large` beyond the message limit, `bad_request` for broken Unicode."""
    try:
        data = msgspec.msgpack.encode(value, enc_hook=_plain)
    except UnicodeEncodeError as error:  # a file name of bytes that are no UTF-8
        raise MynaError(
            "bad_request",
            f"The text {error.object[:80]!a} is no valid Unicode; rename the file.",
            text=ascii(error.object),
        ) from None
    if len(data) > MAX_MESSAGE_BYTES:
        raise MynaError(
            "too_large",
            f"The message has {len(data)} bytes, {MAX_MESSAGE_BYTES} are allowed; ask for fewer at a time.",
            bytes=len(data),
            limit=MAX_MESSAGE_BYTES,
        )
    return data


def encode_request(request_id: int, method: str, message: Message) -> list[bytes]:
    """Frames of a request."""
    header = RequestHeader(id=request_id, method=method, protocol=PROTOCOL_VERSION)
    return [MAGIC, pack(header), pack(message)]


def encode_reply(request_id: int | None, message: Message) -> list[bytes]:
    """Frames of a good reply."""
    return [MAGIC, pack(ReplyHeader(id=request_id, ok=True, protocol=PROTOCOL_VERSION)), pack(message)]


def fault(error: MynaError) -> Fault:
    """`error` as it crosses the wire."""
    return Fault(code=error.code, message=error.message, facts=error.facts)


def encode_error(request_id: int | None, error: MynaError) -> list[bytes]:
    """Frames of a reply that says what went wrong."""
    header = pack(ReplyHeader(id=request_id, ok=False, protocol=PROTOCOL_VERSION))
    try:
        body = pack(fault(error))
    except MynaError:  # facts beyond the limit: the cause still gets through
        body = pack(Fault(code=error.code, message=error.message[:4096]))
    return [MAGIC, header, body]


# --- decoding -------------------------------------------------------------------------------------------


def decode_request_header(frames: Sequence[bytes]) -> RequestHeader:
    """Check the envelope of a request and read its header.

    Raises:
        MynaError: `bad_request`, `too_large` or `version_mismatch`.
    """
    _check_envelope(frames)
    header = decode(RequestHeader, frames[1], what="header")
    if header.protocol != PROTOCOL_VERSION:
        raise _mismatch(header.protocol)
    return header


def request_id(frames: Sequence[bytes]) -> int | None:
    """The id of a request that was refused, where it can still be read."""
    if len(frames) < 2:
        return None
    try:
        header = unpack(frames[1])
    except MynaError:
        return None
    found = header.get("id") if isinstance(header, dict) else None
    return found if type(found) is int and 0 <= found < 2**63 else None


def decode_reply(frames: Sequence[bytes], kind: type[M]) -> tuple[int | None, M | MynaError]:
    """Read a reply: the id it answers, and its message or the error it carries.

    Fields that this client does not know are passed over, so that a newer daemon can tell more.

    Raises:
        MynaError: `bad_request` or `version_mismatch` if the frames are no reply at all.
    """
    _check_envelope(frames)
    header = decode(ReplyHeader, frames[1], what="header", strict=False)
    if not header.ok:
        return header.id, decode(Fault, frames[2], what="error", strict=False).error()
    return header.id, decode(kind, frames[2], what="reply", strict=False)


def reply_id(frames: Sequence[bytes]) -> int | None:
    """The id that a reply answers, None where it names none. MynaError if the frames are no reply."""
    _check_envelope(frames)
    return decode(ReplyHeader, frames[1], what="header", strict=False).id


def request_type(method: str, methods: Methods = METHODS) -> type[Message]:
    """The message that `method` takes. MynaError `bad_request` with a hint for an unknown one."""
    try:
        return methods[method][0]
    except KeyError:
        raise MynaError(
            "bad_request",
            f"There is no method {_shown(method)}{did_you_mean(method, methods)}",
            method=method,
        ) from None


def decode(kind: type[M], data: bytes, *, what: str = "request", strict: bool = True) -> M:
    """Decode msgpack into a struct, checked whole.

    Args:
        kind: The struct expected.
        data: msgpack, at most the message limit.
        what: How to call it in errors.
        strict: Unknown keys and non-finite numbers are refused; otherwise unknown keys are dropped.

    Raises:
        MynaError: `too_large`, or `bad_request` whose `problems` fact lists every problem with its field.
    """
    return validate(kind, unpack(data), what=what, strict=strict)


def validate(kind: type[M], raw: object, *, what: str = "request", strict: bool = True) -> M:
    """Turn plain data (dicts, lists, numbers, text) into a struct; errors as `decode`."""
    if not strict:
        try:
            return msgspec.convert(raw, kind)
        except (msgspec.ValidationError, OverflowError):
            raw = _without_unknown(_info(kind), raw)
        try:
            return msgspec.convert(raw, kind)
        except (msgspec.ValidationError, OverflowError):
            pass  # the walk below says where
    found = list(islice(_walk(_info(kind), raw, ""), MAX_PROBLEMS + 1))
    if not found:
        try:
            return msgspec.convert(raw, kind)
        except (msgspec.ValidationError, OverflowError) as error:
            found = [Problem("", str(error))]
    raise refusal(what, found)


def refusal(what: str, found: Sequence[Problem], code: str = "bad_request") -> MynaError:
    """One error for all problems of a message."""
    more = "" if len(found) <= MAX_PROBLEMS else " (and more)"
    found = found[:MAX_PROBLEMS]
    return MynaError(
        code,
        f"The {what} has {len(found)}{more} problem{'s' if len(found) > 1 else ''}: "
        + "; ".join(str(problem).removesuffix(".") for problem in found[:5])
        + ("; …" if len(found) > 5 else "."),
        problems=[{"field": problem.field, "message": problem.message} for problem in found],
    )


def problems(kind: Any, data: object, path: str = "") -> list[Problem]:
    """Every problem of plain `data` against a type: unknown keys, missing fields, wrong types, ranges.

    Args:
        kind: A struct or any type the contract uses.
        data: What a decoder without types returns.
        path: Prefix of the reported field paths.
    """
    found = list(islice(_walk(_info(kind), data, path), MAX_PROBLEMS + 1))
    if not found:
        try:
            msgspec.convert(data, kind)
        except (msgspec.ValidationError, OverflowError) as error:
            found = [Problem(path, str(error))]
    return found


def unpack(data: bytes) -> object:
    """msgpack to plain data: no extension types, no binary, text keys, bounded depth and size."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise MynaError(
            "too_large",
            f"The message has {len(data)} bytes; {MAX_MESSAGE_BYTES} are allowed.",
            bytes=len(data),
            limit=MAX_MESSAGE_BYTES,
        )
    try:
        raw: object = msgspec.msgpack.decode(data, ext_hook=_no_extension)
    except RecursionError:
        raise _malformed(f"nested deeper than {MAX_DEPTH}") from None
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise _malformed(str(error)) from None
    _check_tree(raw)
    return raw


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence end: the nearest known word, or only a full stop."""
    if len(word) > 64:  # difflib is quadratic
        return "."
    import difflib  # 2 ms of a command's start, for a mistake only

    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean `{near[0]}`?" if near else "."


def _no_extension(code: int, _data: memoryview) -> object:
    raise ValueError(f"extension type {code} is not allowed")


def _malformed(detail: str) -> MynaError:
    return MynaError("bad_request", f"The message is malformed: {detail}.", problems=[{"field": "", "message": detail}])


def _mismatch(theirs: object) -> MynaError:
    return MynaError(
        "version_mismatch",
        f"The other side speaks protocol {theirs}, this one {PROTOCOL_VERSION}; install the same version of "
        "myna on both.",
        protocol=PROTOCOL_VERSION,
        theirs=theirs,
    )


def _check_envelope(frames: Sequence[bytes]) -> None:
    if not frames or frames[0] != MAGIC:
        first = bytes(frames[0][:16]) if frames else b""
        if first[:4] == MAGIC[:4] and first[4:].isdigit():
            raise _mismatch(first[4:].decode())
        raise _malformed(f"the first of three frames must be {MAGIC.decode()}")
    if len(frames) != 3:
        raise _malformed(f"three frames are expected, {len(frames)} came")


def _check_tree(raw: object) -> None:
    """Refuse what no message of the contract can hold, without recursion."""
    level: list[object] = [raw]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for node in level:
            if isinstance(node, dict):
                for key in node:
                    if type(key) is not str:
                        raise _malformed(f"map keys must be text, not {_kind(key)}")
                below.extend(node.values())
            elif isinstance(node, list):
                below.extend(node)
            elif not (node is None or isinstance(node, str | bool | int | float)):
                raise _malformed(f"{_kind(node)} is not allowed")
        if not below:
            return
        level = below
    raise _malformed(f"nested deeper than {MAX_DEPTH}")


# --- the walk over a type -------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _info(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _join(path: str, key: str) -> str:
    key = key if len(key) <= 64 else key[:61] + "…"
    return f"{path}.{key}" if path else key


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f"`{value}`" if len(value) <= 40 else f"`{value[:37]}…`"
    if isinstance(value, dict | list | tuple) or value is None:
        return _kind(value)
    text = str(value) if not isinstance(value, int) or abs(value) < 10**18 else f"{value:.3g}"
    return text if not isinstance(value, bool) else text.lower()


def _kind(value: object) -> str:
    if value is None:
        return "nothing (null)"
    for kind, name in (
        (bool, "true or false"),
        (int, "a whole number"),
        (float, "a number"),
        (str, "text"),
        (dict, "a table"),
        (list | tuple, "a list"),
        (bytes, "binary"),
    ):
        if isinstance(value, cast(type, kind)):
            return name
    return type(value).__name__


def _range(info: inspect.IntType | inspect.FloatType) -> str:
    low = info.ge if info.ge is not None else info.gt
    high = info.le if info.le is not None else info.lt
    if low is not None and high is not None:
        return f" {'from' if info.ge is not None else 'above'} {low:g} to {high:g}"
    if low is not None:
        return f" {'of at least' if info.ge is not None else 'above'} {low:g}"
    if high is not None:
        return f" {'of at most' if info.le is not None else 'below'} {high:g}"
    return ""


def _length(info: inspect.StrType) -> str:
    if info.min_length and info.max_length:
        return f" of {info.min_length} to {info.max_length} characters"
    if info.max_length:
        return f" of at most {info.max_length} characters"
    return ""


def describe(info: inspect.Type) -> str:
    """What a type takes, in words."""
    match info:
        case inspect.UnionType():
            floats = any(isinstance(each, inspect.FloatType) for each in info.types)
            return " or ".join(
                describe(each)
                for each in info.types
                if not (floats and isinstance(each, inspect.IntType))  # a whole number is a number
            )
        case inspect.LiteralType():
            return " or ".join(f"`{value}`" for value in info.values)
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number" + _range(info)
        case inspect.FloatType():
            return "a number" + _range(info)
        case inspect.StrType():
            return "text" + _length(info)
        case inspect.NoneType():
            return "nothing (null)"
        case inspect.VarTupleType() | inspect.ListType():
            return "a list"
        case inspect.DictType() | inspect.StructType():
            return "a table"
        case _:
            return "a value"


def _walk(info: inspect.Type, data: object, path: str) -> Iterator[Problem]:
    match info:
        case inspect.StructType():
            yield from _walk_struct(info, data, path)
        case inspect.DictType():
            if not isinstance(data, dict):
                yield _wrong(info, data, path)
                return
            for key, value in data.items():
                yield from _walk(info.value_type, value, _join(path, str(key)))
        case inspect.VarTupleType() | inspect.ListType():
            if not isinstance(data, list | tuple):
                yield _wrong(info, data, path)
                return
            if info.max_length is not None and len(data) > info.max_length:
                yield Problem(path, f"at most {info.max_length} entries are allowed, {len(data)} came")
            for number, value in enumerate(data):
                yield from _walk(info.item_type, value, f"{path}[{number}]")
        case inspect.UnionType():
            yield from _walk_union(info, data, path)
        case inspect.AnyType():
            return
        case _:
            if not _fits(info, data):
                yield _wrong(info, data, path)


def _walk_struct(info: inspect.StructType, data: object, path: str) -> Iterator[Problem]:
    if not isinstance(data, dict):
        yield _wrong(info, data, path)
        return
    fields = {each.encode_name: each for each in info.fields}
    for key in data:
        if key not in fields:
            yield Problem(_join(path, str(key)), f"unknown{did_you_mean(str(key), fields)}")
    for name, each in fields.items():
        if name in data:
            yield from _walk(each.type, data[name], _join(path, name))
        elif each.required:
            yield Problem(_join(path, name), f"missing; expected {describe(each.type)}.")


def _walk_union(info: inspect.UnionType, data: object, path: str) -> Iterator[Problem]:
    containers = (inspect.StructType, inspect.DictType, inspect.VarTupleType, inspect.ListType)
    for each in info.types:
        if isinstance(each, containers):
            is_table = isinstance(each, inspect.StructType | inspect.DictType)
            if isinstance(data, dict if is_table else list | tuple):
                yield from _walk(each, data, path)
                return
        elif isinstance(each, inspect.AnyType) or _fits(each, data):
            return
    yield _wrong(info, data, path)


def _wrong(info: inspect.Type, data: object, path: str) -> Problem:
    hint = ""
    if isinstance(data, str):
        words = [word for word in _words(info) if isinstance(word, str)]
        near = did_you_mean(data, words)
        hint = near if near != "." else ""
    return Problem(path, f"expected {describe(info)}, not {_shown(data)}{hint or '.'}")


def _words(info: inspect.Type) -> Iterator[object]:
    if isinstance(info, inspect.LiteralType):
        yield from info.values
    elif isinstance(info, inspect.UnionType):
        for each in info.types:
            yield from _words(each)


def _fits(info: inspect.Type, data: object) -> bool:
    match info:
        case inspect.NoneType():
            return data is None
        case inspect.BoolType():
            return isinstance(data, bool)
        case inspect.IntType():
            whole = isinstance(data, int) or (isinstance(data, float) and data.is_integer())
            return whole and not isinstance(data, bool) and _within(info, cast(float, data))
        case inspect.FloatType():
            if isinstance(data, bool) or not isinstance(data, int | float):
                return False
            return math.isfinite(data) and _within(info, data)
        case inspect.StrType():
            if not isinstance(data, str):
                return False
            return (info.min_length or 0) <= len(data) <= (info.max_length or len(data))
        case inspect.LiteralType():
            return any(type(data) is type(value) and data == value for value in info.values)
        case _:
            return True


def _within(info: inspect.IntType | inspect.FloatType, value: float) -> bool:
    return (
        (info.ge is None or value >= info.ge)
        and (info.gt is None or value > info.gt)
        and (info.le is None or value <= info.le)
        and (info.lt is None or value < info.lt)
    )


def _without_unknown(info: inspect.Type, data: object) -> object:
    """`data` without the keys that a struct does not have."""
    match info:
        case inspect.StructType() if isinstance(data, dict):
            fields = {each.encode_name: each.type for each in info.fields}
            return {key: _without_unknown(fields[key], value) for key, value in data.items() if key in fields}
        case inspect.DictType() if isinstance(data, dict):
            return {key: _without_unknown(info.value_type, value) for key, value in data.items()}
        case inspect.VarTupleType() | inspect.ListType() if isinstance(data, list | tuple):
            return [_without_unknown(info.item_type, value) for value in data]
        case inspect.UnionType():
            for each in info.types:
                if isinstance(data, dict) and isinstance(each, inspect.StructType):
                    return _without_unknown(each, data)
                if isinstance(data, list) and isinstance(each, inspect.VarTupleType | inspect.ListType):
                    return _without_unknown(each, data)
            return data
        case _:
            return data
