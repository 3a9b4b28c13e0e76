from __future__ import annotations

from itertools import combinations, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.data.scenes.grammar import articles
from counterfoil.data.scenes.truth import describe, foils, holds, is_true, truths
from counterfoil.data.scenes.world import lay_out, relates
from counterfoil.data.tokenizers import split_words
from scenes_cases import HAND_MADE, all_captions, all_scenes, canonical, forms, small_worlds


def brute_force(form, scene):
    """The claim as it is defined: try every set of things for every phrase."""
    everything = range(len(scene.things))
    sets = [set(c) for n in range(1, 5) for c in combinations(everything, n)]

    def stands_for(phrase, group):
        fitting = {at for at in everything if phrase.fits(scene.things[at])}
        if phrase.count is None:
            return len(group) == 1 and group <= fitting
        return group == fitting and len(group) == phrase.count

    for groups in product(sets, repeat=len(form.phrases)):
        if (
            all(map(stands_for, form.phrases, groups))
            and not any(a & b for a, b in combinations(groups, 2))
            and all(
                relates(link.relation, scene.things[a], scene.things[b])
                for link in form.links
                for a in groups[link.subject]
                for b in groups[link.object]
            )
            and (not form.complete or set().union(*groups) == set(everything))
        ):
            return True
    return False


@settings(max_examples=100, deadline=None)
@given(forms(most=3), small_worlds())
def test_truth_is_what_trying_everything_finds(form, scene):
    assert holds(form, scene) == brute_force(form, scene)


@settings(max_examples=100, deadline=None)
@given(forms(), small_worlds())
def test_the_canonical_form_claims_the_same(form, scene):
    assert holds(canonical(form), scene) == holds(form, scene)
    assert canonical(canonical(form)) == canonical(form)


def test_every_caption_is_true_of_its_scene():
    for one, captions in zip(all_scenes(), all_captions()):
        assert len(set(captions)) == 5
        for caption in captions:
            assert is_true(caption, one) is True, (str(one), caption)


def test_captions_run_from_ambiguous_to_almost_unique():
    scenes = [lay_out(0, "test", number) for number in range(120)]
    captions = [caption for one in scenes for caption in describe(one)]
    true = truths(scenes, captions)
    assert (true >= 0).all()
    others = [float(true[:, level::5].float().sum(0).mean()) - 1 for level in range(5)]
    assert others == sorted(others, reverse=True)
    assert others[0] > 5
    assert others[4] < 0.5


def test_truths_are_is_true_of_every_pair():
    captions = [caption for five in all_captions()[:40] for caption in five] + ["A dog."]
    table = truths(all_scenes()[:40], captions)
    assert table.shape == (40, 201)
    assert (table[:, -1] == -1).all()
    for row, one in enumerate(all_scenes()[:40]):
        for column, caption in enumerate(captions[:-1]):
            assert bool(table[row, column]) is is_true(caption, one)


@pytest.mark.parametrize(
    "caption, wanted",
    [
        ("A circle.", True),
        ("A square.", False),
        ("One circle.", False),
        ("One blue circle.", True),
        ("Two circles.", True),
        ("Three circles.", False),
        ("Two red circles.", False),
        ("Two red shapes.", True),
        ("Three small things.", True),
        ("Two small things.", False),
        ("Four objects.", True),
        ("A circle and a circle.", True),
        ("A red circle and another red circle.", False),
        ("A circle, another circle, and a third", None),
        ("Two circles and a red circle.", False),
        ("Two circles and a red star.", True),
        ("A red circle is left of a blue circle.", True),
        ("A blue circle is left of a red circle.", False),
        ("A red circle is above a blue circle.", False),
        ("A red circle is below a blue circle.", False),
        ("A big red circle is next to a star with dots.", True),
        ("A blue circle is next to a star.", False),
        ("Two circles above a star.", True),
        ("Two circles left of a heart.", False),
        ("A circle left of a heart.", True),
        ("Two red shapes are to the left of a heart.", True),
        ("A star with two circles above it.", True),
        ("A star is above and to the left of a heart.", True),
        ("A heart above a star, which is below a circle.", False),
        ("A circle above a star, which is above a heart.", True),
        ("A circle above a star and left of a circle.", True),
        ("A blue circle above a star and left of a circle.", False),
        ("A star and a heart, nothing else.", False),
        ("Two circles, a star and a heart, and nothing else.", True),
        ("Four shapes, nothing else.", True),
        ("A shape, a shape, a shape, a shape and a shape.", False),
        ("A striped star.", False),
        ("A plain circle.", True),
        ("A plain star.", False),
        ("A large circle and a little star.", True),
    ],
)
def test_claims_about_a_scene_made_by_hand(caption, wanted):
    assert is_true(caption, HAND_MADE) is wanted


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(range(600)), st.integers(0, 4), st.integers(0, 10**6))
def test_foils_are_false_and_one_detail_away(number, level, seed):
    caption, one = all_captions()[number][level], all_scenes()[number]
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
        for one, captions in zip(all_scenes()[100:125], all_captions()[100:])
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
        return foils(all_captions()[0][4], all_scenes()[0], torch.Generator().manual_seed(seed))

    assert made(1) == made(1)
    assert made(1) != made(2)
    assert len({foil.kind for foil in made(1)[:3]}) == 3


def test_foils_need_a_caption_of_the_grammar():
    with pytest.raises(ValueError, match=r"'A dog\.' is outside the grammar"):
        foils("A dog.", all_scenes()[0], torch.Generator())


def test_two_relations_of_one_pair_never_contradict_each_other():
    caption = "A star above and to the left of a heart."
    false_captions = foils(caption, HAND_MADE, torch.Generator().manual_seed(0))
    assert {foil.caption for foil in false_captions if foil.kind == "relation"} >= {
        "A star above and to the right of a heart."
    }
    for foil in false_captions:
        assert not ("left" in foil.words and "right" in foil.words)
        assert len({"above", "below", "over", "under"} & set(foil.words)) < 2
