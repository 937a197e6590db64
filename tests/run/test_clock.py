"""Decisions that depend on time: pauses and cadences in seconds."""

import manyfit


def test_slow_steps_are_paused_after_each_of_them():
    """A signal is seen after one step, or half a second, also at the beginning."""
    from manyfit.run.loop.clock import Pace
    from manyfit.run.loop.plan import Plan

    now = [0.0]
    plan = Plan(steps_per_epoch=1000, epochs=1)
    for seconds_a_step, most in ((3.0, 1), (0.001, 500)):
        pace, step = Pace(plan, clock=lambda: now[0]), 0
        assert pace.most == 1
        for _ in range(12):
            boundary = plan.next(step, pace.most)
            pace.begin()
            now[0] += seconds_a_step * (boundary.step - step)
            pace.pause(boundary, boundary.step - step)
            step = boundary.step
            if step >= plan.total:
                break
        assert pace.most <= most
        assert pace.most == 1 or pace.most > 100, "fast steps are not paused all the time"


def test_time_may_decide_if_the_run_says_so(project):
    tree = project.changed(
        train__every={"validate": "0.001s", "log": "0.001s", "checkpoint": "0.001s"},
        train__time_dependent=True,
    )
    assert manyfit.train(tree, folder="runs/b", callbacks=[]).step == 8


def test_turns_of_others_are_not_part_of_the_pace(monkeypatch):
    """A group beside a slow one still trains for half a second at a time."""
    from manyfit.run.loop import clock
    from manyfit.run.loop.plan import Plan

    now, plan = [100.0], Plan(steps_per_epoch=100_000, epochs=1)
    monkeypatch.setattr(clock.time, "monotonic", lambda: now[0])
    suspension, step = clock.Suspension(), 0
    with suspension.end():
        pace = clock.Pace(plan, lambda: now[0])
    for _ in range(12):
        with suspension.end():
            boundary = plan.next(step, pace.most)
            pace.begin()
            now[0] += 0.001 * (boundary.step - step)
        now[0] += 3.0  # others
        with suspension.end():
            pace.pause(boundary, boundary.step - step)
        step = boundary.step
    assert 300 < pace.most <= 500
