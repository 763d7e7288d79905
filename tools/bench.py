#!/usr/bin/env python3
"""Measure what live conversion and the control channel cost, each figure beside its limit.

    python tools/bench.py [live] [control] [--quick] [--json]
    python tools/bench.py rvc | jobs [ARGUMENTS]      (tools/bench_rvc.py, tools/bench_jobs.py)

Processor time is counted rather than the clock wherever it tells the same, so that a busy machine changes little.
Processes are the real ones: a daemon in a folder of its own, a session from a file to a file. A figure over its
limit is marked, and is no failure: the exit code is 1 only if something could not be measured.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import psutil
import soundfile
from live_rig import Rig
from numpy.typing import NDArray

from myna.control.client import Client
from myna.control.contract import (
    Empty,
    LiveDevices,
    LiveSet,
    LiveSetReply,
    LiveSettings,
    LiveStart,
    SessionRef,
    SessionStatus,
    StatusReply,
)
from myna.control.errors import MynaError
from myna.daemon.live.messages import VoiceOrder
from myna.dsp.resample import StreamingResampler
from myna.engines import registry

TOOLS = Path(__file__).resolve().parent
SPEECH = TOOLS.parent / "tests" / "data" / "speech"
ELSEWHERE = {"rvc": "bench_rvc.py", "jobs": "bench_jobs.py"}
RATE_HZ = 48000
PATIENCE_S = 60.0
DELAY_BLOCKS_MS = (20.0, 100.0, 250.0)
MIB = float(1 << 20)


class NotMeasured(Exception):
    """A figure could not be had; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What was measured, and the most it may be."""

    name: str
    unit: str
    samples: Sequence[float]
    limit: float | None = None
    judged: str = "median"  # or p99

    @property
    def median(self) -> float:
        """Of the samples."""
        return float(np.median(self.samples))

    @property
    def p99(self) -> float:
        """Of the samples; the largest one where there are few."""
        return float(np.percentile(self.samples, 99, method="higher"))

    @property
    def verdict(self) -> str:
        """`ok`, `over`, or nothing where no limit is set."""
        if self.limit is None:
            return ""
        return "ok" if (self.p99 if self.judged == "p99" else self.median) <= self.limit else "over"

    def row(self) -> dict[str, object]:
        """As JSON tells it."""
        return {
            "name": self.name,
            "unit": self.unit,
            "samples": len(self.samples),
            "median": self.median,
            "p99": self.p99,
            "limit": self.limit,
            "judged": self.judged,
            "verdict": self.verdict or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """What the daemon says of its delay at one block length, in ms, beside the usual scheme's."""

    block_ms: float
    compute_p99_ms: float
    prefill_ms: float
    stages_ms: float  # the voice's own delay above all
    devices_ms: float
    ours_ms: float
    usual_ms: float  # block, crossfade, 10 ms, another block, devices; without a voice's own delay


def table(figures: Sequence[Figure]) -> str:
    """The figures for people."""
    head = f"{'':58s} {'median':>9s} {'p99':>9s} {'limit':>9s}"
    lines = [head]
    for each in figures:
        limit = "" if each.limit is None else f"{each.limit:9.4g}"
        judged = f" ({each.judged})" if each.verdict else ""
        name = f"{each.name}, {each.unit}"
        lines.append(f"{name:58s} {each.median:9.4g} {each.p99:9.4g} {limit:>9s} {each.verdict}{judged}".rstrip())
    return "\n".join(lines)


def delay_table(delays: Sequence[Delay]) -> str:
    """The delays for people."""
    lines = ["delay in ms:  block  compute p99  prefill  stages  devices     Myna  usual scheme"]
    lines += [
        f"            {d.block_ms:7.0f} {d.compute_p99_ms:12.1f} {d.prefill_ms:8.1f} {d.stages_ms:7.1f}"
        f" {d.devices_ms:8.1f} {d.ours_ms:8.1f} {d.usual_ms:13.1f}"
        for d in delays
    ]
    return "\n".join(lines)


# --- sound ----------------------------------------------------------------------------------------------


def speech(seconds: float) -> NDArray[np.float32]:
    """Reading voices over and over at 48 kHz, shape (frames,)."""
    parts = []
    for path in sorted(SPEECH.glob("*.flac")):
        sound, rate = soundfile.read(path, dtype="float32")
        parts.append(StreamingResampler(rate, RATE_HZ).process(np.asarray(sound, np.float32)))
    whole = np.concatenate(parts)
    return np.resize(whole, round(seconds * RATE_HZ)).astype(np.float32)


# --- the loop, on simulated devices ---------------------------------------------------------------------


def loop_cpu_ms(voice: VoiceOrder, block_ms: float, blocks: int) -> list[float]:
    """Processor time of each turn of the block loop, reading the ring to writing the ring, in ms.

    The loop, the chain and the native rings are the real ones; devices and clock are simulated, and what they
    cost is not counted.
    """
    sound = speech(30.0)

    def microphone(first: int, frames: int) -> NDArray[np.float32]:
        return sound[np.arange(first, first + frames) % len(sound)]

    rig = Rig(mic={"signal": microphone}, out={"keep_s": 1.0}, real_engine=registry.find)
    rig.start(voice=voice, settings=msgspec.structs.asdict(LiveSettings(block_ms=block_ms)))
    loop = rig.running.loop
    taken: list[float] = []
    try:
        while len(taken) < blocks:
            rig.audio.advance(1e-3 * block_ms)
            before, began_ns = loop.counters.blocks, time.thread_time_ns()
            ended = loop.turn()
            spent_ms = 1e-6 * (time.thread_time_ns() - began_ns)
            if ended is not None or loop.counters.faults:
                raise NotMeasured(f"the loop did not go on: {ended or loop.counters.last_fault}")
            if loop.counters.blocks == before + 1:
                taken.append(spent_ms)
    finally:
        rig.session.stop()
    return taken


def loop_figures(blocks: int) -> list[Figure]:
    """The loop without a voice to speak of, and with the built-in one."""
    return [
        Figure(
            name="loop without conversion, 10 ms blocks", unit="CPU-ms a block", limit=0.3,
            samples=loop_cpu_ms(built_in("neutral"), 10.0, blocks),
        ),
        Figure(
            name="loop with the built-in voice, 20 ms blocks", unit="CPU-ms a block",
            samples=loop_cpu_ms(built_in("formant"), 20.0, blocks),
        ),
    ]  # fmt: skip


def built_in(voice: str) -> VoiceOrder:
    """A voice that needs no file, by its name."""
    return VoiceOrder.of(next(each for each in registry.installed_engines().voices() if each.id == voice))


# --- the real processes ---------------------------------------------------------------------------------


def program(name: str, module: str) -> list[str]:
    """How to call an installed command."""
    script = Path(sys.executable).with_name(name)
    return [str(script)] if script.exists() else [sys.executable, "-m", module]


MYNA = ("myna", "myna.control.cli")
MYNAD = ("mynad", "myna.daemon")


@contextmanager
def daemon(folder: Path) -> Iterator[tuple[psutil.Process, float, float]]:
    """A daemon with a state of its own: its process, and the seconds by clock and of processor to its ready line."""
    state = folder / "state"
    environment = {**os.environ, "MYNA_STATE_DIR": str(state), "MYNA_CONFIG": str(folder / "settings.toml")}
    environment.pop("MYNA_CONNECTION", None)
    began = time.monotonic()
    with open(folder / "mynad.log", "wb") as log:
        child = subprocess.Popen(
            [*program(*MYNAD), "--foreground"], stdout=subprocess.PIPE, stderr=log, env=environment
        )
    assert child.stdout is not None
    try:
        line = child.stdout.readline()
        wall_s = time.monotonic() - began
        if not line.startswith(b"mynad ready"):
            raise NotMeasured(f"the daemon did not start: {(folder / 'mynad.log').read_text('utf-8', 'replace')}")
        process = psutil.Process(child.pid)
        spent = process.cpu_times()
        yield process, wall_s, spent.user + spent.system
    finally:
        child.terminate()
        try:
            child.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()


@contextmanager
def session(folder: Path, seconds: float) -> Iterator[Client]:
    """A client of a daemon whose session turns a file of speech into another, at the clock's pace."""
    source = folder / "speech.wav"
    soundfile.write(source, speech(seconds), RATE_HZ)
    with Client(state_dir=folder / "state", name="bench") as client:
        devices = LiveDevices(input=f"file:{source}", output=f"file:{folder / 'out.wav'}")
        settings: dict[str, bool | int | float | str | None] = {"block_ms": 20.0, "pitch": -5.0}
        request = LiveStart(voice="formant", devices=devices, settings=settings)
        started = client.call("live.start", request, SessionStatus)
        if started.state != "running":
            raise NotMeasured(f"the session is {started.state}: {started.stop_reason}")
        yield client


def state(client: Client) -> SessionStatus:
    """The session as it is now; NotMeasured once it has ended."""
    status = client.call("live.state", SessionRef(), SessionStatus)
    if status.state not in ("running", "degraded"):
        raise NotMeasured(f"the session is {status.state}: {status.stop_reason}")
    return status


def worker_figures(client: Client, seconds: int) -> list[Figure]:
    """Processor and memory of the live worker, every second."""
    status = state(client)
    if status.pid is None:
        raise NotMeasured("the session has no process")
    worker = psutil.Process(status.pid)
    shares, sizes = [], []
    for _ in range(seconds):
        before, began = worker.cpu_times(), time.monotonic()
        time.sleep(1.0)
        after, passed_s = worker.cpu_times(), time.monotonic() - began
        shares.append(100.0 * (after.user + after.system - before.user - before.system) / passed_s)
        sizes.append(worker.memory_info().rss / MIB)
        state(client)
    return [
        Figure(name="live worker, built-in voice, 20 ms blocks", unit="% of one core", samples=shares, limit=25.0),
        Figure(name="live worker, built-in voice", unit="MiB resident", samples=sizes, limit=250.0),
    ]


def delays(client: Client) -> list[Delay]:
    """What the daemon tells of its delay at several block lengths, once each has run for a while."""
    found = []
    for block_ms in DELAY_BLOCKS_MS:
        client.call("live.set", LiveSet(values={"block_ms": block_ms}), LiveSetReply)
        status = until(client, lambda now, wanted=block_ms: now.block_ms == wanted)  # type: ignore[misc]
        blocks = status.blocks + max(8, round(2000.0 / block_ms))
        status = until(client, lambda now, wanted=blocks: now.blocks >= wanted)  # type: ignore[misc]
        found.append(delay_of(status))
    return found


def delay_of(status: SessionStatus) -> Delay:
    """The delay that a status tells. NotMeasured if a part of it is not known."""
    told = status.latency
    parts = (
        status.block_ms, told.compute_ms, told.prefill_ms, told.estimated_ms, told.peers_estimated_ms,
        told.algorithmic_ms,
    )  # fmt: skip
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        raise NotMeasured(f"the daemon does not know its delay: {told}")
    block_ms, compute, prefill, ours, usual, whole = known
    devices_ms = (told.device_in_ms or 0.0) + (told.device_out_ms or 0.0)
    return Delay(
        block_ms=block_ms,
        compute_p99_ms=compute,
        prefill_ms=prefill,
        stages_ms=whole - block_ms,
        devices_ms=devices_ms,
        ours_ms=ours,
        usual_ms=usual,
    )


def until(client: Client, there: Callable[[SessionStatus], bool]) -> SessionStatus:
    """The first status that is as wanted."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if there(status := state(client)):
            return status
        time.sleep(0.05)
    raise NotMeasured("the session did not take a new block length")


def round_trips(client: Client, calls: int) -> list[Figure]:
    """What a warm client waits for an answer while the session runs, by the clock."""
    request = Empty()
    asked, changed = [], []
    for _ in range(20):
        client.call("status", request, StatusReply)
    for _ in range(calls):
        began = time.perf_counter()
        client.call("status", request, StatusReply)
        asked.append(1e3 * (time.perf_counter() - began))
    for turn in range(max(4, calls // 10)):
        began = time.perf_counter()
        client.call("live.set", LiveSet(values={"pitch": 4.0 + turn % 2}), LiveSetReply)
        changed.append(1e3 * (time.perf_counter() - began))
    state(client)
    return [
        Figure(name="status, asked by a warm client", unit="ms", samples=asked, limit=5.0, judged="p99"),
        Figure(name="live.set, answered when a 20 ms block has taken it", unit="ms", samples=changed),
    ]


def help_cpu_s() -> float:
    """Processor time of `myna --help`."""
    child = subprocess.Popen([*program(*MYNA), "--help"], stdout=subprocess.DEVNULL)
    if hasattr(os, "wait4"):
        _, code, used = os.wait4(child.pid, 0)
        child.returncode = code
        spent = used.ru_utime + used.ru_stime
    else:
        process = psutil.Process(child.pid)
        child.wait()
        times = process.cpu_times()
        spent, code = times.user + times.system, child.returncode
    if code:
        raise NotMeasured(f"myna --help ended with {code}")
    return spent


# --- what is asked for ----------------------------------------------------------------------------------


def measure(what: Sequence[str], quick: bool) -> tuple[list[Figure], list[Delay]]:
    """Everything of `live` and `control` that is asked for."""
    figures: list[Figure] = []
    told: list[Delay] = []
    if "live" in what:
        figures += loop_figures(200 if quick else 2000)
    with tempfile.TemporaryDirectory(prefix="myna-bench-") as scratch:
        folder = Path(scratch)
        if "control" in what:
            figures += start_figures(folder, 2 if quick else 8)
        place = _new(folder, "session")
        with daemon(place) as (supervisor, _, _), session(place, 120.0) as client:
            if "live" in what:
                figures += worker_figures(client, 3 if quick else 15)
            if "control" in what:
                figures += round_trips(client, 100 if quick else 1000)
                figures.append(
                    Figure(
                        name="supervisor, with a session", unit="MiB resident", limit=60.0,
                        samples=[supervisor.memory_info().rss / MIB],
                    )
                )  # fmt: skip
            if "live" in what:
                told = delays(client)
    return figures, told


def start_figures(folder: Path, runs: int) -> list[Figure]:
    """Starting the daemon and the command, several times."""
    waited, spent = [], []
    for run in range(runs):
        with daemon(_new(folder, f"start{run}")) as (_, wall_s, cpu_s):
            waited.append(wall_s)
            spent.append(cpu_s)
    helped = [help_cpu_s() for _ in range(runs + 1)][1:]  # the first fills the disk's cache
    return [
        Figure(name="mynad, from its call to the ready line", unit="s", samples=waited, limit=0.5),
        Figure(name="mynad, until the ready line", unit="CPU-s", samples=spent),
        Figure(name="myna --help", unit="CPU-s", samples=helped, limit=0.3),
    ]


def _new(folder: Path, name: str) -> Path:
    place = folder / name
    place.mkdir()
    return place


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    load_1min = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_1min": load_1min,
        "niceness": os.nice(0) if hasattr(os, "nice") else None,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "warning": other_work(load_1min, os.cpu_count()),
    }


def other_work(load_1min: float | None, cores: int | None) -> str | None:
    """A word of warning where the machine had more to do than it has cores; None where it had not."""
    if load_1min is None or not cores or load_1min <= cores:
        return None
    return (
        f"The machine was busy with other work (load {load_1min:.1f} on {cores} cores): figures by the clock, and the "
        "delay, which grows when blocks come late, are too high."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 if all was measured, whatever it came to; 1 if not; 2 for a wrong call."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in ELSEWHERE:
        return subprocess.call([sys.executable, str(TOOLS / ELSEWHERE[given[0]]), *given[1:]])
    parser = argparse.ArgumentParser(
        prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", nargs="*", metavar="WHAT", help="live, control (default: both); rvc, jobs by themselves"
    )
    parser.add_argument("--quick", action="store_true", help="few samples: shows that it works, proves little")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(given)
    unknown = set(options.what) - {"live", "control"}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are live, control, rvc and jobs")
    try:
        figures, told = measure(options.what or ("live", "control"), options.quick)
    except (NotMeasured, MynaError, psutil.Error, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    if options.json:
        rows = {
            "machine": machine(),
            "figures": [each.row() for each in figures],
            "delays": [{name: getattr(d, name) for name in Delay.__slots__} for d in told],
        }
        print(json.dumps(rows, indent=1))
        return 0
    about = machine()
    warning = about.pop("warning")
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    if warning:
        print(warning)
    print(table(figures))
    if told:
        print(delay_table(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
