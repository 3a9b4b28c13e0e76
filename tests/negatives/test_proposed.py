from __future__ import annotations

import pytest
import torch
from torch import Tensor

import processes
from counterfoil.data.dataset import Relation
from counterfoil.negatives.mining import mine_lists, rerank_proposals
from counterfoil.negatives.store import HardNegativeLists
from counterfoil.scoring import pairs
from counterfoil.scoring.encode import EmbeddedDataset
from engine_cases import given
from filters_cases import eighths
from negatives_cases import HOSTS, alike, host, member, ragged, random_lists

SIZES = {"texts_per_image": 6, "images_per_text": 4}


def oracle(proposed: Tensor, scores: Tensor, true: Tensor, k: int) -> list[list[int]]:
    """The k best of what was proposed to each query, one query at a time."""
    lists = []
    for rows, line, own in zip(proposed.tolist(), scores.tolist(), true.tolist(), strict=True):
        kept = [row for row in rows if row >= 0 and not own[row]]
        lists.append((sorted(kept, key=lambda row: (-line[row], row)) + [-1] * k)[:k])
    return lists


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_both_sides_are_a_sort_of_what_was_proposed(seed: int) -> None:
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


def test_true_pairs_among_the_proposals_are_dropped() -> None:
    relation = Relation(torch.tensor([0, 0, 1, 2, -1]), images=3)
    every = HardNegativeLists(
        torch.arange(5).int().repeat(3, 1), torch.arange(3).int().repeat(5, 1)
    )
    found = rerank_proposals(
        every,
        [given(eighths(3, 5, 1))],
        relation.text_to_image,
        texts_per_image=5,
        images_per_text=3,
    )
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
    told = f"are for 12 images and {texts} texts, but 13 and {texts} were encoded; propose from"
    with pytest.raises(ValueError, match=told):
        rerank_proposals(proposed, [other], relation.text_to_image, **SIZES)
    far = HardNegativeLists(proposed.texts + texts, proposed.images)
    with pytest.raises(ValueError, match=f"text row .* was proposed, but there are {texts}; prop"):
        rerank_proposals(far, [given(torch.zeros(12, texts))], relation.text_to_image, **SIZES)
    with pytest.raises(ValueError, match="no model is there to look at what was proposed"):
        rerank_proposals(proposed, [], relation.text_to_image, **SIZES)
