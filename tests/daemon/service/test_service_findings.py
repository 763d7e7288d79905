"""What doctor says about the autostart."""

from myna.daemon.service.findings import judge
from myna.daemon.service.report import ServiceReport


def test_no_autostart_is_no_fault() -> None:
    (found,) = judge(ServiceReport(manager="systemd", path=None, installed=False, current=False))
    assert (found.level, found.cure) == ("info", "myna service install")


def test_a_healthy_one_is_ok_and_each_problem_is_a_warning() -> None:
    (found,) = judge(ServiceReport(manager="systemd", path="/u", installed=True, current=True, enabled=True))
    assert found.level == "ok"
    bad = ServiceReport(manager="systemd", path="/u", installed=True, current=False, problems=("a", "b"))
    assert [(finding.level, finding.message) for finding in judge(bad)] == [("warning", "a"), ("warning", "b")]
