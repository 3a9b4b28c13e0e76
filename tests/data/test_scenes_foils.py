from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.data.scenes.grammar import articles
from counterfoil.data.scenes.truth import foils, is_true
from counterfoil.data.tokenizers import split_words
from scenes_cases import CAPTIONS, HAND_MADE, SOME


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(range(600)), st.integers(0, 4), st.integers(0, 10**6))
def test_foils_are_false_and_one_detail_away(number, level, seed):
    caption, one = CAPTIONS[number][level], SOME[number]
    false_captions = foils(caption, one, torch.Generator().manual_seed(seed))
    assert false_captions
    assert len({foil.caption for foil in false_captions}) == len(false_captions)
    before = split_words(caption)
    for foil in false_captions:
        assert is_true(foil.caption, one) is False
        assert foil.words == tuple(split_words(foil.caption))
        assert foil.changed
        assert foil.caption == articles(foil.caption)
        assert foil.caption[0].isupper()
        kept = [word for at, word in enumerate(foil.words) if at not in foil.changed]
        rest = list(before)
        for word in kept:  # all other words are those of the caption, in its order
            while rest and rest[0] != word and {rest[0], word} != {"a", "an"}:
                rest.pop(0)
            assert rest, (caption, foil)
            rest.pop(0)


def test_a_true_caption_turns_false_in_every_kind_of_detail():
    kinds = {
        foil.kind
        for one, captions in zip(SOME[100:125], CAPTIONS[100:])
        for caption in captions
        for foil in foils(caption, one, torch.Generator().manual_seed(0))
    }
    assert kinds == {"size", "pattern", "colour", "object", "number", "relation", "swap"}


def test_foils_change_no_more_than_they_must():
    rng = torch.Generator().manual_seed(0)
    false_captions = foils("A star with a heart to its right.", HAND_MADE, rng)
    mirrored = [
        foil for foil in false_captions if foil.caption == "A star with a heart to its left."
    ]
    assert [foil.changed for foil in mirrored] == [(7,)]


def test_foils_depend_on_the_generator_alone():
    def made(seed):
        return foils(CAPTIONS[0][4], SOME[0], torch.Generator().manual_seed(seed))

    assert made(1) == made(1)
    assert made(1) != made(2)
    assert len({foil.kind for foil in made(1)[:3]}) == 3


def test_foils_need_a_caption_of_the_grammar():
    with pytest.raises(ValueError, match=r"'A dog\.' is outside the grammar"):
        foils("A dog.", SOME[0], torch.Generator())


def test_two_relations_of_one_pair_never_contradict_each_other():
    caption = "A star above and to the left of a heart."
    false_captions = foils(caption, HAND_MADE, torch.Generator().manual_seed(0))
    assert {foil.caption for foil in false_captions if foil.kind == "relation"} >= {
        "A star above and to the right of a heart."
    }
    for foil in false_captions:
        assert not ("left" in foil.words and "right" in foil.words)
        assert len({"above", "below", "over", "under"} & set(foil.words)) < 2
