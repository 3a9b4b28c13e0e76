from __future__ import annotations

import pytest
import torch

from counterfoil.audit import likely_positives
from counterfoil.data.dataset import plain_caption
from counterfoil.negatives.filters import NearPairs, connected_groups
from counterfoil.negatives.store import HardNegativeLists
from engine_cases import given as scoring
from filters_cases import eighths, tfidf, toy


def lists_of(scores, text_to_image, k):
    wrong = scores.clone()
    owned = (text_to_image >= 0).nonzero().squeeze(1)
    wrong[text_to_image[owned], owned] = -torch.inf
    texts, images = wrong.topk(k, 1).indices.int(), wrong.T.topk(k, 1).indices.int()
    return HardNegativeLists(texts, images, None, None)


@pytest.mark.parametrize("seed", range(3))
def test_pairs_are_those_of_every_listed_pair_looked_at(seed):
    dataset, scores = toy(9, 25, seed), eighths(9, 25, seed)
    lists, text_to_image = (
        lists_of(scores, dataset.text_to_image, 3),
        dataset.text_to_image.tolist(),
    )
    cosines = tfidf(list(dataset.texts))
    own = {i: [t for t, o in enumerate(text_to_image) if o == i] for i in range(9)}
    expected: dict[tuple[int, int], tuple[set[str], float]] = {}

    plain = [plain_caption(text) for text in dataset.texts]

    def meet(image, text, limit):
        if plain[text] in {plain[t] for t in own[image]}:  # no negative of the image, though listed
            return
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
    for text, image in enumerate(text_to_image):
        if image >= 0:
            for other in lists.images[text].tolist():
                meet(other, text, float(scores[image, text]))
    found = likely_positives(lists, dataset, [scoring(scores)], alike=0.6)
    assert {(d.image, d.text): (set(d.reasons), d.gap) for d in found} == expected
    keys = [(-len(d.reasons), -d.gap) for d in found]
    assert keys == sorted(keys)


def test_without_a_model_words_alone_count():
    dataset, scores = toy(9, 25, 1), eighths(9, 25, 1)
    found = likely_positives(lists_of(scores, dataset.text_to_image, 3), dataset, [], alike=0.6)
    assert found
    assert all(d.gap is None and "above positive" not in d.reasons for d in found)


def test_groups_are_what_hangs_together():
    rng = torch.Generator().manual_seed(3)
    left, right = torch.randint(30, (20,), generator=rng), torch.randint(30, (20,), generator=rng)
    keep = left < right
    near = NearPairs.of(left[keep], right[keep], torch.ones(int(keep.sum())))
    found = connected_groups(near, 30)
    reach = torch.eye(30, dtype=torch.bool)
    reach[near.left, near.right] = reach[near.right, near.left] = True
    for _ in range(30):
        reach = (reach.float() @ reach.float()) > 0
    expected = {tuple(row.nonzero().flatten().tolist()) for row in reach if row.sum() > 1}
    assert {tuple(rows) for rows in found} == expected
    assert [rows[0] for rows in found] == sorted(rows[0] for rows in found)
