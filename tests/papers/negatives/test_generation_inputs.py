"""Masks, refills, allowed words and filters of generated captions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import tailored_cases
import tailored_cases as cases
from counterfoil.core.types import ModalityBatch, WordSlots
from counterfoil.data import caption_edits
from counterfoil.data.processor import ProcessedDataset, Processor
from counterfoil.data.tokenizers import WordTokenizer, split_words
from counterfoil.negatives.generated import ChangedSpan, GeneratedCaption
from counterfoil.papers.compared import rules
from counterfoil.papers.compared.rules import (
    ImageWords,
    all_words,
    exchanged_words,
    left_out_by_rule,
)
from counterfoil.papers.tags.generation import draw_refills, fill_slots, refill_probabilities
from counterfoil.papers.tags.inputs import (
    CandidateFilter,
    GeneratedCandidates,
    GeneratorInputs,
    choose_spans,
    copies_original,
    hardest_allowed,
    is_true_caption,
    mask_probabilities,
    mask_spans,
    mask_table,
    occurs_in_captions,
    penalise_copies,
    repeated_captions,
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


@st.composite
def written(draw: Any) -> tuple[Tensor, Tensor]:
    """Few words, so that there are copies and repetitions."""
    sizes = draw(st.tuples(st.integers(1, 3), st.integers(1, 8), st.integers(1, 3)))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    return (
        torch.randint(0, 3, sizes, generator=rng),
        torch.randint(0, 3, (sizes[0], sizes[2]), generator=rng),
    )


@given(written())
@settings(deadline=None)
def test_rules_are_those_of_a_loop(given: tuple[Tensor, Tensor]) -> None:
    texts, old = given
    there = torch.tensor([[True, False, True]] * len(texts))
    there[0] = ~there[0]
    found = (
        copies_original(texts, old),
        repeated_captions(texts),
        is_true_caption(texts, old, there),
    )
    for b, some in enumerate(texts.tolist()):
        said = {word for word in range(3) if there[b, word]}
        for n, text in enumerate(some):
            new = {word for word, was in zip(text, old[b].tolist(), strict=True) if word != was}
            wanted = text == old[b].tolist(), text in some[n + 1 :], new <= said
            assert tuple(bool(rule[b, n]) for rule in found) == wanted


@given(written(), st.integers(1, 12))
@settings(deadline=None)
def test_the_hardest_of_what_may_be_kept(given: tuple[Tensor, Tensor], count: int) -> None:
    texts, old = given
    rng = torch.Generator().manual_seed(count)
    scores, keep = torch.rand(texts.shape[:2], generator=rng), ~copies_original(texts, old)
    places = hardest_allowed(scores, keep, count)
    assert places.shape == (len(texts), count)
    for b, row in enumerate(places.tolist()):
        order = [n for n in scores[b].argsort(descending=True).tolist() if keep[b, n]]
        assert row == (order + [-1] * count)[:count]


def test_double_precision_stays_where_captions_are_drawn_and_ranked() -> None:
    """Two scores that single precision cannot tell apart are still in their order."""
    scores = torch.tensor([[0.7, 0.7 + 1e-12, 0.7 - 1e-12]], dtype=torch.double)
    assert hardest_allowed(scores, torch.ones_like(scores).bool(), 3).tolist() == [[1, 0, 2]]
    logits = torch.randn(3, 5, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    chances = refill_probabilities(logits, temperature=1.5)
    assert chances.dtype == torch.double
    torch.testing.assert_close(chances, (logits / 1.5).softmax(1), rtol=0, atol=1e-15)
    for half in (torch.half, torch.bfloat16):
        assert refill_probabilities(logits.to(half), temperature=1.5).dtype == torch.float


def test_words_that_occur() -> None:
    captions, mask = torch.tensor([[1, 2], [3, 0], [4, 4]]), torch.tensor([[1, 1], [1, 0], [1, 1]])
    there = occurs_in_captions(captions, mask.bool(), torch.tensor([0, 0, 2]), (3, 5))
    assert [row.nonzero().flatten().tolist() for row in there] == [[1, 2, 3], [], [4]]


def test_lowered_scores() -> None:
    scores = torch.tensor([[2.0, 0.0, -1.0, 3.0]])
    copy = torch.tensor([[True, False, False, True]])
    again = torch.tensor([[False, True, False, True]])
    assert penalise_copies(scores, copy, again).tolist() == [[-1.0, -2.0, -1.0, -2.0]]


SAID = ["<pad>", "<start>", "<end>", "<unk>", "dogs", "dog", "run", "running", "animal", "ran"]


def desk() -> GeneratorInputs:
    seen = cases.processor()
    return GeneratorInputs(
        processor=ProcessedDataset(
            Processor(seen.processor.image_processor, WordTokenizer(SAID)), seen.dataset
        )
    )


def test_forms_of_a_word_are_one() -> None:
    lemmas, forms = desk().lemmas, desk().inflections
    assert lemmas[4] == lemmas[5] != lemmas[6]
    assert lemmas[6] == lemmas[7] == lemmas[9]
    assert len({int(forms[n]) for n in (4, 7, 9, 5)}) == 4
    assert forms[5] == forms[8]


def test_what_is_not_written() -> None:
    one = desk()
    assert one.banned_ids(12, specials=False).tolist() == [True] * 4 + [False] * 6 + [True] * 2
    assert one.banned_ids(12, specials=True).tolist() == [False] * 10 + [True] * 2
    assert one.words.tolist() == list(range(4, 10))


def test_other_forms_of_what_the_captions_say(monkeypatch: pytest.MonkeyPatch) -> None:
    one = desk()
    there = torch.zeros(1, 10, dtype=torch.bool)
    there[0, [4, 6]] = True  # dogs run
    monkeypatch.setattr(one, "occurring", lambda images: there)
    old = torch.tensor([[4, 6]])
    new = torch.tensor([[[5, 6], [8, 6], [4, 7], [8, 8], [6, 4]]])
    found = GeneratedCandidates(one, torch.tensor([0]), torch.tensor([0]), old, new)
    assert CandidateFilter().allowed(found).tolist() == [[True, True, True, True, False]]
    assert CandidateFilter(rules=("lemmas",)).allowed(found).tolist() == [
        [False, True, False, True, False]
    ]
    monkeypatch.setattr(
        "counterfoil.papers.tags.inputs.wordnet_synonyms", lambda word: {word, "animal"}
    )
    assert CandidateFilter(rules=("wordnet",)).allowed(found).tolist() == [
        [True, False, False, False, False]
    ]
    again = desk()
    monkeypatch.setattr(again, "occurring", lambda images: there)
    monkeypatch.setattr(
        "counterfoil.papers.tags.inputs.wordnet_synonyms",
        lambda word: {word, "dog", "run"},
    )
    found = replace(found, inputs=again)
    assert CandidateFilter(rules=("wordnet",)).allowed(found).tolist() == [
        [False, True, False, True, False]
    ]


def test_phrases_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one, asked = cases.inputs(cases.processor()), []
    real = one.parser.phrases

    def spy(texts: Any, ids: Any) -> Any:
        asked.extend(ids)
        return real(texts, ids)

    monkeypatch.setattr(one.parser, "phrases", spy)
    first = one.phrases(torch.tensor([3, 1, 3]), 9)
    again = one.phrases(torch.tensor([1, 4]), 9)
    assert asked == ["t1", "t3", "t4"]
    assert torch.equal(first[0], first[2])
    assert torch.equal(first[1][again[0].any(1).nonzero().flatten()], again[0][again[0].any(1)])


def test_vectors_are_not_read() -> None:
    seen = cases.processor()
    with pytest.raises(ValueError, match="ready-made vectors"):
        GeneratorInputs(
            processor=ProcessedDataset(
                Processor(seen.processor.image_processor, None), seen.dataset
            )
        )


class Sense:
    def __init__(self, names: list[str], above: list[Sense]) -> None:
        self.names, self.above = names, above

    def lemma_names(self) -> list[str]:
        return self.names

    def hypernyms(self) -> list[Sense]:
        return self.above


def test_wider_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    beast = Sense(["Beast"], [Sense(["thing"], [Sense(["entity"], [])])])
    dog = Sense(["dog", "hound", "domestic_dog"], [beast])

    class Net:
        @staticmethod
        def synsets(word: str, pos: str = "n") -> list[Sense]:
            return [dog, Sense(["cad"], [])] if word == "dog" and pos == "n" else []

    monkeypatch.setattr(caption_edits, "_wordnet", lambda: Net)
    assert caption_edits.wordnet_synonyms("dog") == {"dog", "hound", "beast", "thing"}
    assert caption_edits.wordnet_synonyms("xyz") == {"xyz"}


def test_wordnet_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> Any:
        raise ImportError(name)

    class Damaged:
        class wordnet:
            @staticmethod
            def synsets(word: str) -> Any:
                raise OSError("no lexnames")

    for how in (none, lambda name: Damaged):
        monkeypatch.setattr(caption_edits, "import_module", how)
        caption_edits._wordnet.cache_clear()
        with pytest.raises(ValueError, match="pip install nltk"):
            caption_edits.wordnet_synonyms("dog")


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
    monkeypatch.setattr("counterfoil.papers.tags.inputs.wordnet_synonyms", wider)
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
