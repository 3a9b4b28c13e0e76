from __future__ import annotations

import pytest
import torch
from hypothesis import given as every
from hypothesis import strategies as st

from counterfoil.core.types import Pairs
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.reducers import Ranks, TopK, TrueScores
from counterfoil.scoring.stream import stream_scores
from engine_cases import Dot, best_rank, given, vectors

RULES = ("optimistic", "pessimistic", "row")


@st.composite
def cases(draw):
    images, texts = draw(st.integers(1, 24)), draw(st.integers(1, 40))
    seed, levels = draw(st.integers(0, 10**6)), draw(st.sampled_from([1, 3, 20, 10**6]))
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randint(-levels, levels + 1, (images, texts), generator=rng).float() / 8
    text_to_image = torch.randint(-1, images, (texts,), generator=rng)
    if draw(st.booleans()):
        text_to_image = text_to_image.sort().values
    tile = (draw(st.integers(1, 30)), draw(st.integers(1, 50)))
    pair = st.tuples(st.integers(0, images - 1), st.integers(0, texts - 1))
    more = draw(st.lists(pair, max_size=6))
    besides = Pairs(*torch.tensor(more, dtype=torch.long).view(-1, 2).unbind(1)) if more else None
    return scores, text_to_image, besides, tile, draw(st.sampled_from([1, 10**4, 2**29]))


@every(cases())
def test_ranks_equal_a_plain_count(case):
    scores, text_to_image, besides, tile, memory = case
    image = Ranks("image", len(scores), text_to_image, besides)
    text = Ranks("text", scores.shape[1], text_to_image, besides)
    stream_scores([given(scores)], [image, text], tile=tile, memory=memory)
    true = torch.arange(len(scores)).unsqueeze(1) == text_to_image
    if besides is not None:
        true[besides.image, besides.text] = True
    for reducer, side, own in ((image, scores, true), (text, scores.T, true.T)):
        for rule in RULES:
            want = [best_rank(a, b, rule) for a, b in zip(side.tolist(), own.tolist())]
            assert reducer.ranks(rule).tolist() == want


def test_row_rule_agrees_with_topk():
    rng = torch.Generator().manual_seed(0)
    images, texts = torch.randn(60, 4, generator=rng), torch.randn(180, 4, generator=rng).round()
    text_to_image = torch.randint(-1, 60, (180,), generator=rng)
    ranks = Ranks("image", 60, text_to_image), Ranks("text", 180, text_to_image)
    lists = TopK("image", 60, 180), TopK("text", 180, 60)
    member = EmbeddedDataset(Dot(), vectors(images.round()), vectors(texts))
    stream_scores([member], [*ranks, *lists], tile=(16, 32))
    hit = text_to_image[lists[0].rows.long()] == torch.arange(60).unsqueeze(1)
    first = torch.where(hit.any(1), hit.int().argmax(1), -1)
    assert torch.equal(ranks[0].ranks("row"), first)
    hit = lists[1].rows == text_to_image.unsqueeze(1)
    assert torch.equal(ranks[1].ranks("row"), torch.where(hit.any(1), hit.int().argmax(1), -1))


def test_only_tiles_with_true_pairs_are_looked_at_first():
    text_to_image = torch.arange(64).repeat_interleave(2)[torch.randperm(128)]
    scores = torch.randn(64, 128)
    ranks = Ranks("image", 64, text_to_image)
    looked: list[int] = []
    observe = ranks.observe
    ranks.observe = lambda tile: (looked.append(1), observe(tile))[1]  # type: ignore[method-assign]
    stream_scores([given(scores)], [ranks], tile=(16, 32))
    assert len(looked) == 4  # of 16, whatever the order of the captions


def test_unknown_tie_rule():
    ranks = Ranks("image", 2, torch.tensor([0, 1]))
    stream_scores([given(torch.eye(2))], [ranks])
    with pytest.raises(ValueError, match="'best' is not a tie rule"):
        ranks.ranks("best")  # type: ignore[arg-type]


@pytest.mark.parametrize("tile", [(16, 16), (48, 128)])
def test_true_scores_are_entries_of_the_matrix(tile):
    scores, text_to_image = torch.randn(37, 90), torch.randint(-1, 37, (90,))
    true = TrueScores(text_to_image)
    stream_scores([given(scores)], [true], tile=tile)
    wanted = scores[text_to_image, torch.arange(90)].masked_fill(text_to_image < 0, -torch.inf)
    assert torch.equal(true.scores, wanted)
