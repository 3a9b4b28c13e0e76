"""Mined lists against brute force, for any tile, filter, number of processes and resumption."""

from __future__ import annotations

import contextlib
import functools
import re
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
from counterfoil.data.readers import load_dataset
from counterfoil.model import Model, load_model
from counterfoil.negatives import mining
from counterfoil.negatives.filters import FilterConfig, NegativeFilters
from counterfoil.negatives.mining import (
    mine_hard_negatives,
    mine_lists,
    rerank_proposals,
    with_true_scores,
)
from counterfoil.negatives.store import HardNegativeLists, NegativeStore
from counterfoil.scoring import pairs
from counterfoil.scoring.encode import EmbeddedDataset
from engine_cases import given
from filters_cases import PLANS, allowed, by_hand, case, eighths
from negatives_cases import HOSTS, alike, host, member, ragged, random_lists, ranked
from recipes_cases import pixel_model

SQUARE = Relation(torch.tensor([0, 1, 2]), images=3)


def vectors(seed: int, relation: Relation) -> tuple[Tensor, Tensor]:
    """Coarse values, so that scores tie and every sum is exact."""
    made = torch.Generator().manual_seed(seed)
    images = torch.randint(-2, 3, (relation.images, 6), generator=made).float()
    return images, torch.randint(-2, 3, (len(relation.text_to_image), 6), generator=made).float()


def mined(
    relation: Relation, h: int, k: int, *members: tuple[Tensor, Tensor], **options: Any
) -> HardNegativeLists:
    """Lists of h texts and k images by the mean product of each member's vectors."""
    return mine_lists(
        [member(*sides) for sides in members],
        relation.text_to_image,
        texts_per_image=h,
        images_per_text=k,
        **options,
    )


def same_rows(one: HardNegativeLists, other: HardNegativeLists) -> bool:
    return torch.equal(one.texts, other.texts) and torch.equal(one.images, other.images)


@pytest.mark.parametrize("orphans", [0, 3])
def test_mining_equals_sorting_every_row(orphans: int) -> None:
    relation = ragged(20, 4, orphans)
    images, texts = vectors(4, relation)
    lists, scores = mined(relation, 7, 5, (images, texts)), images @ texts.T
    assert same_rows(lists, ranked(scores, relation, 7, 5))
    assert lists.text_scores is not None
    assert lists.image_scores is not None
    assert torch.equal(lists.text_scores.float(), scores.gather(1, lists.texts.long()))
    assert torch.equal(lists.image_scores.float(), scores.T.gather(1, lists.images.long()))


def test_mining_an_ensemble_sorts_mean_scores() -> None:
    relation = ragged(9, 6)
    one, two = vectors(1, relation), vectors(2, relation)
    mean = (one[0] @ one[1].T + two[0] @ two[1].T) / 2
    assert same_rows(mined(relation, 4, 3, one, two), ranked(mean, relation, 4, 3))


def test_lists_are_no_longer_than_the_corpus_and_padded_where_short() -> None:
    relation = Relation(torch.tensor([0, 0, 0, 1]), images=2)
    lists = mined(relation, 99, 99, vectors(0, relation))
    assert lists.texts.shape == (2, 4)
    assert (lists.texts >= 0).sum(1).tolist() == [1, 3]
    assert (lists.images >= 0).sum(1).tolist() == [1, 1, 1, 1]
    assert lists.text_scores is not None
    assert torch.equal(lists.text_scores.isinf(), lists.texts < 0)


@pytest.mark.parametrize("lengths", [(0, 1), (1, 0)])
def test_an_empty_list_is_refused(lengths: tuple[int, int]) -> None:
    relation = ragged()
    with pytest.raises(ValueError, match="=0: a list of negatives has at least 1"):
        mined(relation, *lengths, vectors(0, relation))


def test_large_scores_stay_finite_on_disk() -> None:
    lists = mined(SQUARE, 2, 2, (torch.eye(3) * 1e4, torch.ones(3, 3) * 1e4))
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
    plan: FilterConfig,
    tile: tuple[int, int],
    folder: Path | None = None,
    stop_after: int = 999,
    cores: int = 1,
) -> tuple[Rows, Rows] | None:
    """Lists both ways; None when stopped."""
    torch.set_num_threads(cores)
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
    finally:
        torch.set_num_threads(1)
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


@pytest.mark.parametrize("cores", [2, 3])
@pytest.mark.parametrize("plan", PLANS, ids=in_words)
def test_lists_equal_brute_force_on_several_cores(
    plan: FilterConfig, cores: int, tmp_path: Path
) -> None:
    assert filtered(plan, (5, 9), cores=cores) == brute_force(plan)
    while (found := filtered(plan, (5, 9), tmp_path, 0, cores)) is None:
        pass
    assert found == brute_force(plan)


def _every_plan(
    tile: tuple[int, int], folder: Path, stop_after: int
) -> list[tuple[Rows, Rows] | None]:
    return [
        filtered(plan, tile, folder / str(place), stop_after) for place, plan in enumerate(PLANS)
    ]


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [((2,), TILES[0]), ((2, 1), TILES[1]), ((1, 2), TILES[2]), ((2, 3, 2), TILES[1])],
    ids=str,
)
def test_lists_equal_brute_force_for_any_number_of_processes(
    sizes: tuple[int, ...], tile: tuple[int, int], tmp_path: Path
) -> None:
    for size in sizes[:-1]:
        processes.run(_every_plan, size, tile, tmp_path, 0)
    assert bool(list(tmp_path.rglob("process-*.safetensors"))) == (len(sizes) > 1)
    for found in processes.run(_every_plan, sizes[-1], tile, tmp_path, 999):
        for plan, lists in zip(PLANS, found, strict=True):
            assert lists == brute_force(plan), in_words(plan)


@settings(max_examples=20, deadline=None)
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
    with tempfile.TemporaryDirectory() as folder:
        for stop in (*stops, 999):
            with contextlib.suppress(WorkStopped):
                options = {"tile": tile, "keep": Path(folder), "stop": Clock(stop)}
                lists = mined(relation, 7, 5, (images, texts), **options)
    assert same_rows(lists, ranked(images @ texts.T, relation, 7, 5))


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


SIZES = {"texts_per_image": 6, "images_per_text": 4}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Model:
    return load_model(pixel_model(tmp_path_factory.mktemp("model") / "pixels"))


@pytest.fixture(scope="module")
def dataset():
    return load_dataset("scenes:images=40").split("train")


def test_lists_are_those_of_mine_lists(model, dataset, tmp_path):
    negatives = mine_hard_negatives(model, dataset, **SIZES)
    lists = mine_lists([model.embed(dataset)], dataset.text_to_image, **SIZES)
    assert same_rows(negatives.lists, lists)
    negatives.save(tmp_path / "lists")
    store = NegativeStore.open(tmp_path / "lists", fingerprint=dataset.fingerprint)
    assert torch.equal(store.lists.texts, lists.texts)
    assert store.manifest == negatives.store.manifest
    assert store.manifest.split == "train"
    assert store.manifest.sources == (model.source(),)


def test_true_pairs_are_scored_by_the_models_that_mined(model, dataset):
    found = mine_hard_negatives(model, dataset, **SIZES)
    embedded, relation = model.embed(dataset), dataset.relation
    scores = embedded.model.score_matrix(embedded.images, embedded.texts)
    own = scores[relation.text_to_image, torch.arange(len(relation.text_to_image))]
    torch.testing.assert_close(found.lists.true_scores.float(), own.float(), atol=2e-3, rtol=1e-3)
    orphan = relation.text_to_image.clone()
    orphan[0] = -1
    again = with_true_scores(found.lists, [embedded], orphan)
    assert again.true_scores[0] == -torch.inf
    assert torch.equal(again.true_scores[1:], found.lists.true_scores[1:])


def test_an_ensemble_and_half_precision(model, dataset):
    exact = mine_hard_negatives([model, model], dataset, **SIZES)
    half = mine_hard_negatives([model, model], dataset, precision="bf16", **SIZES)
    assert torch.equal(half.lists.texts, exact.lists.texts)
    assert half.store.manifest.precision.startswith("bfloat16, then float32: ")
    assert len(exact.store.manifest.sources) == 2


def test_table_for_other_trainers(model, dataset):
    negatives = mine_hard_negatives(model, dataset, **SIZES)
    table = negatives.to_dataset("n-tuple", "image-to-text", most=3)
    assert len(table) == len(dataset.texts)
    row, image = table[0], int(dataset.text_to_image[0])
    assert row.pop("anchor").tobytes() == dataset.pictures.open(image).tobytes()
    listed = negatives.lists.texts[image, :3].tolist()
    assert list(row.values()) == [dataset.texts[text] for text in (0, *listed)]


def test_filters_guides_and_checkpoints(model, dataset, tmp_path):
    filters = FilterConfig(captions=0.8, guided=0.0)
    negatives = mine_hard_negatives(
        model, dataset, filters=filters, guides=[model], checkpoint=tmp_path / "partial", **SIZES
    )
    captions, guided, guide = negatives.store.manifest.filters
    assert captions.startswith("texts within TF-IDF cosine 0.8")
    assert guided.startswith("pairs that the guide scores")
    assert guide.startswith("guide: ")
    same = mine_hard_negatives(
        model, dataset, filters={"captions": 0.8, "guided": 0.0}, guides=[model], **SIZES
    )
    assert same.store.manifest.filters == negatives.store.manifest.filters
    assert torch.equal(same.lists.texts, negatives.lists.texts)
    with pytest.raises(ValueError, match="needs a guide model"):
        mine_hard_negatives(model, dataset, filters=filters)
    with pytest.raises(ValueError, match="precision"):
        mine_hard_negatives(model, dataset, precision="fp8")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "filters, message",
    [
        (["captions=0.5", "skip=2"], "filters by name are needed, as {'captions': 0.5, 'skip': 2}"),
        ("captions=0.5", "filters='captions=0.5': filters by name are needed"),
        ({"caption": 0.5}, "'caption' is not a filter; did you mean 'captions'"),
        ({"captions": "0.5"}, "captions='0.5': a number is needed"),
        ({"skip": 2.5}, "skip=2.5: a whole number is needed"),
        ({"highest": True}, "highest=True: a number is needed"),
        ({"captions": 5}, "captions=5: a cosine above 0"),
        ({"positive": "middle"}, "'middle' is not a positive"),
        ({"meanings": 0.7}, "needs a sentence encoder"),
    ],
)
def test_filters_that_do_not_fit(model, dataset, filters, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        mine_hard_negatives(model, dataset, filters=filters)


def test_repr_shows_an_example(model, dataset):
    first, second, score, *counts = repr(mine_hard_negatives(model, dataset, **SIZES)).splitlines()
    assert first.startswith("HardNegatives(scenes")
    assert "6 texts of each of" in first
    assert "filters: none" in first
    assert dataset.texts[0] in second
    assert score.strip().startswith("score: ")
    assert [line.split(":")[0].strip() for line in counts[:2]] == [
        "texts of images",
        "images of texts",
    ]


def test_a_model_by_name(tmp_path: Path, dataset):
    folder = pixel_model(tmp_path / "pixels")
    assert mine_hard_negatives(str(folder), dataset, **SIZES).lists.texts.shape[1] == 6


def oracle(proposed: Tensor, scores: Tensor, true: Tensor, k: int) -> list[list[int]]:
    """The k best of what was proposed to each query, one query at a time."""
    lists = []
    for rows, line, own in zip(proposed.tolist(), scores.tolist(), true.tolist(), strict=True):
        kept = [row for row in rows if row >= 0 and not own[row]]
        lists.append((sorted(kept, key=lambda row: (-line[row], row)) + [-1] * k)[:k])
    return lists


@pytest.mark.parametrize("most", [2**26, 40])  # whole, or a query or two at a time
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_both_sides_are_a_sort_of_what_was_proposed(
    seed: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mining, "PAIRS", most)
    monkeypatch.setattr(pairs, "PAIRS", most)
    monkeypatch.setattr(mining, "_QUERIES", 3)
    relation = ragged(20, seed, 2)
    scores = eighths(20, len(relation.text_to_image), seed)
    rng = torch.Generator().manual_seed(seed)
    all_ = random_lists(relation, 9, 7, seed)
    gaps = torch.rand(all_.texts.shape, generator=rng) < 0.5
    proposed = HardNegativeLists(all_.texts.masked_fill(gaps, -1), all_.images)
    found = rerank_proposals(proposed, [given(scores)], relation.text_to_image, **SIZES)
    true = relation.text_to_image == torch.arange(20).unsqueeze(1)
    assert found.texts.tolist() == oracle(proposed.texts, scores, true, 6)
    assert found.images.tolist() == oracle(proposed.images, scores.T, true.T, 4)
    assert (found.texts < 0).any()
    assert found.text_scores is not None
    assert found.image_scores is not None
    assert torch.equal(found.text_scores.isinf(), found.texts < 0)
    expected = scores.T.gather(1, found.images.long())
    assert torch.equal(found.image_scores.float(), expected)
    assert int(all_.texts.max()) >= 0  # what was proposed is left as it is
    assert torch.equal(proposed.texts, all_.texts.masked_fill(gaps, -1))


def test_true_pairs_among_the_proposals_are_dropped() -> None:
    relation = Relation(torch.tensor([0, 0, 1, 2, -1]), images=3)
    sizes = {"texts_per_image": 5, "images_per_text": 3}
    members = [given(eighths(3, 5, 1))]
    found = rerank_proposals(everything(3, 5), members, relation.text_to_image, **sizes)
    assert [sorted(row) for row in found.texts.tolist()] == [
        [-1, -1, 2, 3, 4],
        [-1, 0, 1, 3, 4],
        [-1, 0, 1, 2, 4],
    ]
    assert (found.images < 0).sum(1).tolist() == [1, 1, 1, 1, 0]


def everything(images: int, texts: int) -> HardNegativeLists:
    rows = torch.arange(texts).int().repeat(images, 1), torch.arange(images).int().repeat(texts, 1)
    return HardNegativeLists(*rows)


@pytest.mark.parametrize("names", [*((name,) for name in HOSTS), HOSTS], ids=str)
def test_with_everything_proposed_every_host_lists_what_it_mines(names: tuple[str, ...]) -> None:
    text_to_image = ragged(24, 5, 2).text_to_image
    members = [host(name, 24, len(text_to_image)) for name in names]
    found = rerank_proposals(everything(24, len(text_to_image)), members, text_to_image, **SIZES)
    assert alike(found, mine_lists(members, text_to_image, **SIZES), members, text_to_image)


def test_nothing_proposed() -> None:
    nothing = HardNegativeLists(torch.full((3, 2), -1).int(), torch.full((4, 2), -1).int())
    text_to_image = torch.zeros(4, dtype=torch.long)
    found = rerank_proposals(
        nothing, [given(torch.zeros(3, 4))], text_to_image, texts_per_image=1, images_per_text=2
    )
    assert (found.texts == -1).all()
    assert found.texts.shape == (3, 1)
    assert (found.images == -1).all()


def _reranked_here(names: tuple[str, ...]) -> list[list[list[float]]]:
    torch.set_num_threads(1)
    relation = ragged(20, 3, 2)
    members: list[EmbeddedDataset] = [host(name, 20, len(relation.text_to_image)) for name in names]
    found = rerank_proposals(random_lists(relation, 9, 7), members, relation.text_to_image, **SIZES)
    assert found.text_scores is not None
    return [found.texts.tolist(), found.images.tolist(), found.text_scores.tolist()]


@pytest.mark.parametrize("names", [("scan-t2i",), ("vse", "bfan"), ("vse",)], ids=str)
def test_two_processes_rank_as_one(names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pairs._NUMBERS, "cpu", 512)  # many parts
    alone = _reranked_here(names)
    assert processes.run(_reranked_here, 2, names) == [alone, alone]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"texts_per_image": 0}, "texts=0: 1 to 9 can be kept of 9 proposed; keep fewer, or"),
        ({"images_per_text": 8}, "images=8: 1 to 7 can be kept of 7 proposed; keep fewer, or"),
    ],
    ids=str,
)
def test_more_than_was_proposed_is_refused(sizes: dict[str, int], message: str) -> None:
    relation = ragged(12)
    members = [given(torch.zeros(12, len(relation.text_to_image)))]
    with pytest.raises(ValueError, match=message):
        rerank_proposals(
            random_lists(relation, 9, 7), members, relation.text_to_image, **{**SIZES, **sizes}
        )


def test_proposals_of_another_corpus_are_refused() -> None:
    relation = ragged(12)
    texts, proposed = len(relation.text_to_image), random_lists(relation, 9, 7)
    other = member(torch.zeros(13, 2), torch.zeros(texts, 2))
    message = f"encoded 13 images and {texts} texts, but 12 images and {texts} texts are needed"
    with pytest.raises(ValueError, match=message):
        rerank_proposals(proposed, [other], relation.text_to_image, **SIZES)
    far = HardNegativeLists(proposed.texts + texts, proposed.images)
    with pytest.raises(ValueError, match=f"of the texts was proposed, but there are {texts}; prop"):
        rerank_proposals(far, [given(torch.zeros(12, texts))], relation.text_to_image, **SIZES)
    with pytest.raises(ValueError, match="no model is given to score the proposed pairs"):
        rerank_proposals(proposed, [], relation.text_to_image, **SIZES)
