"""A frozen model writes foils: what it may write, what is said of it, and what it hangs on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tailored_cases as cases
import train_cases
from counterfoil.corpus.lens import CorpusLens, LensPlan
from counterfoil.corpus.reading import open_corpus
from counterfoil.corpus.words import split
from counterfoil.models.vilt import ViLT
from counterfoil.negatives.candidates import Sieve
from counterfoil.negatives.desk import Desk
from counterfoil.negatives.hand import Hand
from counterfoil.negatives.model_writer import ModelWriter
from counterfoil.negatives.written_store import WrittenFoil

HAND = Hand(masks=4, refills=5)


def writer(seen: CorpusLens, hand: Hand = HAND, **options: Any) -> ModelWriter:
    model = options.pop("matcher", None) or cases.host(seen)
    desk = options.pop("desk", None) or cases.desk(seen)
    return ModelWriter(desk=desk, matcher=model, hand=hand, **{"keep": 6, **options})


def everything(seen: CorpusLens, **options: Any) -> list[WrittenFoil]:
    return list(writer(seen, **options).foils(range(len(seen.corpus.texts))))


def test_foils_differ_where_they_say_and_may_be_false() -> None:
    seen = cases.lens()
    corpus = seen.corpus
    said: dict[str, list[str]] = {}
    for text, image in zip(corpus.texts, corpus.owner.tolist()):
        said.setdefault(corpus.image_ids[image], []).append(text.lower())
    found = everything(seen)
    assert {foil.text for foil in found} == set(corpus.text_ids)
    assert {"object", "attribute", "relation", "several"} >= {foil.kind for foil in found}
    assert len({foil.kind for foil in found}) > 2
    assert len({(foil.text, foil.foil) for foil in found}) == len(found), "nothing twice"
    for foil in found:
        row = corpus.text_ids.index(foil.text)
        assert foil.caption == corpus.texts[row]
        assert foil.image == corpus.image_ids[int(corpus.owner[row])]
        assert foil.foil.lower() not in said[foil.image]
        back, known = foil.foil, {word for text in said[foil.image] for word in text.split()}
        assert {change.new.lower() for change in foil.changed} - known, "the paper's rule"
        for change in reversed(foil.changed):
            assert foil.foil[change.start : change.stop] == change.new
            back = back[: change.start] + change.old + back[change.stop :]
        assert back == foil.caption


def test_kinds_are_those_of_the_phrases() -> None:
    lists = {
        "attribute": cases.COLOURS,
        "object": cases.THINGS,
        "relation": cases.RELATIONS,
    }
    for foil in everything(cases.lens()):
        old = {change.old.lower() for change in foil.changed}
        kinds = {kind for kind, words in lists.items() if old & set(words)}
        assert foil.kind == (kinds.pop() if len(kinds) == 1 else "several")


def test_single_words_are_of_no_kind() -> None:
    seen = cases.lens()
    made = Desk(lens=seen)
    hand = Hand(masks=3, refills=3, singles="only")
    found = everything(seen, desk=made, hand=hand)
    assert {foil.kind for foil in found} == {"word"}
    assert made.kind(0, []) == "word"


def test_scores_are_the_models_and_the_hardest_come_first() -> None:
    seen = cases.lens()
    model = cases.host(seen)
    found = everything(seen, matcher=model, keep=99)
    by_text: dict[str, list[WrittenFoil]] = {}
    for foil in found:
        by_text.setdefault(foil.text, []).append(foil)
    for text, foils in by_text.items():
        row = seen.corpus.text_ids.index(text)
        image = model.encode_images(seen.images(seen.corpus.owner[[row]]))
        texts = seen.lens.read([seen.corpus.texts[row], *(foil.foil for foil in foils)])
        true, *wrong = model.grid(image, model.encode_texts(texts))[0].tolist()
        assert [foil.scores["foil"] for foil in foils] == pytest.approx(wrong, abs=1e-5)
        assert foils[0].scores["caption"] == pytest.approx(true, abs=1e-5)
        assert wrong == sorted(wrong, reverse=True)
    fewer = everything(seen, matcher=model, keep=2)
    assert fewer == [foil for foils in by_text.values() for foil in foils[:2]]


def test_nothing_hangs_on_what_stands_beside_a_caption() -> None:
    seen = cases.lens()
    whole = everything(seen, seed=3)
    rows = torch.randperm(len(seen.corpus.texts)).tolist()
    shuffled = list(writer(cases.lens(), seed=3).foils(rows))
    assert sorted(shuffled, key=lambda foil: foil.text) == sorted(whole, key=lambda foil: foil.text)
    alone = list(writer(cases.lens(), seed=3).foils([7]))
    assert alone == [foil for foil in whole if foil.text == "t7"]
    assert alone != list(writer(cases.lens(), seed=4).foils([7]))


def test_dropout_is_off_and_comes_back() -> None:
    seen = cases.lens()
    model = cases.host(seen, dropout=0.5).train()
    first, again = (everything(seen, matcher=model) for _ in range(2))
    assert first == again
    assert model.training


def test_the_sieve_decides() -> None:
    seen = cases.lens()
    plain = everything(seen, keep=99)
    strict = everything(seen, keep=99, sieve=Sieve(rules=("captions", "inflection")))
    assert {(foil.text, foil.foil) for foil in strict} < {(f.text, f.foil) for f in plain}
    loose = everything(seen, keep=99, sieve=Sieve(rules=()))
    assert {(foil.text, foil.foil) for foil in plain} < {(f.text, f.foil) for f in loose}


def test_captions_that_cannot_be_changed_have_none() -> None:
    seen = cases.lens()
    seen.corpus.texts[2] = " ".join(seen.lens.tokenizer.words[4:])
    seen = seen.lens.on(seen.corpus)
    assert not list(writer(seen).foils([0, 1, 2])), "all words occur in the image's captions"
    seen = cases.lens()
    seen.corpus.texts[4] = "Xyzzy"
    seen = seen.lens.on(seen.corpus)
    hand = Hand(masks=2, refills=2, singles="only")
    assert not list(writer(seen, hand=hand).foils([4])), "no word of it is known"


def pixels() -> tuple[CorpusLens, ViLT]:
    """Pictures of scenes, and a ViLT that sees them."""
    corpus = open_corpus("scenes:images=30,size=32").split("test")
    seen = LensPlan(images="pixels", size=32).fit(corpus).on(corpus)
    assert seen.lens.tokenizer
    torch.manual_seed(0)
    made = ViLT(
        layers=1,
        width=16,
        heads=2,
        inner=16,
        vocabulary=seen.lens.tokenizer.size,
        positions=60,
        size=32,
        patch=16,
        outputs=cases.ALL,
    )
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return seen, made


def test_what_sees_pixels_writes_too() -> None:
    seen, model = pixels()
    corpus = seen.corpus
    found = list(writer(seen, matcher=model, desk=cases.desk(seen)).foils(range(8)))
    assert len({foil.text for foil in found}) > 6
    model.eval()
    for foil in found[::5]:
        row = corpus.text_ids.index(foil.text)
        owner = corpus.owner[[row]]
        said = {w for t, o in zip(corpus.texts, corpus.owner) if o == owner for w in words(t)}
        assert words(foil.foil) - said, "the paper's rule"
        image = model.encode_images(seen.images(owner))
        texts = model.encode_texts(seen.lens.read([foil.caption, foil.foil]))
        true, wrong = model.grid(image, texts)[0].tolist()
        assert foil.scores == pytest.approx({"caption": true, "foil": wrong}, abs=1e-5)
    alone = list(writer(seen, matcher=model, desk=cases.desk(seen)).foils([4]))
    assert alone == [foil for foil in found if foil.text == corpus.text_ids[4]]


def test_what_is_written_hangs_on_the_pixels() -> None:
    seen, model = pixels()
    found = list(writer(seen, matcher=model, desk=cases.desk(seen)).foils([0]))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 4:  # all patches look alike
                parameter.zero_()
    blind = list(writer(seen, matcher=model, desk=cases.desk(seen)).foils([0]))
    assert [foil.scores for foil in found] != [foil.scores for foil in blind]


def words(text: str) -> set[str]:
    return set(split(text))


def test_what_cannot_write() -> None:
    seen = cases.lens()
    with pytest.raises(ValueError, match="the writer Global does not read words; name a model"):
        writer(seen, matcher=train_cases.Global(words=9))
    with pytest.raises(ValueError, match="the writer UNITER has no heads for fill"):
        writer(seen, matcher=cases.host(seen, outputs=("rank",)))
    with pytest.raises(ValueError, match="keep=0 is not possible"):
        writer(seen, keep=0)
    with pytest.raises(ValueError, match="'alone' is not a way to hide"):
        Hand(singles="alone")  # type: ignore[arg-type]
