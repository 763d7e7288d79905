"""`myna voices`: what you can sound like."""

from typing import Annotated

import typer

from myna.control import codec
from myna.control.cli import output, values
from myna.control.cli.options import Json, absolute, connect
from myna.control.contract import Empty, VoiceAdd, VoiceInfo, VoicePreset, VoiceRef, VoicesReply

app = typer.Typer(
    help="List, show, add and remove voices.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
Voice = Annotated[str, typer.Argument(metavar="V", help="Its id.")]


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List all voices."""
    with connect() as client:
        reply = client.call("voices.list", Empty(), VoicesReply)
    if as_json:
        output.print_json(reply)
        return
    output.table(
        ("voice", "engine", "built in", "description", "problems"),
        [(each.id, each.engine, each.built_in, each.description, "; ".join(each.problems)) for each in reply.voices],
        "no voice; `myna voices add PATH` adds one",
    )


@app.command()
def show(voice: Voice, as_json: Json = False) -> None:
    """Show one voice: version, rate, f0, speakers, embedder, problems."""
    with connect() as client:
        reply = client.call("voices.show", _ref(voice), VoiceInfo)
    _show(reply, as_json)


@app.command()
def add(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A voice, or a model that voices need.")],
    id_: Annotated[str | None, typer.Option("--id", metavar="V", help="By default the file's name.")] = None,
    index: Annotated[str | None, typer.Option("--index", metavar="FILE", help="Its retrieval index.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Put it in the place of one of that id.")] = False,
    as_json: Json = False,
) -> None:
    """Add a voice from a file: .pth, .onnx, .index."""
    request = codec.validate(
        VoiceAdd,
        {
            "path": absolute(path),
            "id": id_,
            "index": None if index is None else absolute(index),
            "replace": replace,
        },
        what="command line",
    )
    with connect() as client:
        reply = client.call("voices.add", request, VoiceInfo)
    _show(reply, as_json)


@app.command()
def remove(voice: Voice, as_json: Json = False) -> None:
    """Remove a voice that was added."""
    with connect() as client:
        reply = client.call("voices.remove", _ref(voice), Empty)
    if as_json:
        output.print_json(reply)
    else:
        output.line(f"removed {voice}")


@app.command()
def preset(
    voice: Voice,
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE…", help="Such as pitch=12.")],
    as_json: Json = False,
) -> None:
    """Keep default parameters of a voice."""
    kept = values.parameters(settings)
    values.need(kept, "parameter")
    with connect() as client:
        reply = client.call("voices.preset", VoicePreset(voice=voice, values=kept), VoiceInfo)
    _show(reply, as_json)


def _ref(voice: str) -> VoiceRef:
    return codec.validate(VoiceRef, {"voice": voice}, what="command line")


def _show(voice: VoiceInfo, as_json: bool) -> None:
    if as_json:
        output.print_json(voice)
        return
    output.pairs(
        [
            ("voice", voice.id),
            ("engine", voice.engine + (" (built in)" if voice.built_in else "")),
            ("description", voice.description or None),
            *[(f"file {name}", path) for name, path in voice.files.items()],
            *[(name, value) for name, value in voice.facts.items()],
            *[(f"default {name}", value) for name, value in voice.defaults.items()],
            *[("problem", each) for each in voice.problems],
        ]
    )
