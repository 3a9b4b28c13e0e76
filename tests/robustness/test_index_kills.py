"""Indexes survive kills: what was committed answers as before, and no file is left or lost."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import recipes_cases
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
from counterfoil.search.index import IMAGE_FOLDER, build_index, open_index

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="a killed process is a forked one"),
]
KILLS = 24
FOREIGN = ("my-notes.jsonl", "my-vectors.npy", f"{IMAGE_FOLDER}/mine.png")
QUERIES = ("a red circle", "a blue square")


def scenes(seed: int, prefix: str):
    drawn = load_dataset(f"scenes:images=60,seed={seed}").subset(torch.arange(6))
    ids = tuple(f"{prefix}{name}" for name in drawn.image_ids)
    return replace(drawn, image_ids=ids, text_ids=tuple(f"{prefix}{n}" for n in drawn.text_ids))


def add(folder: Path) -> None:
    with open_index(folder) as index:
        index.add(scenes(1, "b"))


def delete(folder: Path) -> None:
    with open_index(folder) as index:
        index.delete([name for name in index.vectors.images.rows if name.startswith("a")][:3])


def exchange(folder: Path) -> None:
    with open_index(folder) as index:
        pictures = scenes(2, "a").pictures
        index.add(replace(scenes(0, "a"), pictures=pictures), replace=True)


VERBS: dict[str, Callable[[Path], None]] = {"add": add, "delete": delete, "exchange": exchange}


def answers(folder: Path) -> list[list[tuple[str, float]]]:
    with open_index(folder) as index:
        index.vectors.verify()
        return [[(hit.id, hit.score) for hit in index.search(query, 12)] for query in QUERIES]


def pictures(folder: Path) -> set[str]:
    return {path.name for path in (folder / IMAGE_FOLDER).iterdir()}


def killed(verb: Callable[[Path], None], folder: Path, seconds: float) -> None:
    process = multiprocessing.get_context("fork").Process(target=verb, args=(folder,))
    process.start()
    time.sleep(seconds)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()


@pytest.mark.parametrize("name", VERBS)
def test_a_killed_change_is_as_before_or_as_after(name, tmp_path):
    verb, rng = VERBS[name], random.Random(name)
    model = load_model(recipes_cases.pixel_model(tmp_path / "model"))
    build_index(model, scenes(0, "a"), tmp_path / "before").close()
    for file in FOREIGN:
        (tmp_path / "before" / file).write_bytes(b"mine")
    after = Path(shutil.copytree(tmp_path / "before", tmp_path / "after"))
    start = time.perf_counter()
    verb(after)
    seconds = time.perf_counter() - start
    outcomes = {repr(answers(tmp_path / "before")), repr(answers(after))}
    assert len(outcomes) == 2
    for _ in range(KILLS // len(VERBS)):
        folder = Path(shutil.copytree(tmp_path / "before", tmp_path / "x"))
        killed(verb, folder, 1.5 * seconds * rng.random())
        assert repr(answers(folder)) in outcomes
        with open_index(folder) as index:  # the next change clears what the kill left
            index.delete([next(name for name in reversed(index.vectors.images.rows))])
            known = {Path(index.image_path(name)).name for name in index.vectors.images.rows}
        assert pictures(folder) == {*known, "mine.png"}
        assert not [path.name for path in folder.rglob("*.part")]
        assert all((folder / file).read_bytes() == b"mine" for file in FOREIGN)
        shutil.rmtree(folder)


def test_of_two_additions_at_once_one_is_refused_and_nothing_is_lost(tmp_path):
    model = load_model(recipes_cases.pixel_model(tmp_path / "model"))
    build_index(model, scenes(0, "a"), tmp_path / "x").close()
    fork = multiprocessing.get_context("fork")
    results = fork.Queue()

    def other(seed: int) -> None:
        try:
            with open_index(tmp_path / "x") as index:
                results.put(index.add(scenes(seed, "bcd"[seed])).images)
        except ValueError as error:
            results.put(str(error))

    processes = [fork.Process(target=other, args=(seed,)) for seed in range(3)]
    for process in processes:
        process.start()
    outcomes = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    added = sum(one for one in outcomes if isinstance(one, int))
    refused = [one for one in outcomes if isinstance(one, str)]
    assert all("another process" in one or "written by process" in one for one in refused)
    with open_index(tmp_path / "x") as index:
        assert len(index.vectors.images) == 6 + added
        assert len(pictures(tmp_path / "x")) == 6 + added
    assert added >= 6
