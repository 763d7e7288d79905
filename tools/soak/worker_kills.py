"""Kills the live worker of a real daemon at random moments, and sees it come back as it was, each time."""

import os
import signal
import tempfile
import time
from pathlib import Path

import numpy as np

from myna.control.contract import LiveSet, LiveSetReply
from tools.private_daemon import LIVE
from tools.soak.null_session import NullSession
from tools.soak.progress import Progress
from tools.soak.table import Table

LONGEST_WAIT_S = 2.0  # from a worker's start to its end: also while it still loads
KILLS_PER_START = 4  # then the user starts anew, which makes the budget of restarts whole again
ANSWER_S = 1.0
BACK_S = 30.0  # the longest wait for a restart, and the start itself


def kill_workers(kills: int, seed: int, answer_s: float = ANSWER_S, back_s: float = BACK_S) -> Table:
    """So many kills; what came of them, within these times."""
    dice = np.random.default_rng(seed)
    back: list[float] = []
    answers: list[float] = []
    loading = told = kept = 0
    left_over: set[int] = set()
    progress = Progress(kills)
    with tempfile.TemporaryDirectory() as folder, NullSession(Path(folder)) as session:
        session.start()
        for number in range(kills):
            if number and number % KILLS_PER_START == 0:
                session.start()
            before = session.until(
                lambda s: s.pid is not None and (s.state in LIVE or s.state in ("loading", "warming"))
            )
            pitch = float(dice.integers(-5, 6))
            if before.state in LIVE:
                session.client.call("live.set", LiveSet(values={"pitch": pitch}), LiveSetReply)
            time.sleep(float(dice.uniform(0.0, LONGEST_WAIT_S)) if dice.integers(4) else 0.0)
            before = session.status()
            pid = before.pid
            if pid is None:
                continue
            loading += before.state not in LIVE
            killed_s = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            left_over.add(pid)
            asked_s = time.monotonic()
            session.status()
            answers.append(time.monotonic() - asked_s)
            gone = session.until(lambda s, pid=pid: s.pid != pid)  # type: ignore[misc]
            told += gone.state not in LIVE and bool(gone.stop_reason)
            if dice.integers(4):
                after = session.until(lambda s, pid=pid: s.state in LIVE and s.pid not in (None, pid))  # type: ignore[misc]
                back.append(time.monotonic() - killed_s)
                kept += after.settings == before.settings and after.voice == before.voice
            # Else it is killed again before it is back.
            progress.at(number + 1, f"{number + 1} kills, {loading} of them while loading")
        session.start()
        final = session.until(lambda s: s.state in LIVE and s.blocks > 10)
        supervisor = session.supervisor
        workers = [child.pid for child in supervisor.children(recursive=True) if child.pid in left_over]
        descriptors, threads = supervisor.num_fds(), supervisor.num_threads()
        memory = supervisor.memory_info().rss / (1 << 20)
    progress.end()
    table = Table(f"{kills} kills -9 of a live worker, {loading} while it loaded, seed {seed}")
    table.add("7 each kill is told with its cause", told == len(answers), f"{told} of {len(answers)}")
    table.add(
        "the supervisor answers meanwhile",
        max(answers, default=np.inf) < answer_s,
        f"slowest {1e3 * max(answers, default=np.inf):.0f} ms",
    )
    table.add(
        "back each time",
        bool(back) and max(back) < back_s,
        f"median {np.median(back or [np.inf]):.1f} s, longest {max(back, default=np.inf):.1f} s of {len(back)}",
    )
    table.add("6 with the same voice and settings", kept == len(back), f"{kept} of {len(back)}")
    table.add("runs in the end", final.state in LIVE, f"{final.state}, {final.blocks} blocks")
    table.add("no worker is left over", not workers, f"{len(workers)} left")
    table.add(
        "the supervisor is as small as before",
        descriptors < 80 and threads < 24 and memory < 200.0,
        f"{memory:.0f} MiB, {descriptors} descriptors, {threads} threads",
    )
    return table
