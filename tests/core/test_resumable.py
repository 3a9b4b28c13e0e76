"""Work in parts goes on after kills and stops, by any number of processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import processes
from counterfoil.core import distributed
from counterfoil.core.resumable import PartsFolder, WorkStopped, work_through

SIZES = [2, 2, 2, 2, 1]


def squares(folder: str, *, dies_at: int = -1, stops_after: int = 99) -> list[int]:
    """Writes the square of each part's number; the numbers that this process wrote."""
    parts, made = PartsFolder(Path(folder), suffix=".txt"), list[int]()

    def work(number: int) -> None:
        def write(path: Path) -> None:
            path.write_text("half")
            if number == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            path.write_text(str(number**2))

        parts.save(number, write)
        made.append(number)

    missing = parts.begin({"seed": 1, "rules": ("a",)}, len(SIZES))
    stop = None if stops_after == 99 else lambda: len(made) >= stops_after
    work_through(missing, work, SIZES, description="squares", stop=stop)
    return made


def check(folder: Path) -> None:
    parts = PartsFolder(folder, suffix=".txt")
    assert [int(parts.path(number).read_text()) for number in range(5)] == [0, 1, 4, 9, 16]
    assert len(list(folder.iterdir())) == 6


@pytest.mark.parametrize("dies_at", range(5))
def test_a_killed_process_costs_one_part(tmp_path, dies_at):
    child = processes.forked(lambda: bool(squares(str(tmp_path), dies_at=dies_at)))
    assert processes.ended(child) == -signal.SIGKILL
    assert squares(str(tmp_path)) == list(range(dies_at, 5))
    check(tmp_path)


@pytest.mark.parametrize("sizes", [(1, 2), (2, 1), (3, 2)])
def test_any_number_of_processes_goes_on(tmp_path, sizes):
    processes.run(_stopped, sizes[0], str(tmp_path))
    made = processes.run(squares, sizes[1], str(tmp_path))
    assert sorted(number for numbers in made for number in numbers) == list(range(sizes[0], 5))
    check(tmp_path)


def _stopped(folder: str) -> None:
    with pytest.raises(WorkStopped):
        squares(folder, stops_after=98 if distributed.rank() else 1)


def test_a_stop_after_the_last_part_is_no_stop(tmp_path):
    assert squares(str(tmp_path), stops_after=5) == [0, 1, 2, 3, 4]


def test_other_facts_are_refused(tmp_path):
    squares(str(tmp_path))
    parts = PartsFolder(tmp_path, suffix=".txt")
    assert parts.begin({"seed": 1, "rules": ["a"]}, 6) == [5]
    with pytest.raises(ValueError, match=r"begun otherwise: rules is \['a'\] there and \[\] here"):
        parts.begin({"seed": 1, "rules": []}, 5)
    with pytest.raises(ValueError, match="seed is 1 there and none here; continue with"):
        parts.begin({"rules": ["a"]}, 5)
    parts.remove()
    parts.remove()
    assert not tmp_path.exists()
