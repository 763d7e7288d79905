"""What a block and a segment cost: one pass of each kind, and no file, import or process beside them."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from file_watch import Watch
from numpy.typing import NDArray
from onnx_exports import write_export
from tiny_models import EAGER, PLAIN, asset

from myna.engines.base import VoiceAsset
from myna.engines.f0.extractors import PitchExtractor
from myna.engines.rvc.file import RvcFile
from myna.engines.rvc.live import RvcLive
from myna.engines.rvc.models import Models
from myna.engines.rvc.rates import whole

Array = NDArray[np.float32]
Voices = dict[str, tuple[VoiceAsset, str]]
RATE, BLOCK = 48000, 4800


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def speech(speech_16k: Array) -> Array:
    return whole(speech_16k[16000:48000], 16000, RATE)


def counted(models: Models, extractor: PitchExtractor | None) -> Counter[str]:
    """Count from now on every call of a network, and every look for pitch."""
    counts: Counter[str] = Counter()
    made = models.stage

    def stage(network: Any, shapes: Any) -> Callable[..., Array]:
        run = made(network, shapes)

        def once(*inputs: Any) -> Array:
            counts[network.role] += 1
            return run(*inputs)

        return once

    models.stage = stage  # type: ignore[method-assign]
    if extractor is not None:
        track = extractor.track

        def found(audio: Array) -> Array:
            counts["f0"] += 1
            return track(audio)

        extractor.track = found  # type: ignore[method-assign]
    return counts


@pytest.fixture(scope="module")
def voices(folder: Path) -> Voices:
    """Each kind of voice, with the method that finds its pitch."""
    faiss = pytest.importorskip("faiss", reason="the package faiss-cpu is not installed")
    index = faiss.IndexFlatL2(256)
    index.add(np.random.default_rng(0).standard_normal((50, 256)).astype(np.float32))
    faiss.write_index(index, str(folder / "voice.index"))
    plain = asset(folder, rmvpe=True)
    export = write_export(folder / "voice.onnx")
    return {
        "swift": (plain, "swift"),
        "pm": (plain, "pm"),
        "rmvpe": (plain, "rmvpe"),
        "without f0": (asset(folder, "v1_40k_nof0"), "swift"),
        "index": (asset(folder, index=folder / "voice.index"), "swift"),
        "export": (VoiceAsset(id="x", engine="rvc", files={**plain.files, "model": export}), "swift"),
    }


KINDS = ("swift", "pm", "rmvpe", "without f0", "index", "export")


@pytest.mark.parametrize("kind", KINDS)
def test_a_live_block_costs_one_pass_of_each_kind_and_touches_no_file(
    voices: Voices, speech: Array, watch: Watch, kind: str
) -> None:
    voice, method = voices[kind]
    live = RvcLive(voice, EAGER, replace(PLAIN, f0_method=method, context_ms=300.0, index_rate=0.5), RATE)
    live.prepare(BLOCK)
    assert (live._models.index is not None) is (kind == "index")
    blocks = speech.reshape(-1, BLOCK)
    for block in blocks[:2]:
        live.process(block)
    counts = counted(live._models, live._extractor)
    with watch.over():
        for at, block in enumerate(blocks[2:6]):
            live.set(replace(live._parameters, pitch=float(at), formant=0.5 * at))
            live.process(block)
    wanted = {"content": 4, "latent": 4, "audio": 4}
    if kind != "without f0":
        wanted["f0"] = 4
    if kind == "rmvpe":
        wanted["pitch"] = 4  # the network behind its look for pitch
    assert counts == wanted
    assert watch.seen == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_segment_costs_one_pass_of_each_kind_and_touches_no_file(
    voices: Voices, speech: Array, watch: Watch, kind: str
) -> None:
    voice, method = voices[kind]
    file = RvcFile(voice, EAGER, replace(PLAIN, f0_method=method, index_rate=0.5))
    segment = speech[: 3 * RATE // 2]
    file.convert(segment, RATE)
    counts = counted(file._models, file._extractor)
    with watch.over():
        file.convert(segment, RATE)
    wanted = {"content": 1, "latent": 1, "audio": 1}
    if kind != "without f0":
        wanted["f0"] = 1
    if kind == "rmvpe":
        wanted["pitch"] = 1
    assert counts == wanted
    assert watch.seen == []


def test_the_watch_sees_a_file(watch: Watch, tmp_path: Path) -> None:
    with watch.over():
        (tmp_path / "file").write_text("x")
    assert any("file" in seen for seen in watch.seen)
