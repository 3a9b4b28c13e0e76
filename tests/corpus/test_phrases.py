from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.corpus import phrase_spacy
from counterfoil.corpus.phrase_file import Stored
from counterfoil.corpus.phrase_rules import Rules, compounds
from counterfoil.corpus.phrases import KINDS, Phrase, agreement, places
from counterfoil.corpus.scenes import scenes
from phrase_truth import measured, true_phrases


def told(parser: Any, text: str, name: str = "") -> list[tuple[str, str]]:
    return [(phrase.kind, phrase.text(text)) for phrase in parser.phrases([text], [name])[0]]


def listed(text: str) -> list[str]:
    """O:dog A:red R:in"""
    return [f"{kind[0].upper()}:{words}" for kind, words in told(Rules(), text)]


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("A man rides a horse.", "O:man R:rides O:horse"),
        ("Two dogs run on the beach", "A:Two O:dogs R:run R:on O:beach"),
        ("A dog is running fast in the sand .", "O:dog R:running R:in O:sand"),
        ("a brown and black dog", "A:brown A:black O:dog"),
        ("A picture of a striped shirt", "A:striped O:shirt"),
        ("There is a running greyhound", "A:running O:greyhound"),
        ("An orange ball beside an orange", "A:orange O:ball R:beside O:orange"),
        ("A tennis racket", "O:tennis racket"),
        ("a dog with spots", "O:dog A:with spots"),
        ("A boy jumps off of a building", "O:boy R:jumps R:off O:building"),
        ("People dressed in red", "O:People R:dressed R:in A:red"),
        ("He sat on his father's shoulders", "R:sat R:on O:father O:shoulders"),
        ("A couple of men and a couple", "A:couple O:men O:couple"),
        ("Women in front of a store", "O:Women R:in front of O:store"),
        ("", ""),
        ("???", ""),
        ("Quickly, and then there was nothing.", ""),
    ],
)
def test_rules(text: str, wanted: str) -> None:
    assert " ".join(listed(text)) == wanted


def test_rules_on_scenes_where_the_truth_is_known() -> None:
    found = measured(Rules(), scenes(images=240, seed=11).texts)
    least = {"object": (99, 99.5), "attribute": (99, 99), "relation": (80, 99.5), None: (96, 99.5)}
    for kind, (precision, recall) in least.items():
        assert found[kind].precision >= precision, kind
        assert found[kind].recall >= recall, kind
        assert found[kind].true > 300


def test_the_truth_of_a_scene() -> None:
    text = "A star with two small circles above it."
    assert [(p.kind, p.text(text)) for p in true_phrases(text)] == [
        ("object", "star"),
        ("attribute", "two"),
        ("attribute", "small"),
        ("object", "circles"),
        ("relation", "above"),
    ]
    assert true_phrases("A dog in the snow.") is None


@given(st.text(alphabet="aA bredn'ts-,.9éß“\"", max_size=40))
def test_spans_are_inside_apart_and_in_order(text: str) -> None:
    spans = [span for phrase in Rules().phrases([text], [""])[0] for span in phrase.spans]
    assert all(0 <= start < stop <= len(text) for start, stop in spans)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_agreement_counts_kind_and_words() -> None:
    man, tall = Phrase("object", ((2, 5),)), Phrase("attribute", ((0, 1),))
    wrong = Phrase("relation", ((2, 5),))
    both = agreement([[man, tall], [man]], [[man, wrong], [man]])
    assert (both.both, both.found, both.true) == (2, 3, 3)
    assert both.precision == pytest.approx(200 / 3)
    assert agreement([[man, tall]], [[wrong]], "relation").recall == 0
    assert agreement([[]], [[]]).precision == 0


def test_places_of_a_phrase_in_several_runs() -> None:
    tokens = [(0, 0), (0, 3), (4, 6), (6, 9), (9, 9), (10, 12)]
    assert places(Phrase("relation", ((5, 7), (11, 12))), tokens) == [2, 3, 5]
    assert places(Phrase("relation", ((3, 4),)), tokens) == []


def stored(folder: Path, graphs: Any) -> Stored:
    (folder / "phrases.json").write_text(json.dumps(graphs))
    return Stored(path=str(folder / "phrases.json"))


TEXT = "Two tall men riding the horses"
GRAPH = [
    ("object", "men"),
    ("attribute", "tall"),
    ("relation", "riding"),
    ("object", "horses"),
]


@pytest.mark.parametrize(
    "graph",
    [
        [["man"], ["man", "tall"], ["man", "ride", "horse"], ["zebra"]],
        [{"tuple": ["man"]}, {"tuple": ["man", "tall"]}, {"tuple": ["man", "ride", "horse"]}],
        {
            "subject": ["man"],
            "rela": ["ride"],
            "object": ["horse"],
            "attribute": [["node:man", "attr:tall"]],
        },
        [
            {"kind": "object", "spans": [[9, 12]]},
            {"kind": "attribute", "spans": [[4, 8]]},
            {"kind": "relation", "spans": [[13, 19]]},
            {"kind": "object", "spans": [[24, 30]]},
        ],
    ],
)
def test_written_down_by_another_parser(graph: Any, tmp_path: Path) -> None:
    assert sorted(told(stored(tmp_path, {"7#0": graph}), TEXT, "7#0")) == sorted(GRAPH)


@pytest.mark.parametrize(
    "graphs, words",
    [
        ([], "a mapping from caption ids is needed"),
        ({"8": []}, "no phrases of caption '7#0'; parse all"),
        ({"7#0": [["a", "b", "c", "d"]]}, "no tuple of one, two or three"),
        ({"7#0": [{"kind": "object", "spans": [[2, 99]]}]}, "no phrase of a caption of 30"),
        ({"7#0": [{"kind": "thing", "spans": [[2, 3]]}]}, "no phrase of a caption"),
        ({"7#0": 3}, "cannot be read"),
    ],
)
def test_files_of_another_form(graphs: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        stored(tmp_path, graphs).phrases([TEXT], ["7#0"])


class Token:
    def __init__(self, text: str, idx: int, pos: str) -> None:
        self.text, self.idx, self.pos_ = text, idx, pos


class Document(list):
    text: str


class Model:
    """Gives the words of any caption these parts of speech."""

    def __init__(self, kinds: str) -> None:
        self.kinds = kinds.split()

    def pipe(self, texts: list[str]) -> list[Document]:
        return [self.read(text) for text in texts]

    def read(self, text: str) -> Document:
        at, tokens = 0, Document()
        tokens.text = text
        for word, kind in zip(text.split(), self.kinds, strict=True):
            tokens.append(Token(word, text.index(word, at), kind))
            at = tokens[-1].idx + len(word)
        return tokens


def test_spacy_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phrase_spacy, "_loaded", lambda name: Model("NUM ADJ NOUN VERB DET NOUN"))
    found = told(phrase_spacy.Spacy(), TEXT)
    assert found == [("attribute", "Two"), *[GRAPH[n] for n in (1, 0, 2, 3)]]


def test_spacy_joins_compound_prepositions_and_skips_openings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "A picture of a swimming pool in front of the left wall"
    kinds = "DET NOUN ADP DET NOUN NOUN ADP NOUN ADP DET NOUN NOUN"
    monkeypatch.setattr(phrase_spacy, "_loaded", lambda name: Model(kinds))
    found = told(phrase_spacy.Spacy(), text)
    assert found == [
        ("object", "swimming pool"),
        ("relation", "in front of"),
        ("object", "left wall"),
    ]


@pytest.mark.parametrize("text", ["", "A picture of", "next to"])
def test_compounds_of_next_to_nothing(text: str) -> None:
    begin, long = compounds(text)
    wanted = (0, ((0, 7),)) if text == "next to" else (len(text), ())
    assert (begin, long) == wanted


def test_spacy_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(phrase_spacy, "import_module", none)
    with pytest.raises(ValueError, match="needs spaCy: pip install spacy"):
        phrase_spacy.Spacy()

    class Bare:
        @staticmethod
        def load(name: str, **options: Any) -> Any:
            raise OSError(name)

    monkeypatch.setattr(phrase_spacy, "import_module", lambda name: Bare)
    with pytest.raises(ValueError, match="python -m spacy download en_core_web_sm"):
        phrase_spacy.Spacy()


def test_kinds() -> None:
    assert set(KINDS) == {"object", "attribute", "relation"}
