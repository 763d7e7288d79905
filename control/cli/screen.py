"""The full-screen monitor: a textual application over one client."""

import threading
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Footer, Header, Label, ProgressBar, Static

from myna.control.cli import output
from myna.control.cli.status import lines
from myna.control.client import Client
from myna.control.contract import (
    Empty,
    LiveSet,
    LiveSetReply,
    LiveSwitch,
    LogLine,
    Message,
    Meters,
    SessionRef,
    SessionStatus,
    StatusReply,
)
from myna.control.errors import MynaError

FLOOR_DB = -60.0


def bar_share(level_db: float | None) -> float:
    """A level as a share of the bar, 0 at -60 dB and 1 at full scale; 0 for no level."""
    return 0.0 if level_db is None else min(1.0, max(0.0, 1.0 - level_db / FLOOR_DB))


class Monitor(App[None]):
    """Status, meters and the last log lines; keys steer the session."""

    TITLE = "myna"
    CSS = """
    #meters { height: 3; }
    #meters Label { width: 12; }
    #status { padding: 0 1; }
    #log { height: 6; border-top: solid $accent; padding: 0 1; }
    ProgressBar { width: 1fr; }
    """
    # Before any widget sees them: a scrolled view would take the arrows.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("b", "bypass", "bypass", priority=True),
        Binding("m", "mute", "mute", priority=True),
        Binding("up", "pitch(1)", "pitch +1", priority=True),
        Binding("down", "pitch(-1)", "pitch -1", priority=True),
        Binding("right", "formant(0.5)", "formant +0.5", priority=True),
        Binding("left", "formant(-0.5)", "formant -0.5", priority=True),
        Binding("s", "stop", "stop", priority=True),
        Binding("q", "quit", "quit", priority=True),
    ]

    def __init__(self, client: Client, session: str, interval_s: float) -> None:
        """Watch `session` of the daemon that `client` is connected to."""
        super().__init__()
        self._client = client
        self._session = session
        self._interval_s = interval_s
        self._status: SessionStatus | None = None
        self._ended = threading.Event()
        self._lines: list[str] = []

    def compose(self) -> ComposeResult:
        """Header, meters, status, log, keys."""
        yield Header()
        for name in ("input", "output"):
            with Horizontal(id=f"{name}_row"):
                yield Label(f"{name:<7}", id=f"{name}_db")
                yield ProgressBar(total=1.0, show_eta=False, show_percentage=False, id=f"{name}_bar")
        with VerticalScroll():
            yield Static("", id="status", markup=False)
        yield Static("", id="log", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to ask and to listen, each in a thread of its own."""
        self.run_worker(self._ask, thread=True, exit_on_error=False)
        self.run_worker(self._listen, thread=True, exit_on_error=False)

    def on_unmount(self) -> None:
        """Let the threads end."""
        self._ended.set()

    # --- threads ----------------------------------------------------------------------------------------

    def _ask(self) -> None:
        while not self._ended.is_set():
            try:
                reply = self._client.call("status", Empty(), StatusReply)
                self._show(partial(self._show_status, reply))
            except MynaError as error:
                self._show(partial(self._say, error.message))
            self._ended.wait(self._interval_s)

    def _listen(self) -> None:
        while not self._ended.is_set():
            try:
                with self._client.events(("live.meters", "log"), timeout_s=0.2) as events:
                    while not self._ended.is_set():
                        event = next(events)
                        if event is None:
                            continue
                        if isinstance(event.message, Meters) and event.message.session == self._session:
                            self._show(partial(self._show_meters, event.message))
                        elif isinstance(event.message, LogLine):
                            self._show(partial(self._say, f"{event.message.level}: {event.message.message}"))
            except MynaError:  # told by the other thread
                self._ended.wait(self._interval_s)

    def _show(self, call: Callable[[], None]) -> None:
        if not self._ended.is_set():
            self.call_from_thread(call)

    # --- screen -----------------------------------------------------------------------------------------

    def _show_status(self, reply: StatusReply) -> None:
        self._status = next((each for each in reply.sessions if each.session == self._session), None)
        self.query_one("#status", Static).update(output.printable("\n".join(lines(reply))))

    def _show_meters(self, meters: Meters) -> None:
        for name, level in (("input", meters.input_db), ("output", meters.output_db)):
            self.query_one(f"#{name}_bar", ProgressBar).update(progress=bar_share(level))
            words = "–" if level is None else f"{level:.0f} dB"
            self.query_one(f"#{name}_db", Label).update(f"{name:<7}{words}")

    def _say(self, text: str) -> None:
        self._lines = [*self._lines, output.printable(text)][-5:]
        self.query_one("#log", Static).update("\n".join(self._lines))

    # --- keys -------------------------------------------------------------------------------------------

    def action_bypass(self) -> None:
        """Your own voice through, or not."""
        now = self._status is not None and self._status.bypass
        self._send("live.bypass", LiveSwitch(on=not now, session=self._session), SessionStatus)

    def action_mute(self) -> None:
        """Silent, or not."""
        now = self._status is not None and self._status.muted
        self._send("live.mute", LiveSwitch(on=not now, session=self._session), SessionStatus)

    def action_pitch(self, step: float) -> None:
        """Pitch by a step, in semitones."""
        self._nudge("pitch", step, 24.0)

    def action_formant(self, step: float) -> None:
        """Formants by a step, in semitones."""
        self._nudge("formant", step, 12.0)

    def action_stop(self) -> None:
        """End the session."""
        self._send("live.stop", SessionRef(session=self._session), SessionStatus)

    def _nudge(self, name: str, step: float, limit: float) -> None:
        if self._status is None:
            self._say("there is no session yet; `myna up` starts one")
            return
        value = min(limit, max(-limit, getattr(self._status.settings, name) + step))
        self._send("live.set", LiveSet(values={name: value}, session=self._session), LiveSetReply)

    def _send(self, method: str, request: Message, reply: type[Message]) -> None:
        """Send in a thread: the screen goes on; what comes of it is shown."""

        def call() -> None:
            try:
                self._client.call(method, request, reply)
                status = self._client.call("status", Empty(), StatusReply)
                self._show(partial(self._show_status, status))
            except MynaError as error:
                self._show(partial(self._say, error.message))

        self.run_worker(call, thread=True, exit_on_error=False)
