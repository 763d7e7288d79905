"""A program under test: copies input to output a constant number of frames later, tells what happens as JSON lines.

Arguments: input output rate_hz period_ms delay_frames hold_ms. Ends when its standard input closes or the stream
ends. hold_ms above 0: every half second the interpreter lock is held for so long, as a stubborn extension would.
"""

import ctypes
import json
import os
import select
import sys
import time
from dataclasses import asdict

import numpy as np

from myna.daemon.audio.backend import StreamRequest
from myna.daemon.audio.open import open_stream


def tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def main() -> None:
    source_name, sink_name, rate_hz, period_ms, delay, hold_ms = sys.argv[1:7]
    stream = open_stream(
        StreamRequest(
            input=source_name, output=sink_name, rate_hz=int(rate_hz), period_ms=float(period_ms), one_clock=True
        )
    )
    source, sink = stream.source, stream.sink
    if source is None or sink is None:
        raise SystemExit("a direction is missing")
    stream.start()
    block = round(0.01 * int(rate_hz))
    into = np.zeros(block, np.float32)
    holding = ctypes.PyDLL(None)  # calls through it keep the lock
    holds = {"count": 0, "callbacks": 0}
    held = time.monotonic()
    began, settled, checked = time.monotonic(), False, time.monotonic()
    while True:
        if source.wait(block, 20.0):
            frames, position = source.read(into)
            sink.write(position + int(delay), into[:frames])
        now = time.monotonic()
        if not settled and now - began > 1.0:
            settled = True
            # Priorities are told after the start: only then do the threads exist.
            tell(settled=sink.stats(), facts=asdict(stream.facts))
        if float(hold_ms) and settled and now - held > 0.5:
            before = sink.stats()["callbacks"]
            holding.usleep(round(1000 * float(hold_ms)))
            holds["callbacks"] += sink.stats()["callbacks"] - before
            holds["count"] += 1
            held = time.monotonic()
        if now - checked > 0.05:
            checked = now
            if (reason := stream.ended()) is not None:
                tell(ended=reason)
                break
            if select.select([sys.stdin], [], [], 0)[0]:
                break
    stats = sink.stats()
    closing = time.monotonic()
    stream.close()
    tell(stats=stats, holds=holds, close_s=time.monotonic() - closing)
    os._exit(0)  # PortAudio's own clean-up at exit can hang on a dead server


if __name__ == "__main__":
    main()
