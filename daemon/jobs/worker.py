"""A job worker: takes one order at a time from its parent, can be killed at any instant."""

import faulthandler
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import IO

from myna.daemon.jobs import messages
from myna.daemon.jobs.convert import GaveUp, convert
from myna.daemon.jobs.faults import fault_of
from myna.daemon.jobs.messages import (
    Answer,
    AskFlush,
    AskUnload,
    Done,
    Fault,
    FromWorker,
    Models,
    Order,
    Quit,
    Ready,
    StopOrder,
    Stopped,
    ToWorker,
)
from myna.daemon.jobs.resident import ResidentVoices, let_go, memory_figures
from myna.daemon.parent import die_with_parent
from myna.engines import registry
from myna.engines.base import FileVoice, VoiceParameters

NICENESS = 10  # a live session beside it goes first


class Worker:
    """Carries orders out on the main thread, while another listens for what the parent says."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._sending = threading.Lock()
        self._orders: queue.SimpleQueue[ToWorker] = queue.SimpleQueue()
        self._called_back: set[tuple[str, int]] = set()
        self._voices = ResidentVoices()

    def say(self, message: FromWorker) -> None:
        """Tell the parent; without one there is nothing left to do."""
        with self._sending:
            try:
                messages.write_message(self._outgoing, message)
            except OSError:
                os._exit(1)

    def listen(self) -> None:
        """Take messages until the parent is gone, and go with it."""

        def take(message: ToWorker) -> None:
            if isinstance(message, StopOrder):
                self._called_back.add((message.job, message.attempt))
            else:
                self._orders.put(message)

        try:
            messages.each_to_worker(self._incoming, take)
        except messages.BadFrame as error:
            print(f"unreadable order: {error}", file=sys.stderr, flush=True)
        os._exit(1)

    def run(self) -> None:
        """Work until told to quit."""
        threading.Thread(target=self.listen, name="orders", daemon=True).start()
        self.say(Ready(pid=os.getpid()))
        while True:
            message = self._orders.get()
            if isinstance(message, Quit):
                return
            if isinstance(message, Order):
                self.carry_out(message)
                if message.unload_after_s > 0 and self._voices.retire(message.unload_after_s):
                    let_go()
                self.tell_models()
            elif isinstance(message, AskUnload | AskFlush):
                self.free(message)

    def tell_models(self) -> None:
        """Tell what is loaded, so that the parent can list it without asking."""
        self.say(Models(models=self._voices.rows()))

    def free(self, ask: AskUnload | AskFlush) -> None:
        """Let go of a voice, or of caches and with `unload` of every voice; figures are measured around it."""
        before = memory_figures()
        done = True
        if isinstance(ask, AskUnload):
            done = self._voices.unload(ask.id)
        elif ask.unload:
            self._voices.unload(None)
        let_go()
        self.tell_models()
        self.say(Answer(ask=ask.ask, done=done, before=before, after=memory_figures()))

    def lend(self, order: Order, parameters: VoiceParameters) -> AbstractContextManager[FileVoice]:
        """The voice of an order, loaded if it is not."""
        asset, placement = order.voice.asset(), order.placement.placement()
        return self._voices.lend(
            repr((asset, placement, parameters)).encode(),
            asset.id,
            asset.engine,
            lambda: registry.find(asset.engine).open_file(asset, placement, parameters),
            (GaveUp,),
        )

    def carry_out(self, order: Order) -> None:
        """Do one order; whatever happens in it becomes a message."""
        name = (order.job, order.attempt)
        stop: Callable[[], bool] = lambda: name in self._called_back  # noqa: E731
        try:
            result = convert(order, self.lend, self.say, stop)
        except GaveUp:
            self.say(Stopped(job=order.job, attempt=order.attempt))
        except Exception as error:  # a bad file or voice fails its own job and no other
            code, text, facts = fault_of(error)
            if code == "internal":
                traceback.print_exception(error, file=sys.stderr)
            self.say(Fault(job=order.job, attempt=order.attempt, code=code, message=text, facts=facts))
        else:
            self.say(Done(job=order.job, attempt=order.attempt, result=result))
        self._called_back.discard(name)


def private_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Take standard input and output for ourselves: what a library prints goes to the error output instead."""
    incoming = os.fdopen(os.dup(0), "rb")
    outgoing = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return incoming, outgoing


def main() -> None:
    """Entry of the process: `python -m myna.daemon.jobs.worker PARENT_PID`."""
    faulthandler.enable()
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the daemon's terminal is the daemon's business
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    incoming, outgoing = private_pipes()
    Worker(incoming, outgoing).run()


if __name__ == "__main__":
    main()
