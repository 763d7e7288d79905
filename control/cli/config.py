"""`myna config`: settings, and where each value came from."""

from typing import Annotated

import typer

from myna.control import codec
from myna.control.cli import output, values
from myna.control.cli.options import Json, connect
from myna.control.contract import ConfigGet, ConfigReply, ConfigSet, ParamValue

app = typer.Typer(help="Get and set settings.", no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List all settings with their sources."""
    with connect() as client:
        _show(client.call("config.get", ConfigGet(), ConfigReply), as_json)


@app.command()
def get(
    key: Annotated[str, typer.Argument(metavar="SECTION.KEY", help="Such as compute.device.")],
    as_json: Json = False,
) -> None:
    """Show one setting."""
    request = codec.validate(ConfigGet, {"key": key}, what="command line")
    with connect() as client:
        _show(client.call("config.get", request, ConfigReply), as_json)


@app.command("set")
def set_(
    settings: Annotated[list[str], typer.Argument(metavar="SECTION.KEY=VALUE…", help="Such as compute.device=cpu.")],
    as_json: Json = False,
) -> None:
    """Change settings; all are checked before any is kept."""
    texts = values.split(settings)
    values.need(texts, "setting")
    with connect() as client:
        known = {each.key: each for each in client.call("config.get", ConfigGet(), ConfigReply).values}
        unknown = [codec.Problem(key, f"unknown{codec.did_you_mean(key, known)}") for key in texts if key not in known]
        if unknown:
            raise codec.refusal("command line", unknown)
        changed: dict[str, ParamValue] = {key: values.like(text, known[key].default) for key, text in texts.items()}
        _show(client.call("config.set", ConfigSet(values=changed), ConfigReply), as_json)


def _show(reply: ConfigReply, as_json: bool) -> None:
    if as_json:
        output.print_json(reply)
        return
    output.table(
        ("setting", "value", "default", "from"),
        [(each.key, each.value, each.default, each.source) for each in reply.values],
        "no settings",
    )
    output.note(reply.path if reply.saved else f"{reply.path} (not yet written)")
