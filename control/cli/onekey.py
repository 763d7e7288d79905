"""The live commands that people bind to keys: run without the cost of a whole command line.

typer and what it brings take a third of a `myna` command (measured: 60 to 100 of 200 ms), and a key is felt.
So the plain forms of `live bypass`, `mute`, `voice` and `set` are read here; whatever looks otherwise (`--help`, a
mistake) goes to typer, which knows how to tell people about it. Both ways end in the functions below.
"""

from collections.abc import Sequence
from typing import Literal

from myna.control import codec
from myna.control.cli import output, values
from myna.control.cli.session import session_lines
from myna.control.client import Client
from myna.control.contract import LiveSet, LiveSetReply, LiveSwitch, LiveVoice, SessionRef, SessionStatus
from myna.control.errors import Exit

SWITCHES = ("on", "off", "toggle")


def run(arguments: Sequence[str]) -> int | None:
    """Run the command if it is a plain form of one of these; returns its exit code, None if it is none.

    MynaError.
    """
    if len(arguments) < 3 or arguments[0] != "live":
        return None
    verb, words, session, as_json = arguments[1], [], "main", False
    rest = iter(arguments[2:])
    for word in rest:
        if word == "--json":
            as_json = True
        elif word == "--session":
            session = next(rest, "")
        elif word.startswith("-"):
            return None
        else:
            words.append(word)
    if not session or not words or (verb != "set" and len(words) != 1):
        return None
    if verb == "set":
        set_(words, False, session, as_json)
    elif verb == "voice":
        voice(words[0], session, as_json)
    elif verb == "bypass" and words[0] in SWITCHES:
        switch("bypass", words[0], session, as_json)
    elif verb == "mute" and words[0] in SWITCHES:
        switch("mute", words[0], session, as_json)
    else:
        return None
    return int(Exit.OK)


def set_(settings: Sequence[str], consent: bool, session: str, as_json: bool) -> None:
    """`myna live set`: all of `settings` (KEY=VALUE) or none. MynaError."""
    changed = values.live_settings(settings)
    values.need(changed, "setting")
    with Client(name="myna") as client:
        reply = client.call("live.set", LiveSet(values=changed, session=session, consent=consent), LiveSetReply)
    if as_json:
        output.print_json(reply)
        return
    output.pairs([(key, getattr(reply.settings, key)) for key in changed])
    if reply.restart_needed:
        output.note("this counts at the next `myna live start`")
    if not reply.saved:
        output.note("not yet on disk")


def voice(name: str, session: str, as_json: bool) -> None:
    """`myna live voice`. MynaError."""
    request = codec.validate(LiveVoice, {"voice": name, "session": session}, what="command line")
    with Client(name="myna") as client:
        tell(client.call("live.voice", request, SessionStatus), as_json)


def switch(what: Literal["bypass", "mute"], to: str, session: str, as_json: bool) -> None:
    """`myna live bypass` and `mute`; `toggle` asks first how it is. MynaError."""
    with Client(name="myna") as client:
        on = to == "on"
        if to == "toggle":
            now = client.call("live.state", SessionRef(session=session), SessionStatus)
            on = not (now.bypass if what == "bypass" else now.muted)
        tell(client.call(f"live.{what}", LiveSwitch(on=on, session=session), SessionStatus), as_json)


def tell(status: SessionStatus, as_json: bool) -> None:
    """Show a session's status."""
    if as_json:
        output.print_json(status)
    else:
        output.pairs(session_lines(status))
