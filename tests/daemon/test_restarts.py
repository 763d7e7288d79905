"""Restart budgets and backoff: pure arithmetic on times."""

from myna.daemon.restarts import Backoff, RestartBudget


def test_the_first_restart_is_immediate_and_waits_double() -> None:
    budget = RestartBudget()
    waits = [budget.crashed(float(n)) for n in range(9)]
    assert waits == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, None]
    assert budget.left == 0


def test_a_stable_minute_gives_the_budget_back() -> None:
    budget = RestartBudget()
    for n in range(5):
        budget.crashed(float(n))
    budget.running(10.0)
    budget.running(69.0)
    assert budget.left == 3
    budget.running(70.0)
    assert budget.left == budget.size


def test_a_crash_after_a_stable_minute_counts_as_the_first() -> None:
    budget = RestartBudget()
    budget.crashed(0.0)
    budget.crashed(1.0)
    budget.running(2.0)
    assert budget.crashed(100.0) == 0.0
    assert budget.used == 1


def test_a_user_forgives() -> None:
    budget = RestartBudget(size=1)
    budget.crashed(0.0)
    assert budget.crashed(1.0) is None
    budget.forgive()
    assert budget.crashed(2.0) == 0.0


def test_backoff_doubles_to_below_a_second_and_starts_anew() -> None:
    backoff = Backoff()
    assert [backoff.next() for _ in range(5)] == [0.1, 0.2, 0.4, 0.8, 0.8]
    backoff.reset()
    assert backoff.next() == 0.1
