from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bag_cases
import hub_cases
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.layers.pretrained import BertTextTower
from counterfoil.models.layers.towers import GRU, Regions, drop_cells, drop_regions, drop_words

MASK, VOCABULARY = 1000, 100


def bags(lengths: list[int], room: int = 8) -> ModalityBatch:
    """Images whose region k is the number k + 1, with garbage behind."""
    mask = torch.arange(room) < torch.tensor(lengths).unsqueeze(1)
    place = torch.arange(1.0, room + 1).expand(mask.shape).masked_fill(~mask, torch.nan)
    values = place.unsqueeze(-1).expand(*mask.shape, 3)
    boxes = place.unsqueeze(-1).expand(*mask.shape, 4)
    return ModalityBatch(torch.arange(len(lengths)), values, mask, boxes)


def texts(lengths: list[int], room: int = 0) -> ModalityBatch:
    """Texts whose token k is VOCABULARY + k, so that a random one is known."""
    mask = torch.arange(room or max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    ids = torch.arange(VOCABULARY, VOCABULARY + mask.shape[1]).expand(mask.shape)
    return ModalityBatch(torch.arange(len(lengths)), ids.masked_fill(~mask, 10**9), mask)


def pieces(sizes: list[list[int]]) -> ModalityBatch:
    """Texts of words of so many pieces, between two special tokens."""
    rows = [[-1, *(w for w, n in enumerate(row) for _ in range(n)), -1] for row in sizes]
    items = texts([len(row) for row in rows])
    words = torch.full(items.mask.shape, -1)
    for place, row in enumerate(rows):
        words[place, : len(row)] = torch.tensor(row)
    return replace(items, words=words)


def kept_of(left: ModalityBatch, length: int) -> list[float]:
    """Share of the texts in which each place's token is still there."""
    return [
        ((left.values == VOCABULARY + k) & left.mask).any(1).float().mean().item()
        for k in range(length)
    ]


@given(st.lists(st.integers(1, 8), min_size=1, max_size=6), st.floats(0, 0.99), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_what_is_left_of_the_regions_stands_in_order_and_without_holes(lengths, share, seed):
    torch.manual_seed(seed)
    left = drop_regions(bags(lengths), share)
    for row, length in enumerate(lengths):
        count = int(left.mask[row].sum())
        assert 1 <= count <= length
        assert left.mask[row, :count].all()
        kept = left.values[row, :count, 0].tolist()
        assert kept == sorted(set(kept))
        assert set(kept) <= set(range(1, length + 1))
        assert left.boxes[row, :count, 0].tolist() == kept


def test_each_region_is_dropped_alone():
    torch.manual_seed(0)
    left = drop_regions(bags([8] * 20_000), 0.2)
    seen = torch.stack([(left.values[..., 0] == k + 1) & left.mask for k in range(8)], -1).any(1)
    assert (seen.float().mean(0) - 0.8).abs().max() < 0.01
    together = torch.corrcoef(seen.float().T) - torch.eye(8)
    assert together.abs().max() < 0.03
    assert left.mask.sum(1).float().var() == pytest.approx(8 * 0.8 * 0.2, rel=0.05)


def test_no_image_is_left_without_regions():
    torch.manual_seed(0)
    left = drop_regions(bags([1, 2] * 500), 0.9)
    assert left.mask.any(1).all()
    assert torch.equal(left.mask[::2].sum(1), torch.ones(500, dtype=torch.long))


def test_an_image_without_regions_stays_one():
    torch.manual_seed(0)
    assert not drop_regions(bags([0, 3]), 0.5).mask[0].any()


@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=5), min_size=1, max_size=4),
    st.floats(0.01, 0.99),
    st.integers(0, 99),
)
@settings(max_examples=100, deadline=None)
def test_the_pieces_of_a_word_share_its_fate(sizes, share, seed):
    torch.manual_seed(seed)
    given = pieces(sizes)
    left = drop_words(given, share, mask=MASK, vocabulary=VOCABULARY)
    for row, words in enumerate(sizes):
        length = int(left.mask[row].sum())
        assert left.mask[row, :length].all()
        ids, word = left.values[row, :length].tolist(), left.words[row, :length].tolist()
        assert ids[0] == VOCABULARY
        assert ids[-1] == VOCABULARY + sum(words) + 1
        assert (word[0], word[-1]) == (-1, -1)
        assert (left.words[row, length:] == -1).all()
        inner = word[1:-1]
        assert inner == sorted(inner)
        for number, size in enumerate(words):
            first = 1 + sum(words[:number])
            now = [i for i, w in zip(ids, word, strict=True) if w == number]
            assert len(now) in (0, size)
            before = list(range(VOCABULARY + first, VOCABULARY + first + size))
            assert now in ([], before, [MASK] * size) or max(now) < VOCABULARY


def test_the_published_shares_of_masked_replaced_and_deleted_words():
    torch.manual_seed(0)
    n = 10_000
    left = drop_words(pieces([[1, 2, 1, 3]] * n), 0.2, mask=MASK, vocabulary=VOCABULARY)
    real = left.values[left.mask]
    assert (real == MASK).sum() / (7 * n) == pytest.approx(0.10, abs=0.005)
    assert (real < VOCABULARY).sum() / (7 * n) == pytest.approx(0.02, abs=0.002)
    assert 1 - (len(real) - 2 * n) / (7 * n) == pytest.approx(0.08, abs=0.005)
    random = real[real < VOCABULARY]
    assert random.min() == 0
    assert random.max() == VOCABULARY - 1


def test_words_of_one_token_are_changed_alone_and_ends_if_wanted():
    torch.manual_seed(0)
    items = texts([6] * 10_000)
    left = drop_words(items, 0.2, mask=MASK, vocabulary=VOCABULARY)
    assert kept_of(left, 6) == pytest.approx([0.8] * 6, abs=0.015)
    left = drop_words(items, 0.2, mask=MASK, vocabulary=VOCABULARY, ends=False)
    assert kept_of(left, 6) == pytest.approx([1, 0.8, 0.8, 0.8, 0.8, 1], abs=0.015)


def test_ends_are_those_of_the_text_not_of_the_padding():
    torch.manual_seed(0)
    left = drop_words(texts([3, 5] * 500), 0.9, mask=MASK, vocabulary=VOCABULARY, ends=False)
    last = left.values[torch.arange(1000), left.mask.sum(1) - 1]
    assert (last[::2] == VOCABULARY + 2).all()
    assert (last[1::2] == VOCABULARY + 4).all()


def test_no_text_is_left_empty():
    torch.manual_seed(0)
    left = drop_words(texts([1, 2] * 500), 0.99, mask=MASK, vocabulary=VOCABULARY)
    assert left.mask.any(1).all()


def test_a_share_of_cells_is_drawn_for_each_image():
    torch.manual_seed(0)
    n, cells = 4_000, 100
    tokens = torch.arange(1.0, cells + 1).view(1, cells, 1).expand(n, cells, 1)
    left = drop_cells(Embeddings(tokens, torch.ones(n, cells, dtype=torch.bool)), 0.2)
    lost = 1 - left.mask.float().mean(1)
    assert (lost == 0).float().mean() == pytest.approx(0.2, abs=0.03)
    assert lost.mean() == pytest.approx(0.2 * (1 - 0.2**2) / 2, abs=0.004)
    kept = left.tokens[0, left.mask[0], 0]
    assert torch.equal(kept, kept.sort().values)
    assert kept[0] >= 1


def test_regions_are_dropped_in_the_tower_that_reads_them():
    torch.manual_seed(0)
    tower = Regions(features=3, width=4, region_drop=0.5)
    items = replace(bags([8, 5]), values=torch.randn(2, 8, 3))
    made = tower(items)
    assert made.mask.sum() < 13
    assert made.tokens.shape == (2, 8, 4)
    assert torch.equal(tower.eval()(items).mask, items.mask)


def test_a_word_model_has_an_embedding_of_its_own_for_masked_words():
    torch.manual_seed(0)
    tower = GRU(words=9, word_width=3, width=4, word_drop=0.9)
    assert tower.embed.weight.shape == (10, 3)
    assert GRU(words=9, word_width=3, width=4).embed.weight.shape == (9, 3)
    ids = torch.randint(9, (20, 6))
    tower(bag_cases.whole(ids)).tokens.sum().backward()
    assert tower.embed.weight.grad[9].any()
    with pytest.raises(ValueError, match="word id 10 is not in this model"):
        tower(ModalityBatch(torch.arange(1), torch.tensor([[10]]), torch.tensor([[True]])))


def test_two_readings_of_a_text_differ_in_training_alone():
    torch.manual_seed(0)
    tower = GRU(words=9, word_width=3, width=4, word_drop=0.5)
    items = bag_cases.whole(torch.randint(9, (4, 6)))
    assert not torch.equal(tower(items).mask, tower(items).mask)
    tower.eval()
    assert torch.equal(tower(items).tokens, tower(items).tokens)


def test_bert_needs_to_know_its_mask_and_never_touches_special_tokens(tmp_path):
    folder = hub_cases.bert(tmp_path / "bert")
    with pytest.raises(ValueError, match=r"word_drop=0.2 needs mask, the id of the tokenizer's"):
        BertTextTower(name=folder, word_drop=0.2)
    tower = BertTextTower(name=folder, width=4, word_drop=0.9, mask=4)
    ids = torch.tensor([[38, 7, 8, 9, 39]] * 50)
    torch.manual_seed(0)
    plain = bag_cases.whole(ids)
    read, body = [], tower.body.forward
    tower.body.forward = lambda **given: read.append(given) or body(**given)
    for words in (None, torch.tensor([[-1, 0, 0, 1, -1]] * 50)):
        tower(replace(plain, words=words))
        ids, mask = read[-1]["input_ids"], read[-1]["attention_mask"]
        assert (ids[:, 0] == 38).all()
        assert (ids[torch.arange(50), mask.sum(1) - 1] == 39).all()
        assert (ids == 4).any()
    assert tower(plain).tokens.shape == (50, 5, 4)
