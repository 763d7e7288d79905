"""Which recordings a command line means, and where their results go."""

from pathlib import Path

import pytest

from myna.control.cli import sources
from myna.control.errors import MynaError


def touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def planned(root: Path, *inputs: str, out: str = "out", file_format: str = "auto") -> dict[str, str]:
    items = sources.plan([str(root / each) for each in inputs], str(root / out), file_format)
    return {
        item.source.relative_to(root).as_posix(): item.target.relative_to(root / "out").as_posix() for item in items
    }


def test_a_folder_is_mirrored_and_other_files_stay(tmp_path: Path) -> None:
    touch(tmp_path, "in/a.wav", "in/x/b.MP3", "in/x/y/c.m4a", "in/x/notes.txt")
    assert planned(tmp_path, "in") == {"in/a.wav": "a.wav", "in/x/b.MP3": "x/b.mp3", "in/x/y/c.m4a": "x/y/c.wav"}
    assert planned(tmp_path, "in", file_format="flac")["in/x/b.MP3"] == "x/b.flac"


def test_several_folders_keep_their_names(tmp_path: Path) -> None:
    touch(tmp_path, "one/a.wav", "two/a.wav", "three.wav")
    assert planned(tmp_path, "one", "two", "three.wav") == {
        "one/a.wav": "one/a.wav",
        "two/a.wav": "two/a.wav",
        "three.wav": "three.wav",
    }


def test_a_glob_is_mirrored_below_its_fixed_part(tmp_path: Path) -> None:
    touch(tmp_path, "in/a/x.wav", "in/b/y.wav", "in/b/z.txt")
    assert planned(tmp_path, "in/**/*.wav") == {"in/a/x.wav": "a/x.wav", "in/b/y.wav": "b/y.wav"}
    assert planned(tmp_path, "in/*/y.wav") == {"in/b/y.wav": "b/y.wav"}


def test_equal_results_are_told_apart(tmp_path: Path) -> None:
    touch(tmp_path, "in/a.wav", "in/a.mp3", "p/t.wav", "q/t.wav")
    assert planned(tmp_path, "in", file_format="flac") == {"in/a.mp3": "a.mp3.flac", "in/a.wav": "a.wav.flac"}
    targets = planned(tmp_path, "p/t.wav", "q/t.wav")
    assert len(set(targets.values())) == 2


def test_results_are_never_inputs(tmp_path: Path) -> None:
    touch(tmp_path, "in/a.wav", "in/out/a.wav")
    items = sources.plan([str(tmp_path / "in")], str(tmp_path / "in" / "out"))
    assert [item.source.name for item in items] == ["a.wav"]
    assert items[0].source.parent == tmp_path / "in"


@pytest.mark.parametrize("inputs", [["in"], ["in/deep"], ["in/*.wav"]])
def test_an_output_folder_around_all_inputs_is_refused(tmp_path: Path, inputs: list[str]) -> None:
    touch(tmp_path, "in/a.wav", "in/deep/b.wav")
    with pytest.raises(MynaError, match="lies in the output folder"):
        sources.plan([str(tmp_path / each) for each in inputs], str(tmp_path / "in"))


def test_a_file_named_twice_is_one(tmp_path: Path) -> None:
    touch(tmp_path, "in/a.wav")
    assert len(planned(tmp_path, "in/a.wav", "in/a.wav", "in")) == 1


def test_a_name_with_wildcards_is_a_file_if_it_is_there(tmp_path: Path) -> None:
    touch(tmp_path, "take [1].wav")
    assert planned(tmp_path, "take [1].wav") == {"take [1].wav": "take [1].wav"}


def test_a_file_is_no_place_for_two(tmp_path: Path) -> None:
    touch(tmp_path, "in/a.wav", "in/b.wav")
    assert sources.plan([str(tmp_path / "in/a.wav")], str(tmp_path / "x.flac"))[0].target == tmp_path / "x.flac"
    with pytest.raises(MynaError) as caught:
        sources.plan([str(tmp_path / "in")], str(tmp_path / "x.flac"))
    assert caught.value.code == "bad_request"


@pytest.mark.parametrize("name", ["gone.wav", "*.flac", "empty"])
def test_nothing_found_is_said(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(MynaError) as caught:
        planned(tmp_path, name)
    assert caught.value.code == "not_found"
