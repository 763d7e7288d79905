"""PROTOCOL.md says what the code does: tables, limits, and the examples, run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec

from myna.control import codec, contract
from myna.control.errors import CODES, Exit
from myna.daemon.wire.server import HARD_LIMIT_BYTES, Server

from .conftest import Desk
from .protocol_tables import PROTOCOL, filled, messages

PAGE = PROTOCOL.read_text("utf-8")


def test_the_tables_are_those_of_the_contract() -> None:
    assert filled(PAGE) == PAGE, "run `python tests/control/protocol_tables.py`"


def test_methods_and_codes_are_all_there() -> None:
    methods = PAGE.split("<!-- methods -->")[1].split("<!-- /methods -->")[0]
    assert re.findall(r"^\| `([a-z_.]+)` ", methods, re.MULTILINE) == list(contract.METHODS)
    errors = PAGE.split("<!-- errors -->")[1].split("<!-- /errors -->")[0]
    assert {code: int(number) for code, number in re.findall(r"^\| `(\w+)` \| (\d+) ", errors, re.MULTILINE)} == {
        code: int(number) for code, number in CODES.items()
    }


def test_the_limits_are_those_of_the_code() -> None:
    assert contract.MAX_MESSAGE_BYTES == 1 << 20
    assert "each at most 1 MiB" in PAGE
    assert HARD_LIMIT_BYTES == 4 << 20
    assert f"At most {contract.MAX_IN_FLIGHT} requests" in PAGE
    assert f"nesting deeper than {codec.MAX_DEPTH}" in PAGE
    assert PAGE.startswith(f"# The wire\n\nVersion {contract.PROTOCOL_VERSION}.")
    assert contract.MAGIC.decode() in PAGE


def test_every_event_has_a_type() -> None:
    assert set(contract.EVENTS) == set(contract.EVENT_TYPES)


def test_every_message_is_frozen_and_refuses_unknown_keys() -> None:
    for kind in messages():
        assert kind.__struct_config__.frozen, kind
        assert kind.__struct_config__.forbid_unknown_fields, kind


def test_exit_codes_are_the_published_ones() -> None:
    assert [int(each) for each in Exit] == [*range(12), 130]


def test_the_bytes_of_the_example_are_the_codecs() -> None:
    shown = PAGE.split("frame by frame:\n\n```\n")[1].split("```")[0]
    frames = [bytes.fromhex(line) for line in shown.splitlines()]
    header = codec.decode_request_header(frames)
    assert (header.id, header.method) == (1, "live.mute")
    assert codec.decode(contract.LiveSwitch, frames[2]) == contract.LiveSwitch(on=True)
    assert frames == [
        contract.MAGIC,
        msgspec.msgpack.encode(header),
        msgspec.msgpack.encode(contract.LiveSwitch(on=True)),
    ]


def test_the_example_in_python_runs_as_it_stands(server: Server, desk: Desk, state: Path) -> None:
    example = PAGE.split("```python\n")[1].split("```")[0]
    example = example.replace("~/.local/state/myna", str(state))
    shown = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True, timeout=30)
    assert shown.stdout.split() == ["0", "4.0"]
    assert "import myna" not in example
    assert "from myna" not in example
