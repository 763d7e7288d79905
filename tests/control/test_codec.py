"""The codec: every problem at once, limits, and nothing but MynaError whatever comes in."""

import math
from collections.abc import Callable
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myna.control import codec, contract
from myna.control.errors import CODES, MynaError


def outcome(call: Callable[[], object]) -> object:
    """What a call returns, or the MynaError it raises; any other exception passes."""
    try:
        return call()
    except MynaError as error:
        return error


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("method", sorted(contract.METHODS))
def test_defaults_of_every_request_survive_the_wire(method: str) -> None:
    kind, _ = contract.METHODS[method]
    required = {field.name for field in msgspec.structs.fields(kind) if field.required}
    fill: dict[str, Any] = {"voice": "v", "values": {"pitch": 1}, "on": True, "path": "p", "id": "i", "jobs": []}
    message = codec.validate(kind, {name: fill[name] for name in required})
    frames = codec.encode_request(7, method, message)
    header = codec.decode_request_header(frames)
    assert (header.id, header.method) == (7, method)
    assert codec.decode(kind, frames[2]) == message


def test_every_problem_is_reported_with_its_field() -> None:
    wrong = {
        "sesion": "x",
        "devices": {"period_ms": 1, "fast": 3, "inpt": "mic", "input_channels": [1, 99]},
        "settings": {"pitch": []},
        "wait": "yes",
    }
    with pytest.raises(MynaError) as caught:
        codec.validate(contract.LiveStart, wrong)
    found = {each["field"]: each["message"] for each in caught.value.facts["problems"]}  # type: ignore[attr-defined]
    assert caught.value.code == "bad_request"
    assert set(found) == {
        "sesion", "devices.inpt", "devices.period_ms", "devices.fast", "devices.input_channels[1]",
        "settings.pitch", "wait",
    }  # fmt: skip
    assert "did you mean `session`?" in found["sesion"]
    assert "from 2 to 50" in found["devices.period_ms"]


def test_a_missing_field_is_named() -> None:
    assert [each.field for each in codec.problems(contract.LiveVoice, {})] == ["voice"]


def test_a_near_word_is_offered() -> None:
    (problem,) = codec.problems(contract.LiveSettings, {"denoise_in": "rnoise"})
    assert "did you mean `rnnoise`?" in problem.message


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_must_be_finite(value: float) -> None:
    assert [each.field for each in codec.problems(contract.LiveSettings, {"pitch": value})] == ["pitch"]
    with pytest.raises(MynaError):
        codec.decode(contract.LiveSet, msgspec.msgpack.encode({"values": {"pitch": value}}))


def test_many_problems_are_cut_short() -> None:
    with pytest.raises(MynaError) as caught:
        codec.validate(contract.Empty, {f"k{number}": 1 for number in range(10_000)})
    assert len(caught.value.facts["problems"]) == codec.MAX_PROBLEMS  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "truncated"),
        (b"\xc1", "malformed"),
        (b"\xdd\xff\xff\xff\xff", "truncated"),
        (b"\xdf\xff\xff\xff\xff", "truncated"),
        (b"\x91" * 100_000, "nested deeper"),
        (b"\x91" * 40 + b"\xc0", "nested deeper"),
        (b"\xd4\x05\x00", "extension"),
        (b"\xd6\xff\x00\x00\x00\x01", "not allowed"),
        (b"\xc4\x01\x00", "not allowed"),
        (b"\x81\x01\x01", "keys must be text"),
        (b"\x80\x80", "malformed"),
        (b"\xa1\xff", "malformed"),
    ],
)
def test_hostile_bytes_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(MynaError, match=words) as caught:
        codec.unpack(data)
    assert caught.value.code == "bad_request"


def test_a_message_over_the_limit_is_too_large() -> None:
    with pytest.raises(MynaError) as caught:
        codec.unpack(b"\xc0" * (contract.MAX_MESSAGE_BYTES + 1))
    assert caught.value.code == "too_large"
    with pytest.raises(MynaError) as caught:
        codec.pack("x" * contract.MAX_MESSAGE_BYTES)
    assert caught.value.code == "too_large"


def test_broken_unicode_does_not_leave() -> None:
    with pytest.raises(MynaError) as caught:
        codec.encode_request(1, "voices.add", contract.VoiceAdd(path="take\udcff.pth"))
    assert caught.value.code == "bad_request"


def test_an_error_too_large_for_the_wire_still_tells_its_cause() -> None:
    frames = codec.encode_error(1, MynaError("busy", "cause", rows="x" * (2 << 20)))
    _, error = codec.decode_reply(frames, contract.Empty)
    assert isinstance(error, MynaError)
    assert (error.code, error.message, error.facts) == ("busy", "cause", {})


def test_facts_that_msgpack_lacks_travel_as_text() -> None:
    frames = codec.encode_error(1, MynaError("busy", "m", at=ValueError("boom")))
    _, error = codec.decode_reply(frames, contract.Empty)
    assert isinstance(error, MynaError)
    assert error.facts == {"at": "boom"}


def test_a_newer_daemon_may_tell_more() -> None:
    body = msgspec.msgpack.encode({"revision": 1, "settings": {"pitch": 2, "novelty": 1}, "more": [1]})
    header = msgspec.msgpack.encode({"id": 3, "ok": True, "protocol": 1, "new": 1})
    number, reply = codec.decode_reply([contract.MAGIC, header, body], contract.LiveSetReply)
    assert number == 3
    assert isinstance(reply, contract.LiveSetReply)
    assert reply.settings.pitch == 2


def test_a_code_of_a_newer_daemon_reads_as_failed() -> None:
    header = msgspec.msgpack.encode({"id": 3, "ok": False, "protocol": 1})
    body = msgspec.msgpack.encode({"code": "brand_new", "message": "m", "facts": {"code": 1}})
    _, error = codec.decode_reply([contract.MAGIC, header, body], contract.Empty)
    assert isinstance(error, MynaError)
    assert (error.code, error.facts["unpublished_code"]) == ("failed", "brand_new")


@pytest.mark.parametrize(
    "frames", [[], [b"MYNA1"], [b"HTTP/1.1", b"", b""], [b"MYNA1", b"\x80", b"\x80", b"\x80"], [b""]]
)
def test_wrong_envelopes_are_malformed(frames: list[bytes]) -> None:
    with pytest.raises(MynaError) as caught:
        codec.decode_request_header(frames)
    assert caught.value.code == "bad_request"


def test_another_protocol_is_a_mismatch() -> None:
    frames = codec.encode_request(1, "status", contract.Empty())
    with pytest.raises(MynaError) as caught:
        codec.decode_request_header([b"MYNA2", *frames[1:]])
    assert caught.value.code == "version_mismatch"
    header = msgspec.msgpack.encode({"id": 1, "method": "status", "protocol": 9})
    with pytest.raises(MynaError) as caught:
        codec.decode_request_header([contract.MAGIC, header, frames[2]])
    assert caught.value.code == "version_mismatch"


@settings(max_examples=300, deadline=None)
@given(method=st.sampled_from(sorted(contract.METHODS)), data=PLAIN)
def test_plain_data_of_any_shape_is_a_message_or_a_named_problem(method: str, data: object) -> None:
    kind, _ = contract.METHODS[method]
    found = outcome(lambda: codec.validate(kind, data))
    if isinstance(found, MynaError):
        assert found.code == "bad_request"
        assert found.facts["problems"]
    else:
        assert isinstance(found, kind)


FIELDS = [(name, field.type) for field in msgspec.structs.fields(contract.LiveSettings) for name in (field.name,)]


@settings(max_examples=300, deadline=None)
@given(field=st.sampled_from(FIELDS), value=PLAIN)
def test_the_walk_agrees_with_msgspec(field: tuple[str, object], value: object) -> None:
    name, _ = field
    found = codec.problems(contract.LiveSettings, {name: value})
    try:
        msgspec.convert({name: value}, contract.LiveSettings)
        valid = True
    except (msgspec.ValidationError, OverflowError):
        valid = False
    finite = not (isinstance(value, float) and not math.isfinite(value))
    assert bool(found) == (not valid or not finite)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=200))
def test_random_bytes_never_raise_anything_else(data: bytes) -> None:
    for kind, _ in contract.METHODS.values():
        found = outcome(lambda kind=kind: codec.decode(kind, data))
        assert isinstance(found, kind) or (isinstance(found, MynaError) and found.code in CODES)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_mutated_messages_never_raise_anything_else(data: st.DataObject) -> None:
    start = contract.LiveStart(voice="v", devices=contract.LiveDevices(input="mic"), settings={"pitch": 3.5})
    frames = codec.encode_request(5, "live.start", start)
    which = data.draw(st.integers(0, 2))
    changed = bytearray(frames[which])
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    frames[which] = bytes(changed[: data.draw(st.integers(0, len(changed)))])
    for read in (
        lambda: codec.decode(codec.request_type(codec.decode_request_header(frames).method), frames[2]),
        lambda: codec.reply_id(frames),
        lambda: codec.decode_reply(frames, contract.SessionStatus),
        lambda: codec.request_id(frames),
    ):
        found = outcome(read)
        assert not isinstance(found, MynaError) or found.code in CODES


def test_other_packers_are_understood() -> None:
    body = msgpack.packb({"values": {"pitch": 2}})
    assert codec.decode(contract.LiveSet, body).values == {"pitch": 2}
