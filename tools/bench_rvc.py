#!/usr/bin/env python3
"""Time an RVC voice of full size, block by block and stage by stage, on random weights.

    python tools/bench_rvc.py [--backend B] [--precision P] [--threads N] [--blocks N] [--geometry BLOCK/CONTEXT/F0 …]
                              [--peer PYTHON [--peer-script FILE]] [--json FILE]

For each geometry: CPU-ms (all threads) and wall ms a block, per stage, load (p95 wall / block), memory, and the
SNR of the first blocks against torch eager. `--peer` names the Python of another environment in which rvc-next is
installed: its live engine runs at the same geometry, on the same voice and pitch model, block by block in turn with
ours, so that a busy machine slows both, and the ratio is printed. `--peer-script` runs another engine instead: it is
called as `PYTHON FILE BLOCK_MS CONTEXT_MS F0 THREADS MODELS`, says `ready`, then `done` for every line that it reads,
and at the end of its input prints one JSON object with `cpu_ms`.

Both run with the daemon's environment for children, which keeps idle threads of libraries from spinning.

With ONEDNN_MAX_CPU_ISA=AVX2 the peer's other libraries are held to AVX2 too. onnxruntime, which runs the features of
`--precision int8`, cannot be held: its figure is one of this processor's widest instructions.
"""

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from myna.daemon.child_environment import child_environment
from myna.engines.base import Block, Placement, VoiceAsset, VoiceParameters
from myna.engines.rvc.live import RvcLive

RATE_HZ = 48000
PEER_S = 900.0  # that another engine may take for all its blocks
STAGED = 6  # blocks by which stages are timed
GEOMETRIES = ("250/2500/rmvpe", "250/1000/rmvpe", "100/500/swift")
PEER_SCRIPT = Path(__file__).with_name("bench_rvc_peer.py")
RATES, KERNELS = (10, 10, 2, 2), (16, 16, 4, 4)


def write_models(folder: Path) -> dict[str, Path]:
    """A v2 40 kHz voice, a content encoder and a pitch model of the true sizes, weights drawn from a fixed seed."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {"model": folder / "voice.pth", "embedder": folder / "hubert_base.pt", "rmvpe": folder / "rmvpe.pt"}
    if all(path.exists() for path in paths.values()):
        return paths
    # Not where a voice is measured: a worker whose networks are exported runs without torch.
    import torch

    from myna.engines.f0.rmvpe import Rmvpe
    from myna.engines.rvc.decoder import Decoder
    from myna.engines.rvc.embedder import Sizes
    from myna.engines.rvc.encoder import TextEncoder
    from myna.engines.rvc.flow import Flow
    from myna.engines.rvc.hubert import ContentEncoder

    torch.manual_seed(0)
    whole = torch.nn.Module()
    whole.enc_p = TextEncoder(features=768, out=192, channels=192, hidden=768, heads=2, layers=6, kernel=3, pitch=True)
    whole.flow = Flow(192, 192, 256)
    whole.dec = Decoder(
        channels=192,
        start=512,
        speaker=256,
        rates=RATES,
        kernels=KERNELS,
        block_kernels=(3, 7, 11),
        block_dilations=((1, 3, 5),) * 3,
        short_blocks=False,
        source=True,
    )
    whole.emb_g = torch.nn.Embedding(109, 256)
    weight = OrderedDict((name, value.half()) for name, value in whole.state_dict().items())
    weight["dec.m_source.l_linear.weight"] = torch.ones(1, 1).half()
    weight["dec.m_source.l_linear.bias"] = torch.zeros(1).half()
    config = [1025, 32, 192, 192, 768, 2, 6, 3, 0, "1", [3, 7, 11], [[1, 3, 5]] * 3, list(RATES), 512]
    config += [list(KERNELS), 109, 256, 40000]
    voice = {"weight": weight, "config": config, "info": "random", "sr": "40k", "f0": 1, "version": "v2"}
    torch.save(voice, paths["model"])
    sizes = Sizes(
        channels=512,
        kernels=(10, 3, 3, 3, 3, 2, 2),
        width=768,
        hidden=3072,
        heads=12,
        layers=12,
        position_kernel=128,
        position_groups=16,
        projected=256,
    )
    state = ContentEncoder(sizes, layers=12, project=False).state_dict()
    position = state.pop("encoder.pos_conv.0.weight")
    state["encoder.pos_conv.0.weight_v"] = position
    state["encoder.pos_conv.0.weight_g"] = position.norm(2, (0, 1), keepdim=True)
    torch.save({"model": state}, paths["embedder"])
    pitch = Rmvpe(start=16, depth=5, across=4, blocks=4, hidden=256, recurrent=1, bands=128)
    torch.save(pitch.state_dict(), paths["rmvpe"])
    return paths


@dataclass
class Row:
    """What one geometry took."""

    geometry: str
    backend: str
    precision: str
    load_s: float
    prepare_s: float
    cpu_ms: float
    wall_ms: float
    p95_ms: float
    load: float
    rss_mb: float
    snr_db: float | None = None
    stages: dict[str, float] = field(default_factory=dict)
    peer: str = "peer"
    peer_cpu_ms: float | None = None
    peer_rss_mb: float | None = None
    notes: tuple[str, ...] = ()


def voice_like(frames: int) -> np.ndarray:
    """A gliding pulse train in a little noise, so that no stage meets silence."""
    t = np.arange(frames) / RATE_HZ
    phase = 2 * np.pi * np.cumsum(140 + 20 * np.sin(2 * np.pi * 0.7 * t)) / RATE_HZ
    tone = np.zeros(frames)
    for k in range(1, 20):  # one after the other: a list of them would count as the voice's memory
        tone += np.sin(k * phase) / k
    noise = np.random.default_rng(1).standard_normal(frames)
    return (0.08 * tone + 0.01 * noise).astype(np.float32)


class Peer:
    """Another engine in a process of its own, which runs a block when it is told to."""

    def __init__(self, command: list[str]) -> None:
        """Start it; returns when it is warm, or has ended."""
        environment = dict(os.environ)
        if environment.get("ONEDNN_MAX_CPU_ISA", "").upper() == "AVX2":
            environment |= {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (kept open as long as the peer)
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment
        )
        self._limit = threading.Timer(PEER_S, self._child.kill)  # one that hangs is told as one that failed
        self._limit.daemon = True
        self._limit.start()
        self._until("ready")

    def block(self) -> None:
        """Have it run one block."""
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `answer` finds that it has ended
            self._child.stdin.write("\n")
            self._child.stdin.flush()
            self._until("done")

    def answer(self) -> dict[str, Any]:
        """What it measured; empty where it failed."""
        out, _ = self._child.communicate(timeout=60)
        self._limit.cancel()
        try:
            told = json.loads(out.strip().splitlines()[-1])
        except (ValueError, IndexError):
            return {}
        return told if isinstance(told, dict) else {}

    def last_words(self) -> str:
        """The end of what it wrote to its standard error."""
        self._errors.seek(0)
        return self._errors.read().strip()[-300:]

    def _until(self, word: str) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.strip() == word:
                return


def stages_cpu_ms(live: RvcLive, sound: Block) -> dict[str, float]:
    """CPU-ms a block of every network by its role, and of all else, one after another: side by side they can't be told.

    Args:
        live: A voice that is warm.
        sound: Blocks, shape (blocks, frames).
    """
    models, spent = live._models, dict[str, float]()
    made = models.stage

    def stage(network: Any, shapes: Any) -> Any:
        run = made(network, shapes)

        def counted(*inputs: Any) -> Any:
            began = time.process_time()
            out = run(*inputs)
            spent[network.role] = spent.get(network.role, 0.0) + 1e3 * (time.process_time() - began)
            return out

        return counted

    models.stage = stage  # type: ignore[method-assign]
    beside, live._beside = live._beside, None
    began = time.process_time()
    for block in sound:
        live.process(block)
    whole = 1e3 * (time.process_time() - began)
    models.stage, live._beside = made, beside  # type: ignore[method-assign]
    return {role: ms / len(sound) for role, ms in (*spent.items(), ("rest", whole - sum(spent.values())))}


def measure(geometry: str, paths: dict[str, Path], options: argparse.Namespace, cache: Path) -> Row:
    """Run one geometry."""
    block_ms, context_ms, method = geometry.split("/")
    block = int(float(block_ms) * RATE_HZ / 1000)
    parameters = VoiceParameters(f0_method=method, context_ms=float(context_ms))
    files = {name: path for name, path in paths.items() if name != "rmvpe" or method == "rmvpe"}
    placement = Placement(
        backend=options.backend, precision=options.precision, threads=options.threads, cache_dir=cache
    )
    began = time.perf_counter()
    live = RvcLive(VoiceAsset(id="bench", engine="rvc", files=files), placement, parameters, RATE_HZ)
    load_s = time.perf_counter() - began
    began = time.perf_counter()
    live.prepare(block)
    prepare_s = time.perf_counter() - began
    sound = voice_like(block * (8 + options.blocks + STAGED)).reshape(-1, block)
    heard = [live.process(b) for b in sound[:8]]
    asked = [block_ms, context_ms, method, str(options.threads), str(options.models)]
    peer = Peer([options.peer, options.peer_script, *asked]) if options.peer else None
    walls, cpu = [], 0.0
    for b in sound[8:-STAGED]:
        began, cpu_began = time.perf_counter(), time.process_time()
        heard.append(live.process(b))
        cpu += time.process_time() - cpu_began
        walls.append(1e3 * (time.perf_counter() - began))
        if peer is not None:
            peer.block()
    cpu_ms = 1e3 * cpu / options.blocks
    stages = stages_cpu_ms(live, sound[-STAGED:])
    facts = live.facts
    row = Row(
        geometry=geometry,
        backend=facts.backend,
        precision=facts.precision,
        load_s=load_s,
        prepare_s=prepare_s,
        cpu_ms=cpu_ms,
        wall_ms=float(np.median(walls)),
        p95_ms=float(np.percentile(walls, 95)),
        load=float(np.percentile(walls, 95)) / float(block_ms),
        rss_mb=resident_mb(),
        stages=stages,
        notes=(*facts.fallbacks, *facts.notes),
    )
    live.close()
    if facts.backend != "eager" and options.snr:
        eager = RvcLive(
            VoiceAsset(id="bench", engine="rvc", files=files),
            Placement(backend="eager", threads=options.threads),
            parameters,
            RATE_HZ,
        )
        reference = np.concatenate([eager.process(b) for b in sound[:8]])
        ours = np.concatenate(heard[:8])
        apart = float(np.square(reference - ours).sum())
        row.snr_db = 10 * float(np.log10(np.square(reference - reference.mean()).sum() / max(apart, 1e-20)))
        eager.close()
    if peer is not None:
        answer = peer.answer()
        if "cpu_ms" in answer:
            row.peer_cpu_ms, row.peer = float(answer["cpu_ms"]), str(answer.get("peer", "peer"))
            row.peer_rss_mb = answer.get("rss_mb")
        else:
            print(f"the peer gave no figure: {peer.last_words()}", file=sys.stderr)
    return row


def resident_mb() -> float:
    """Resident memory now, in MiB; the largest so far where the system doesn't tell."""
    try:
        for line in Path("/proc/self/status").read_text("ascii").splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def show(row: Row) -> None:
    """Print one row."""
    snr = "" if row.snr_db is None else f"  SNR {row.snr_db:.0f} dB"
    print(
        f"{row.geometry:16s} {row.backend} {row.precision}: {row.cpu_ms:.0f} CPU-ms, wall {row.wall_ms:.0f} "
        f"(p95 {row.p95_ms:.0f}) ms, load {100 * row.load:.0f} %, RSS {row.rss_mb:.0f} MiB, "
        f"loaded in {row.load_s:.1f} + {row.prepare_s:.1f} s{snr}"
    )
    print("    " + ", ".join(f"{role} {ms:.1f}" for role, ms in row.stages.items()))
    if row.peer_cpu_ms:
        memory = "" if row.peer_rss_mb is None else f", RSS {row.peer_rss_mb:.0f} MiB"
        print(f"    {row.peer}: {row.peer_cpu_ms:.0f} CPU-ms{memory}: ratio {row.cpu_ms / row.peer_cpu_ms:.2f}")
    for note in row.notes:
        print(f"    {note}")


def main() -> int:
    """Measure every geometry; each in a process of its own, so that none warms the next one's memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--geometry", action="append")
    parser.add_argument("--models", type=Path, help="where the random models are kept [a temporary folder]")
    parser.add_argument("--peer", metavar="PYTHON", help="of an environment with another engine in it")
    parser.add_argument("--peer-script", metavar="FILE", help="what that Python runs [rvc-next's live engine]")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--snr", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer_script and not options.peer:
        parser.error("--peer-script needs --peer")
    options.peer_script = options.peer_script or str(PEER_SCRIPT)
    if options.one:
        paths = write_models(options.models)
        row = measure(options.one, paths, options, options.models / "exports")
        show(row)
        if options.json:
            options.json.write_text(json.dumps(row.__dict__), "utf-8")
        return 0
    with tempfile.TemporaryDirectory(prefix="bench-rvc-") as scratch:
        folder = options.models or Path(scratch)
        write_models(folder)
        rows = []
        passed = [a for a in sys.argv[1:] if a.startswith("--no-snr")]
        for geometry in options.geometry or GEOMETRIES:
            told = Path(scratch) / "row.json"
            command = [sys.executable, __file__, "--one", geometry, "--models", str(folder), "--json", str(told)]
            command += ["--backend", options.backend, "--precision", options.precision]
            command += ["--threads", str(options.threads), "--blocks", str(options.blocks), *passed]
            if options.peer:
                command += ["--peer", options.peer, "--peer-script", options.peer_script]
            if subprocess.run(command, check=False, env=child_environment()).returncode != 0:
                return 1
            rows.append(json.loads(told.read_text("utf-8")))
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
