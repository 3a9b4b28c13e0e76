from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.scoring.encode import encode_images, encode_texts, evaluation_mode
from engine_cases import Dot, Noisy


def captions(count: int, seed: int = 0):
    """Captions of 1 to 9 words, padded to the longest of those asked for."""
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 10, (count,), generator=rng)
    words = torch.randint(1, 50, (count, 9), generator=rng)

    def look(rows):
        longest = int(lengths[rows].max())
        mask = torch.arange(longest) < lengths[rows].unsqueeze(1)
        return ModalityBatch(rows, words[rows, :longest] * mask, mask)

    return look, lengths


def pictures(count: int, regions: int = 3):
    values = torch.randn(count, regions, 6, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(count, regions, dtype=torch.bool)
    return lambda rows: ModalityBatch(rows, values[rows], mask[rows])


@pytest.mark.parametrize("gram", [False, True])
def test_images_come_in_row_order(gram):
    model, look = Noisy(gram=gram).eval(), pictures(23)
    encoded = encode_images(model, look, 23, batch=5)
    want = model.encode_images(look(torch.arange(23)))
    torch.testing.assert_close(encoded.tokens, want.tokens)
    assert torch.equal(encoded.mask, want.mask)
    assert (encoded.gram is None) is not gram
    if gram:
        torch.testing.assert_close(encoded.gram, want.gram)


def test_texts_come_in_row_order_padded_to_the_longest():
    model = Noisy().eval()
    look, lengths = captions(57)
    encoded = encode_texts(model, look, 57, batch=8)
    want = model.encode_texts(look(torch.arange(57)))
    assert torch.equal(encoded.mask, want.mask)
    assert torch.equal(encoded.mask.sum(1), lengths)
    mask = want.mask.unsqueeze(-1)
    torch.testing.assert_close(encoded.tokens * mask, want.tokens * mask)


def test_texts_of_like_length_are_encoded_together():
    model = Noisy()
    look, _ = captions(57)
    encode_texts(model, look, 57, batch=8)
    widths = [shape[1] for shape in model.seen]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < widths[0]


def test_padding_that_the_corpus_adds_is_cut_off():
    model = Noisy()
    mask = torch.arange(40) < torch.tensor([[3], [5]])
    words = torch.ones(2, 40, dtype=torch.long)
    encoded = encode_texts(model, lambda rows: ModalityBatch(rows, words[rows], mask[rows]), 2)
    assert encoded.tokens.shape[1] == 5


def test_evaluation_mode_and_back():
    model = Noisy().train()
    model.text.eval()  # a part that was frozen stays so
    encoded = encode_images(model, pictures(4), 4)
    torch.testing.assert_close(encoded.tokens, model.image(pictures(4)(torch.arange(4)).values))
    assert model.training
    assert model.drop.training
    assert not model.text.training
    assert not encoded.tokens.requires_grad


def test_longer_items_may_come_later():
    values = torch.randn(6, 4, 2)
    mask = torch.ones(6, 4, dtype=torch.bool)

    def look(rows):
        length = int(rows.max()) // 2 + 1
        return ModalityBatch(rows, values[rows, :length], mask[rows, :length])

    encoded = encode_images(Dot(), look, 6, batch=2)
    assert encoded.tokens.shape == (6, 3, 2)
    assert encoded.mask.sum(1).tolist() == [1, 1, 2, 2, 3, 3]
    assert torch.equal(encoded.tokens[4:], values[4:, :3])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_padding_takes_no_memory():
    """As with Flickr30K: many short captions, one of 62 words."""
    count, longest, width = 2000, 62, 1024  # 508 MB with its padding
    lengths = torch.full((count,), 3)
    lengths[777] = longest

    class Wide(Noisy):
        def encode_texts(self, texts):
            tokens = texts.values[..., None].expand(*texts.values.shape, width).float()
            return Embeddings(tokens * texts.mask[..., None], texts.mask)

    def look(rows):
        mask = torch.arange(longest) < lengths[rows, None]
        return ModalityBatch(rows, rows[:, None] * torch.ones_like(mask), mask)

    def held():
        status = Path("/proc/self/status").read_text()
        return 1024 * int(re.search(r"RssAnon:\s+(\d+)", status)[1])

    before = held()
    encoded = encode_texts(Wide(), look, count)
    assert held() - before < 200e6
    assert encoded.tokens.shape == (count, longest, width)
    assert torch.equal(encoded.mask.sum(1), lengths)
    for row in (0, 776, 777, 1999):
        assert (encoded.tokens[row, : lengths[row]] == row).all()
        assert (encoded.tokens[row, lengths[row] :] == 0).all()


def test_nothing_to_encode():
    with pytest.raises(ValueError, match="there are 0 images to encode"):
        encode_images(Dot(), pictures(1), 0)
    with pytest.raises(ValueError, match="a batch of 0 texts"):
        encode_texts(Dot(), captions(3)[0], 3, batch=0)


# evaluation mode


class Noting(nn.Linear):
    """Notes how often its mode is set."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.notes: list[bool] = []

    def __setattr__(self, name: str, value: object) -> None:
        if name == "training" and "notes" in self.__dict__:
            self.notes.append(bool(value))
        super().__setattr__(name, value)


def test_every_part_is_as_it_was_whatever_the_block_did():
    model = Noisy().train()
    model.text.eval()

    def block() -> None:
        with evaluation_mode([model]):
            assert not any(part.training for part in model.modules())
            model.text.train()
            raise RuntimeError("of the block")

    with pytest.raises(RuntimeError, match="of the block"):
        block()
    assert model.training
    assert model.drop.training
    assert not model.text.training


def test_what_does_not_train_is_left_alone():
    """A model of hundreds of parts is asked for each query; to set their modes takes longer."""
    still, training = Noting().eval(), Noting().train()
    still.notes.clear()
    training.notes.clear()
    with evaluation_mode([nn.ModuleList([still, training])]):
        assert not training.training
    assert still.notes == []
    assert training.notes == [False, True]


@pytest.mark.parametrize("gradients", [False, True])
def test_a_graph_is_kept_where_it_is_wanted(gradients):
    layer = nn.Linear(2, 1)
    with evaluation_mode([layer], gradients=gradients):
        made = layer(torch.ones(1, 2))
    assert made.requires_grad is gradients
    assert not made.is_inference()
