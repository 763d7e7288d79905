"""Voices exported to ONNX: they sound like the checkpoint they came from, and bad ones are named, never run."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx_exports import DrawingItself, Whole, write_export
from tiny_models import EAGER, PLAIN, asset

from myna.daemon.voices.library import VoiceLibrary
from myna.engines.base import MissingAsset, ModelUnusable, ParameterRefused, Placement, VoiceAsset
from myna.engines.rvc import SPEC, onnxfile
from myna.engines.rvc.backends.choice import snr_db
from myna.engines.rvc.file import RvcFile
from myna.engines.rvc.inspect import inspect
from myna.engines.rvc.live import RvcLive
from myna.engines.rvc.models import Models
from myna.engines.rvc.onnxfile import open_export
from myna.engines.rvc.onnxparts import OnnxParts
from myna.engines.rvc.rates import whole

Array = NDArray[np.float32]
RATE, BLOCK = 48000, 4800
SHORT = replace(PLAIN, context_ms=300.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def export(folder: Path) -> Path:
    return write_export(folder / "plain.onnx")


@pytest.fixture(scope="module")
def speech(speech_16k: Array) -> Array:
    return whole(speech_16k[16000:28800], 16000, RATE)[: 8 * BLOCK]


def exported(folder: Path, model: Path, voice: str = "v1_40k_f0") -> VoiceAsset:
    plain = asset(folder, voice)
    return VoiceAsset(id="exported", engine="rvc", files={**plain.files, "model": model})


def live(voice: VoiceAsset, sound: Array, **changes: object) -> Array:
    running = RvcLive(voice, EAGER, replace(SHORT, **changes), RATE)  # type: ignore[arg-type]
    running.prepare(BLOCK)
    return np.concatenate([running.process(block) for block in sound.reshape(-1, BLOCK)])


@pytest.mark.parametrize("voice", ["v1_40k_f0", "v1_40k_nof0", "v1_48k_f0"])
def test_an_export_sounds_like_its_checkpoint_live_and_from_files(folder: Path, speech: Array, voice: str) -> None:
    model = write_export(folder / f"{voice}.onnx", voice)
    ours, theirs = exported(folder, model, voice), asset(folder, voice)
    # Sums in another order; a formant shift shows that the decoder's own axis and the source's go along.
    for formant in (0.0, 1.5):
        assert snr_db(live(theirs, speech, formant=formant), live(ours, speech, formant=formant)) > 60
    made = [RvcFile(v, EAGER, PLAIN).convert(speech, RATE) for v in (theirs, ours)]
    assert snr_db(*made) > 60


def test_the_same_file_three_times_gives_the_same_bytes(folder: Path, export: Path, speech: Array) -> None:
    voice = RvcFile(exported(folder, export), EAGER, PLAIN)
    first = voice.convert(speech, RATE)
    voice.convert(speech[: 3 * BLOCK], RATE)
    assert np.array_equal(voice.convert(speech, RATE), first)
    assert np.array_equal(RvcFile(exported(folder, export), EAGER, PLAIN).convert(speech, RATE), first)


def test_exports_that_scale_or_draw_their_noise_sound_the_same(folder: Path, export: Path, speech: Array) -> None:
    plain = live(exported(folder, export), speech)
    scaled = write_export(folder / "scaled.onnx", scaled=True)
    assert open_export(scaled).scaled
    assert not open_export(export).scaled
    assert snr_db(plain, live(exported(folder, scaled), speech)) > 60
    drawing = write_export(
        folder / "drawing.onnx",
        kind=DrawingItself,
        names={"phone": "feats", "phone_lengths": "p_len", "ds": "sid"},
        metadata={"metadata": '{"samplingRate": 48000, "embedder": "hubert_base_japanese"}'},
    )
    assert snr_db(plain, live(exported(folder, drawing), speech)) > 60
    assert "the file says 48000 Hz" in open_export(drawing).notes[0]


def test_what_metadata_say_is_used_or_contradicted(tmp_path: Path) -> None:
    told = open_export(write_export(tmp_path / "v.onnx", metadata={"sr": "40k", "embedder": "chinese-hubert-large"}))
    assert told.rate_hz == 40000
    assert told.notes == ("it was trained on the content encoder chinese-hubert-large; with ContentVec it will babble",)


def test_half_precision_is_taken_as_it_is(folder: Path, export: Path, speech: Array) -> None:
    """Throughout, or as weights alone with the casts that converters put after them."""
    plain = live(exported(folder, export), speech)
    throughout = write_export(folder / "half.onnx", half=True)
    assert snr_db(plain, live(exported(folder, throughout), speech)) > 25
    model = onnx.load(str(export))
    for tensor in list(model.graph.initializer):
        value = onnx.numpy_helper.to_array(tensor)
        if value.dtype == np.float32:
            name, kind = tensor.name, onnx.TensorProto.FLOAT
            tensor.CopyFrom(onnx.numpy_helper.from_array(value.astype(np.float16), f"{name}.half"))
            model.graph.node.insert(0, onnx.helper.make_node("Cast", [f"{name}.half"], [name], to=kind))
    weights = folder / "weights.onnx"
    onnx.save(model, str(weights))
    assert snr_db(plain, live(exported(folder, weights), speech)) > 25


def test_each_block_costs_one_call_of_each_part(folder: Path, export: Path, speech: Array) -> None:
    running = RvcLive(exported(folder, export), EAGER, SHORT, RATE)
    running.prepare(BLOCK)
    counts = {"latent": 0, "audio": 0}
    for key, stage in list(running._models._stages.items()):
        if key[0] in counts:

            def counted(*inputs: object, role: str = key[0], stage: Callable[..., Array] = stage) -> Array:
                counts[role] += 1
                return stage(*inputs)

            running._models._stages[key] = counted
    for block in speech[: 3 * BLOCK].reshape(-1, BLOCK):
        running.process(block)
    assert counts == {"latent": 3, "audio": 3}
    # Only what is returned, and a margin, is decoded: the cut is what makes an export fit for live use.
    rendered = [key[1][0][2] for key in running._models._stages if key[0] == "audio"]
    assert max(rendered) < 30


def test_status_tells_that_two_runtimes_compute(folder: Path, export: Path) -> None:
    voice = exported(folder, export)
    facts = RvcLive(voice, EAGER, SHORT, RATE).facts
    assert facts.backend == "eager + onnxruntime"
    assert facts.providers == ("CPUExecutionProvider",)
    assert any("ONNX export" in note for note in facts.notes)
    assert facts.model_bytes == export.stat().st_size
    with pytest.raises(ParameterRefused, match="speakers 0 to 2"):
        RvcLive(voice, EAGER, replace(SHORT, speaker_id=3), RATE)
    models = Models(voice, Placement(backend="eager"))
    models.close()
    assert models.latent.run is None  # the sessions are let go of


def test_an_export_uses_the_device_only_where_its_runtime_reaches_it(
    folder: Path, export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    voice = open_export(export)
    assert OnnxParts(voice, 1).fallbacks == ()
    absent = OnnxParts(voice, 1, "cuda:0")
    assert absent.providers == ("CPUExecutionProvider",)
    assert "pip install onnxruntime-gpu" in absent.fallbacks[0]
    assert "nothing for xpu:0" in OnnxParts(voice, 1, "xpu:0").fallbacks[0]
    made, asked = onnxruntime.InferenceSession, []

    def session(model: bytes, options: Any, providers: list[Any]) -> Any:
        asked.append((providers, options.enable_mem_pattern))
        real = made(model, options, providers=["CPUExecutionProvider"])
        return SimpleNamespace(run=real.run, get_providers=lambda: computing)

    computing = ["DmlExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["DmlExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    assert OnnxParts(voice, 1, "dml").fallbacks == ()
    assert asked == [([("DmlExecutionProvider", {"device_id": "0"}), "CPUExecutionProvider"], False)] * 2
    computing = ["CPUExecutionProvider"]
    assert "left it for the CPU" in OnnxParts(voice, 1, "dml").fallbacks[0]


# --- what is refused ------------------------------------------------------------------------------------------


def changed(export: Path, folder: Path, change: Callable[[onnx.ModelProto], None]) -> Path:
    model = onnx.load(str(export))
    change(model)
    path = folder / "changed.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def external(location: str) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        tensor = model.graph.initializer[5]
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)

    return change


def operator(name: str, domain: str = "") -> Callable[[onnx.ModelProto], None]:
    return lambda m: m.graph.node.insert(0, onnx.helper.make_node(name, ["phone"], ["more"], domain=domain))


def hidden_operator(model: onnx.ModelProto) -> None:
    """Inside a branch, where a look at the outer graph alone would miss it."""
    node = onnx.helper.make_node("Evil", [], ["inner"], domain="evil")
    branch = onnx.helper.make_graph([node], "g", [], [onnx.helper.make_empty_tensor_value_info("inner")])
    model.graph.node.insert(0, onnx.helper.make_node("If", ["phone"], ["more"], then_branch=branch, else_branch=branch))


def circle(model: onnx.ModelProto) -> None:
    a, b = (onnx.helper.make_node("Identity", [x], [y]) for x, y in (("p", "q"), ("q", "p")))
    model.graph.node.extend([a, b])


def renamed_input(model: onnx.ModelProto) -> None:
    model.graph.input[0].name = "mel"
    for node in model.graph.node:
        for at, name in enumerate(node.input):
            if name == "phone":
                node.input[at] = "mel"


def floats_for_bins(model: onnx.ModelProto) -> None:
    next(i for i in model.graph.input if i.name == "pitch").type.tensor_type.elem_type = onnx.TensorProto.FLOAT


def other_features(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 1024


def without_upsampling(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type == "ConvTranspose":
            node.op_type = "Conv"


def many_harmonics(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        if tensor.name == "source.l_linear.weight":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.ones((1, 9), np.float32), tensor.name))


BAD: dict[str, tuple[Callable[[onnx.ModelProto], None], str]] = {
    "weights outside its folder": (external("../../etc/passwd"), "outside its own folder"),
    "weights at an absolute path": (external("/etc/passwd"), "outside its own folder"),
    "weights on a drive": (external(r"C:\secret.bin"), "outside its own folder"),
    "weights beside it": (external("weights.bin"), "in another file"),
    "a custom operator": (operator("Evil", "evil.ops"), "custom operator Evil"),
    "a custom operator in a branch": (hidden_operator, "custom operator Evil"),
    "a loop": (operator("Loop"), "operator Loop"),
    "a context of another provider": (operator("EPContext", "com.microsoft"), "operator EPContext"),
    "nodes in a circle": (circle, "do not follow from one another"),
    "another input": (renamed_input, "of another kind"),
    "an input of another type": (floats_for_bins, "takes pitch as another type"),
    "other features": (other_features, "1024 content features"),
    "no upsampling": (without_upsampling, "no upsampling layers"),
    "many harmonics": (many_harmonics, "9 harmonics"),
    "no network": (lambda m: m.graph.ClearField("node"), "without a network"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_exports_are_named_for_what_they_are(export: Path, tmp_path: Path, kind: str) -> None:
    change, words = BAD[kind]
    with pytest.raises(ModelUnusable, match=words) as refusal:
        inspect(changed(export, tmp_path, change))
    assert "wanted is RVC's own export" in str(refusal.value)


def test_what_is_no_export_at_all(export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "v.onnx"
    for content in (b"", b"PK\x03\x04", export.read_bytes()[:5000], np.random.default_rng(0).bytes(4000)):
        path.write_bytes(content)
        with pytest.raises(ModelUnusable, match="is no ONNX file"):
            inspect(path)
    with pytest.raises(ModelUnusable, match="cannot be read"):
        inspect(tmp_path / "absent.onnx")
    monkeypatch.setattr(onnxfile, "LARGEST_BYTES", 1000)
    with pytest.raises(ModelUnusable, match="a voice has about"):
        inspect(export)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingAsset, match="pip install onnx"):
        inspect(export)


def test_an_export_of_one_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable, match="for exactly 40 frames"):
        inspect(write_export(tmp_path / "fixed.onnx", fixed=True))


def test_damage_that_shows_only_when_it_runs(folder: Path, export: Path, tmp_path: Path) -> None:
    def torn(model: onnx.ModelProto) -> None:
        tensor = next(t for t in model.graph.initializer if t.name == "dec.conv_pre.weight")
        tensor.raw_data = tensor.raw_data[:100]

    def infinite(model: onnx.ModelProto) -> None:
        tensor = next(t for t in model.graph.initializer if t.name == "dec.conv_pre.bias")
        tensor.raw_data = np.full(tensor.dims[0], np.nan, np.float32).tobytes()

    for change, words in ((torn, "onnxruntime cannot run"), (infinite, "no sound")):
        with pytest.raises(ModelUnusable, match=words):
            Models(exported(folder, changed(export, tmp_path, change)), EAGER)


@pytest.mark.parametrize("seed", range(12))
def test_flipped_bytes_never_escape_as_another_error(export: Path, tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    raw = bytearray(export.read_bytes())
    # The graph stands before and after the weights; both ends are hit.
    for at in (*random.integers(0, 40000, 20), *(len(raw) - 1 - random.integers(0, 2000, 5))):
        raw[at] ^= 1 << int(random.integers(8))
    path = tmp_path / "flipped.onnx"
    path.write_bytes(bytes(raw))
    told = path.name
    try:
        open_export(path)  # a flipped weight is still a weight
    except ModelUnusable as refusal:
        told = str(refusal)
    assert path.name in told


# --- through the library --------------------------------------------------------------------------------------


def test_the_library_takes_and_shows_an_export(folder: Path, export: Path, tmp_path: Path) -> None:
    library = VoiceLibrary(tmp_path / "state", [SPEC])
    library.add(asset(folder).files["embedder"])
    added = library.add(export)
    assert (added.id, added.engine, added.problems) == ("plain", "rvc", ())
    shown = library.show("plain")
    facts = {key: shown.facts[key] for key in ("format", "version", "rate_hz", "f0", "speakers")}
    assert facts == {"format": "onnx", "version": "v1", "rate_hz": 40000, "f0": True, "speakers": 3}
    assert shown.problems == ()
    assert RvcLive(library.resolve("plain"), EAGER, SHORT, RATE).facts.engine == "rvc"


def test_a_check_does_not_read_the_export(folder: Path, export: Path, tmp_path: Path) -> None:
    """It is made in the supervisor, which stays small; what the file is was found in another process."""
    code = (
        "import sys; from pathlib import Path; from myna.engines.rvc import SPEC;"
        "from myna.engines.base import VoiceAsset;"
        "files = dict(zip(('model', 'embedder'), map(Path, sys.argv[1:])));"
        "assert SPEC.check(VoiceAsset(id='x', engine='rvc', files=files)) == ();"
        "assert not {'onnx', 'torch', 'onnxruntime'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code, str(export), str(asset(folder).files["embedder"])]
    subprocess.run(command, check=True, timeout=60)
    (problem,) = SPEC.check(exported(folder, tmp_path / "gone.onnx"))
    assert "gone.onnx is missing" in problem


def test_a_long_chain_to_the_speaker_is_walked(export: Path, tmp_path: Path) -> None:
    def stretched(model: onnx.ModelProto) -> None:
        table = next(n for n in model.graph.node if n.op_type == "Gather" and n.input[1] == "ds")
        chain = [onnx.helper.make_node("Identity", [f"s{i}" if i else "ds"], [f"s{i + 1}"]) for i in range(3000)]
        table.input[1] = "s3000"
        nodes = [*chain, *model.graph.node]
        del model.graph.node[:]
        model.graph.node.extend(nodes)

    assert open_export(changed(export, tmp_path, stretched)).speakers == 3


def test_inspection_needs_neither_torch_nor_onnxruntime(export: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from myna.engines.rvc import inspect as m;"
        "assert m.inspect(Path(sys.argv[1]))['facts']['format'] == 'onnx';"
        "assert not {'torch', 'onnxruntime'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(export)], check=True, timeout=60)


def test_the_exports_made_here_are_laid_out_as_users_are(export: Path) -> None:
    model = onnx.load(str(export))
    assert [i.name for i in model.graph.input] == ["phone", "phone_lengths", "pitch", "pitchf", "ds", "rnd"]
    assert [o.name for o in model.graph.output] == ["audio"]
    drawn = [n for n in model.graph.node if n.op_type.startswith("Random")]
    assert len(drawn) == 1  # the sine's own noise, which would differ from call to call
    assert issubclass(DrawingItself, Whole)
