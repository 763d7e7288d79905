"""`myna devices`: what can be heard and spoken through."""

from typing import Annotated

import typer

from myna.control.cli import output
from myna.control.cli.options import Json, connect, device_name
from myna.control.contract import DevicesReply, DevicesTest, DevicesTestReply, Empty
from myna.control.errors import MynaError


def devices(
    test: Annotated[bool, typer.Option("--test", help="Open them for a moment.")] = False,
    input_: Annotated[str | None, typer.Option("--input", metavar="D", help="Test only this one.")] = None,
    output_: Annotated[str | None, typer.Option("--output", metavar="D", help="Test only this one.")] = None,
    as_json: Json = False,
) -> None:
    """List sound devices, or test them (exit code 8 if one can't be opened)."""
    with connect() as client:
        if test or input_ is not None or output_ is not None:
            _test(
                client.call(
                    "devices.test",
                    DevicesTest(input=device_name(input_), output=device_name(output_)),
                    DevicesTestReply,
                ),
                as_json,
            )
            return
        reply = client.call("devices.list", Empty(), DevicesReply)
    if as_json:
        output.print_json(reply)
        return
    output.table(
        ("device", "host API", "in", "out", "rate Hz", "in ms", "out ms", "default", "virtual"),
        [
            (
                each.name, each.host_api, each.inputs, each.outputs, each.rate_hz, each.latency_in_ms,
                each.latency_out_ms,
                " ".join(
                    word for word, is_it in
                    (("in", each.is_default_input), ("out", each.is_default_output)) if is_it
                ),
                each.is_virtual,
            )
            for each in reply.devices
        ],
        reply.problem or "no sound device",
    )  # fmt: skip
    if reply.devices and reply.problem:
        output.note(reply.problem)


def _test(reply: DevicesTestReply, as_json: bool) -> None:
    failed = [row for row in reply.rows if not row.ok]
    if failed and as_json:
        raise _error(failed[0].name, reply)
    if as_json:
        output.print_json(reply)
        return
    output.table(
        ("device", "direction", "opens", "detail"),
        [(row.name, row.direction, row.ok, row.detail) for row in reply.rows],
        "no device was tested",
    )
    if failed:
        raise _error(failed[0].name, reply)


def _error(first: str, reply: DevicesTestReply) -> MynaError:
    count = sum(not row.ok for row in reply.rows)
    return MynaError(
        "device_unavailable",
        f"{count} of {len(reply.rows)} devices can't be opened, first {first}; the table says why.",
        rows=reply.rows,
    )
