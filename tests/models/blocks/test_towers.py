from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bag_cases
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.layers.pooling import ensure_nonempty
from counterfoil.models.layers.towers import GRU, PatchTower, Regions


def words(ids: list[list[int]]) -> ModalityBatch:
    longest = max(map(len, ids))
    values = torch.tensor([row + [999] * (longest - len(row)) for row in ids])
    mask = torch.tensor([[k < len(row) for k in range(longest)] for row in ids])
    return ModalityBatch(torch.arange(len(ids)), values, mask)


def test_regions_start_as_the_authors_start_them():
    layer = Regions(features=40, width=60).fc
    assert not layer.bias.any()
    limit = (6 / 100) ** 0.5
    assert 0.95 * limit < layer.weight.abs().max() <= limit


def test_half_precision_features_are_read():
    items = bag_cases.whole(torch.ones(2, 3, 4).half())
    assert Regions(features=4, width=5)(items).tokens.dtype == torch.float32


def test_features_of_another_width_are_refused():
    items = bag_cases.whole(torch.ones(2, 3, 4))
    with pytest.raises(ValueError, match=r"shape \(2, 3, 4\) do not fit .*\(images, regions, 5\)"):
        Regions(features=5)(items)


def test_embeddings_start_small():
    weight = GRU(words=50, word_width=30, width=4).embed.weight
    assert 0.09 < weight.abs().max() <= 0.1


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=6), min_size=1, max_size=5))
def test_each_text_is_read_as_if_alone(ids):
    torch.manual_seed(0)
    tower = GRU(words=9, word_width=3, width=4).double()
    together = tower(words(ids)).tokens
    forward = torch.nn.GRU(3, 4, batch_first=True, bidirectional=True).double()
    forward.load_state_dict(tower.rnn.state_dict())
    for row, text in enumerate(ids):
        states = forward(tower.embed(torch.tensor([text])))[0][0]
        expected = (states[:, :4] + states[:, 4:]) / 2
        torch.testing.assert_close(together[row, : len(text)], expected)


def test_dropout_is_for_training():
    tower = GRU(words=9, word_width=3, width=4, dropout=0.5)
    items = words([[1, 2, 3]])
    assert not torch.equal(tower(items).tokens, tower(items).tokens)
    tower.eval()
    assert torch.equal(tower(items).tokens, tower(items).tokens)


def test_a_word_outside_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match="word id 9 is not in this model's vocabulary of 9 words"):
        GRU(words=9, width=4)(words([[1, 9], [2]]))


def test_each_patch_sees_its_place():
    tower = PatchTower(size=32, patch=8, width=6, channels=4, depth=0)
    blank = bag_cases.whole(torch.zeros(1, 3, 32, 32))
    made = tower(blank)
    assert made.tokens.shape == (1, 16, 6)
    assert made.mask.all()
    dotted = torch.zeros(1, 3, 32, 32)
    dotted[:, :, 28, 4] = 5.0  # the last row of patches, the first column
    tower.stem[0][1] = torch.nn.Identity()  # the norms look at the whole picture
    tower.stem[1][1] = torch.nn.Identity()
    tower.stem[2][1] = torch.nn.Identity()
    change = tower(ModalityBatch(blank.ids, dotted, blank.mask)).tokens - tower(blank).tokens
    assert change.abs().sum(-1).argmax().item() == 12


def test_pictures_of_another_size_are_refused():
    items = bag_cases.whole(torch.zeros(1, 3, 8, 8))
    with pytest.raises(ValueError, match=r"shape \(3, 8, 8\) do not fit .* \(3, 16, 16\)"):
        PatchTower(size=16, patch=8)(items)


def test_word_embeddings_may_begin_with_ready_made_vectors():
    torch.manual_seed(0)
    tower = GRU(words=500, word_width=8, width=4, word_drop=0.2)
    rows, vectors = torch.tensor([7, 3]), torch.randn(2, 8)
    tower.begin_with(rows, vectors)
    assert torch.equal(tower.embed.weight[rows], vectors)
    rest = torch.cat([tower.embed.weight[:3], tower.embed.weight[8:]])
    assert rest.std().item() == pytest.approx(1, abs=0.03)
    assert tower.embed.weight.requires_grad
    with pytest.raises(ValueError, match=r"word vectors of 5 numbers .*of 8; .* word_width=5"):
        tower.begin_with(rows, torch.randn(2, 5))


def test_an_empty_item_gets_one_zero_vector():
    mask = torch.tensor([[True, True, False], [False, False, False], [False, True, False]])
    tokens = torch.ones(3, 3, 2).masked_fill(~mask.unsqueeze(-1), torch.nan)
    found = ensure_nonempty(Embeddings(tokens, mask))
    assert found.mask.tolist() == [[True, True, False], [True, False, False], [False, True, False]]
    assert torch.equal(found.tokens, mask.unsqueeze(-1).expand(-1, -1, 2).float())
    assert not mask[1].any()
