from __future__ import annotations

import pytest
import torch

from counterfoil.audit import likely_positives
from counterfoil.negatives.duplicates import Near, groups
from counterfoil.negatives.lists import Lists
from engine_cases import given as scoring
from filters_cases import eighths, tfidf, toy


def lists_of(scores, owner, k):
    wrong = scores.clone()
    owned = (owner >= 0).nonzero().squeeze(1)
    wrong[owner[owned], owned] = -torch.inf
    texts, images = wrong.topk(k, 1).indices.int(), wrong.T.topk(k, 1).indices.int()
    return Lists(texts, images, None, None)


@pytest.mark.parametrize("seed", range(3))
def test_pairs_are_those_of_every_listed_pair_looked_at(seed):
    corpus, scores = toy(9, 25, seed), eighths(9, 25, seed)
    lists, owner = lists_of(scores, corpus.owner, 3), corpus.owner.tolist()
    cosines = tfidf(list(corpus.texts))
    own = {i: [t for t, o in enumerate(owner) if o == i] for i in range(9)}
    expected: dict[tuple[int, int], tuple[set[str], float]] = {}

    def meet(image, text, limit):
        best = max((cosines[text][t] for t in own[image]), default=0.0)
        gap = float(scores[image, text]) - limit
        reasons = {
            name
            for name, found in (
                ("same words", best >= 1 - 1e-9),
                ("similar words", best >= 0.6 - 1e-9),
                ("above positive", gap >= 0),
            )
            if found
        }
        if reasons:
            before = expected.get((image, text), (set(), -9.0))
            expected[image, text] = before[0] | reasons, max(before[1], gap)

    for image in range(9):
        if own[image]:
            limit = min(float(scores[image, t]) for t in own[image])
            for text in lists.texts[image].tolist():
                meet(image, text, limit)
    for text, image in enumerate(owner):
        if image >= 0:
            for other in lists.images[text].tolist():
                meet(other, text, float(scores[image, text]))
    found = likely_positives(lists, corpus, [scoring(scores)], alike=0.6)
    assert {(d.image, d.text): (set(d.reasons), d.gap) for d in found} == expected
    keys = [(-len(d.reasons), -d.gap) for d in found]
    assert keys == sorted(keys)


def test_without_a_model_words_alone_count():
    corpus, scores = toy(9, 25, 1), eighths(9, 25, 1)
    found = likely_positives(lists_of(scores, corpus.owner, 3), corpus, [], alike=0.6)
    assert found
    assert all(d.gap is None and "above positive" not in d.reasons for d in found)


def test_groups_are_what_hangs_together():
    rng = torch.Generator().manual_seed(3)
    left, right = torch.randint(30, (20,), generator=rng), torch.randint(30, (20,), generator=rng)
    keep = left < right
    near = Near.of(left[keep], right[keep], torch.ones(int(keep.sum())))
    found = groups(near, 30)
    reach = torch.eye(30, dtype=torch.bool)
    reach[near.left, near.right] = reach[near.right, near.left] = True
    for _ in range(30):
        reach = (reach.float() @ reach.float()) > 0
    expected = {tuple(row.nonzero().flatten().tolist()) for row in reach if row.sum() > 1}
    assert {tuple(rows) for rows in found} == expected
    assert [rows[0] for rows in found] == sorted(rows[0] for rows in found)
