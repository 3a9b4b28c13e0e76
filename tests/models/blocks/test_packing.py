from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

import bag_cases
from counterfoil.core.types import Embeddings
from counterfoil.models.layers.cross_attention import LengthRun, PackedTexts, pack_texts

LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=12)


def packed(lengths: list[int]) -> tuple[Embeddings, PackedTexts, torch.Tensor]:
    texts = bag_cases.bag(lengths, 2)
    return texts, *pack_texts(texts)


@given(LENGTHS)
def test_every_real_word_is_packed_once(lengths):
    texts, found, order = packed(lengths)
    assert list(found.lengths) == sorted(lengths)
    captions = [caption for block in found.split(found.words) for caption in block]
    assert len(captions) == len(lengths)
    for caption, row in zip(captions, order.tolist(), strict=True):
        assert torch.equal(caption, texts.tokens[row, : lengths[row]])


def test_words_between_padding_are_packed():
    mask = torch.tensor([[False, True, True], [True, False, False]])
    texts = Embeddings(torch.arange(6.0).view(2, 3, 1), mask)
    found, order = pack_texts(texts)
    assert order.tolist() == [1, 0]
    assert found.lengths == (1, 2)
    assert found.words.flatten().tolist() == [3, 1, 2]


@given(LENGTHS, st.integers(1, 20))
def test_runs_cover_the_words_in_order(lengths, room):
    _, found, _ = packed(lengths)
    cuts = [cut for run in found.runs() for cut in run.cut(room)]
    word = caption = 0
    for cut in cuts:
        assert cut.words == slice(word, word + cut.n * cut.length)
        assert cut.captions == slice(caption, caption + cut.n)
        assert cut.n == 1 or cut.n * cut.length <= room
        assert set(found.lengths[cut.captions]) == {cut.length}
        word, caption = cut.words.stop, cut.captions.stop
    assert (word, caption) == (len(found.words), len(lengths))


@given(LENGTHS, st.integers(1, 20))
def test_parts_are_small_and_whole(lengths, room):
    _, found, _ = packed(lengths)
    parts = found.parts(room)
    assert torch.equal(torch.cat([part.words for part in parts]), found.words)
    assert sum((part.lengths for part in parts), ()) == found.lengths
    assert all(len(part.lengths) == 1 or len(part.words) <= room for part in parts)


def test_runs_by_hand():
    found = PackedTexts(torch.zeros(8, 1), (1, 2, 2, 3))
    assert found.runs() == [LengthRun(0, 0, 1, 1), LengthRun(1, 1, 2, 2), LengthRun(5, 3, 1, 3)]
