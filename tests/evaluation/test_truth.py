from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.mark.parametrize("content", ["[[1, 2]]", '{"a": [1]}', '{"1": 5}', '{"1": ["x"]}', "{"])
def test_bad_files(tmp_path, content):
    path = tmp_path / "truth.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="ground-truth file"):
        read_extended(path)
