"""Two processes on one folder: the second is refused, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import recipes_cases
from counterfoil.cli import main
from counterfoil.core.io import atomic_folder, write_lock

RUN = (
    *("run", "aoq", "--smoke", "--data", "scenes:images=60"),
    *("--set", "*.plan.epochs=2", "--output"),
)


def started(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "counterfoil.cli", *map(str, words)]
    return subprocess.Popen(command, text=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)


def until_it_holds(lock: Path, process: subprocess.Popen[str]) -> None:
    while not lock.exists() or f'"pid": {process.pid},' not in lock.read_text():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


LOCKED = {  # commands and their locks
    f"{' '.join(RUN)} x": "x/.lock",
    "features scenes:images=12 x --model clip": ".x.lock",
    "mine vectors --data scenes:images=60 --output x": ".x.lock",
}


@pytest.mark.parametrize("command", LOCKED)
def test_of_two_commands_the_second_hears_who_holds_the_folder(
    command, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    if command.startswith("features"):
        recipes_cases.clip_like(tmp_path / "clip")
    if command.startswith("mine"):
        (tmp_path / "x.partial").mkdir()
    with write_lock(tmp_path / LOCKED[command], "x"):
        assert main(command.split()) == 2
        sentence = capsys.readouterr().err.splitlines()[-1]
        assert f"is being written by process {os.getpid()} on" in sentence
        assert not [path for path in (tmp_path / "x").glob("*") if path.name != ".lock"]
    assert not (tmp_path / "x").exists()


def test_a_finished_run_needs_no_lock(tmp_path, capsys):
    folder = tmp_path / "run"
    words = ("run", "online", "--smoke", "--data", "scenes:images=60", "--output", folder)
    assert main([*map(str, words)]) == 0
    files = sorted(folder.rglob("*"))
    with write_lock(tmp_path / "other" / ".lock", folder), write_lock(folder / ".lock", folder):
        assert main([*map(str, words)]) == 0
    assert "online: kept" in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == files


@pytest.mark.slow
def test_of_two_runs_the_second_is_refused_and_the_first_ends_as_alone(tmp_path, capsys):
    alone, both = tmp_path / "alone", tmp_path / "both"
    assert main([*RUN, str(alone)]) == 0
    first = started(*RUN, both)
    until_it_holds(both / ".lock", first)
    second = started(*RUN, both, "--resume")
    _, refused = second.communicate(timeout=120)
    assert second.returncode == 2
    assert f"is being written by process {first.pid} on" in refused
    first.communicate(timeout=300)
    assert first.returncode == 0

    def numbers(folder: Path) -> bytes:
        return (folder / "test-adaptive" / "evaluation.safetensors").read_bytes()

    assert numbers(alone) == numbers(both)
    assert not (both / ".lock").exists()


@pytest.mark.slow
def test_a_killed_process_holds_no_lock_and_sigterm_exits_with_3(tmp_path, capsys):
    folder = tmp_path / "run"
    first = started(*RUN, folder)
    until_it_holds(folder / ".lock", first)
    first.kill()
    first.communicate()
    second = started(*RUN, folder, "--resume")
    until_it_holds(folder / ".lock", second)
    second.send_signal(signal.SIGTERM)
    second.communicate(timeout=120)
    assert second.returncode == 3
    assert main([*RUN, str(folder), "--resume"]) == 0


def test_a_temporary_folder_of_a_dead_process_of_another_container_is_removed(tmp_path):
    path = tmp_path / "out"
    with atomic_folder(path) as temporary:
        (temporary / "a").write_text("1")
        name = temporary.name
    pid = name.split("@")[0].rpartition(".")[2]
    left = tmp_path / name.replace(f".{pid}@", ".1@")  # process 1 is always alive
    left.mkdir()
    old = left.with_suffix(".old")
    path.rename(old)  # the writer died between its two renames
    with atomic_folder(path) as temporary:
        assert path.is_dir()
        (temporary / "a").write_text("2")
    assert [one.name for one in tmp_path.iterdir()] == ["out"]
    assert (path / "a").read_text() == "2"
