from __future__ import annotations

import contextlib
import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given as given_cases
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

import processes
from counterfoil.core.resumable import WorkStopped
from counterfoil.data.dataset import Relation
from counterfoil.negatives.filters import FilterConfig, NegativeFilters
from counterfoil.negatives.mining import mine_lists
from engine_cases import given
from filters_cases import PLANS, allowed, by_hand, case
from negatives_cases import member, ragged, ranked

SQUARE = Relation(torch.tensor([0, 1, 2]), images=3)


def vectors(seed: int, relation: Relation) -> tuple[Tensor, Tensor]:
    """Coarse values, so that scores tie and every sum is exact."""
    made = torch.Generator().manual_seed(seed)
    images = torch.randint(-2, 3, (relation.images, 6), generator=made).float()
    return images, torch.randint(-2, 3, (len(relation.text_to_image), 6), generator=made).float()


@pytest.mark.parametrize("orphans", [0, 3])
def test_mining_equals_sorting_every_row(orphans: int) -> None:
    relation = ragged(20, 4, orphans)
    images, texts = vectors(4, relation)
    lists = mine_lists(
        [member(images, texts)], relation.text_to_image, texts_per_image=7, images_per_text=5
    )
    scores = images @ texts.T
    expected = ranked(scores, relation, 7, 5)
    assert torch.equal(lists.texts, expected.texts)
    assert torch.equal(lists.images, expected.images)
    assert lists.text_scores is not None
    assert lists.image_scores is not None
    assert torch.equal(lists.text_scores.float(), scores.gather(1, lists.texts.long()))
    assert torch.equal(lists.image_scores.float(), scores.T.gather(1, lists.images.long()))


def test_mining_an_ensemble_sorts_mean_scores() -> None:
    relation = ragged(9, 6)
    one, two = vectors(1, relation), vectors(2, relation)
    lists = mine_lists(
        [member(*one), member(*two)], relation.text_to_image, texts_per_image=4, images_per_text=3
    )
    expected = ranked((one[0] @ one[1].T + two[0] @ two[1].T) / 2, relation, 4, 3)
    assert torch.equal(lists.texts, expected.texts)
    assert torch.equal(lists.images, expected.images)


def test_lists_are_no_longer_than_the_corpus_and_padded_where_short() -> None:
    relation = Relation(torch.tensor([0, 0, 0, 1]), images=2)
    images, texts = vectors(0, relation)
    lists = mine_lists(
        [member(images, texts)], relation.text_to_image, texts_per_image=99, images_per_text=99
    )
    assert lists.texts.shape == (2, 4)
    assert (lists.texts >= 0).sum(1).tolist() == [1, 3]
    assert (lists.images >= 0).sum(1).tolist() == [1, 1, 1, 1]
    assert lists.text_scores is not None
    assert torch.equal(lists.text_scores.isinf(), lists.texts < 0)


@pytest.mark.parametrize("size", ["texts_per_image", "images_per_text"])
def test_an_empty_list_is_refused(size: str) -> None:
    relation = ragged()
    sizes = {"texts_per_image": 1, "images_per_text": 1, size: 0}
    with pytest.raises(ValueError, match="=0: a list of negatives has at least 1"):
        mine_lists([member(*vectors(0, relation))], relation.text_to_image, **sizes)  # type: ignore[arg-type]


def _mined_here() -> list[list[list[int]]]:
    torch.set_num_threads(1)
    relation = ragged(40, 8)
    made = [member(*vectors(8, relation))]
    lists = mine_lists(made, relation.text_to_image, texts_per_image=6, images_per_text=4)
    return [lists.texts.tolist(), lists.images.tolist()]


def test_two_processes_mine_what_one_mines() -> None:
    alone = _mined_here()
    assert processes.run(_mined_here, 2) == [alone, alone]


def test_large_scores_stay_finite_on_disk() -> None:
    relation = SQUARE
    images, texts = torch.eye(3) * 1e4, torch.ones(3, 3) * 1e4
    lists = mine_lists(
        [member(images, texts)], relation.text_to_image, texts_per_image=2, images_per_text=2
    )
    assert lists.text_scores is not None
    assert lists.text_scores.isfinite().all()


# stopped and gone on with: filters x directions x tiles x processes x resume points

TILES = [(16, 16), (5, 16), (40, 9)]
H, K = 6, 5
Rows = list[list[int]]


class Clock:
    """Says stop when it is asked for the nth time."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __call__(self) -> bool:
        self.times -= 1
        return self.times < 0


def filtered(
    plan: FilterConfig, tile: tuple[int, int], folder: Path | None = None, stop_after: int = 999
) -> tuple[Rows, Rows] | None:
    """Lists both ways; None when stopped."""
    torch.set_num_threads(1)
    dataset, scores, guide = case(13, 37, 5)
    guides = [given(guide)] if plan.needs_guide else []
    try:
        lists = mine_lists(
            [given(scores)],
            dataset.text_to_image,
            texts_per_image=H,
            images_per_text=K,
            tile=tile,
            filters=NegativeFilters(plan, dataset, guides=guides),
            keep=folder,
            every=0.0,
            stop=Clock(stop_after),
        )
    except WorkStopped:
        return None
    return lists.texts.tolist(), lists.images.tolist()


@functools.cache
def brute_force(plan: FilterConfig) -> tuple[Rows, Rows]:
    dataset, scores, guide = case(13, 37, 5)
    texts, images = (allowed(plan, dataset, scores, guide, side) for side in ("image", "text"))
    return by_hand(scores, texts, H, plan.skip), by_hand(scores.T, images.T, K, plan.skip)


def in_words(plan: FilterConfig) -> str:
    return " ".join(plan.describe()) or "off"


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("plan", PLANS, ids=in_words)
def test_lists_equal_brute_force_however_often_mining_was_stopped(
    plan: FilterConfig, tile: tuple[int, int], tmp_path: Path
) -> None:
    assert filtered(plan, tile) == brute_force(plan)
    stops = 0
    while (found := filtered(plan, tile, tmp_path, 0)) is None:
        stops += 1
    assert stops >= 2
    assert found == brute_force(plan)


def _every_plan(
    tile: tuple[int, int], folder: Path, stop_after: int
) -> list[tuple[Rows, Rows] | None]:
    return [
        filtered(plan, tile, folder / str(place), stop_after) for place, plan in enumerate(PLANS)
    ]


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("sizes", [(2,), (2, 1), (1, 2), (2, 3, 2)], ids=str)
def test_lists_equal_brute_force_for_any_number_of_processes(
    sizes: tuple[int, ...], tile: tuple[int, int], tmp_path: Path
) -> None:
    for size in sizes[:-1]:
        processes.run(_every_plan, size, tile, tmp_path, 0)
    assert bool(list(tmp_path.rglob("*.npz"))) == (len(sizes) > 1)
    for found in processes.run(_every_plan, sizes[-1], tile, tmp_path, 999):
        for plan, lists in zip(PLANS, found, strict=True):
            assert lists == brute_force(plan), in_words(plan)


@settings(max_examples=30, deadline=None)
@given_cases(
    seed=st.integers(0, 999),
    tile=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    stops=st.lists(st.integers(0, 3), max_size=3),
)
def test_any_tiles_and_resume_points_of_any_corpus(
    seed: int, tile: tuple[int, int], stops: list[int]
) -> None:
    relation = ragged(11, seed, orphans=2)
    images, texts = vectors(seed, relation)
    expected = ranked(images @ texts.T, relation, 7, 5)
    with tempfile.TemporaryDirectory() as folder:
        for stop in (*stops, 999):
            with contextlib.suppress(WorkStopped):
                lists = mine_lists(
                    [member(images, texts)],
                    relation.text_to_image,
                    texts_per_image=7,
                    images_per_text=5,
                    tile=tile,
                    keep=Path(folder),
                    stop=Clock(stop),
                )
    assert torch.equal(lists.texts, expected.texts)
    assert torch.equal(lists.images, expected.images)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"texts_per_image": 3}, "texts of an image is 6 there and 3 here"),
        ({"images_per_text": 3}, "images of a text is 5 there and 3 here"),
        ({"run": "other data"}, "run is of this test there and other data here"),
        ({"tile": (32, 32)}, "tiles is 1 x 3 of 16 x 16 there and 1 x 2 of 32 x 32 here"),
        ({"text_to_image": torch.zeros(37, dtype=torch.long)}, "true pairs is"),
        ({"filters": FilterConfig(skip=1)}, "the 1 hardest of the rest here"),
        ({"members": [given(torch.zeros(13, 37))] * 2}, "models is"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_what_was_kept_of_another_mining_is_refused(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    dataset, scores, _ = case(13, 37, 5)
    asked: dict[str, Any] = {
        "members": [given(scores)],
        "text_to_image": dataset.text_to_image,
        "texts_per_image": 6,
        "images_per_text": 5,
        "tile": (16, 16),
        "keep": tmp_path,
        "run": "of this test",
    }
    with pytest.raises(WorkStopped):
        mine_lists(**asked, stop=Clock(0))
    asked |= change
    if isinstance(plan := asked.get("filters"), FilterConfig):
        asked["filters"] = NegativeFilters(plan, dataset)
    with pytest.raises(ValueError, match="was begun otherwise") as error:
        mine_lists(**asked)
    assert words in str(error.value)
    assert "name another folder, or delete it" in str(error.value)
