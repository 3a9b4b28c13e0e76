from __future__ import annotations

import pytest
import torch
from hypothesis import given as every
from hypothesis import settings
from hypothesis import strategies as st

from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.reducers import TopK
from counterfoil.scoring.stream import stream_scores
from engine_cases import Dot, given, ranking, vectors


@st.composite
def cases(draw):
    """Score matrices full of ties, owners with any number of captions, any tile."""
    images, texts = draw(st.integers(1, 24)), draw(st.integers(1, 40))
    seed, levels = draw(st.integers(0, 10**6)), draw(st.sampled_from([1, 3, 20, 10**6]))
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randint(-levels, levels + 1, (images, texts), generator=rng).float() / 8
    text_to_image = torch.randint(-1, images, (texts,), generator=rng)
    tile = (draw(st.integers(1, 30)), draw(st.integers(1, 50)))
    return scores, text_to_image, tile, draw(st.integers(1, 60))


def lists(scores, k, tile, text_to_image=None, members=None, **options):
    both = (
        TopK("image", len(scores), k, text_to_image),
        TopK("text", scores.shape[1], k, text_to_image),
    )
    stream_scores(members or [given(scores)], both, tile=tile, **options)
    return both


def check(scores, both, k, true):
    for reducer, side, mask in ((both[0], scores, true), (both[1], scores.T, true.T)):
        rows, values = ranking(side, k, mask)
        assert reducer.rows.tolist() == rows
        assert reducer.scores.tolist() == values
        assert reducer.rows.dtype == torch.int32
        assert reducer.scores.dtype == torch.float32


@every(cases())
def test_ranking_equals_a_plain_sort(case):
    scores, _, tile, k = case
    check(scores, lists(scores, k, tile), k, torch.zeros_like(scores, dtype=torch.bool))


@every(cases())
def test_mining_leaves_true_counterparts_out(case):
    scores, text_to_image, tile, k = case
    true = torch.arange(len(scores)).unsqueeze(1) == text_to_image
    check(scores, lists(scores, k, tile, text_to_image), k, true)


@settings(max_examples=10)
@every(st.integers(0, 999), st.sampled_from([0, 2, 30]))
def test_long_streams_with_small_lists(seed, levels):
    """Many more tiles than a list has room for, so that lists are cut down again and again."""
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randn(40, 900, generator=rng)
    if levels:
        scores = (scores * levels).round() / levels
    true = torch.zeros_like(scores, dtype=torch.bool)
    check(scores, lists(scores, 3, (16, 16)), 3, true)


@pytest.mark.parametrize("order", ["rising", "falling", "flat"])
def test_hostile_orders(order):
    line = torch.arange(700.0)
    row = {"rising": line, "falling": -line, "flat": line * 0}[order]
    scores = row.expand(50, -1) + 1000 * torch.arange(50.0).unsqueeze(1) * (order != "flat")
    true = torch.zeros_like(scores, dtype=torch.bool)
    check(scores, lists(scores, 5, (8, 32)), 5, true)


def test_lists_do_not_depend_on_memory():
    rng = torch.Generator().manual_seed(1)
    images, texts = torch.randn(700, 8, generator=rng), torch.randn(2100, 8, generator=rng)
    members = [EmbeddedDataset(Dot(), vectors(images), vectors(texts))]
    scores = torch.empty(700, 2100)
    little = lists(scores, 10, None, members=members, memory=1)
    plenty = lists(scores, 10, None, members=members, memory=2**30)
    for a, b in zip(little, plenty, strict=True):
        assert torch.equal(a.rows, b.rows)
        assert torch.equal(a.scores, b.scores)


def test_equal_items_tie_wherever_they_stand():
    rng = torch.Generator().manual_seed(2)
    images = torch.randn(3, 32, generator=rng)
    texts = torch.randn(1, 32, generator=rng).expand(1025, -1)  # the last one alone in its tile
    found = TopK("image", 3, 1025)
    stream_scores(
        [EmbeddedDataset(Dot(), vectors(images), vectors(texts))], [found], tile=(16, 1024)
    )
    assert found.rows.tolist() == [list(range(1025))] * 3


def test_minus_infinity_never_qualifies():
    # The member's own product would make NaN of it, so the score is made to overflow.
    values = torch.tensor([[1.0], [-3e38]])
    found = TopK("image", 1, 2)
    stream_scores(
        [EmbeddedDataset(Dot(), vectors(torch.tensor([[2.0]])), vectors(values))], [found]
    )
    assert found.rows.tolist() == [[0, -1]]
    assert found.scores.tolist() == [[2.0, float("-inf")]]


def test_tiles_are_left_as_they_were():
    scores = torch.randn(6, 9)
    text_to_image = torch.arange(9) % 6
    ranked = TopK("image", 6, 9)
    mined = TopK("text", 9, 6, text_to_image)
    stream_scores([given(scores)], [mined, ranked])
    assert ranked.rows.tolist() == ranking(scores, 9, torch.zeros(6, 9, dtype=torch.bool))[0]


def test_k_must_be_positive():
    with pytest.raises(ValueError, match="k is 0, but at least 1"):
        TopK("image", 3, 0)


@pytest.mark.parametrize("query", ["image", "text"])
def test_a_tile_that_beats_the_lists_is_cut_before_it_enters_them(query, monkeypatch):
    """Scores that rise with both rows; of a tile of 40 answers no more than the 5 best enter."""
    entered = []
    append = TopK._append

    def counted(self, queries, query, keys):
        entered.append(len(keys) / len(queries))
        append(self, queries, query, keys)

    monkeypatch.setattr(TopK, "_append", counted)
    scores = torch.arange(160.0).unsqueeze(1) + torch.arange(160.0) / 160
    best = TopK(query, 160, 5)
    stream_scores([given(scores)], [best], tile=(40, 40))
    assert max(entered) == 5
    side = scores if query == "image" else scores.T
    assert best.rows.tolist() == ranking(side, 5, torch.zeros_like(side, dtype=torch.bool))[0]
