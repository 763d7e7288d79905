"""The voice library: names, shared models, replacing, removal, presets, and what is told of damage."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from myna.control.contract import VoiceInfo
from myna.control.errors import MynaError
from myna.daemon.voices.inspection import Inspection, inspect_in_child, inspection_from
from myna.daemon.voices.library import VoiceLibrary
from myna.daemon.voices.names import voice_id
from myna.engines.base import Capabilities, EngineSpec, VoiceAsset


def spec(name: str, built_in: tuple[VoiceAsset, ...] = (), problems: tuple[str, ...] = ()) -> EngineSpec:
    def never(*_: object) -> None:
        raise AssertionError("the library never opens a voice")

    return EngineSpec(
        name=name,
        capabilities=Capabilities(
            live=True, file=True, hop_ms=10, parameters=frozenset({"pitch", "formant", "index_rate"})
        ),
        built_in=built_in,
        check=lambda _: problems,
        open_live=never,  # type: ignore[arg-type]
        open_file=never,  # type: ignore[arg-type]
    )


FORMANT = spec(
    "formant",
    (
        VoiceAsset(id="formant", engine="formant", description="Built in", defaults={"pitch": 0.0}),
        VoiceAsset(id="neutral", engine="formant", unchanged=True),
    ),
)


def inspector(path: Path) -> Inspection:
    """Reads the kind from the first word of the file; an index is one by its name, unless it says `rmvpe`."""
    word = path.read_bytes().split()[0].decode()
    if path.suffix == ".index" and word not in ("broken", "rmvpe"):
        return Inspection(kind="index", problems=("it is empty",) if word == "hollow" else ())
    if word == "broken":
        raise MynaError("model_unusable", "it is damaged", path=str(path))
    facts = {"rate_hz": 40_000, "version": "v2", "speakers": None, "content": path.read_text()}
    return Inspection(kind=word, engine="rvc", facts=facts if word == "voice" else {})


Make = Callable[..., VoiceLibrary]


@pytest.fixture
def busy() -> dict[str, str]:
    return {}


@pytest.fixture
def make(tmp_path: Path, busy: dict[str, str]) -> Make:
    def build(**options: object) -> VoiceLibrary:
        given: dict[str, object] = {
            "specs": (FORMANT, spec("rvc")), "in_use": busy.get, "inspector": inspector,
            "clock": lambda: 1234.5, **options,
        }  # fmt: skip
        return VoiceLibrary(tmp_path / "state", **given)  # type: ignore[arg-type]

    return build


@pytest.fixture
def source(tmp_path: Path) -> Callable[..., Path]:
    (tmp_path / "source").mkdir()

    def write(name: str, text: str = "voice one") -> Path:
        path = tmp_path / "source" / name
        path.write_text(text)
        return path

    return write


Source = Callable[..., Path]


def refused(code: str, call: Callable[[], object]) -> MynaError:
    with pytest.raises(MynaError) as caught:
        call()
    assert caught.value.code == code, caught.value
    return caught.value


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_fresh_library_has_the_built_in_voices_and_writes_nothing(make: Make, tmp_path: Path) -> None:
    library = make()
    infos = library.infos()
    assert [(i.id, i.built_in) for i in infos] == [("formant", True), ("neutral", True)]
    assert infos[1].facts == {"unchanged": True}
    assert library.resolve("neutral").unchanged
    assert library.assets() == {}
    assert not (tmp_path / "state").exists()


def test_a_voice_comes_in_with_its_index(make: Make, source: Source) -> None:
    library = make()
    info = library.add(source("Ana (v2) 🎤.pth"), index=source("added.index", "faiss"))
    assert info.id == "Ana-v2"
    assert (info.engine, info.built_in, info.problems) == ("rvc", False, ())
    assert info.facts["rate_hz"] == 40_000
    assert info.facts["added"] == 1234.5
    assert "speakers" not in info.facts or info.facts["speakers"] is None
    asset = library.resolve("Ana-v2")
    assert asset.files["model"].read_text() == "voice one"
    assert asset.files["index"].read_text() == "faiss"
    assert set(asset.files) == {"model", "index"}
    # A new process sees the same.
    assert make().show("Ana-v2") == library.show("Ana-v2")
    assert isinstance(info, VoiceInfo)


def test_shared_models_go_to_assets_and_reach_every_voice(make: Make, source: Source, tmp_path: Path) -> None:
    library = make()
    library.add(source("a.pth"))
    before = library.revision("a")
    info = library.add(source("some other name.pt", "embedder"))
    assert (info.id, info.engine) == ("embedder", "asset")
    library.add(source("r.onnx", "rmvpe"))
    assets = tmp_path / "state" / "assets"
    assert library.assets() == {"embedder": assets / "hubert_base.pt", "rmvpe": assets / "rmvpe.onnx"}
    assert library.resolve("a").files["embedder"] == assets / "hubert_base.pt"
    assert library.resolve("formant").files["rmvpe"] == assets / "rmvpe.onnx"
    assert library.revision("a") != before
    # Put there by hand serves as well.
    (assets / "hubert_base.pt").rename(assets / "contentvec.safetensors")
    assert library.assets()["embedder"].name == "contentvec.safetensors"


def test_replacing_a_shared_model(make: Make, source: Source, busy: dict[str, str]) -> None:
    library = make()
    library.add(source("a.pt", "embedder one"))
    library.add(source("a.pt", "embedder one"))
    other = source("b.safetensors", "embedder two")
    refused("refused", lambda: library.add(other))
    busy["embedder"] = "busy:live"
    refused("busy", lambda: library.add(other, replace=True))
    busy.clear()
    library.add(other, replace=True)
    assert library.assets()["embedder"].read_text() == "embedder two"
    assert len(list(library.assets_dir.iterdir())) == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Ana", "Ana"), ("..", "voice"), ("", "voice"), ("🎤", "voice"), ("con", "voice-con"),
        ("LPT1.x", "voice-LPT1.x"), ("a" * 63 + " b", "a" * 63),
        ("-rf", "rf"), ("a/b\\c", "a-b-c"), ("two\nlines", "two-lines"), ("Жанна д'Арк", "Жанна-д-Арк"),
        ("x" * 300, "x" * 64), ("漢" * 100, "漢" * 64), ("\udcff\udcfe", "voice"),
        ("e\u0301", "é"), ("formant:deep", "formant-deep"), (".hidden", "hidden"),
    ],
)  # fmt: skip
def test_ids_are_safe_everywhere(name: str, expected: str) -> None:
    got = voice_id(name)
    assert got == expected
    assert voice_id(got) == got
    assert Path(got).name == got
    assert len(os.fsencode(got)) <= 200


def test_files_of_any_name_come_in(make: Make, source: Source) -> None:
    library = make()
    names = [
        "two\nlines.pth",
        "-rf.pth",
        "'\"$(x).pth",
        "x" * 251 + ".pth",
        "%s{}.PTH",
        "日本.onnx",
        "a.b.safetensors",
    ]
    if sys.platform == "linux":
        names.append(os.fsdecode(b"\xe9t\xe9.pth"))
    ids = {library.add(source(n, f"voice {k}")).id for k, n in enumerate(names)}
    assert len(ids) == len(names)
    for voice in ids:
        assert library.show(voice).problems == ()
        assert library.resolve(voice).files["model"].parent.name == voice


def test_ids_that_are_taken_or_wrong(make: Make, source: Source) -> None:
    library = make()
    path = source("a.pth")
    refused("refused", lambda: library.add(path, id="formant"))
    for bad in ("../up", "a b", "", ".x"):
        assert voice_id(bad) in str(refused("bad_request", lambda bad=bad: library.add(path, id=bad)))
    library.add(path, id="Ana")
    refused("refused", lambda: library.add(path, id="ana"))
    assert library.ids() == ["formant", "neutral", "Ana"]


def test_the_same_again_is_no_change(make: Make, source: Source, tmp_path: Path) -> None:
    library = make()
    first = library.add(source("a.pth"))
    before = tree(tmp_path / "state")
    assert library.add(source("a.pth")) == first
    assert tree(tmp_path / "state") == before


def test_replacing_keeps_presets_and_changes_the_revision(
    make: Make, source: Source, busy: dict[str, str], tmp_path: Path
) -> None:
    library = make()
    library.add(source("a.pth"), index=source("a.index", "old"))
    library.preset("a", {"pitch": 12.0})
    old_file, old_revision = library.resolve("a").files["model"], library.revision("a")
    new = source("a.pth", "voice two")
    assert "replace" in str(refused("refused", lambda: library.add(new)))
    busy["a"] = "busy:job"
    assert refused("busy", lambda: library.add(new, replace=True)).facts["reason"] == "busy:job"
    busy.clear()
    info = library.add(new, replace=True)
    assert info.facts["content"] == "voice two"
    assert info.defaults == {"pitch": 12.0}
    assert library.revision("a") != old_revision
    assert library.resolve("a").files["model"] != old_file
    assert set(library.resolve("a").files) == {"model"}
    assert sorted(p.suffix for p in (tmp_path / "state/voices/a").iterdir()) == [".pth", ".toml"]


def test_an_index_finds_its_voice_by_name(make: Make, source: Source, busy: dict[str, str]) -> None:
    library = make()
    library.add(source("ana.pth", "voice 1"))
    library.add(source("ana-loud.pth", "voice 2"))
    name = "added_IVF256_Flat_nprobe_1_ana-loud_v2.index"
    assert library.add(source(name, "x")).id == "ana-loud"
    assert set(library.resolve("ana-loud").files) == {"model", "index"}
    assert library.add(source("else.index", "y"), id="ana").files["index"].endswith(".index")
    refused("bad_request", lambda: library.add(source("zzz.index", "y")))
    refused("not_found", lambda: library.add(source("zzz.index", "y"), id="nobody"))
    refused("refused", lambda: library.add(source("zzz.index", "y"), id="formant"))
    for text in ("", "broken x", "rmvpe x", "hollow x"):
        refused("model_unusable", lambda text=text: library.add(source("ana.index", text)))
    busy["ana"] = "busy:live"
    refused("busy", lambda: library.add(source("ana.index", "z")))


def test_a_folder_that_holds_one_voice(make: Make, source: Source) -> None:
    library = make()
    folder = source("Mia.pth").parent
    source("m.index", "x")
    source("read me.txt", "x")
    assert set(library.add(folder).files) == {"model", "index"}
    source("second.pth", "voice 2")
    assert "2 models" in str(refused("bad_request", lambda: library.add(folder)))


def test_what_is_no_voice(make: Make, source: Source, tmp_path: Path) -> None:
    library = make()
    refused("not_found", lambda: library.add(tmp_path / "nowhere.pth"))
    refused("not_found", lambda: library.add(source("a.pth"), index=tmp_path / "nowhere.index"))
    refused("model_unusable", lambda: library.add(source("a.zip")))
    refused("model_unusable", lambda: library.add(source("a.pth", "broken x")))
    refused("model_unusable", lambda: library.add(source("a.pth", "discriminator x")))
    refused("model_unusable", lambda: library.add(source("a.pth"), index=source("a.pth2", "x")))
    assert library.ids() == ["formant", "neutral"]


def test_removal_is_refused_while_in_use(make: Make, source: Source, busy: dict[str, str], tmp_path: Path) -> None:
    library = make()
    library.add(source("a.pth"))
    refused("refused", lambda: library.remove("formant"))
    refused("not_found", lambda: library.remove("b"))
    busy["a"] = "busy:live"
    assert "busy:live" in str(refused("busy", lambda: library.remove("a")))
    assert library.resolve("a").files["model"].is_file()
    busy.clear()
    library.remove("a")
    assert list((tmp_path / "state" / "voices").iterdir()) == []
    refused("not_found", lambda: library.resolve("a"))


def test_who_is_not_found_is_guessed_at(make: Make, source: Source) -> None:
    library = make()
    library.add(source("Clara.pth"))
    assert "Did you mean Clara?" in str(refused("not_found", lambda: library.resolve("clara")))
    assert refused("not_found", lambda: library.show("formnat")).facts["near"] == ["formant"]
    assert "myna voices list" in str(refused("not_found", lambda: library.resolve("xyzzy\n")))
    refused("not_found", lambda: library.resolve("../assets"))


def test_presets_are_checked_whole_and_kept(make: Make, source: Source) -> None:
    library = make()
    library.add(source("a.pth"))
    error = refused("bad_request", lambda: library.preset("a", {"pich": 3, "pitch": 99.0, "formant": 1.0}))
    assert len(error.facts["problems"]) == 2  # type: ignore[arg-type]
    assert "did you mean pitch" in str(error)
    assert library.show("a").defaults == {}
    refused("bad_request", lambda: library.preset("a", {"gain_in_db": 1.0}))
    library.preset("a", {"pitch": 5.0, "formant": 1.0})
    library.preset("a", {"formant": None, "index_rate": 0.5})
    library.preset("formant", {"pitch": -4.0})
    library.preset("neutral", {"pitch": None})
    again = make()
    assert again.resolve("a").defaults == {"pitch": 5.0, "index_rate": 0.5}
    assert again.resolve("formant").defaults == {"pitch": -4.0}
    assert again.show("formant").defaults == {"pitch": -4.0}
    again.preset("formant", {"pitch": None})
    assert make().resolve("formant").defaults == {"pitch": 0.0}


def test_a_file_replaced_by_hand_is_noticed(make: Make, source: Source) -> None:
    library = make()
    library.add(source("a.pth"))
    path, revision = library.resolve("a").files["model"], library.revision("a")
    path.write_text("voice by hand")
    assert library.revision("a") != revision
    assert library.show("a").facts["content"] == "voice by hand"
    assert library.show("a").problems == ()
    path.write_text("rmvpe no voice at all")
    assert library.show("a").problems
    path.write_text("broken again and longer")
    assert library.show("a").problems == ("it is damaged",)
    path.write_text("voice mended")
    assert library.show("a").problems == ()
    path.unlink()
    assert "its model is gone" in library.show("a").problems
    assert refused("missing_asset", lambda: library.resolve("a")).facts["asset"] == "model"


@pytest.mark.parametrize(
    "text",
    ["", "not toml [", "format = 2", 'format = 1\nengine = "rvc"\nadded = 1.0\nfiles = 3',
     'format = 1\nengine = "rvc"\nadded = 1.0\n[files.model]\nname = "../../x"\nsha256 = ""\nbytes = 1\n'
     "mtime_ns = 1"],
)  # fmt: skip
def test_a_damaged_description_is_told_and_can_be_mended(make: Make, source: Source, text: str) -> None:
    library = make()
    library.add(source("a.pth"))
    (library.voices_dir / "a" / "voice.toml").write_text(text)
    (info,) = [i for i in library.infos() if i.id == "a"]
    assert info.problems
    assert library.show("a").problems
    refused("model_unusable", lambda: library.resolve("a"))
    assert library.add(source("a.pth"), replace=True).problems == ()
    library.remove("a")


def test_an_engine_that_is_gone_or_fails(make: Make, source: Source) -> None:
    make().add(source("a.pth"))
    without = make(specs=(FORMANT,))
    assert "not installed" in without.show("a").problems[0]
    refused("missing_asset", lambda: without.resolve("a"))
    told = make(specs=(FORMANT, spec("rvc", problems=("ContentVec is missing",))))
    assert told.show("a").problems == ("ContentVec is missing",)

    def fails(_: VoiceAsset) -> tuple[str, ...]:
        raise ZeroDivisionError("oops")

    broken = EngineSpec(
        name="rvc", capabilities=FORMANT.capabilities, built_in=(), check=fails,
        open_live=FORMANT.open_live, open_file=FORMANT.open_file,
    )  # fmt: skip
    assert "ZeroDivisionError" in make(specs=(broken,)).show("a").problems[0]


def test_what_a_killed_process_left_is_cleared_and_never_listed(make: Make, source: Source) -> None:
    library = make()
    library.add(source("a.pth"))
    voices = library.voices_dir
    shutil.copytree(voices / "a", voices / ".removed-123")
    (voices / "half").mkdir()
    (voices / "half" / ".new-1").write_text("x")
    (voices / "a" / ".new-2").write_text("x")
    assert library.ids() == ["formant", "neutral", "a"]
    again = make()
    assert again.ids() == ["formant", "neutral", "a"]
    assert not list(voices.rglob(".*"))
    assert again.add(source("half.pth", "voice half")).id == "half"


def test_a_full_disk_leaves_the_library_as_it_was(
    make: Make, source: Source, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = make()
    library.add(source("a.pth"))
    before = tree(tmp_path / "state")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    error = refused("state_unwritable", lambda: library.add(source("a.pth", "voice two"), replace=True))
    assert "Free some space" in str(error)
    refused("state_unwritable", lambda: library.preset("a", {"pitch": 1.0}))
    refused("state_unwritable", lambda: library.add(source("e.pt", "embedder")))
    after = tree(tmp_path / "state")
    assert {k: v for k, v in after.items() if ".new-" not in k} == before


def test_the_child_tells_what_a_file_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Against real children that print, fail, die and stall."""
    real = subprocess.run

    def as_child(code: str) -> Callable[[], Inspection]:
        def run(command: list[str], **options: object) -> object:
            assert command[1:] == ["-m", "myna.engines.rvc.inspect", str(tmp_path / "a.pth")]
            return real([sys.executable, "-c", code], **options)  # type: ignore[call-overload]

        monkeypatch.setattr(subprocess, "run", run)
        return lambda: inspect_in_child(tmp_path / "a.pth", timeout_s=5.0)

    good = 'print("a warning"); print(\'{"kind": "voice", "facts": {"f0": true, "x": [1]}, "problems": ["p"]}\')'
    assert as_child(good)() == Inspection(kind="voice", engine="rvc", facts={"f0": True}, problems=("p",))
    assert "pip install" in str(refused("missing_asset", as_child("import no_such_thing_at_all")))
    assert "boom" in str(refused("model_unusable", as_child("raise RuntimeError('boom')")))
    refused("model_unusable", as_child("import os; os.abort()"))
    refused("model_unusable", as_child("print('[1]')"))
    assert "damaged" in str(refused("model_unusable", as_child('print(\'{"error": "damaged"}\')')))

    def stall(*_: object, **__: object) -> object:
        raise subprocess.TimeoutExpired("x", 5.0)

    monkeypatch.setattr(subprocess, "run", stall)
    refused("model_unusable", lambda: inspect_in_child(tmp_path / "a.pth", timeout_s=5.0))


def test_a_child_that_prints_nonsense() -> None:
    got = inspection_from({"kind": 3, "facts": [1], "problems": "x"}, Path("a"))
    assert got == Inspection(kind="3")


def test_the_library_needs_neither_numpy_nor_torch() -> None:
    code = "import sys, myna.daemon.voices.library; print([m for m in ('numpy', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_descriptions_are_plain_toml(make: Make, source: Source) -> None:
    library = make()
    library.add(source("a.pth"))
    told = tomllib.loads((library.voices_dir / "a" / "voice.toml").read_text())
    assert told["files"]["model"]["source_name"] == "a.pth"
    assert told["files"]["model"]["bytes"] == len("voice one")
