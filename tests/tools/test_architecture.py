"""The page on the architecture names only files that there are, and each law's tests."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_file_named_is_there() -> None:
    named = set(re.findall(r"`([a-z0-9_/]+\.(?:py|c|md))`", PAGE, re.IGNORECASE))
    assert len(named) > 40
    for name in named:
        assert any((ROOT / room / name).is_file() for room in (".", "daemon", "tests")), name


def test_every_law_names_tests() -> None:
    laws = re.findall(r"^\| (\d+) .*\| (.*) \|$", PAGE, re.MULTILINE)
    assert [int(number) for number, _ in laws] == list(range(1, 11))
    assert all("`tests/" in tests for _, tests in laws)
