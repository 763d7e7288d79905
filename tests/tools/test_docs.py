"""The documentation names only files, commands, options and settings that there are."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from myna.control.cli import values
from myna.control.cli.app import root
from myna.control.contract import LiveSettings

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
IDS = [page.relative_to(ROOT).as_posix() for page in PAGES]
PLACEHOLDER = re.compile(r"…|\.\.\.|[A-Z]\b|KEY=VALUE|\|| / ")


def commands(text: str) -> Iterator[str]:
    """Each `myna …` that a page tells its reader to type, without comments."""
    blocks = re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    inline = re.findall(r"`(myna [^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    for line in [*lines, *inline]:
        if line.startswith("myna "):
            yield line.split("#")[0].strip()


def resolve(words: list[str]) -> tuple[Any, list[str]]:
    """The command that `words` lead to, and what is left of them."""
    command: Any = typer.main.get_command(root)
    context = command.make_context("myna", [], resilient_parsing=True)
    while words:
        load = getattr(command, "_load", None)
        command = load() if load else command
        found = command.get_command(context, words[0]) if hasattr(command, "get_command") else None
        if found is None:
            break
        command, words = found, words[1:]
    load = getattr(command, "_load", None)
    return (load() if load else command), words


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_exist_with_their_options(page: Path) -> None:
    for line in commands(page.read_text(encoding="utf-8")):
        words = shlex.split(line)[1:]
        command, rest = resolve(words)
        assert command.name != "myna" or rest[0].startswith("-"), f"{line}: no such command"
        assert not hasattr(command, "get_command") or not rest or rest[0].startswith("-"), f"{line}: no such command"
        known = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
        for word in rest:
            if word.startswith("--"):
                assert word.split("=")[0] in known, f"{line}: {word} is unknown"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_live_settings_exist_and_take_these_values(page: Path) -> None:
    for line in commands(page.read_text(encoding="utf-8")):
        words = shlex.split(line)
        if words[1:3] == ["live", "set"] and not PLACEHOLDER.search(line):
            pairs = [word for word in words[3:] if not word.startswith("--")]
            assert len(values.live_settings(pairs)) == len(pairs) > 0


def test_there_are_commands_to_look_at() -> None:
    found = [line for page in PAGES for line in commands(page.read_text(encoding="utf-8"))]
    assert len(found) > 60
    assert "myna live set pitch=3 formant=-1" in found


def test_the_table_of_names_from_elsewhere_names_real_settings() -> None:
    known = set(msgspec.structs.asdict(LiveSettings()))
    page = (ROOT / "docs/guides/coming-from.md").read_text(encoding="utf-8")
    for row in re.findall(r"^\| [^|]+ \| ([^|]+) \|$", page, re.MULTILINE):
        for word in re.findall(r"`([a-z0-9_]+)`", row):
            assert word in known or word == "auto", word
