"""Backends: each network equals torch within the stated SNR, exports are kept, and a refusal has its reason."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from file_watch import Watch
from numpy.typing import NDArray
from tiny_models import PLAIN, asset

from myna.engines.base import BackendUnavailable, Placement, VoiceParameters
from myna.engines.rvc.backends import choice as choosing
from myna.engines.rvc.backends import cpu
from myna.engines.rvc.backends import openvino as on_openvino
from myna.engines.rvc.backends.backend import examples
from myna.engines.rvc.backends.choice import choose, snr_db
from myna.engines.rvc.backends.convolved import convolved
from myna.engines.rvc.backends.eager import Eager
from myna.engines.rvc.backends.onnxruntime import OnnxRuntime
from myna.engines.rvc.backends.openvino import OpenVino
from myna.engines.rvc.live import RvcLive
from myna.engines.rvc.models import Models
from myna.engines.rvc.networks import Network, Shape
from myna.engines.rvc.rates import whole

Array = NDArray[np.float32]
pytest.importorskip("openvino", reason="the package openvino is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests here: an export takes seconds."""
    return tmp_path_factory.mktemp("exports")


@pytest.fixture(scope="module")
def models(folder: Path) -> Models:
    return Models(asset(folder, rmvpe=True), Placement(backend="eager"))


def all_of(models: Models, total: int = 80, rendered: int = 20) -> list[tuple[Network, list[Shape]]]:
    assert models.pitch is not None
    return [
        (models.content, [(1, total * 160)]),
        (models.latent, models.latent_shapes(total, total - 24)),
        (models.audio, models.audio_shapes(rendered)),
        (models.pitch, [(1, 128, 64)]),
    ]


@pytest.mark.parametrize("kind", [OpenVino, OnnxRuntime])
def test_every_network_equals_torch_at_shapes_it_was_not_exported_at(
    models: Models, kind: type[OpenVino] | type[OnnxRuntime], exports: Path
) -> None:
    other, eager = kind("fp32", 1, exports), Eager("cpu")
    for total, rendered in ((80, 20), (132, 36)):
        for network, shapes in all_of(models, total, rendered):
            inputs = examples(network, shapes, seed=total)
            apart = snr_db(eager.stage(network, shapes)(*inputs), other.stage(network, shapes)(*inputs))
            assert apart > 60, (network.role, apart)


@pytest.mark.parametrize("kind", [OpenVino, OnnxRuntime])
def test_int8_is_for_the_features_alone_and_near_enough(
    models: Models, kind: type[OpenVino] | type[OnnxRuntime], exports: Path
) -> None:
    backend, eager = kind("int8", 1, exports), Eager("cpu")
    found = {}
    for network, shapes in all_of(models)[:2]:
        inputs = examples(network, shapes, seed=5)
        found[network.role] = snr_db(eager.stage(network, shapes)(*inputs), backend.stage(network, shapes)(*inputs))
    assert choosing.LEAST_SNR_DB["int8"] < found["content"] < 60  # rounded, and told from fp32
    assert found["latent"] > 60
    kept = next(exports.glob("*-content-int8.onnx"))
    written = kept.stat().st_mtime_ns
    network, shapes = all_of(models)[0]
    kind("int8", 1, exports).stage(network, shapes)
    assert kept.stat().st_mtime_ns == written  # made once


def test_int8_that_is_too_far_off_gives_way_to_fp32(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_checked", lambda backend, *_: (15.0 if backend.precision == "int8" else 90.0, 2.0))
    choice = choose(Placement(backend="onnxruntime", precision="int8"), all_of(models)[:1])
    assert (choice.backend.name, choice.backend.precision) == ("onnxruntime", "fp32")
    assert choice.fallbacks == ("not onnxruntime int8: 15 dB against torch, 20 wanted",)


def test_a_voice_without_f0_runs_on_openvino(folder: Path, exports: Path) -> None:
    placement = Placement(backend="openvino", cache_dir=exports)
    live = RvcLive(asset(folder, "v1_40k_nof0"), placement, replace(PLAIN, context_ms=300.0), 48000)
    assert live.facts.backend == "openvino"
    sound = (0.1 * np.random.default_rng(0).standard_normal(9600)).astype(np.float32)
    assert np.isfinite(live.process(sound)).all()


def test_exports_are_made_once_and_read_from_disk(
    folder: Path, speech_16k: Array, exports: Path, monkeypatch: pytest.MonkeyPatch, watch: Watch
) -> None:
    placement = Placement(backend="openvino", cache_dir=exports)
    parameters = replace(PLAIN, context_ms=300.0)
    sound = whole(speech_16k[16000:24000], 16000, 48000)[:24000].reshape(-1, 4800)
    first = RvcLive(asset(folder), placement, parameters, 48000)
    heard = np.concatenate([first.process(b) for b in sound])
    assert {p.name.split("-")[1] for p in exports.glob("*.xml")} >= {"content.xml", "latent.xml", "audio.xml"}
    assert not list(exports.glob("tmp*"))
    assert not any(n.loaded for n in (first._models.content, first._models.latent, first._models.audio))

    def never(*_: object, **__: object) -> None:
        raise AssertionError("exported again")

    import openvino

    monkeypatch.setattr(openvino, "convert_model", never)
    again = RvcLive(asset(folder), placement, parameters, 48000)
    made = [again.process(sound[0])]
    with watch.over():
        made += [again.process(b) for b in sound[1:]]
    assert watch.seen == []  # what a block needs is in memory
    assert np.array_equal(np.concatenate(made), heard)
    eager = RvcLive(asset(folder), Placement(backend="eager"), parameters, 48000)
    assert snr_db(np.concatenate([eager.process(b) for b in sound]), heard) > 40


def test_auto_says_what_it_took_and_why_not_the_others(folder: Path, exports: Path) -> None:
    placement = Placement(backend="auto", precision="auto", cache_dir=exports)
    facts = Models(asset(folder), placement).facts(None)
    assert facts.backend in ("openvino", "eager")
    if facts.backend == "openvino":
        assert any("dB against torch" in note for note in facts.notes)
    else:
        assert facts.fallbacks
    verdicts = [json.loads(p.read_text()) for p in exports.glob("*.verdict.json")]
    assert verdicts
    again = Models(asset(folder), placement).facts(None)
    assert again.backend == facts.backend


def test_a_backend_that_is_wrong_or_slow_is_not_taken(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    networks = all_of(models)[:1]
    verdict = [10.0, 5.0]
    monkeypatch.setattr(choosing, "_checked", lambda *_: tuple(verdict))
    wrong = choose(Placement(backend="auto"), networks)
    assert wrong.backend.name == "eager"
    assert any("10 dB against torch" in f for f in wrong.fallbacks)
    verdict[:] = [90.0, 0.5]
    slow = choose(Placement(backend="auto"), networks)
    assert slow.backend.name == "eager"
    assert any("slower than torch" in f for f in slow.fallbacks)
    named = choose(Placement(backend="openvino"), networks)  # the user's word counts for more than its speed
    assert named.backend.name == "openvino"


@pytest.mark.parametrize("step_s", [1e-6, 0.016])
def test_a_network_costs_what_the_processor_s_clock_says(monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    """A neighbour that takes the processor away must not decide for good; the clock may be a coarse one."""
    spent = [0.0]
    monkeypatch.setattr(choosing.time, "process_time", lambda: spent[0] // step_s * step_s)

    def stage(*_: object) -> Array:
        spent[0] += 0.005
        return np.zeros(0, np.float32)

    assert abs(choosing._cost(stage, ()) - 0.005) < 0.0008


def test_bf16_is_asked_for_only_where_the_cpu_has_it(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert not choosing.has_amx()
    assert not choosing.has_bf16()
    for precision in ("bf16", "auto"):
        choice = choose(Placement(backend="openvino", precision=precision), all_of(models)[:1])
        assert (choice.backend.name, choice.backend.precision) == ("openvino", "fp32")
        assert any("bf16" in f for f in choice.fallbacks)


@pytest.mark.parametrize("role", ["content", "latent", "pitch"])
def test_products_written_as_convolutions_give_the_same(models: Models, exports: Path, role: str) -> None:
    import openvino

    backend = OpenVino("fp32", 1, exports)
    network, shapes = next(one for one in all_of(models) if one[0].role == role)
    found = []
    for turn in (False, True):
        model = backend._model(network)
        model.reshape({port: list(shape) for port, shape in zip(model.inputs, shapes, strict=True)})
        if turn:
            linear = sum(isinstance(m, torch.nn.Linear) for m in network.module.modules())
            assert convolved(model) == linear > 0
            assert convolved(model) == 0
        compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        found.append(np.array(compiled(dict(enumerate(examples(network, shapes))))[0]))
    assert snr_db(found[0], found[1]) > 100


@pytest.mark.parametrize(
    ("held_to", "flags", "tiles", "bf16"),
    [
        ("", "avx512f avx512_bf16 amx_bf16", True, True),
        ("", "avx512f avx512_bf16", False, True),  # Zen 4
        ("ALL", "avx512f avx512_bf16", False, True),
        ("", "avx2 avx512f avx512_vnni", False, False),
        ("AVX512_CORE_BF16", "avx512f avx512_bf16 amx_bf16", False, True),
        ("AVX512_CORE_AMX_FP16", "avx512f avx512_bf16 amx_bf16", True, True),
        ("AVX512_CORE_AMX", "avx512f avx512_bf16", False, True),
        ("AVX512_CORE_VNNI", "avx512f avx512_bf16 amx_bf16", False, False),
        ("avx2", "avx512f avx512_bf16 amx_bf16", False, False),
    ],
)
def test_bf16_is_found_in_tiles_and_in_vectors(
    monkeypatch: pytest.MonkeyPatch, held_to: str, flags: str, tiles: bool, bf16: bool
) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", held_to)
    monkeypatch.setattr(cpu, "_flags", lambda: flags)
    assert (cpu.has_amx(), cpu.has_bf16()) == (tiles, bf16)


@pytest.mark.parametrize(
    ("precision", "tiles", "total", "rendered", "content", "decoder"),
    [
        ("fp32", True, 132, 36, 2, 3), ("bf16", True, 132, 36, 2, 1), ("bf16", False, 132, 36, 2, 3),
        ("bf16", True, 66, 20, 3, 3),  # a block of 100 ms
    ],
)  # fmt: skip
def test_short_networks_take_one_thread_and_the_encoder_leaves_one_for_the_pitch(
    models: Models, exports: Path, precision: str, tiles: bool, total: int, rendered: int, content: int, decoder: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked: dict[str, int] = {}

    class Recorded:
        """OpenVINO's core, which compiles in fp32 whatever is asked, so that this runs on every CPU."""

        def __init__(self, core: Any) -> None:
            self.core = core

        def __getattr__(self, name: str) -> Any:
            return getattr(self.core, name)

        def get_property(self, device: str, name: str) -> list[str]:
            return ["FP32", "BF16"]

        def compile_model(self, model: Any, device: str, options: dict[str, Any]) -> Any:
            asked[network.role] = options["INFERENCE_NUM_THREADS"]
            assert options["ENABLE_CPU_PINNING"] is False
            return self.core.compile_model(model, device, {**options, "INFERENCE_PRECISION_HINT": "f32"})

    import openvino

    core = openvino.Core()
    monkeypatch.setattr(openvino, "Core", lambda: Recorded(core))
    monkeypatch.setattr(on_openvino, "has_amx", lambda: tiles)
    monkeypatch.setattr(on_openvino, "has_bf16", lambda: True)
    backend = OpenVino(precision, 3, exports)
    for network, shapes in all_of(models, total, rendered):
        made = backend.stage(network, shapes)(*examples(network, shapes))
        assert np.isfinite(made).all()
    assert asked == {"content": content, "latent": 1, "audio": decoder, "pitch": 1}


def test_pitch_and_features_side_by_side_are_what_they_are_one_after_the_other(
    folder: Path, exports: Path, speech_16k: Array
) -> None:
    placement = Placement(backend="openvino", precision="fp32", threads=2, cache_dir=exports)
    parameters = VoiceParameters(f0_method="rmvpe", context_ms=300.0)
    blocks = speech_16k[: 8 * 1600].reshape(8, 1600)
    heard = []
    for apart in (True, False):
        live = RvcLive(asset(folder, rmvpe=True), placement, parameters, 16000)
        assert live._beside is not None
        if not apart:
            live._beside.close()
            live._beside = None
        heard.append(np.concatenate([live.process(block) for block in blocks]))
        live.close()
    np.testing.assert_array_equal(heard[0], heard[1])
    assert heard[0].any()


@pytest.mark.parametrize(
    ("backend", "asked", "tried"),
    [
        ("auto", "auto", ["bf16", "fp32"]), ("auto", "fp32", ["fp32"]), ("auto", "bf16", ["bf16", "fp32"]),
        ("openvino", "auto", ["bf16", "fp32"]), ("onnxruntime", "auto", ["fp32"]),
        ("onnxruntime", "bf16", ["bf16", "fp32"]), ("onnxruntime", "int8", ["int8", "fp32"]),
        ("auto", "int8", ["int8", "fp32"]),
    ],
)  # fmt: skip
def test_the_precision_asked_for_is_the_one_tried(
    models: Models, monkeypatch: pytest.MonkeyPatch, backend: str, asked: str, tried: list[str]
) -> None:
    seen: list[str] = []

    class Refusing:
        name = "refusing"

        def __init__(self, precision: str, *_: object) -> None:
            seen.append(precision)
            raise BackendUnavailable("not today")

    monkeypatch.setattr(choosing, "OpenVino", Refusing)
    monkeypatch.setattr(choosing, "OnnxRuntime", Refusing)
    choice = choose(Placement(backend=backend, precision=asked), all_of(models)[:1])
    assert seen == tried
    assert choice.backend.name == "eager"
    assert len(choice.fallbacks) == len(tried)


def test_unknown_backends_and_absent_devices_are_refused(models: Models) -> None:
    with pytest.raises(BackendUnavailable, match="auto, eager"):
        choose(Placement(backend="abacus"), [])
    with pytest.raises(BackendUnavailable, match="cannot be used"):
        choose(Placement(device="cuda:7"), [])


class Provided:
    """onnxruntime as if it had a card: what is asked of the card is computed on the CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, provider: str, *, refuses: bool = False) -> None:
        made, known = onnxruntime.InferenceSession, onnxruntime.get_available_providers()
        self.asked: list[Any] = []

        def session(graph: Any, options: Any, providers: list[Any]) -> Any:
            self.asked.append(providers)
            real = made(graph, options, providers=["CPUExecutionProvider"])
            kept = SimpleNamespace(get_inputs=real.get_inputs, run=real.run)
            kept.get_providers = lambda: ["CPUExecutionProvider"] if refuses else [provider, "CPUExecutionProvider"]
            return kept

        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [provider, *known])
        monkeypatch.setattr(onnxruntime, "InferenceSession", session)


@pytest.mark.parametrize(
    ("device", "backend", "provider", "options"),
    [
        ("dml", "auto", "DmlExecutionProvider", {"device_id": "0"}),
        ("mps", "onnxruntime", "CoreMLExecutionProvider", {}),
        ("cuda:1", "onnxruntime", "CUDAExecutionProvider", {"device_id": "1"}),
    ],
)
def test_a_card_is_reached_through_its_provider(
    models: Models, monkeypatch: pytest.MonkeyPatch, device: str, backend: str, provider: str, options: dict[str, str]
) -> None:
    card = Provided(monkeypatch, provider)
    networks = all_of(models)
    choice = choose(Placement(device=device, backend=backend), networks)
    assert (choice.backend.name, choice.backend.precision, choice.device) == ("onnxruntime", "fp32", device)
    assert choice.backend.providers == (provider, "CPUExecutionProvider")
    assert card.asked == [[(provider, options), "CPUExecutionProvider"]] * len(networks)
    assert choice.fallbacks == ()
    for network, shapes in networks:
        inputs = examples(network, shapes)
        reference = Eager().stage(network, shapes)(*inputs)
        assert snr_db(reference, choice.backend.stage(network, shapes)(*inputs)) > 60


@pytest.mark.parametrize("present", [True, False])
def test_a_card_that_its_provider_does_not_reach_leaves_the_cpu(
    models: Models, monkeypatch: pytest.MonkeyPatch, present: bool
) -> None:
    if present:
        Provided(monkeypatch, "DmlExecutionProvider", refuses=True)
    choice = choose(Placement(device="dml"), all_of(models)[:1])
    assert choice.device == "cpu"
    assert choice.backend.name in ("openvino", "eager")
    assert ("for the CPU by itself" if present else "pip install onnxruntime-directml") in choice.fallbacks[0]


def test_a_full_disk_costs_time_only(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    network = Network("small", "0", lambda: torch.nn.Conv1d(2, 2, 3), (np.zeros((1, 2, 10), np.float32),))
    for kind in (OpenVino, OnnxRuntime):
        stage = kind("fp32", 1, blocked / "cache").stage(network, [(1, 2, 20)])
        assert stage(*examples(network, [(1, 2, 20)])).shape == (1, 2, 18)


def test_a_failed_export_falls_back_with_its_reason(models: Models, tmp_path: Path) -> None:
    calls: list[int] = []

    def fails() -> None:
        calls.append(1)
        raise BackendUnavailable("its networks could not be exported: no space left")

    choice = choose(Placement(backend="openvino", cache_dir=tmp_path), all_of(models), fails)
    assert choice.backend.name == "eager"
    assert any("no space left" in f for f in choice.fallbacks)
    assert calls == [1]
    kept_nowhere = choose(Placement(backend="openvino", cache_dir=tmp_path), all_of(models), lambda: None)
    assert any("kept on disk" in f for f in kept_nowhere.fallbacks)


WITHOUT_TORCH = """
import sys
from pathlib import Path
import numpy as np
from myna.engines.base import Placement, VoiceAsset, VoiceParameters
from myna.engines.rvc.live import RvcLive

model, embedder, rmvpe, cache = map(Path, sys.argv[1:])
asset = VoiceAsset(id="v", engine="rvc", files={"model": model, "embedder": embedder, "rmvpe": rmvpe})
placement = Placement(backend="openvino", precision="fp32", cache_dir=cache)
live = RvcLive(asset, placement, VoiceParameters(f0_method="rmvpe", context_ms=300.0), 48000)
live.prepare(4800)
sound = (0.1 * np.random.default_rng(0).standard_normal(9600)).astype(np.float32)
assert np.any(live.process(sound[:4800])) or np.any(live.process(sound[4800:]))
live.reset()
live.close()
print({m for m in ("torch", "scipy") if m in sys.modules} or live.facts.backend)
"""


def test_a_voice_that_was_exported_before_runs_without_torch(folder: Path, exports: Path) -> None:
    """Importing torch takes 200 MB of a live worker that would never call it."""
    files = asset(folder, rmvpe=True).files
    Models(asset(folder, rmvpe=True), Placement(backend="openvino", precision="fp32", cache_dir=exports)).close()
    command = [
        sys.executable,
        "-c",
        WITHOUT_TORCH,
        *(str(files[r]) for r in ("model", "embedder", "rmvpe")),
        str(exports),
    ]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert told.returncode == 0, told.stderr
    assert told.stdout.strip() == "eager"  # of a closed voice


def test_a_backend_that_breaks_after_its_check_leaves_torch_to_run_the_voice(
    folder: Path, exports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placement = Placement(backend="openvino", precision="fp32", cache_dir=exports)
    Models(asset(folder, rmvpe=True), placement).close()

    def broken(*_: object) -> None:
        raise BackendUnavailable("the driver is gone")

    monkeypatch.setattr(OpenVino, "__init__", broken)
    live = RvcLive(asset(folder, rmvpe=True), placement, replace(PLAIN, context_ms=300.0), 48000)
    assert live.facts.backend == "eager"
    assert live.facts.fallbacks == ("not openvino fp32: the driver is gone",)
    sound = (0.1 * np.random.default_rng(0).standard_normal(9600)).astype(np.float32)
    assert np.any(np.concatenate([live.process(b) for b in sound.reshape(-1, 4800)]))


def test_snr() -> None:
    a = np.ones(100, np.float32)
    assert snr_db(a, a) == float("inf")
    assert abs(snr_db(a, a * 1.1) - 20) < 0.01
    assert snr_db(a, a * np.nan) == float("-inf")
    assert snr_db(a, a[:50]) == float("-inf")
