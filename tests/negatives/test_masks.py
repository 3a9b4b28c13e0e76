from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.core.types import ModalityBatch
from counterfoil.negatives.generation.inputs import (
    choose_spans,
    mask_probabilities,
    mask_spans,
    mask_table,
    with_singles,
)

LENGTH = 9
PHRASES = st.lists(
    st.lists(st.lists(st.integers(0, LENGTH + 3), min_size=1, max_size=4, unique=True), max_size=6),
    min_size=1,
    max_size=4,
)


def inner(count: int, length: int = LENGTH) -> torch.Tensor:
    """Tokens between the first and the last."""
    words = torch.ones(count, length, dtype=torch.bool)
    words[:, [0, -1]] = False
    return words


@given(PHRASES, st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_whole_phrases_are_hidden_and_nothing_else(given: list[list[list[int]]], seed: int) -> None:
    phrases = with_singles(mask_table(given, LENGTH), inner(len(given)), singles="without phrases")
    slots = choose_spans(phrases, times=7, rng=torch.Generator().manual_seed(seed))
    assert slots.shape == (len(given), 7, LENGTH)
    assert slots.any(2).all(), "every masking hides something"
    for text, some in enumerate(given):
        cut = [{p for p in phrase if p < LENGTH} for phrase in some]
        whole = [phrase for phrase in cut if phrase] or [{p} for p in range(1, LENGTH - 1)]
        for row in slots[text]:
            places = set(row.nonzero().flatten().tolist())
            inside = [phrase for phrase in whole if phrase <= places]
            assert set().union(*inside) == places


@given(PHRASES)
@settings(deadline=None, max_examples=60)
def test_chances_are_those_of_a_loop(given: list[list[list[int]]]) -> None:
    found = mask_probabilities(mask_table(given, LENGTH))
    for text, some in enumerate(given):
        cut = [[p for p in phrase if p < LENGTH] for phrase in some]
        cut = [phrase for phrase in cut if phrase]
        for number, phrase in enumerate(cut):
            each = [0.15 / sum(p in other for other in cut) for p in phrase]
            assert found[text, number].item() == pytest.approx(sum(each) / len(each))
        assert (found[text, len(cut) :] == 0).all()


def test_word_masking_forces_the_first_word() -> None:
    none = torch.zeros(1, 0, LENGTH, dtype=torch.bool)
    phrases = with_singles(none, inner(1), singles="only")
    rng = torch.Generator().manual_seed(0)
    slots = choose_spans(phrases, times=4000, rng=rng, share=1e-9, first=True)[0]
    assert slots[:, 1].all()
    assert slots.sum() == 4000
    often = choose_spans(phrases, times=20_000, rng=rng, first=True)[0].double().mean(0)
    assert often[2:-1] == pytest.approx(torch.full((LENGTH - 3,), 0.15).numpy(), abs=0.012)
    assert often[0] == often[-1] == 0


def test_the_forced_phrase_is_any_of_them() -> None:
    phrases = mask_table([[[1, 2], [2, 3], [5]], [[4]]], LENGTH)
    rng = torch.Generator().manual_seed(0)
    slots = choose_spans(phrases, times=6000, rng=rng, share=1e-9)
    often = slots[0].double().mean(0)
    assert often[[1, 3, 5]] == pytest.approx([1 / 3] * 3, abs=0.03)
    assert often[2] == pytest.approx(2 / 3, abs=0.03)
    assert slots[1, :, 4].all()


@given(st.integers(0, 50))
@settings(deadline=None, max_examples=20)
def test_slots_are_in_order_and_know_what_stood_there(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    values = torch.randint(10, 30, (3, LENGTH), generator=rng)
    texts = ModalityBatch(torch.arange(3), values, inner(3) | True, words=values - 10)
    slots = torch.rand(3, 5, LENGTH, generator=rng) < 0.3
    found = mask_spans(texts, slots, mask=3, words=torch.arange(10, 30), rng=rng)
    assert (found.texts.ids == -1).all()
    old = values.repeat_interleave(5, 0)
    pair, place = slots.flatten(0, 1).nonzero(as_tuple=True)
    assert torch.equal(found.slots.pair, pair)
    assert torch.equal(found.slots.place, place)
    assert torch.equal(found.labels, old[pair, place])
    elsewhere = ~slots.flatten(0, 1)
    assert torch.equal(found.texts.values[elsewhere], old[elsewhere])
    new = found.texts.values[pair, place]
    assert ((new == 3) | (new >= 10)).all()
    assert torch.equal(found.texts.words, texts.words.repeat_interleave(5, 0))


@pytest.mark.parametrize("others", [[], [[1]]])
def test_nothing_to_hide(others: list[list[int]]) -> None:
    slots = choose_spans(mask_table([[], others], 5), times=3, rng=torch.Generator())
    assert slots.shape == (2, 3, 5)
    assert not slots[0].any()
    assert slots[1].any(1).all() == bool(others)


def test_unknown_singles() -> None:
    with pytest.raises(ValueError, match="'never' is not a way to hide single words"):
        with_singles(mask_table([[]], 3), inner(1, 3), singles="never")  # type: ignore[arg-type]
