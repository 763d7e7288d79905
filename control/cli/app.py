"""The root of `myna`: a table of commands that are imported when they are run."""

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from myna.control.errors import Exit, MynaError

# name: (module below this package, attribute, one line of help)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "up": ("up", "up", "Start the daemon if it is not running, then go live."),
    "down": ("down", "down", "End the live session and the daemon."),
    "status": ("status", "status", "Show what runs, and what to do if something is wrong."),
    "live": ("live", "app", "Control the live session."),
    "devices": ("devices", "devices", "List sound devices, or test them."),
    "voices": ("voices", "app", "List, show, add and remove voices."),
    "convert": ("convert", "convert", "Convert recordings into another voice."),
    "jobs": ("jobs", "app", "Show and steer the queue of jobs."),
    "models": ("memory", "models", "List what is in memory."),
    "unload": ("memory", "unload", "Unload models."),
    "flush": ("memory", "flush", "Let go of caches, and of models if asked."),
    "traces": ("traces", "traces", "Show the timings of the last jobs."),
    "doctor": ("doctor", "doctor", "Find what is wrong and how to mend it."),
    "route": ("route", "app", "Create, find and remove the virtual microphone."),
    "service": ("service", "app", "Start the daemon with the session."),
    "config": ("config", "app", "Get and set settings."),
    "keys": ("keys", "app", "Manage the keys of clients that come over TCP."),
    "top": ("top", "top", "Watch and steer the live session on a full screen."),
}


class LazyCommand(TyperCommand):
    """A name and a line of help; the command itself is imported when it is run."""

    def __init__(self, name: str, text: str, load: Callable[[], Any]) -> None:
        super().__init__(name=name, help=text, short_help=text)
        self._load = load

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Hand over to the real command: its parameters, its help, its callback."""
        return self._load().make_context(*args, **kwargs)


class LazyGroup(TyperGroup):
    """The commands of the table, in its order, as far as their modules are installed."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names for `--help` and completion."""
        return [name for name, (module, _, _) in COMMANDS.items() if find_spec(f"{__package__}.{module}")]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A stand-in that imports its module when it is run."""
        if cmd_name not in COMMANDS or cmd_name not in self.list_commands(ctx):
            return None
        module, attribute, text = COMMANDS[cmd_name]
        return LazyCommand(cmd_name, text, lambda: _load(cmd_name, module, attribute))


def _load(name: str, module: str, attribute: str) -> Any:
    found = getattr(import_module(f"{__package__}.{module}"), attribute)
    if not isinstance(found, typer.Typer):  # a plain function is a command of its own
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(name)(found)
        found = single
    command: Any = typer.main.get_command(found)
    command.name = name
    return command


root = typer.Typer(
    cls=LazyGroup,
    name="myna",
    help="Turn your microphone into another voice. Exit codes: 0 ok, 1 failed, 2 usage, 3 no daemon, 4 not found, "
    "5 busy or refused, 6 not allowed, 7 missing asset, 8 device, 9 compute, 10 crash, 11 timed out, 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"myna {version('myna')}")
        raise typer.Exit


@root.callback()
def options(
    state_dir: Annotated[
        str | None, typer.Option("--state-dir", metavar="D", help="The daemon's state directory.")
    ] = None,
    connection: Annotated[
        str | None, typer.Option("--connection", metavar="FILE", help="Connection file of a daemon elsewhere.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Turn your microphone into another voice."""
    # Through the environment, so that a daemon started from here inherits them too.
    if state_dir is not None:
        os.environ["MYNA_STATE_DIR"] = os.path.abspath(state_dir)
        os.environ.pop("MYNA_CONNECTION", None)  # what is said here wins over what was set elsewhere
    if connection is not None:
        os.environ["MYNA_CONNECTION"] = os.path.abspath(connection)


def run(arguments: Sequence[str], as_json: bool) -> int:
    """Run a command line and return its exit code. Raises what no command line explains: see `main`."""
    try:
        result = typer.main.get_command(root).main(args=arguments, prog_name="myna", standalone_mode=False)
    except typer.Exit as done:
        return int(done.exit_code)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:  # typer's own usage errors share no public base; all else goes on
        if not hasattr(error, "format_message"):
            raise
        if as_json:
            raise MynaError("bad_request", error.format_message()) from error
        error.show()  # type: ignore[attr-defined]
        return int(getattr(error, "exit_code", Exit.USAGE))
    return result if isinstance(result, int) else int(Exit.OK)
