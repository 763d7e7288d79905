"""The core under real threads: the callback runs without the interpreter lock beside Python."""

import ctypes
import threading
import time

import numpy as np

from myna.daemon._core import Core

PERIOD = 48
CALLBACKS = 3000
DELAY = 600

Callback = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_void_p,
)


def sound(begin: int, frames: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return ((np.arange(begin, begin + frames) * 7919 % 65521 + 1) / 65536).astype(np.float32)


def test_passthrough_between_threads_is_exact_wherever_it_was_in_time() -> None:
    core = Core(rate_hz=48000.0, in_channels=1, out_channels=1, in_map=(0,), out_map=(0,), capacity_frames=4096)
    callback, done = Callback(core.callback), threading.Event()
    heard = sound(0, PERIOD * CALLBACKS)
    played = np.zeros_like(heard)

    def device() -> None:
        for i in range(CALLBACKS):
            at = i * PERIOD * 4
            callback(heard.ctypes.data + at, played.ctypes.data + at, PERIOD, None, 0, core.userdata)
            time.sleep(0)  # let go of the lock, as between two periods
        done.set()

    thread = threading.Thread(target=device)
    thread.start()
    into, position_after, gaps = np.zeros(256, np.float32), 0, 0
    while not done.is_set():
        if not core.wait(PERIOD, 20.0):
            continue
        got, position = core.read(into)
        np.testing.assert_array_equal(into[:got], sound(position, got))
        assert position >= position_after
        gaps += position != position_after
        position_after = position + got
        core.write(position + DELAY, into[:got])
    thread.join(10.0)
    assert not thread.is_alive()
    stats = core.stats()
    assert stats["captured"] == stats["played"] == PERIOD * CALLBACKS
    assert gaps == 0 or stats["in_full_events"] >= gaps
    due = np.concatenate([np.zeros(DELAY, np.float32), heard[:-DELAY]])
    wrong = np.count_nonzero(played != due)
    # Everything not dry and not in a fade beside a dry stretch is the very sample, DELAY frames later.
    assert wrong <= stats["dry_frames"] + (stats["dry_events"] + 1) * 3 * 64
    assert wrong < played.size  # something did come through


def test_wait_lets_other_threads_run_and_keeps_its_deadline() -> None:
    core = Core(rate_hz=48000.0, in_channels=1, out_channels=0, in_map=(0,), out_map=(), capacity_frames=1024)
    counted = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal counted
        while not stop.is_set():
            counted += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = counted
    assert not core.wait(480, 30.0)
    stop.set()
    thread.join(10.0)
    assert counted > before
