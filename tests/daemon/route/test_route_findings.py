"""What doctor says about the virtual microphone."""

import subprocess
import sys
from typing import Any

import pytest

from myna.daemon.route.findings import judge
from myna.daemon.route.route import HEARS_ITSELF, RouteReport

WHOLE: dict[str, Any] = {"server": "pipewire", "server_version": "1.2", "present": True, "microphone": "Myna"}


@pytest.mark.parametrize(
    ("report", "levels"),
    [
        (RouteReport(**WHOLE), ["ok", "ok"]),
        (RouteReport(**WHOLE, warnings=(HEARS_ITSELF,)), ["ok", "ok", "warning"]),
        (RouteReport(**WHOLE, problems=("It will be gone.",)), ["ok", "warning"]),
        (RouteReport(server="pulseaudio"), ["ok", "info"]),
    ],
)
def test_levels(report: RouteReport, levels: list[str]) -> None:
    found = judge(report, "Linux")
    assert [finding.level for finding in found] == levels
    assert all(finding.cure for finding in found if finding.level != "ok")


def test_elsewhere_the_cure_is_what_to_install() -> None:
    (found,) = judge(RouteReport(server=None, steps=("Install BlackHole.", "Run it again.")), "Darwin")
    assert (found.level, found.cure) == ("info", "Install BlackHole. Run it again.")


def test_a_mere_look_needs_no_numpy() -> None:
    code = "import sys, myna.daemon.route.findings; raise SystemExit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
