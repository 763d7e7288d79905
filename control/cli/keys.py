"""`myna keys`: who may come in over TCP. Works on the daemon's own machine, with or without it running."""

from typing import Annotated

import msgspec
import typer

from myna.control import keys
from myna.control.cli import output
from myna.control.cli.options import Json
from myna.control.connection import Connection, connection_file, load_connection, state_dir, write_private
from myna.control.errors import MynaError

app = typer.Typer(
    help="Manage the keys of clients that come over TCP.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="What to call the client.")]


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the clients that are let in."""
    found = keys.clients(state_dir())
    if as_json:
        output.print_json({"clients": [{"name": name, "public": public} for name, public in found.items()]})
    else:
        output.table(("client", "public key"), list(found.items()), "nobody is let in over TCP")


@app.command()
def show(as_json: Json = False) -> None:
    """Show the daemon's public key, which clients need."""
    public = keys.server_keys(state_dir()).public
    if as_json:
        output.print_json({"server_key": public})
    else:
        output.line(public)


@app.command()
def add(
    name: Name,
    public: Annotated[str, typer.Argument(metavar="KEY", help="The client's public key, 40 characters.")],
    as_json: Json = False,
) -> None:
    """Let in a client that made its own keys."""
    keys.add(state_dir(), name, public)
    _said(as_json, name, "is let in")


@app.command()
def remove(name: Name, as_json: Json = False) -> None:
    """Let a client in no more."""
    keys.remove(state_dir(), name)
    _said(as_json, name, "is let in no more; an open connection lasts until it closes")


@app.command()
def create(
    name: Name,
    file: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="Connection file to carry to that machine.")
    ],
    endpoint: Annotated[
        str | None,
        typer.Option("--endpoint", metavar="tcp://HOST:PORT", help="As that machine sees the daemon."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make keys for a client, let it in, and write the file it connects with (MYNA_CONNECTION=FILE)."""
    from pathlib import Path

    state = state_dir()
    target = Path(file).expanduser().absolute()
    if target.exists():
        raise MynaError("refused", f"{target} is there already; choose another name.", path=str(target))
    server = keys.server_keys(state)
    reached = endpoint or _endpoint()
    pair = keys.create(state, name)
    try:
        write_private(
            target,
            msgspec.json.format(
                msgspec.json.encode(
                    Connection(
                        endpoint=reached,
                        events="",
                        server_key=server.public,
                        client_key=pair.public,
                        client_secret=pair.secret,
                    )
                )
            )
            + b"\n",
        )
    except MynaError:
        keys.remove(state, name)
        raise
    if as_json:
        output.print_json({"name": name, "public": pair.public, "file": str(target), "endpoint": reached})
    else:
        output.line(f"{target}: carry it to the client in private; there: MYNA_CONNECTION={target.name} myna status")
        output.note(f"it connects to {reached}")


def _endpoint() -> str:
    """The running daemon's TCP endpoint. MynaError `bad_request` if it has none that others could use."""
    try:
        endpoint = load_connection(connection_file(state_dir())).endpoint
    except MynaError:
        endpoint = ""
    if not endpoint.startswith("tcp://") or "//0.0.0.0:" in endpoint or "//[::]:" in endpoint:
        raise MynaError(
            "bad_request",
            "Say where that machine finds the daemon: --endpoint tcp://HOST:PORT.",
        )
    return endpoint


def _said(as_json: bool, name: str, words: str) -> None:
    if as_json:
        output.print_json({"name": name, "detail": words})
    else:
        output.line(f"{name} {words}")
