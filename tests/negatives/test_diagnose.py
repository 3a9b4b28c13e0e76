"""Hardness, hubs and suspected positives of mined lists."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.core.types import Embeddings, Pairs
from counterfoil.data.dataset import ImageTextDataset, Relation
from counterfoil.data.scenes import graphs, scenes
from counterfoil.data.scenes.truth import is_true
from counterfoil.models.embeddings import EmbeddingModel
from counterfoil.negatives.diagnose import (
    InspectedPairs,
    hardness,
    inspect_pairs,
    list_overlap,
    measure_hubs,
    statistics_by_rank,
    suspects_by_score,
    suspects_by_truth,
    suspects_by_wording,
)
from counterfoil.negatives.filters import near_captions
from counterfoil.negatives.store import HardNegativeLists
from counterfoil.scoring.encode import EmbeddedDataset
from negatives_cases import member, ragged, random_lists


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), first=st.integers(1, 12))
def test_counts_against_a_loop(seed: int, first: int) -> None:
    relation = ragged(9, seed)
    lists = random_lists(relation, 8, 3, seed)
    texts = len(relation.text_to_image)
    found = measure_hubs(lists.texts, texts, first=first, largest=texts)
    counts = Counter(t for line in lists.texts.tolist() for t in line[:first] if t >= 0)
    assert found.first == min(first, 8)
    assert dict(found.largest) == {t: counts[t] for t in range(texts)}
    listed = [count for _, count in found.largest]
    assert listed == sorted(listed, reverse=True)
    assert found.never == pytest.approx(100 * sum(counts[t] == 0 for t in range(texts)) / texts)
    assert found.crowd == pytest.approx(100 * listed[0] / sum(listed))
    mean = sum(listed) / texts
    spread = (sum((c - mean) ** 2 for c in listed) / texts) ** 0.5
    wanted = sum((c - mean) ** 3 for c in listed) / texts / spread**3 if spread else 0.0
    assert found.skewness == pytest.approx(wanted)


def test_lists_of_nothing() -> None:
    found = measure_hubs(torch.full((3, 2), -1), 4)
    assert (found.skewness, found.never, found.crowd) == (0, 100, 0)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), first=st.integers(1, 6))
def test_overlap_against_a_loop(seed: int, first: int) -> None:
    relation = ragged(8, seed)
    lists = random_lists(relation, 4, 5, seed).images
    groups = [relation.captions(torch.tensor([image]))[0] for image in range(8)]
    shares = []
    for group in groups:
        for a, b in combinations(group.tolist(), 2):
            one, other = ({int(x) for x in lists[n, :first] if x >= 0} for n in (a, b))
            shares.append(100 * len(one & other) / len(one | other))
    wanted = pytest.approx(sum(shares) / len(shares)) if shares else None
    assert list_overlap(lists, groups, first=first) == wanted


WORDS = ("a", "dog", "cat", "runs", "sleeps", "red")


def corpus_of(texts: list[str], relation: Relation) -> ImageTextDataset:
    images = [f"i{n}" for n in range(relation.images)]
    ids = [f"t{n}" for n in range(len(texts))]
    return ImageTextDataset(
        "toy", images, ids, texts, relation.text_to_image, ["train"] * len(images)
    )


def drawn_corpus(seed: int) -> tuple[ImageTextDataset, HardNegativeLists]:
    relation = ragged(7, seed, orphans=1)
    rng = torch.Generator().manual_seed(seed)
    texts = []
    for _ in relation.text_to_image:
        places = torch.randint(0, len(WORDS), (4,), generator=rng)
        texts.append(" ".join(WORDS[n] for n in places.tolist()))
    texts[0] = "..."  # no word at all
    return corpus_of(texts, relation), random_lists(relation, 6, 9, seed)


def owned(relation: Relation) -> torch.Tensor:
    return (relation.text_to_image >= 0).nonzero().squeeze(1)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 999), least=st.sampled_from([0.3, 0.6, 0.9]))
def test_words_agree_with_near_captions(seed: int, least: float) -> None:
    dataset, lists = drawn_corpus(seed)
    near = near_captions(dataset.texts, least=least)
    alike = set(zip(near.left.tolist(), near.right.tolist()))
    looked = inspect_pairs(lists, dataset.relation, owned(dataset.relation))
    for part, (same, similar) in zip(looked, suspects_by_wording(dataset, looked, least=least)):
        assert not (same.suspected & ~similar.suspected).any()
        assert torch.equal(similar.decided, part.listed)
        for line, place in part.listed.nonzero().tolist():
            image, text = part.pairs.image[line, place], int(part.pairs.text[line, place])
            own, _ = dataset.relation.captions(image.view(1))
            wanted = any((min(text, c), max(text, c)) in alike for c in own.tolist())
            assert bool(similar.suspected[line, place]) == wanted
            bags = {frozenset(dataset.texts[c].split()) for c in own.tolist() if c}
            assert bool(same.suspected[line, place]) == (
                text > 0 and frozenset(dataset.texts[text].split()) in bags
            )


def test_a_corpus_without_words_has_no_such_estimate() -> None:
    dataset, lists = drawn_corpus(0)
    bare = replace(dataset, texts=[""] * len(dataset.texts))
    looked = inspect_pairs(lists, bare.relation, owned(bare.relation))
    assert suspects_by_wording(bare, looked, least=0.6) == [[], []]
    assert suspects_by_truth(bare, looked) == [[], []]


def test_a_cosine_that_cannot_be_is_refused() -> None:
    dataset, lists = drawn_corpus(0)
    looked = inspect_pairs(lists, dataset.relation, owned(dataset.relation))
    with pytest.raises(ValueError, match="alike"):
        suspects_by_wording(dataset, looked, least=1.5)


def test_truth_is_that_of_the_scenes() -> None:
    dataset = scenes(images=40, seed=3)
    texts = [*dataset.texts]
    texts[7] = "nothing the grammar knows"
    dataset = replace(dataset, texts=texts)
    lists = random_lists(dataset.relation, 30, 12, 1)
    looked = inspect_pairs(lists, dataset.relation, torch.arange(0, 200, 7))
    shown, seen = graphs(dataset), set()
    for part, (estimate,) in zip(looked, suspects_by_truth(dataset, looked)):
        for line, place in part.listed.nonzero().tolist():
            text = dataset.texts[int(part.pairs.text[line, place])]
            truth = is_true(text, shown[int(part.pairs.image[line, place])])
            seen.add(truth)
            assert bool(estimate.decided[line, place]) == (truth is not None)
            assert bool(estimate.suspected[line, place]) == (truth is True)
    assert seen == {True, False, None}


def test_what_is_looked_at_and_what_is_listed() -> None:
    relation = Relation(torch.tensor([0, 1, 1]), images=2)
    lists = HardNegativeLists(
        torch.tensor([[2, -1], [0, -1]]).int(), torch.tensor([[1], [0], [-1]]).int()
    )
    texts, images = inspect_pairs(lists, relation, torch.tensor([0, 2]))
    assert texts.pairs.image.tolist() == [[0, 0], [1, 1]]
    assert texts.pairs.text[:, 0].tolist() == [2, 0]
    assert texts.listed.tolist() == [[True, False], [True, False]]
    assert images.pairs.text.tolist() == [[0], [2]]
    assert images.listed.tolist() == [[True], [False]]


def three() -> InspectedPairs:
    """Two anchors with three listed pairs each, the last one missing."""
    listed = torch.tensor([[True] * 3, [True, True, False]])
    pairs = Pairs(torch.zeros(2, 3).long(), torch.arange(6).view(2, 3))
    return InspectedPairs(Pairs(torch.zeros(2).long(), torch.zeros(2).long()), pairs, listed)


def test_above_counts_listed_pairs_that_reach_their_positive() -> None:
    scores = torch.tensor([[0.9, 0.5, 0.4], [0.8, 0.1, torch.inf]])
    found = suspects_by_score(three(), scores, torch.tensor([0.5, 0.9]))
    assert found.suspected.tolist() == [[True, True, False], [False] * 3]
    assert torch.equal(found.decided, three().listed)


def test_parts_of_the_lists() -> None:
    scores = torch.tensor([[0.9, 0.5, 0.4], [0.8, 0.1, -torch.inf]])
    positive = torch.tensor([0.5, 0.9])
    estimate = suspects_by_score(three(), scores, positive)
    first, rest, whole = statistics_by_rank(three(), [estimate], scores - positive.unsqueeze(1))
    assert [(r.first, r.last, r.pairs) for r in (first, rest, whole)] == [
        (1, 1, 2), (2, 3, 3), (1, 3, 5)
    ]  # fmt: skip
    assert first.gap == pytest.approx(-0.1)
    assert rest.gap == pytest.approx(-0.1)
    assert [r.suspected[0] for r in (first, rest, whole)] == pytest.approx([50, 100 / 3, 40])
    bare = statistics_by_rank(three(), [replace(estimate, decided=torch.zeros(2, 3).bool())], None)
    assert [(r.gap, r.suspected) for r in bare] == [(None, (None,))] * 3


def test_pairs_are_scored_by_the_mean_of_the_members() -> None:
    rng = torch.Generator().manual_seed(0)
    vectors = [torch.rand(n, 4, generator=rng) for n in (5, 9, 5, 9)]
    pairs = Pairs(torch.arange(16).view(2, 8) % 5, torch.arange(16).view(2, 8) % 9)
    members = [member(vectors[0], vectors[1]), member(vectors[2], vectors[3])]
    wanted = sum((vectors[n][pairs.image] * vectors[n + 1][pairs.text]).sum(2) for n in (0, 2)) / 2
    listed = torch.arange(8) < torch.tensor([[8], [6]])
    anchors = Pairs(pairs.image[:, 0], pairs.text[:, 0])
    scores = InspectedPairs(anchors, pairs, listed).scores(members)
    torch.testing.assert_close(scores, wanted.masked_fill(~listed, -torch.inf))


def embedded_member(seed, images=7, texts=21):
    rng = torch.Generator().manual_seed(seed)
    pools = []
    for count in (images, texts):
        tokens = torch.nn.functional.normalize(torch.randn(count, 1, 6, generator=rng), dim=-1)
        pools.append(Embeddings(tokens, torch.ones(count, 1, dtype=torch.bool)))
    return EmbeddedDataset(EmbeddingModel(), *pools)


def test_every_number_is_a_score_of_its_kind():
    text_to_image = torch.arange(21) // 3
    members = [embedded_member(0), embedded_member(1)]
    whole = torch.stack([m.model.score_matrix(m.images, m.texts) for m in members]).mean(0)
    true = text_to_image == torch.arange(7)[:, None]
    mined = whole.masked_fill(true, -torch.inf).topk(4, 1).indices.int()
    found = hardness(
        members,
        Relation(text_to_image, images=7),
        mined,
        batch=21,
        samples=21,
        rng=torch.Generator().manual_seed(3),
    )
    assert len(found.positive) == len(found.online) == len(found.offline) == 21
    hardest = whole.masked_fill(true, -torch.inf).amax(1)
    expected = hardest.repeat_interleave(3).sort().values  # a batch of all captions
    torch.testing.assert_close(found.online.sort().values, expected)
    torch.testing.assert_close(found.positive.sort().values, whole[true].sort().values)
    listed = whole.gather(1, mined.long()).flatten()
    assert all((listed - score).abs().min() < 1e-6 for score in found.offline)


def test_short_lists_and_orphans_are_passed_over():
    text_to_image = torch.arange(21) // 3
    text_to_image[-3:] = -1
    mined = torch.full((7, 2), -1, dtype=torch.int32)
    mined[0] = torch.tensor([20, -1])
    found = hardness(
        [embedded_member(0)],
        Relation(text_to_image, images=7),
        mined,
        batch=50,
        samples=10,
        rng=torch.Generator().manual_seed(0),
    )
    score = embedded_member(0).model.score_matrix(
        embedded_member(0).images, embedded_member(0).texts
    )[0, 20]
    assert len(found.offline) == 3
    torch.testing.assert_close(found.offline, score.expand(3))
    assert found.batch == 18
