"""Clients that ask, subscribe and never read, beside a real daemon at work: its memory must not grow by it."""

import contextlib
import tempfile
import time
from pathlib import Path

import numpy as np
import zmq

from myna.control import codec
from myna.control.contract import Empty, LiveSet, LiveSetReply, StatusReply
from tools.soak.laws import growth
from tools.soak.null_session import NullSession
from tools.soak.progress import Progress
from tools.soak.table import Table

CLIENTS = 4  # of each kind
MOST_MIB = 4.0
SLOWEST_S = 1.0
MEBI = 1 << 20
SETTLE = 0.25  # of the time: queues of a bounded length fill first


def deafen(seconds: float, seed: int) -> Table:
    """So many seconds; what it did to the supervisor."""
    dice = np.random.default_rng(seed)
    memory: list[float] = []
    slowest = 0.0
    changes = sent = 0
    progress = Progress(seconds)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with tempfile.TemporaryDirectory() as folder, NullSession(Path(folder)) as session:
        session.start()
        events = session.client.hello().events
        deaf = []
        for _ in range(CLIENTS):
            subscriber, asker = context.socket(zmq.SUB), context.socket(zmq.DEALER)
            for each in (subscriber, asker):
                each.setsockopt(zmq.RCVHWM, 1)
                each.setsockopt(zmq.SNDHWM, 10)
                each.setsockopt(zmq.LINGER, 0)
            subscriber.setsockopt(zmq.SUBSCRIBE, b"")
            subscriber.connect(events)
            asker.connect(session.client.connection.endpoint)
            deaf.append((subscriber, asker))
        began_s = time.monotonic()
        supervisor = session.supervisor
        descriptors = supervisor.num_fds()
        try:
            while (lived_s := time.monotonic() - began_s) < seconds:
                change = LiveSet(values={"gain_out_db": float(dice.uniform(-20.0, 0.0))})
                session.client.call("live.set", change, LiveSetReply)  # each is an event for everybody
                asked_s = time.monotonic()
                session.client.call("status", Empty(), StatusReply)
                slowest = max(slowest, time.monotonic() - asked_s)
                changes += 1
                for _, asker in deaf:
                    with contextlib.suppress(zmq.Again):
                        asker.send_multipart(codec.encode_request(changes, "status", Empty()), zmq.NOBLOCK)
                        sent += 1
                if changes % 20 == 0:
                    memory.append(supervisor.memory_info().rss / MEBI)
                    progress.at(lived_s, f"{changes} changes, {memory[-1]:.0f} MiB")
        finally:
            for sockets in deaf:
                for each in sockets:
                    each.close()
            context.term()
        after = supervisor.num_fds()
    progress.end()
    late = memory[round(SETTLE * len(memory)) :]
    grown = growth(late)
    hours = seconds * (1.0 - SETTLE) * 0.75 / 3600.0
    table = Table(
        f"{seconds:.0f} s beside {2 * CLIENTS} clients that never read: "
        f"{changes} changes told, {sent} requests, seed {seed}"
    )
    table.add(
        "the supervisor's memory is flat",
        len(late) > 8 and grown < MOST_MIB,
        f"{late[0] if late else np.nan:.1f} → {late[-1] if late else np.nan:.1f} MiB, "
        f"{grown:+.2f} MiB over the last part ({grown / hours:+.0f} MiB/h)",
    )
    table.add("it answers the others", slowest < SLOWEST_S, f"slowest {1e3 * slowest:.0f} ms")
    table.add("descriptors are flat", after <= descriptors + 8, f"{descriptors} → {after}")
    return table
