"""The scheduler: rules one by one, then its invariants under any sequence of events."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from myna.daemon.jobs.scheduler import (
    Action,
    Cancel,
    Crashed,
    Failed,
    Finished,
    Held,
    Limits,
    LimitsChanged,
    LiveStarted,
    LiveStopped,
    Loaded,
    Requeue,
    RunNow,
    Scheduler,
    Settle,
    Start,
    Stop,
    Submitted,
    Tick,
    UnitDone,
)

GPU = Limits(gpu_jobs=1, cpu_jobs=2, devices={"rvc": "cuda:0"})


def job(n: int, kind: str = "convert", engine: str = "formant") -> Submitted:
    return Submitted(job=f"j{n}", order=n, kind=kind, engine=engine)


def started(actions: list[Action]) -> list[str]:
    return [action.job for action in actions if isinstance(action, Start)]


def test_first_come_first_served_within_the_slots() -> None:
    scheduler = Scheduler(replace(GPU, cpu_jobs=1))
    assert started(scheduler.handle(job(1), 0.0)) == ["j1"]
    assert started(scheduler.handle(job(2), 0.0)) == []
    assert scheduler.reason("j2") is not None
    actions = scheduler.handle(Finished(job="j1", attempt=1), 1.0)
    assert Settle(job="j1", state="done") in actions
    assert started(actions) == ["j2"]


def test_previews_go_first() -> None:
    scheduler = Scheduler(replace(GPU, cpu_jobs=1))
    scheduler.handle(job(1), 0.0)
    scheduler.handle(job(2), 0.0)
    scheduler.handle(job(3, "preview"), 0.0)
    assert started(scheduler.handle(Finished(job="j1", attempt=1), 1.0)) == ["j3"]


def test_live_goes_first_and_run_now_goes_beside_it() -> None:
    scheduler = Scheduler(GPU)
    scheduler.handle(LiveStarted(device="cuda:0"), 0.0)
    assert started(scheduler.handle(job(1, engine="rvc"), 0.0)) == []
    assert scheduler.reason("j1") == "live_running"
    assert started(scheduler.handle(job(2), 0.0)) == ["j2"]  # the processor is not the card
    assert started(scheduler.handle(RunNow(job="j1"), 0.0)) == ["j1"]
    scheduler.handle(job(3, engine="rvc"), 0.0)
    scheduler.handle(Finished(job="j1", attempt=1), 1.0)
    assert started(scheduler.handle(LiveStopped(device="cuda:0"), 1.0)) == ["j3"]


def test_a_paused_queue_says_so() -> None:
    scheduler = Scheduler(replace(GPU, paused=True))
    assert started(scheduler.handle(job(1), 0.0)) == []
    assert scheduler.reason("j1") == "paused"
    assert started(scheduler.handle(LimitsChanged(limits=GPU), 0.0)) == ["j1"]


def test_a_crash_costs_an_attempt_and_three_in_a_row_the_job() -> None:
    scheduler = Scheduler(GPU)
    scheduler.handle(job(1), 0.0)
    for attempt in (1, 2):
        actions = scheduler.handle(Crashed(job="j1", attempt=attempt), 1.0)
        assert Requeue(job="j1") in actions
        assert started(actions) == ["j1"]
    assert Settle(job="j1", state="failed", cause="crash") in scheduler.handle(Crashed(job="j1", attempt=3), 2.0)


def test_a_finished_unit_forgives_crashes() -> None:
    scheduler = Scheduler(GPU)
    scheduler.handle(job(1), 0.0)
    for attempt in range(1, 10):
        scheduler.handle(Loaded(job="j1", attempt=attempt, budget_s=100.0), 0.0)
        scheduler.handle(UnitDone(job="j1", attempt=attempt), 0.0)
        assert Requeue(job="j1") in scheduler.handle(Crashed(job="j1", attempt=attempt), 1.0)


def test_cancel_ends_what_waits_at_once_and_stops_what_runs() -> None:
    scheduler = Scheduler(replace(GPU, cpu_jobs=1))
    scheduler.handle(job(1), 0.0)
    scheduler.handle(job(2), 0.0)
    assert scheduler.handle(Cancel(job="j2"), 0.0) == [Settle(job="j2", state="cancelled", cause="cancel")]
    (stop,) = scheduler.handle(Cancel(job="j1"), 0.0)
    assert isinstance(stop, Stop)
    (settle,) = scheduler.handle(Crashed(job="j1", attempt=1), 0.1)
    assert isinstance(settle, Settle)
    assert settle.state == "cancelled"


def test_three_clocks() -> None:
    limits = replace(GPU, cpu_jobs=1, load_s=10.0, queue_s=50.0)
    scheduler = Scheduler(limits)
    scheduler.handle(job(1), 0.0)
    (stop,) = scheduler.handle(Tick(), 11.0)
    assert isinstance(stop, Stop)
    assert stop.cause == "load"
    scheduler = Scheduler(limits)
    scheduler.handle(job(1), 0.0)
    scheduler.handle(Loaded(job="j1", attempt=1, budget_s=20.0), 5.0)
    stops = [a for t in range(6, 4000) for a in scheduler.handle(Tick(), float(t)) if isinstance(a, Stop)]
    assert stops[0].cause == "run"
    assert stops[0].since_unit_s >= 20.0


def test_work_that_goes_on_past_its_budget_lives_on_for_a_while() -> None:
    scheduler = Scheduler(GPU)
    scheduler.handle(job(1), 0.0)
    scheduler.handle(Loaded(job="j1", attempt=1, budget_s=100.0), 0.0)
    stopped_at = None
    for t in range(0, 4000, 10):
        scheduler.handle(UnitDone(job="j1", attempt=1), float(t))
        if any(isinstance(a, Stop) for a in scheduler.handle(Tick(), float(t))):
            stopped_at = t
            break
    assert stopped_at is not None
    assert 1790 <= stopped_at <= 1820  # the larger of 30 min and 3 × the budget


KINDS = st.sampled_from(["convert", "preview"])
ENGINES = st.sampled_from(["formant", "rvc"])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "submit",
                "finish",
                "fail",
                "crash",
                "unit",
                "cancel",
                "run_now",
                "live",
                "unlive",
                "limits",
                "hold",
                "tick",
            ]
        ),
        st.integers(0, 40),
        KINDS,
        ENGINES,
    ),
    max_size=120,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_invariants_under_any_events(steps: list[tuple[str, int, str, str]]) -> None:
    scheduler = Scheduler(GPU)
    limits, now = GPU, 0.0
    running: dict[str, tuple[int, str]] = {}
    live: set[str] = set()
    submitted: set[str] = set()
    settled: Counter[str] = Counter()
    forced: set[str] = set()
    held = False
    count = 0

    def take(actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Start):
                assert not held
                assert action.job in submitted
                assert action.job not in running
                assert settled[action.job] == 0
                assert action.device not in live or action.job in forced
                running[action.job] = (action.attempt, action.device)
            elif isinstance(action, Settle):
                settled[action.job] += 1
                assert settled[action.job] == 1  # nothing ends twice
                running.pop(action.job, None)
            elif isinstance(action, Requeue):
                running.pop(action.job)
        used = Counter(device for _, device in running.values())
        assert used["cpu"] <= 2
        assert used["cuda:0"] <= 1

    for what, pick, kind, engine in steps:
        now += 1.0
        names = sorted(running)
        chosen = names[pick % len(names)] if names else None
        if what == "submit":
            count += 1
            submitted.add(f"j{count}")
            take(scheduler.handle(job(count, kind, engine), now))
        elif what in ("cancel", "run_now") and count:
            name = f"j{1 + pick % count}"
            if what == "run_now":
                forced.add(name)
                take(scheduler.handle(RunNow(job=name), now))
            else:
                take(scheduler.handle(Cancel(job=name), now))
        elif what == "live" and not live:  # sessions are counted, so one start for one stop
            live.add("cuda:0")
            take(scheduler.handle(LiveStarted(device="cuda:0"), now))
        elif what == "unlive" and live:
            live.discard("cuda:0")
            take(scheduler.handle(LiveStopped(device="cuda:0"), now))
        elif what == "limits":
            limits = replace(limits, paused=not limits.paused)
            take(scheduler.handle(LimitsChanged(limits=limits), now))
        elif what == "hold":
            held = not held
            take(scheduler.handle(Held(on=held), now))
        elif what == "tick":
            take(scheduler.handle(Tick(), now))
        elif chosen is not None:
            attempt = running[chosen][0]
            events = {
                "finish": Finished(job=chosen, attempt=attempt),
                "fail": Failed(job=chosen, attempt=attempt),
                "crash": Crashed(job=chosen, attempt=attempt),
                "unit": UnitDone(job=chosen, attempt=attempt),
            }
            if what in events:
                take(scheduler.handle(events[what], now))

    # Left alone and with everything allowed, every job comes to an end: nothing is lost, nothing starves.
    held = False
    take(scheduler.handle(Held(on=False), now))
    if live:
        live.clear()
        take(scheduler.handle(LiveStopped(device="cuda:0"), now))
    take(scheduler.handle(LimitsChanged(limits=GPU), now))
    for _ in range(3 * count + 3):
        for name, (attempt, _) in list(running.items()):
            take(scheduler.handle(Finished(job=name, attempt=attempt), now))
    assert set(settled) == submitted
    assert scheduler.idle()
