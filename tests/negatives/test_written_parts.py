"""Foils are written in parts: stopped, killed and gone on with to the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import processes
import tailored_cases as cases
from counterfoil.core.resumable import WorkStopped
from counterfoil.negatives.generation import generator as generator_module
from counterfoil.negatives.generation.generator import ModelGenerator, generate_in_parts
from counterfoil.negatives.generation.store import ROWS, GeneratedCaption, GeneratedStore
from counterfoil.negatives.generation.tags import MaskRefill


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator_module, "CAPTIONS", 5)


class Counting:
    """Writes a foil of every caption, and breaks off at some caption, as a kill would."""

    def __init__(self, breaks: int = -1) -> None:
        self.breaks, self.rows = breaks, list[int]()

    def foils(self, rows: Sequence[int]) -> Iterator[GeneratedCaption]:
        for row in rows:
            if row == self.breaks:
                raise KeyboardInterrupt
            self.rows.append(row)
            yield GeneratedCaption("i", f"t{row}", "é", f"ü {row}", "noun", (), {"foil": row / 7})


def write(folder: Path, made: Any, **options: Any) -> GeneratedStore:
    told = {"writer": "somebody", "settings": {"rules": ("captions",)}, "seed": 2, **options}
    partial = folder.with_name("partial")
    return generate_in_parts(folder, cases.dataset(), made.foils, partial=partial, **told)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_killed_writing_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    whole = Counting()
    store = write(tmp_path / "whole", whole)
    assert whole.rows == list(range(24))
    assert [foil.text for foil in store.foils()] == [f"t{row}" for row in range(24)]
    assert not (tmp_path / "partial").exists()
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "w", Counting(breaks=13))
    assert not (tmp_path / "w").exists()
    rest = Counting()
    write(tmp_path / "w", rest)
    assert rest.rows == list(range(10, 24)), "only the part that was broken off is written again"
    assert files(tmp_path / "w") == files(tmp_path / "whole")


def test_a_stop_keeps_what_is_written(tmp_path: Path) -> None:
    first = Counting()
    with pytest.raises(WorkStopped):
        write(tmp_path / "w", first, stop=lambda: len(first.rows) >= 10)
    assert first.rows == list(range(10))
    rest = Counting()
    assert len(write(tmp_path / "w", rest, stop=lambda: len(rest.rows) >= 14)) == 24
    assert rest.rows == list(range(10, 24)), "at its end nothing is stopped"


def test_captions_of_no_image_are_left_out(tmp_path: Path) -> None:
    plain = cases.dataset()
    text_to_image = plain.text_to_image.clone()
    text_to_image[3] = -1
    dataset, writer = replace(plain, text_to_image=text_to_image), Counting()
    generate_in_parts(
        tmp_path / "w",
        dataset,
        writer.foils,
        partial=tmp_path / "p",
        writer="",
        settings={},
        seed=0,
    )
    assert writer.rows == [row for row in range(24) if row != 3]


@pytest.mark.parametrize(
    ("change", "named"),
    [({"seed": 3}, "seed"), ({"writer": "me"}, "writer"), ({"settings": {"rules": ()}}, "rules")],
)
def test_another_writing_is_refused(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "w", Counting(breaks=7))
    with pytest.raises(ValueError, match=f"begun otherwise: {named} is .* there and .* here; go"):
        write(tmp_path / "w", Counting(), **change)


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "w", Counting(breaks=7))
    (tmp_path / "partial" / "000000.jsonl").write_text("{\n")
    with pytest.raises(ValueError, match=r"000000.jsonl, line 1 is damaged"):
        write(tmp_path / "w", Counting())
    assert not (tmp_path / "w").exists()


def by_a_model(folder: str) -> bytes:
    generator_module.CAPTIONS = 5
    seen = cases.processor()
    hand = MaskRefill(masks=3, refills=3)
    writer = ModelGenerator(
        inputs=cases.inputs(seen), model=cases.host(seen), mask_refill=hand, keep=3
    )
    write(Path(folder) / "w", writer)
    return (Path(folder) / "w" / ROWS).read_bytes()


def test_any_number_of_processes_writes_the_same(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    alone = by_a_model(str(tmp_path / "one"))
    assert processes.run(by_a_model, 2, str(tmp_path / "two")) == [alone, alone]
    assert len(alone.splitlines()) > 24
    manifests = [
        json.loads((tmp_path / n / "w" / "manifest.json").read_text()) for n in ("one", "two")
    ]
    assert manifests[0] == manifests[1]
