from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tailored_cases
from counterfoil.corpus.words import split
from counterfoil.negatives import word_rules
from counterfoil.negatives.candidates import Candidates, Sieve
from counterfoil.negatives.word_rules import Told, exchanged, left_out, written_anew
from counterfoil.negatives.written_store import Changed, WrittenFoil

WORDS = ["red", "reds", "dog", "dogs", "cat", "near", "running", "ran", "a"]


def foil(*changed: tuple[str, str]) -> WrittenFoil:
    spans = tuple(Changed(old, new, 0, len(new)) for old, new in changed)
    return WrittenFoil("i", "t", "", "", "", spans)


def wider(word: str) -> frozenset[str]:
    return frozenset({word, *{"dogs": ("dog", "cat"), "cups": ("ball",)}.get(word, ())})


@pytest.mark.parametrize("rule", ["captions", "lemmas", "wordnet", "inflection"])
def test_the_same_as_on_tokens(rule, monkeypatch):
    """What `Sieve` keeps of captions of whole words is kept of the same captions as text."""
    monkeypatch.setattr(word_rules, "wordnet_synonyms", wider)
    monkeypatch.setattr("counterfoil.negatives.desk.wordnet_synonyms", wider)
    seen = tailored_cases.lens()
    desk = tailored_cases.desk(seen)
    rows = torch.tensor(tailored_cases.ANCHORS)
    original = desk.texts(rows)
    rng = torch.Generator().manual_seed(0)
    words = desk.words[torch.randint(len(desk.words), (len(rows), 400, 1), generator=rng)]
    place = torch.randint(1, original.mask.shape[1] - 1, words.shape, generator=rng)
    place = place.clamp(max=original.mask.sum(1)[:, None, None] - 2)
    written = original.values.unsqueeze(1).repeat(1, 400, 1).scatter(2, place, words)
    images = seen.corpus.owner[rows]
    found = Candidates(desk, images, rows, original.values, written)
    wanted = Sieve(rules=(rule,)).may(found) | ~Sieve(rules=()).may(found)
    kept = torch.ones_like(wanted)
    for b, row in enumerate(rows.tolist()):
        own = (seen.corpus.owner == images[b]).nonzero().flatten().tolist()
        told = Told([seen.corpus.texts[text] for text in own])
        old = split(seen.corpus.texts[row])
        strings = desk.strings([row] * 400, written[b])
        for n, string in enumerate(strings):
            pairs = tuple(p for p in zip(old, split(string), strict=True) if p[0] != p[1])
            kept[b, n] = not left_out(rule, told, pairs)
    free = Sieve(rules=()).may(found)
    assert torch.equal(kept[free], wanted[free])
    assert 0 < int(kept[free].sum()) < int(free.sum())


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4), st.sets(st.sampled_from(WORDS)))
@settings(deadline=None)
def test_captions_is_a_matter_of_sets(new, there):
    told = Told([" ".join(sorted(there))])
    words = tuple(("old", word) for word in new)
    assert left_out("captions", told, words) == (set(new) <= there)
    if left_out("captions", told, words):
        assert left_out("lemmas", told, words)


def test_wordnet_knows_wider_terms(monkeypatch):
    found = {"dog": frozenset({"dog", "animal"}), "red": frozenset({"red"})}
    monkeypatch.setattr(word_rules, "wordnet_synonyms", found.__getitem__)
    told = Told(["red dog"])
    assert left_out("wordnet", told, (("dog", "animal"),))
    assert left_out("wordnet", told, (("dog", "animals"),))
    assert not left_out("wordnet", told, (("dog", "cat"),))


def test_exchanged_words_are_paired_from_the_last():
    assert exchanged(foil(("a dog", "two dogs"))) == (("dog", "dogs"), ("a", "two"))
    assert exchanged(foil(("dog", "big dog"))) == (("", "big"),)
    assert exchanged(foil(("a Dog", "a cat"), ("red", "blue"))) == (
        ("dog", "cat"),
        ("red", "blue"),
    )
    assert exchanged(foil(("very big dog", "dog"))) == (("big", ""), ("very", ""))
    assert written_anew("A dog.") == (("", "a"), ("", "dog"), ("", "."))


def test_a_word_that_is_only_left_out_is_no_new_one():
    assert left_out("captions", Told(["a dog"]), (("big", ""),))
    assert not left_out("inflection", Told(["a dog"]), (("dogs", ""),))
