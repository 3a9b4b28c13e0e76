from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tailored_cases
from counterfoil.data.tokenizers import split_words
from counterfoil.negatives.generation import rules
from counterfoil.negatives.generation.inputs import CandidateFilter, GeneratedCandidates
from counterfoil.negatives.generation.rules import (
    ImageWords,
    all_words,
    exchanged_words,
    left_out_by_rule,
)
from counterfoil.negatives.generation.store import ChangedSpan, GeneratedCaption

WORDS = ["red", "reds", "dog", "dogs", "cat", "near", "running", "ran", "a"]


def foil(*changed: tuple[str, str]) -> GeneratedCaption:
    spans = tuple(ChangedSpan(old, new, 0, len(new)) for old, new in changed)
    return GeneratedCaption("i", "t", "", "", "", spans)


def wider(word: str) -> frozenset[str]:
    return frozenset({word, *{"dogs": ("dog", "cat"), "cups": ("ball",)}.get(word, ())})


@pytest.mark.parametrize("rule", ["captions", "lemmas", "wordnet", "inflection"])
def test_the_same_as_on_tokens(rule, monkeypatch):
    """What `Sieve` keeps of captions of whole words is kept of the same captions as text."""
    monkeypatch.setattr(rules, "wordnet_synonyms", wider)
    monkeypatch.setattr("counterfoil.negatives.generation.inputs.wordnet_synonyms", wider)
    seen = tailored_cases.processor()
    desk = tailored_cases.inputs(seen)
    rows = torch.tensor(tailored_cases.ANCHORS)
    original = desk.texts(rows)
    rng = torch.Generator().manual_seed(0)
    words = desk.words[torch.randint(len(desk.words), (len(rows), 400, 1), generator=rng)]
    place = torch.randint(1, original.mask.shape[1] - 1, words.shape, generator=rng)
    place = place.clamp(max=original.mask.sum(1)[:, None, None] - 2)
    written = original.values.unsqueeze(1).repeat(1, 400, 1).scatter(2, place, words)
    images = seen.dataset.text_to_image[rows]
    found = GeneratedCandidates(desk, images, rows, original.values, written)
    wanted = CandidateFilter(rules=(rule,)).allowed(found) | ~CandidateFilter(rules=()).allowed(
        found
    )
    kept = torch.ones_like(wanted)
    for b, row in enumerate(rows.tolist()):
        own = (seen.dataset.text_to_image == images[b]).nonzero().flatten().tolist()
        told = ImageWords([seen.dataset.texts[text] for text in own])
        old = split_words(seen.dataset.texts[row])
        strings = desk.strings([row] * 400, written[b])
        for n, string in enumerate(strings):
            pairs = tuple(p for p in zip(old, split_words(string), strict=True) if p[0] != p[1])
            kept[b, n] = not left_out_by_rule(rule, told, pairs)
    free = CandidateFilter(rules=()).allowed(found)
    assert torch.equal(kept[free], wanted[free])
    assert 0 < int(kept[free].sum()) < int(free.sum())


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4), st.sets(st.sampled_from(WORDS)))
@settings(deadline=None)
def test_captions_is_a_matter_of_sets(new, there):
    told = ImageWords([" ".join(sorted(there))])
    words = tuple(("old", word) for word in new)
    assert left_out_by_rule("captions", told, words) == (set(new) <= there)
    if left_out_by_rule("captions", told, words):
        assert left_out_by_rule("lemmas", told, words)


def test_wordnet_knows_wider_terms(monkeypatch):
    found = {"dog": frozenset({"dog", "animal"}), "red": frozenset({"red"})}
    monkeypatch.setattr(rules, "wordnet_synonyms", found.__getitem__)
    told = ImageWords(["red dog"])
    assert left_out_by_rule("wordnet", told, (("dog", "animal"),))
    assert left_out_by_rule("wordnet", told, (("dog", "animals"),))
    assert not left_out_by_rule("wordnet", told, (("dog", "cat"),))


def test_exchanged_words_are_paired_from_the_last():
    assert exchanged_words(foil(("a dog", "two dogs"))) == (("dog", "dogs"), ("a", "two"))
    assert exchanged_words(foil(("dog", "big dog"))) == (("", "big"),)
    assert exchanged_words(foil(("a Dog", "a cat"), ("red", "blue"))) == (
        ("dog", "cat"),
        ("red", "blue"),
    )
    assert exchanged_words(foil(("very big dog", "dog"))) == (("big", ""), ("very", ""))
    assert all_words("A dog.") == (("", "a"), ("", "dog"), ("", "."))


def test_a_word_that_is_only_left_out_is_no_new_one():
    assert left_out_by_rule("captions", ImageWords(["a dog"]), (("big", ""),))
    assert not left_out_by_rule("inflection", ImageWords(["a dog"]), (("dogs", ""),))
