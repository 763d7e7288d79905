#!/usr/bin/env python3
"""Time rvc-next's own live engine at a given geometry; runs in an environment where that is installed, without Myna.

    PYTHON tools/bench_rvc_peer.py BLOCK_MS CONTEXT_MS F0 THREADS MODELS

MODELS is the folder that `bench_rvc.py` keeps its random models in: the voice and the pitch model are the very ones
that Myna runs. The content encoder is made anew here, random and of the true size, for the peer reads another layout.
Says `ready` when it is warm, runs one block for every line on its standard input and says `done` after it. At the end
of its input it prints one JSON object: CPU-ms a block of all threads, median wall ms, resident MiB, version.
"""

import importlib.metadata
import json
import shutil
import sys
import time
from pathlib import Path

RATE_HZ = 48000
WARM = 4


def assets(models: Path) -> Path:
    """The peer's folder of shared models, made once beside ours."""
    import torch
    from rvc_next.engine.features.hubert import _model_class
    from transformers import HubertConfig

    root = models / "peer"
    if not (root / "rmvpe" / "rmvpe.pt").exists():
        torch.manual_seed(0)
        model = _model_class()(HubertConfig(classifier_proj_size=256))
        model.save_pretrained(root / "hubert_base")
        (root / "rmvpe").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(models / "rmvpe.pt", root / "rmvpe" / "rmvpe.pt")
    return root


def voice_like(frames: int):
    """The sound that Myna is timed on: a gliding pulse train in a little noise."""
    import numpy as np

    t = np.arange(frames) / RATE_HZ
    phase = 2 * np.pi * np.cumsum(140 + 20 * np.sin(2 * np.pi * 0.7 * t)) / RATE_HZ
    tone = np.zeros(frames)
    for k in range(1, 20):  # one after the other: a list of them would count as the voice's memory
        tone += np.sin(k * phase) / k
    noise = np.random.default_rng(1).standard_normal(frames)
    return (0.08 * tone + 0.01 * noise).astype(np.float32)


def resident_mb() -> float | None:
    """Resident memory now, in MiB; None where the system doesn't tell."""
    try:
        for line in Path("/proc/self/status").read_text("ascii").splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return None


def main(arguments: list[str]) -> int:
    """Time the peer; 2 for wrong arguments."""
    if len(arguments) != 5:
        print(__doc__, file=sys.stderr)
        return 2
    block_ms, context_ms, method, threads, models = (*arguments[:3], int(arguments[3]), Path(arguments[4]))
    import torch
    from rvc_next.engine.convert.params import VoiceParams
    from rvc_next.engine.runtime import Runtime
    from rvc_next.engine.stream.engine import StreamEngine
    from rvc_next.engine.stream.params import StreamParams

    torch.set_num_threads(threads)
    runtime = Runtime(assets(models), device="cpu", precision="fp32")
    engine = StreamEngine(
        runtime,
        runtime.voice(models / "voice.pth"),
        VoiceParams(f0_method=method, index_rate=0.0, rms_mix_rate=1.0),
        StreamParams(block_ms=int(float(block_ms)), crossfade_ms=50, context_ms=int(float(context_ms))),
        RATE_HZ,
    )
    size = engine.block_size
    sound = voice_like(size * 64).reshape(-1, size)
    for block in sound[:WARM]:
        engine.process(block)
    print("ready", flush=True)
    walls: list[float] = []
    cpu_ms = 0.0
    for _ in sys.stdin:
        at, began = time.perf_counter(), time.process_time()
        engine.process(sound[(WARM + len(walls)) % len(sound)])
        cpu_ms += 1e3 * (time.process_time() - began)
        walls.append(1e3 * (time.perf_counter() - at))
        print("done", flush=True)
    if not walls:
        return 1
    told = {
        "peer": f"rvc-next {importlib.metadata.version('rvc-next')}",
        "cpu_ms": cpu_ms / len(walls),
        "wall_ms": sorted(walls)[len(walls) // 2],
        "rss_mb": resident_mb(),
    }
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
