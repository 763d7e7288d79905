"""Clients that ask, subscribe and never read: the memory of what they do not read to must not grow by it."""

import contextlib
import os
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import psutil
import zmq

from myna.control import codec
from myna.control.client import Client
from myna.control.contract import Empty, LiveSet, LiveSetReply, Meters, SessionStatus, StatusReply
from myna.daemon.wire.server import Server
from tools.soak.laws import growth
from tools.soak.null_session import NullSession
from tools.soak.progress import Progress
from tools.soak.table import Table

CLIENTS = 4  # of each kind
MOST_MIB = 4.0
SLOWEST_S = 1.0
MEBI = 1 << 20
SETTLE = 0.25  # of the time: queues of a bounded length fill first
LOOKS = 200  # at the memory
METERS_PER_S = 10  # of a live session
WORDS_S = 10.0  # between two changes of its state, and two questions of each client


class DeafClients:
    """So many subscribers and so many askers, none of which ever reads; closed with the `with` block."""

    def __init__(self, endpoint: str, events: str) -> None:
        self.sent = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []
        self._askers: list[zmq.Socket[bytes]] = []
        for _ in range(CLIENTS):
            self._connect(zmq.SUB, events).setsockopt(zmq.SUBSCRIBE, b"")
            self._askers.append(self._connect(zmq.DEALER, endpoint))

    def ask(self, number: int) -> None:
        """Have each that still can ask for the status."""
        for asker in self._askers:
            with contextlib.suppress(zmq.Again):
                asker.send_multipart(codec.encode_request(number, "status", Empty()), zmq.NOBLOCK)
                self.sent += 1

    def _connect(self, kind: int, endpoint: str) -> "zmq.Socket[bytes]":
        made = self._context.socket(kind)
        made.setsockopt(zmq.RCVHWM, 1)
        made.setsockopt(zmq.SNDHWM, 10)
        made.setsockopt(zmq.LINGER, 0)
        made.connect(endpoint)
        self._sockets.append(made)
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._sockets:
            each.close()
        self._context.term()


def deafen(seconds: float, seed: int) -> Table:
    """So many seconds beside a daemon at work; what it did to the supervisor."""
    dice = np.random.default_rng(seed)
    memory: list[float] = []
    slowest = 0.0
    changes = 0
    progress = Progress(seconds)
    with tempfile.TemporaryDirectory() as folder, NullSession(Path(folder)) as session:
        session.start()
        supervisor = session.supervisor
        descriptors = supervisor.num_fds()
        with DeafClients(session.client.connection.endpoint, session.client.hello().events) as deaf:
            began_s = time.monotonic()
            while (lived_s := time.monotonic() - began_s) < seconds:
                change = LiveSet(values={"gain_out_db": float(dice.uniform(-20.0, 0.0))})
                session.client.call("live.set", change, LiveSetReply)  # each is an event for everybody
                asked_s = time.monotonic()
                session.client.call("status", Empty(), StatusReply)
                slowest = max(slowest, time.monotonic() - asked_s)
                changes += 1
                deaf.ask(changes)
                if changes % 20 == 0:
                    memory.append(supervisor.memory_info().rss / MEBI)
                    progress.at(lived_s, f"{changes} changes, {memory[-1]:.0f} MiB")
        after = supervisor.num_fds()
    progress.end()
    table = Table(
        f"{seconds:.0f} s beside {2 * CLIENTS} clients that never read: "
        f"{changes} changes told, {deaf.sent} requests, seed {seed}"
    )
    _judge_memory(table, "the supervisor's memory is flat", memory, seconds)
    table.add("it answers the others", slowest < SLOWEST_S, f"slowest {1e3 * slowest:.0f} ms")
    table.add("descriptors are flat", after <= descriptors + 8, f"{descriptors} → {after}")
    return table


def deafen_at_once(seconds: float) -> Table:
    """What a live session tells in so much time, through the daemon's own server but without the pauses.

    Each event is told once a client that does read has the one before.
    """
    process, memory, missed = psutil.Process(), list[float](), 0
    told = round(seconds * METERS_PER_S)
    every, look = round(WORDS_S * METERS_PER_S), max(1, told // LOOKS)
    progress, began_s = Progress(told), time.monotonic()
    state = SessionStatus(session="main", state="running")
    answer = StatusReply(
        version="soak", pid=os.getpid(), uptime_s=0.0, state_dir="", endpoint="", rss_bytes=None, sessions=(state,)
    )
    with tempfile.TemporaryDirectory() as folder:
        server = Server(f"ipc://{folder}/control", {"status": lambda _: answer}, version="soak", state_dir=Path(folder))
        with (
            server,
            Client(server.connection(), name="reader") as reader,
            reader.events(("live.meters", "live.state"), timeout_s=SLOWEST_S) as heard,
            DeafClients(server.endpoint, server.events_endpoint) as deaf,
        ):
            for number in range(told):
                if number % every == 0:
                    server.publish("live.state", state)
                    missed += next(heard) is None
                    deaf.ask(number)
                    missed += reader.call("status", Empty(), StatusReply) != answer
                server.publish(
                    "live.meters", Meters(session="main", input_db=-20.0, output_db=-20.0, load=0.5, xruns=0)
                )
                missed += next(heard) is None
                if number % look == 0:
                    memory.append(process.memory_info().rss / MEBI)
                    progress.at(number, f"{number} events, {memory[-1]:.0f} MiB")
    progress.end()
    table = Table(
        f"the events of {seconds / 3600.0:g} h in {time.monotonic() - began_s:.0f} s, "
        f"{2 * CLIENTS} clients that never read: {told} told, {deaf.sent} requests"
    )
    _judge_memory(table, "the memory of server and clients is flat", memory, seconds)
    table.add("who reads hears all, and is answered", missed == 0, f"{missed} missed")
    return table


def _judge_memory(table: Table, law: str, memory: list[float], seconds: float) -> None:
    """One row: how much it grew after the bounded queues were full."""
    late = memory[round(SETTLE * len(memory)) :]
    grown = growth(late)
    hours = seconds * (1.0 - SETTLE) * 0.75 / 3600.0
    table.add(
        law,
        len(late) > 8 and grown < MOST_MIB,
        f"{late[0] if late else np.nan:.1f} → {late[-1] if late else np.nan:.1f} MiB, "
        f"{grown:+.2f} MiB over the last part ({grown / hours:+.2f} MiB/h)",
    )
