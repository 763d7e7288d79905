"""Model files: the good ones load, the bad ones are named for what they are, and none of them runs anything."""

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from myna.engines.base import ModelUnusable
from myna.engines.rvc import torchfile
from myna.engines.rvc.checkpoint import content_hash, open_voice
from myna.engines.rvc.inspect import inspect
from myna.engines.rvc.opening import open_any
from myna.engines.rvc.synthesizer import build

GOLDEN = Path(__file__).parents[2] / "golden"
VOICE = GOLDEN / "synth" / "v2_40k_f0.pth"


def voice() -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(VOICE, weights_only=True)
    return loaded


def saved(path: Path, value: object, **how: Any) -> Path:
    torch.save(value, path, **how)
    return path


# --- good ones ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((GOLDEN / "synth").glob("*.pth")), ids=lambda p: p.stem)
def test_every_tensor_equals_what_torch_reads(path: Path) -> None:
    theirs = torch.load(path, weights_only=True)
    ours = torchfile.read_file(path)
    assert isinstance(ours, dict)
    assert ours["config"] == theirs["config"]
    assert list(ours["weight"]) == list(theirs["weight"])
    for name, tensor in theirs["weight"].items():
        assert np.array_equal(ours["weight"][name].read(), tensor.numpy()), name


def test_facts_of_a_voice() -> None:
    described = open_voice(GOLDEN / "synth" / "v1_48k_f0.pth")
    assert (described.version, described.features, described.rate_hz, described.has_f0) == ("v1", 256, 48000, True)
    assert described.speakers == 3  # the list says 109
    assert not open_voice(GOLDEN / "synth" / "v2_40k_nof0.pth").has_f0


def test_legacy_format_extra_keys_numpy_scalars_and_wide_types(tmp_path: Path) -> None:
    content = voice()
    content["sr"], content["f0"] = np.int64(40000), np.int32(1)
    content["loss"] = np.float32(1.5)
    content["epochs"] = {"a": [1, 2.5, None, True, ("x", b"y")], "set": {1, 2}}
    content["weight"]["emb_g.weight"] = content["weight"]["emb_g.weight"].double()
    content["weight"]["dec.cond.bias"] = content["weight"]["dec.cond.bias"].bfloat16()
    for how in ({}, {"_use_new_zipfile_serialization": False}, {"pickle_protocol": 4}):
        path = saved(tmp_path / "voice.pth", content, **how)
        read = torchfile.read_file(path)
        assert isinstance(read, dict)
        assert read["loss"] == 1.5
        assert read["epochs"]["a"] == [1, 2.5, None, True, ("x", b"y")]
        assert build(open_voice(path)).speakers == 3
        expected = content["weight"]["dec.cond.bias"].float().numpy()
        assert np.array_equal(read["weight"]["dec.cond.bias"].read(), expected)


def test_strided_and_shared_tensors(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    read = torchfile.read_file(saved(tmp_path / "a.pt", {"t": base.T, "row": base[2], "one": base[1, 3]}))
    assert isinstance(read, dict)
    assert np.array_equal(read["t"].read(), base.T.numpy())
    assert np.array_equal(read["row"].read(), base[2].numpy())
    assert read["one"].read() == 9


def test_safetensors_voice(tmp_path: Path) -> None:
    content = voice()
    metadata = {"config": json.dumps(content["config"]), "version": "v2", "f0": "1", "sr": "40k"}
    path = tmp_path / "voice.safetensors"
    save_file({n: t.contiguous() for n, t in content["weight"].items()}, path, metadata)
    ours, theirs = build(open_voice(path)), build(open_voice(VOICE))
    for (name, a), (_, b) in zip(ours.front.state_dict().items(), theirs.front.state_dict().items(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("name", ["größe ü 声.pth", "a b'c\"d;$(x).pth", "-rf.pth", "x" * 200 + ".pth", "no suffix"])
def test_paths_with_any_characters(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(VOICE.read_bytes())
    assert open_voice(path).rate_hz == 40000


def test_a_replaced_file_has_another_hash(tmp_path: Path) -> None:
    path = tmp_path / "voice.pth"
    path.write_bytes(VOICE.read_bytes())
    stat = path.stat()
    before = content_hash(path)
    other = bytearray(VOICE.read_bytes())
    other[-1] ^= 1
    path.write_bytes(other)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert content_hash(path) != before


def test_inert_things_beside_the_tensors(tmp_path: Path) -> None:
    # As in a true hubert_base.pt, whose pickle mentions classes of packages that are not installed here.
    program = (
        b"\x80\x02}q\x00(X\x04\x00\x00\x00argsq\x01cargparse\nNamespace\nq\x02)\x81q\x03}q\x04X\x01\x00\x00\x00aK\x01sb"
        b"X\x04\x00\x00\x00dictq\x05cfairseq.data.dictionary\nDictionary\nq\x06)\x81q\x07}q\x08b"
        b"X\x04\x00\x00\x00confcomegaconf.dictconfig\nDictConfig\n)\x81}X\x01\x00\x00\x00xK\x02sbu."
    )
    path = tmp_path / "hubert.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hubert/data.pkl", program)
    read = torchfile.read_file(path)
    assert isinstance(read, dict)
    assert read["args"] == torchfile.Inert("argparse.Namespace")
    assert "fairseq" not in sys.modules


# --- nothing runs ---------------------------------------------------------------------------------------


class Runs:
    """Pickles to a call."""

    def __init__(self, call: Callable[..., object], *arguments: object) -> None:
        self.what = call, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.what


def crafted(folder: Path, name: str) -> Path:
    """A file that would create `folder`/ran if it were unpickled."""
    mark = folder / "ran"
    payload = {
        "system": Runs(os.system, f"touch {mark}"),
        "open": Runs(open, str(mark), "w"),
        "eval": Runs(eval, f"open({str(mark)!r}, 'w')"),
        "import": Runs(__import__, "antigravity"),
        "nested": Runs(getattr, Runs(__import__, "os"), "system"),
        "torch": Runs(torch.load, str(mark)),
        "path": Runs(Path.touch, mark),
    }[name]
    content = voice()
    content["weight"]["enc_p.emb_phone.bias"] = payload
    return saved(folder / f"{name}.pth", content)


@pytest.mark.parametrize("name", ["system", "open", "eval", "import", "nested", "torch", "path"])
def test_a_crafted_pickle_does_not_run(tmp_path: Path, name: str) -> None:
    path = crafted(tmp_path, name)
    with pytest.raises(ModelUnusable, match=r"wants to run|damaged"):
        open_voice(path)
    raw = tmp_path / "raw.pth"
    raw.write_bytes(pickle.dumps(Runs(open, str(tmp_path / "ran"), "w")))
    with pytest.raises(ModelUnusable):
        open_voice(raw)
    assert not (tmp_path / "ran").exists()


def test_the_same_file_does_run_when_unpickled(tmp_path: Path) -> None:
    path = crafted(tmp_path, "path")
    torch.load(path, weights_only=False)
    assert (tmp_path / "ran").exists()  # so that the test above tests something


# --- bad ones -------------------------------------------------------------------------------------------


def cut(folder: Path, share: float) -> Path:
    whole = VOICE.read_bytes()
    path = folder / "cut.pth"
    path.write_bytes(whole[: int(len(whole) * share)])
    return path


def legacy_cut(folder: Path) -> Path:
    whole = saved(folder / "whole.pth", voice(), _use_new_zipfile_serialization=False).read_bytes()
    path = folder / "cut.pth"
    path.write_bytes(whole[: int(len(whole) * 0.8)])
    return path


def written(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    content = voice()
    change(content)
    return saved(folder / "changed.pth", content)


def zipped(folder: Path) -> Path:
    path = folder / "voice.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "a voice is inside")
    return path


def tarred(folder: Path) -> Path:
    path = folder / "old.pth"
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("sys_info"), io.BytesIO())
    return path


def scripted(folder: Path) -> Path:
    path = folder / "script.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("script/data.pkl", b"\x80\x02}q\x00.")
        archive.writestr("script/code/__torch__.py", "class Linear(Module): ...")
        archive.writestr("script/constants.pkl", b"\x80\x02).")
    return path


def missing_storage(folder: Path) -> Path:
    path = folder / "missing.pth"
    with zipfile.ZipFile(VOICE) as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            if not info.filename.endswith("/data/7"):
                new.writestr(info, old.read(info.filename))
    return path


def safetensors_cut(folder: Path) -> Path:
    path = folder / "cut.safetensors"
    save_file({"a": torch.zeros(100)}, path)
    path.write_bytes(path.read_bytes()[:-50])
    return path


def safetensors_lies(folder: Path) -> Path:
    header = json.dumps({"a": {"dtype": "F32", "shape": [10], "data_offsets": [0, 4]}}).encode()
    return written(folder, "lies.safetensors", struct.pack("<Q", len(header)) + header + b"\0" * 40)


def training(folder: Path, *names: str) -> Path:
    state = OrderedDict((name, torch.zeros(2)) for name in names)
    return saved(folder / "G_100.pth", {"model": state, "optimizer": {}, "iteration": 7, "learning_rate": 1e-4})


def blown_up(content: dict[str, Any]) -> None:
    content["config"][2] = 10**9


def nan_inside(content: dict[str, Any]) -> None:
    content["weight"]["dec.conv_post.weight"][0, 0, 0] = float("nan")


BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (lambda f: f / "nowhere.pth", "cannot be read"),
    "folder": (lambda f: f, "is not a file|cannot be read"),
    "empty": (lambda f: written(f, "e.pth", b""), "is empty"),
    "zip cut at a third": (lambda f: cut(f, 0.33), "cut off or damaged"),
    "zip cut at the end": (lambda f: cut(f, 0.999), "cut off or damaged"),
    "legacy cut": (legacy_cut, "cut off"),
    "zip without checkpoint": (zipped, "not a torch checkpoint"),
    "tar": (tarred, "tar archive"),
    "torchscript": (scripted, "TorchScript"),
    "storage missing": (missing_storage, "values of a tensor are missing"),
    "noise": (lambda f: written(f, "n.pth", bytes(range(7, 200)) * 9), "no kind known|no checkpoint"),
    "text": (lambda f: written(f, "t.pth", b"hello, I am a voice\n" * 9), "no checkpoint"),
    "web page": (lambda f: written(f, "w.pth", b"<!DOCTYPE html><html>404</html>"), "web page"),
    "lfs pointer": (lambda f: written(f, "l.pth", b"version https://git-lfs.github.com/spec/v1\n"), "Git LFS pointer"),
    "sound": (lambda f: written(f, "s.pth", b"RIFF\0\0\0\0WAVEfmt "), "sound file"),
    "picture": (lambda f: written(f, "p.pth", b"\x89PNG\r\n\x1a\n" + b"\0" * 99), "picture"),
    "gzip": (lambda f: written(f, "g.pth", b"\x1f\x8b\x08" + b"\0" * 99), "gzip"),
    "rar": (lambda f: written(f, "r.pth", b"Rar!\x1a\x07\0" + b"\0" * 99), "RAR"),
    "7z": (lambda f: written(f, "z.pth", b"7z\xbc\xaf\x27\x1c" + b"\0" * 99), "7-Zip"),
    "index": (lambda f: written(f, "i.pth", (GOLDEN / "index_v2.index").read_bytes()), "faiss index"),
    "plain pickle": (lambda f: written(f, "k.pth", pickle.dumps({"weight": 1})), "bare pickle"),
    "cut pickle": (lambda f: written(f, "c.pth", pickle.dumps({"weight": list(range(99))})[:40]), "damaged|cut off"),
    "single tensor": (lambda f: saved(f / "x.pth", torch.zeros(3)), "single tensor"),
    "list": (lambda f: saved(f / "x.pth", [1, 2]), "holds a list"),
    "empty dict": (lambda f: saved(f / "x.pth", {}), "without content"),
    "generator checkpoint": (lambda f: training(f, "enc_p.a", "dec.b", "enc_q.c"), r"training checkpoint \(G_"),
    "discriminator checkpoint": (lambda f: training(f, "discriminators.0.convs.0.bias"), "discriminator half"),
    "so-vits": (lambda f: training(f, "enc_p.a", "f0_decoder.b", "dec.c"), "so-vits-svc"),
    "hifigan": (lambda f: saved(f / "g.pth", {"generator": {"conv_pre.weight_g": torch.zeros(1)}}), "HiFi-GAN"),
    "embedder": (lambda f: GOLDEN / "hubert_tiny_fairseq.pt", "content encoder"),
    "rmvpe": (lambda f: GOLDEN / "rmvpe_tiny.pt", "RMVPE"),
    "gpt-sovits": (
        lambda f: saved(f / "s.pth", {"weight": {"enc_p.x": torch.zeros(1), "ref_enc.y": torch.zeros(1)}}),
        "GPT-SoVITS",
    ),
    "lightning": (
        lambda f: saved(f / "c.ckpt", {"state_dict": {"a": torch.zeros(1)}, "pytorch-lightning_version": "2"}),
        "Lightning",
    ),
    "other keys": (lambda f: saved(f / "o.pth", {"alpha": 1, "beta": 2}), "another kind"),
    "no config": (lambda f: changed(f, lambda c: c.pop("config")), "list of 18"),
    "short config": (lambda f: changed(f, lambda c: c["config"].pop()), "list of 18"),
    "huge config": (lambda f: changed(f, blown_up), "damaged"),
    "config of another voice": (lambda f: changed(f, lambda c: c["config"].__setitem__(3, 32)), "does not fit|damaged"),
    "odd features": (
        lambda f: changed(f, lambda c: c["weight"].__setitem__("enc_p.emb_phone.weight", torch.zeros(16, 1024).half())),
        "1024 content features",
    ),
    "foreign vocoder": (lambda f: changed(f, lambda c: c.__setitem__("vocoder", "RefineGAN")), "RefineGAN"),
    "no speakers": (lambda f: changed(f, lambda c: c["weight"].pop("emb_g.weight")), "emb_g"),
    "onnx": (lambda f: written(f, "v.onnx", b"\x08\x07\x12\x07pytorch"), "ONNX"),
    "safetensors cut": (safetensors_cut, "cut off"),
    "safetensors that lie": (safetensors_lies, "wrong length"),
    "safetensors of another kind": (
        lambda f: (save_file({"a": torch.zeros(3)}, f / "a.safetensors"), f / "a.safetensors")[1],
        "no voice",
    ),
}


def test_the_table_is_long_enough() -> None:
    assert len(BAD) >= 25


@pytest.mark.parametrize("kind", BAD)
def test_bad_files_are_named_for_what_they_are(tmp_path: Path, kind: str) -> None:
    make, words = BAD[kind]
    with pytest.raises(ModelUnusable, match=words) as caught:
        open_any(make(tmp_path))
    assert "Traceback" not in str(caught.value)


def test_a_training_checkpoint_is_told_what_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable, match="wanted is a finished RVC voice"):
        open_voice(training(tmp_path, "enc_p.a", "dec.b"))


def drop_flow(content: dict[str, Any]) -> None:
    content["weight"].pop("flow.flows.2.post.weight")


def drop_half_a_pair(content: dict[str, Any]) -> None:
    content["weight"].pop("dec.ups.0.weight_g")


@pytest.mark.parametrize(
    ("change", "words"),
    [(nan_inside, "NaN"), (drop_flow, "flows.2.post"), (drop_half_a_pair, "ups.0.weight_g is missing")],
)
def test_damage_that_shows_only_in_the_weights(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    described = open_voice(changed(tmp_path, change))
    with pytest.raises(ModelUnusable, match=words):
        build(described)


@pytest.mark.parametrize("seed", range(60))
def test_flipped_bytes_never_escape_as_another_error(tmp_path: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    raw = bytearray((GOLDEN / "synth" / "v1_40k_nof0.pth").read_bytes())
    for at in draw.integers(0, 46_000 if seed % 2 else len(raw), size=1 + seed % 5):
        raw[at] = draw.integers(256)
    path = written(tmp_path, "flipped.pth", bytes(raw))
    told = path.name
    try:
        build(open_voice(path))  # a flipped weight is still a weight
    except ModelUnusable as refusal:
        told = str(refusal)
    assert path.name in told


# --- inspection -----------------------------------------------------------------------------------------


def test_inspect_tells_kinds_apart() -> None:
    told = inspect(VOICE)
    assert told["kind"] == "voice"
    facts = told["facts"]
    assert isinstance(facts, dict)
    assert (facts["version"], facts["rate_hz"], facts["f0"], facts["speakers"]) == ("v2", 40000, True, 3)
    assert facts["sha256"] == content_hash(VOICE)
    assert inspect(GOLDEN / "hubert_tiny_fairseq.pt")["kind"] == "embedder"
    assert inspect(GOLDEN / "rmvpe_tiny.pt")["kind"] == "rmvpe"
    index = inspect(GOLDEN / "index_v2.index")
    assert index["kind"] == "index"
    assert isinstance(index["facts"], dict)
    assert (index["facts"]["vectors"], index["facts"]["version"]) == (200, "v2")


def test_a_voice_of_another_encoder_is_warned_about(tmp_path: Path) -> None:
    path = changed(tmp_path, lambda c: c.__setitem__("embedder_model", "chinese-hubert-large"))
    assert any("chinese-hubert-large" in str(p) for p in open_voice(path).notes)
    path = changed(tmp_path, lambda c: c.__setitem__("embedder_model", "contentvec"))
    assert open_voice(path).notes == ()


def test_inspection_runs_without_torch() -> None:
    code = (
        "import sys, json; from pathlib import Path; from myna.engines.rvc import SPEC, inspect as m;"
        "from myna.engines.base import VoiceAsset;"
        "assert m.inspect(Path(sys.argv[1]))['kind'] == 'voice';"
        "assert SPEC.check(VoiceAsset(id='x', engine='rvc', files={'model': Path(sys.argv[1])}));"
        "assert 'torch' not in sys.modules and 'faiss' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(VOICE)], check=True, timeout=60)


def test_inspection_prints_one_json_object(tmp_path: Path) -> None:
    def run(path: Path) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "myna.engines.rvc.inspect", str(path)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    assert run(VOICE)["kind"] == "voice"
    assert "is empty" in run(written(tmp_path, "e.pth", b""))["error"]
