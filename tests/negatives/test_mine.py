from __future__ import annotations

import pytest
import torch
from torch import Tensor

import processes
from counterfoil.corpus.relation import Relation
from counterfoil.negatives.mine import mine
from negatives_cases import member, ragged, ranked

SQUARE = Relation(torch.tensor([0, 1, 2]), images=3)


def vectors(seed: int, relation: Relation) -> tuple[Tensor, Tensor]:
    """Coarse values, so that scores tie and every sum is exact."""
    made = torch.Generator().manual_seed(seed)
    images = torch.randint(-2, 3, (relation.images, 6), generator=made).float()
    return images, torch.randint(-2, 3, (len(relation.owner), 6), generator=made).float()


@pytest.mark.parametrize("orphans", [0, 3])
def test_mining_equals_sorting_every_row(orphans: int) -> None:
    relation = ragged(20, 4, orphans)
    images, texts = vectors(4, relation)
    lists = mine([member(images, texts)], relation.owner, texts_per_image=7, images_per_text=5)
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
    lists = mine([member(*one), member(*two)], relation.owner, texts_per_image=4, images_per_text=3)
    expected = ranked((one[0] @ one[1].T + two[0] @ two[1].T) / 2, relation, 4, 3)
    assert torch.equal(lists.texts, expected.texts)
    assert torch.equal(lists.images, expected.images)


def test_lists_are_no_longer_than_the_corpus_and_padded_where_short() -> None:
    relation = Relation(torch.tensor([0, 0, 0, 1]), images=2)
    images, texts = vectors(0, relation)
    lists = mine([member(images, texts)], relation.owner, texts_per_image=99, images_per_text=99)
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
        mine([member(*vectors(0, relation))], relation.owner, **sizes)  # type: ignore[arg-type]


def _mined_here() -> list[list[list[int]]]:
    torch.set_num_threads(1)
    relation = ragged(40, 8)
    made = [member(*vectors(8, relation))]
    lists = mine(made, relation.owner, texts_per_image=6, images_per_text=4)
    return [lists.texts.tolist(), lists.images.tolist()]


def test_two_processes_mine_what_one_mines() -> None:
    alone = _mined_here()
    assert processes.run(_mined_here, 2) == [alone, alone]


def test_large_scores_stay_finite_on_disk() -> None:
    relation = SQUARE
    images, texts = torch.eye(3) * 1e4, torch.ones(3, 3) * 1e4
    lists = mine([member(images, texts)], relation.owner, texts_per_image=2, images_per_text=2)
    assert lists.text_scores is not None
    assert lists.text_scores.isfinite().all()
