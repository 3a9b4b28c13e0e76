from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from counterfoil.training.stopping import StopMonitor, loss_convergence, watch_for_stop


@pytest.mark.parametrize(("minutes", "decided"), [(0, (None, False)), (1e-9, ("minutes", True))])
def test_time_is_up_or_nothing_is_due(minutes: float, decided: object) -> None:
    with watch_for_stop(minutes, 10) as watch:
        assert watch.decide() == decided


def test_a_checkpoint_is_due_until_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = StopMonitor(0, 10)
    now[0] = 599.0
    assert watch.decide() == (None, False)
    now[0] = 601.0
    assert watch.decide() == (None, True)
    watch.saved()
    assert watch.decide() == (None, False)
    now[0] = 1202.0
    assert watch.decide() == (None, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_and_handlers_come_back(number: int) -> None:
    before = signal.getsignal(number)
    with watch_for_stop(0, 10) as watch:
        os.kill(os.getpid(), number)
        assert watch.decide() == ("signal", True)
        watch.mark_handled()
    assert signal.getsignal(number) == before


def test_a_signal_that_stopped_nothing_is_passed_on() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with watch_for_stop(0, 10) as watch:
            os.kill(os.getpid(), signal.SIGTERM)
            assert watch.decide()[0] == "signal"
            assert not heard
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_second_interrupt_forces() -> None:
    with watch_for_stop(0, 10) as watch:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        watch.mark_handled()


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with watch_for_stop(1e-9, 10) as watch:
            seen.append((signal.getsignal(signal.SIGTERM), watch.decide()[0]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(before, "minutes")]


UNKNOWN = "cannot tell whether it converged"


@pytest.mark.parametrize(
    ("losses", "settled", "state"),
    [
        ([10 - 0.5 * n for n in range(10)], 0, "still improving"),
        ([4 + 0.05 * (-1) ** n - 0.08 * n for n in range(30)], 0, "still improving"),
        ([4 + 0.05 * (-1) ** n for n in range(30)], 0, "converged"),
        ([4 - 0.001 * n for n in range(30)], 0, "converged"),  # by less than two percent
        ([1 + 0.3 * n for n in range(10)], 0, "converged"),  # it rises
        ([4 + 0.02 * n for n in range(10)], 0, "converged"),
        ([9, 9, 8, 8, 7, 7, 4, 4, 4, 4], 0, "converged"),
        ([4 + (-1) ** n for n in range(30)], 0, UNKNOWN),
        ([0.0] * 10, 0, "converged"),
        ([3, 2, 1], 0, UNKNOWN),
        ([10 - 0.5 * n for n in range(10)], 61, UNKNOWN),  # of 100 steps
        ([10 - 0.5 * n for n in range(10)], 60, "still improving"),
        ([], 0, UNKNOWN),
    ],
)
def test_the_training_loss_tells(losses: list[float], settled: int, state: str) -> None:
    lines = [{"step": 10 * n, "loss": loss} for n, loss in enumerate(losses, 1)]
    lines.insert(len(lines) // 2, {"step": 10, "dev_rsum": 300.0})
    told = loss_convergence(lines, steps=10 * len(losses), settled=settled, why="no dev")
    assert told.state == state
    assert told.why.startswith("no dev")
    assert ("more steps may help" in told.why) == (state == "still improving")
