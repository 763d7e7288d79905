"""A real daemon on a real sound server, and how raw what is heard of it is."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.audio_server import OUT_CABLE, TEST_MIC, AudioServer
from tools.cable import RATE, Heard, play_and_hear
from tools.private_daemon import PrivateDaemon

Sound = NDArray[np.float32]
WHOLE = 0.95  # correlation of noise with itself, sent through, of which no part was moved against another


class Daemon(PrivateDaemon):
    """A real `mynad` beside a sound server."""

    def __init__(self, server: AudioServer, folder: Path, **variables: str) -> None:
        super().__init__(folder, server.env, **variables)
        self.server = server

    def up(self, *arguments: str) -> dict[str, Any]:
        """Live on the cables, blocks of 20 ms."""
        return self.myna("up", "--input", TEST_MIC, "--output", OUT_CABLE, "--set", "block_ms=20", *arguments)

    def hear_calmly(self, sound: Sound, tries: int = 6) -> tuple[Heard, dict[str, Any]]:
        """Both ends while `sound` plays, and the status: of the first try in which nothing slipped.

        A machine that gives its processors to somebody else for a while makes a session count a slip and raise its
        prefill, or the sound server and the recorders slip. That is right, or not ours, and not what is measured here;
        a session that always slips is found all the same.
        """
        seen = []
        for _ in range(tries):
            before = self.session()
            heard = play_and_hear(self.server, sound)
            after = self.session()
            seen.append((heard.delay_ms(), after["xruns"], after["latency"]["prefill_ms"]))
            same_delay = before["latency"]["prefill_ms"] == after["latency"]["prefill_ms"]
            if before["xruns"] == after["xruns"] and same_delay and seen[-1][0][1] > WHOLE:
                return heard, after
        raise AssertionError(f"something slipped in each of {tries} tries: {seen}")


TOLD_TOO_MUCH_MS = 10.0  # of the devices' own delay by PortAudio, beyond what is measured here


def raw_share(heard: Heard, delay_ms: float) -> float:
    """Largest correlation of any 50 ms of the far end with the microphone, within 5 ms around the known delay."""
    frame, slack = RATE // 20, RATE // 200
    lag = round(delay_ms * RATE / 1000)
    largest = 0.0
    loud = 0.1 * float(np.sqrt(np.mean(np.square(heard.near))))
    for at in range(0, len(heard.near) - frame, frame):
        near = heard.near[at : at + frame].astype(np.float64)
        far = heard.far[at + lag - slack : at + lag + frame + slack].astype(np.float64)
        if at + lag < slack or len(far) < frame + 2 * slack or np.sqrt(np.mean(near**2)) < loud:
            continue
        scores = np.correlate(far, near)
        power = np.convolve(far**2, np.ones(frame), "valid") * np.sum(near**2)
        largest = max(largest, float(np.max(np.abs(scores) / np.sqrt(power + 1e-12))))
    return largest
