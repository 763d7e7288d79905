"""Whether the sound server took a stream to another device, because its own is gone (PulseAudio, PipeWire).

PortAudio sees nothing of it: the stream plays on, elsewhere, where nobody wanted to be heard. A user who moves the
stream by hand leaves the old device where it is; that is consent, and no loss.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass

ANSWER_S = 3.0
KINDS = (("sink-input", "sink"), ("source-output", "source"))
EVENT = re.compile(r"Event '(new|change)' on (sink-input|source-output) #(\d+)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server's streams are, by kind and index of the stream, and which devices there are, by kind."""

    streams: Mapping[tuple[str, int], int]
    devices: Mapping[str, frozenset[int]]


def moved(before: Place, now: Place) -> bool:
    """True if a stream is on another device than before and that one is gone."""
    return any(
        now.streams.get(stream, device) != device and device not in now.devices[stream[0]]
        for stream, device in before.streams.items()
    )


def streams_of(listing: str, pid: int) -> dict[int, int]:
    """From `pactl list sink-inputs` or `source-outputs`: the device of each stream of a process, by stream."""
    found: dict[int, int] = {}
    for part in re.split(r"^(?=(?:Sink Input|Source Output) #)", listing, flags=re.MULTILINE):
        index = re.match(r"(?:Sink Input|Source Output) #(\d+)", part)
        device = re.search(r"^\s+(?:Sink|Source): (\d+)$", part, re.MULTILINE)
        owner = re.search(r'application\.process\.id = "(\d+)"', part)
        if index and device and owner and int(owner[1]) == pid:
            found[int(index[1])] = int(device[1])
    return found


def devices_of(listing: str) -> frozenset[int]:
    """From `pactl list short sinks` or `sources`: their indices."""
    return frozenset(int(line.split("\t")[0]) for line in listing.splitlines() if line[:1].isdigit())


class MoveWatch:
    """Listens to the server, on a thread of its own, while a stream runs.

    Made before that stream is opened, started afterwards: what this process has there already (a monitor, another
    direction) belongs to others, who watch for themselves.
    """

    def __init__(self) -> None:
        self._moved = False
        self._others: frozenset[tuple[str, int]] = frozenset()
        self._closing = False
        self._child: subprocess.Popen[str] | None = None
        self._there = sys.platform == "linux" and shutil.which("pactl") is not None
        if self._there:
            with contextlib.suppress(OSError, subprocess.SubprocessError):  # no such server, or it does not answer
                self._others = frozenset(_place().streams)

    def start(self) -> None:
        """Listen from now on."""
        if self._there:
            threading.Thread(target=self._watch, name="sound server", daemon=True).start()

    @property
    def moved(self) -> bool:
        """True for good once the server has taken a stream of this process from a device that is gone."""
        return self._moved

    def close(self) -> None:
        """Listen no more; waits for nothing."""
        self._closing = True
        child = self._child
        if child is not None:
            with contextlib.suppress(OSError):
                child.terminate()

    def _watch(self) -> None:
        with contextlib.suppress(OSError, subprocess.SubprocessError):  # no such server, or it does not answer
            child = self._child = subprocess.Popen(
                ["pactl", "subscribe"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=_plain_words(),
            )
            if self._closing:
                child.terminate()
            try:
                self._listen(child)
            finally:
                child.terminate()
                child.wait(ANSWER_S)
                if child.stdout is not None:
                    child.stdout.close()

    def _listen(self, child: "subprocess.Popen[str]") -> None:
        before = self._ours(_place())
        for line in child.stdout or ():
            if self._closing:
                return
            event = EVENT.match(line)
            if event and (event[1] == "new" or (event[2], int(event[3])) in before.streams):
                with contextlib.suppress(subprocess.SubprocessError):  # busy: the next event is looked at again
                    now = self._ours(_place())
                    self._moved = self._moved or moved(before, now)
                    before = now

    def _ours(self, place: Place) -> Place:
        streams = {stream: device for stream, device in place.streams.items() if stream not in self._others}
        return Place(streams, place.devices)


def _place() -> Place:
    streams: dict[tuple[str, int], int] = {}
    devices: dict[str, frozenset[int]] = {}
    for kind, of in KINDS:
        for index, device in streams_of(_pactl("list", f"{kind}s"), os.getpid()).items():
            streams[kind, index] = device
        devices[kind] = devices_of(_pactl("list", "short", f"{of}s"))
    return Place(streams, devices)


def _pactl(*arguments: str) -> str:
    done = subprocess.run(
        ["pactl", *arguments], capture_output=True, text=True, timeout=ANSWER_S, env=_plain_words(), check=True
    )
    return done.stdout


def _plain_words() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C"}
