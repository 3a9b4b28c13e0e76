from __future__ import annotations

import torch

from counterfoil.core.types import WordSlots
from counterfoil.negatives.generation.tags import draw_refills, fill_slots, refill_probabilities


def test_words_are_drawn_as_often_as_they_are_likely() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -torch.inf], [3.0, 0.0, 0.0, 0.0]])
    banned = torch.tensor([False, True, False, False])
    chances = refill_probabilities(logits, temperature=2.0, banned=banned)
    assert torch.allclose(chances.sum(1), torch.ones(2))
    assert chances[0, 1] == chances[1, 1] == 0
    assert torch.allclose(chances[0, 2] / chances[0, 0], torch.tensor(1.0).exp())
    words = draw_refills(chances, 40_000, torch.Generator().manual_seed(0))
    for row, chance in zip(words, chances, strict=True):
        often = torch.bincount(row, minlength=4) / len(row)
        assert torch.allclose(often, chance, atol=0.01)
        assert often[1] == 0


def test_special_tokens_may_be_written_where_nothing_is_banned() -> None:
    logits = torch.tensor([[9.0, 0.0]])
    assert refill_probabilities(logits, temperature=1.0)[0, 0] > 0.99


def test_the_same_generator_draws_the_same() -> None:
    chances = torch.rand(5, 50, generator=torch.Generator().manual_seed(0))
    one, two = (draw_refills(chances, 9, torch.Generator().manual_seed(4)) for _ in range(2))
    assert torch.equal(one, two)


def test_refills_of_a_loop() -> None:
    rng = torch.Generator().manual_seed(0)
    values = torch.randint(5, 9, (3, 6), generator=rng)
    slots = WordSlots(torch.tensor([0, 0, 2]), torch.tensor([1, 4, 5]))
    words = torch.randint(20, 40, (3, 4), generator=rng)
    found = fill_slots(values, slots, words)
    for text in range(3):
        for number in range(4):
            wanted = values[text].clone()
            for slot in range(3):
                if slots.pair[slot] == text:
                    wanted[slots.place[slot]] = words[slot, number]
            assert torch.equal(found[text * 4 + number], wanted)
