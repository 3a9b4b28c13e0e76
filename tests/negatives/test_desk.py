from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import tailored_cases as cases
from counterfoil.data import caption_edits
from counterfoil.data.processor import ProcessedDataset, Processor
from counterfoil.data.tokenizers import WordTokenizer
from counterfoil.negatives.generation.inputs import (
    CandidateFilter,
    GeneratedCandidates,
    GeneratorInputs,
)

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
        "counterfoil.negatives.generation.inputs.wordnet_synonyms", lambda word: {word, "animal"}
    )
    assert CandidateFilter(rules=("wordnet",)).allowed(found).tolist() == [
        [True, False, False, False, False]
    ]
    again = desk()
    monkeypatch.setattr(again, "occurring", lambda images: there)
    monkeypatch.setattr(
        "counterfoil.negatives.generation.inputs.wordnet_synonyms",
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
