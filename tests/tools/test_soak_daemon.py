"""The soaks of a real daemon, short: workers killed at random, clients that never read."""

from tools.soak.deaf_clients import deafen, deafen_at_once
from tools.soak.worker_kills import kill_workers


def test_killed_workers_come_back_as_they_were() -> None:
    table = kill_workers(2, 5, answer_s=60.0, back_s=60.0)  # no test of time
    assert table.held, table.rows


def test_clients_that_never_read_cost_the_supervisor_nothing() -> None:
    table = deafen(8.0, 1)
    assert table.held, table.rows


def test_the_events_of_half_an_hour_reach_who_reads_and_cost_nothing() -> None:
    table = deafen_at_once(1800.0)
    assert table.held, table.rows
