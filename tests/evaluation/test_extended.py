"""Ground truths with several positives, ECCV Caption and Crisscrossed Captions."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.evaluation import extended
from counterfoil.evaluation.extended import align_rankings, positive_hits, read_extended

POSITIVES = {7: frozenset({3, 1}), 2: frozenset[int](), 9: frozenset({100})}


@given(
    st.lists(st.sets(st.integers(0, 20)), min_size=1, max_size=6),
    st.lists(st.permutations(range(20)), min_size=6, max_size=6),
    st.integers(1, 20),
)
def test_hits_are_membership(true, rankings, depth):
    positives = {10 * n: frozenset(items) for n, items in enumerate(true)}
    ranked = torch.tensor(rankings)[: len(true), :depth]
    wanted = [[item in items for item in row] for row, items in zip(ranked.tolist(), true)]
    assert positive_hits(ranked, positives).tolist() == wanted


def test_minus_one_is_never_a_hit():
    hits = positive_hits(torch.tensor([[-1, 4, -1]]), {0: frozenset({4})})
    assert hits.tolist() == [[False, True, False]]


def test_rows_become_ids_of_the_asked_queries():
    asked, ids = torch.tensor([9, 2, 7, 5]), torch.tensor([100, 1, 3])
    rows = torch.tensor([[0, 1], [1, 2], [2, -1], [0, 0]])
    found = align_rankings(POSITIVES, asked, ids, rows)
    assert found.tolist() == [[3, -1], [1, 3], [100, 1]]


def test_a_query_that_was_not_asked():
    with pytest.raises(ValueError, match=r"1 of the 3 queries .* \(the first is 9\)"):
        align_rankings(POSITIVES, torch.tensor([2, 7]), torch.arange(5), torch.zeros(2, 1).long())


@pytest.mark.parametrize(
    "rankings, message",
    [
        (torch.zeros(2, 4), r"3 queries, so rankings of shape \(3, K\) are needed, not \(2, 4\)"),
        (torch.tensor([[0, 1], [2, 2], [0, 1]]), r"1 of the 3 rankings .* \(the first is row 1\)"),
    ],
)
def test_bad_rankings(rankings, message):
    with pytest.raises(ValueError, match=message):
        positive_hits(rankings, POSITIVES)


def test_reads_the_package_layout(tmp_path):
    path = tmp_path / "eccv_image_to_caption.json"
    path.write_text(json.dumps({"12": [5, 4, 5], "3": ["8"]}))
    assert read_extended(path) == {12: {4, 5}, 3: {8}}


@pytest.mark.parametrize(
    "content", ["[[1, 2]]", '{"a": [1]}', '{"1": 5}', '{"1": ["x"]}', '{"1": [1e999]}', "{"]
)
def test_bad_files(tmp_path, content):
    path = tmp_path / "truth.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="ground-truth file"):
        read_extended(path)


def _slow(ranking, true):
    size = len(true)
    precisions = [
        len(set(ranking[:r]) & true) / r if ranking[r - 1] in true else 0.0
        for r in range(1, size + 1)
    ]
    return sum(precisions) / size, len(set(ranking[:size]) & true) / size


@given(
    st.lists(st.sets(st.integers(0, 15), min_size=1, max_size=12), min_size=1, max_size=5),
    st.lists(st.permutations(range(16)), min_size=5, max_size=5),
    st.integers(12, 16),
)
def test_equals_a_slow_loop(true, rankings, depth):
    rankings = [ranking[:depth] for ranking in rankings[: len(true)]]
    known = {n: frozenset(items) for n, items in enumerate(true)}
    found = extended.eccv_score(torch.tensor(rankings), known, "i2t")
    slow = [_slow(ranking, items) for ranking, items in zip(rankings, true)]
    assert found.map_at_r == pytest.approx(100 * sum(a for a, _ in slow) / len(true))
    assert found.r_precision == pytest.approx(100 * sum(p for _, p in slow) / len(true))
    for k, ours in ((1, found.r1), (5, found.r5), (10, found.r10)):
        hits = [bool(set(ranking[:k]) & items) for ranking, items in zip(rankings, true)]
        assert ours == pytest.approx(100 * sum(hits) / len(hits))
    assert found.queries == len(true)


def test_rankings_must_be_deep_enough():
    with pytest.raises(ValueError, match="3 true items but rankings are 2 deep; rank at least 3"):
        extended.rank_precisions(torch.tensor([[1, 2]]), {0: frozenset({1, 2, 3})})


def test_a_query_without_truth():
    with pytest.raises(ValueError, match="1 queries have no true item"):
        extended.rank_precisions(torch.tensor([[1], [1]]), {0: frozenset({1}), 1: frozenset()})


IDS = torch.tensor([10, 20, 30, 40])


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(0, 999), st.integers(1, 12), st.sampled_from([1, 3, 64]))
def test_nearest_is_a_stable_sort_without_oneself(count, seed, depth, at_once):
    rng = torch.Generator().manual_seed(seed)
    embedded = torch.randint(-1, 2, (count, 2), generator=rng).float()
    found = extended.nearest_neighbours(embedded, depth, at_once=at_once)
    similar = (embedded @ embedded.T).tolist()
    for item, row in enumerate(found.tolist()):
        others = sorted(set(range(count)) - {item}, key=lambda o: (-similar[item][o], o))
        padded = [*others, -1][:depth]
        assert row == padded


def test_a_zero_diagonal_lets_an_item_find_itself():
    opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert extended.nearest_neighbours(opposite, 1).tolist() == [[1], [0]]
    assert extended.nearest_neighbours(opposite, 1, own="zero").tolist() == [[0], [1]]
    rated = {10: [(20, 3.0)], 20: [(10, 3.0)]}
    assert extended.cxc_images(opposite, IDS[:2], rated).r1 == 100.0
    assert extended.cxc_images(opposite, IDS[:2], rated, own="zero").r1 == 0.0


def test_images_without_a_true_one_are_left_out():
    embedded = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    rated = {10: [(20, 2.5)], 20: [(10, 2.4), (99, 5.0)], 30: [(10, 2.5)]}
    found = extended.cxc_images(embedded, IDS, rated)
    assert (found.r1, found.r5, found.queries, found.left_out) == (50.0, 100.0, 2, 2)


def test_texts_of_one_image_are_true_for_each_other():
    embedded = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.1, 0.9]])
    text_to_image = torch.tensor([0, 0, -1, -1])
    rated = {30: [(10, 3.0)], 40: [(20, 2.9)]}
    found = extended.cxc_texts(embedded, IDS, text_to_image, rated)
    assert (found.queries, found.left_out) == (3, 1)
    assert found.r1 == pytest.approx(100 / 3)  # the rated one; siblings lie apart


def test_between_takes_lists_as_they_are():
    asked, rows = torch.tensor([1, 2, 3]), torch.tensor([[3, 0], [1, 2], [0, 1]])
    rated = {1: [(40, 1.0)], 2: []}
    found = extended.cxc_between("i2t", asked, IDS, rows, rated)
    assert (found.r1, found.queries, found.left_out) == (50.0, 2, 1)
    assert found.kind == "i2t"


def test_ids_that_do_not_fit():
    with pytest.raises(ValueError, match="none of the 3 t2i queries has a rated item"):
        extended.cxc_between("t2i", torch.tensor([1, 2, 3]), IDS, torch.zeros(3, 1).long(), {})
