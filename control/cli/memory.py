"""`myna models`, `unload`, `flush`: what is in memory, and letting go of it."""

import time
from typing import Annotated

import typer

from myna.control.cli import output
from myna.control.cli.options import Json, connect
from myna.control.contract import Empty, FlushReply, FlushRequest, ModelsReply, ModelUnload, UnloadReply
from myna.control.errors import MynaError


def models(what: Annotated[str, typer.Argument(metavar="[list]", hidden=True)] = "list", as_json: Json = False) -> None:
    """List what is in memory: where, how much, busy or idle."""
    if what != "list":
        raise MynaError("bad_request", f"`myna models {what}` is no command; `myna models` lists all.")
    with connect() as client:
        reply = client.call("models.list", Empty(), ModelsReply)
    if as_json:
        output.print_json(reply)
        return
    now = time.time()
    output.table(
        ("id", "engine", "device", "dtype", "on device", "in RAM", "last used", "state"),
        [
            (
                each.id, each.engine, each.device, each.dtype, output.mebibytes(each.device_bytes),
                output.mebibytes(each.ram_bytes),
                None if each.last_used is None else f"{max(0.0, now - each.last_used):.0f} s ago",
                each.busy or ("idle" if each.unloadable else each.why_not or "stays"),
            )
            for each in reply.models
        ],
        "nothing is in memory",
    )  # fmt: skip


def unload(
    id_: Annotated[str | None, typer.Argument(metavar="ID", help="As `myna models` lists it.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="All that can be.")] = False,
    as_json: Json = False,
) -> None:
    """Unload a model, or all."""
    if (id_ is None) != all_:
        raise MynaError("bad_request", "Name one model, or say --all.")
    with connect() as client:
        reply = client.call("models.unload", ModelUnload(id=id_), UnloadReply)
    if as_json:
        output.print_json(reply)
        return
    output.table(
        ("id", "unloaded", "reason", "before", "after"),
        [
            (row.id, row.done, row.reason, output.mebibytes(row.bytes_before), output.mebibytes(row.bytes_after))
            for row in reply.rows
        ],
        "nothing was in memory",
    )


def flush(unload: Annotated[bool, typer.Option("--unload", help="Models too.")] = False, as_json: Json = False) -> None:
    """Let go of caches, and of models if asked. Exit code 5 if a worker could not."""
    with connect() as client:
        reply = client.call("memory.flush", FlushRequest(unload=unload), FlushReply)
    failed = [row for row in reply.rows if row.outcome == "failed"]
    if as_json and not failed:
        output.print_json(reply)
    elif not as_json:
        output.table(
            ("worker", "outcome", "reason", "before", "after"),
            [(row.worker, row.outcome, row.reason, _figures(row.before), _figures(row.after)) for row in reply.rows],
            "no worker holds anything",
        )
    if failed:
        raise MynaError(
            "busy",
            f"{failed[0].worker} did not let go: {failed[0].reason or 'no reason given'}.",
            rows=reply.rows,
        )


def _figures(figures: dict[str, int | None]) -> str:
    return ", ".join(f"{name} {output.mebibytes(count) or '–'}" for name, count in figures.items()) or "–"
