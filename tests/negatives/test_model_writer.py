"""A frozen model writes foils: what it may write, what is said of it, and what it hangs on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tailored_cases as cases
import train_cases
from counterfoil.data.processor import ProcessedDataset, ProcessorConfig
from counterfoil.data.readers import load_dataset
from counterfoil.data.tokenizers import split_words
from counterfoil.models.vilt import ViLT
from counterfoil.negatives.generation.generator import ModelGenerator
from counterfoil.negatives.generation.inputs import CandidateFilter, GeneratorInputs
from counterfoil.negatives.generation.store import GeneratedCaption
from counterfoil.negatives.generation.tags import MaskRefill

SMALL = MaskRefill(masks=4, refills=5)


def writer(
    seen: ProcessedDataset, mask_refill: MaskRefill = SMALL, **options: Any
) -> ModelGenerator:
    model = options.pop("model", None) or cases.host(seen)
    inputs = options.pop("inputs", None) or cases.inputs(seen)
    return ModelGenerator(
        inputs=inputs, model=model, mask_refill=mask_refill, **{"keep": 6, **options}
    )


def everything(seen: ProcessedDataset, **options: Any) -> list[GeneratedCaption]:
    return list(writer(seen, **options).foils(range(len(seen.dataset.texts))))


def test_foils_differ_where_they_say_and_may_be_false() -> None:
    seen = cases.processor()
    dataset = seen.dataset
    said: dict[str, list[str]] = {}
    for text, image in zip(dataset.texts, dataset.text_to_image.tolist()):
        said.setdefault(dataset.image_ids[image], []).append(text.lower())
    found = everything(seen)
    assert {foil.text for foil in found} == set(dataset.text_ids)
    assert {"object", "attribute", "relation", "several"} >= {foil.kind for foil in found}
    assert len({foil.kind for foil in found}) > 2
    assert len({(foil.text, foil.foil) for foil in found}) == len(found), "nothing twice"
    for foil in found:
        row = dataset.text_ids.index(foil.text)
        assert foil.caption == dataset.texts[row]
        assert foil.image == dataset.image_ids[int(dataset.text_to_image[row])]
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
    for foil in everything(cases.processor()):
        old = {change.old.lower() for change in foil.changed}
        kinds = {kind for kind, words in lists.items() if old & set(words)}
        assert foil.kind == (kinds.pop() if len(kinds) == 1 else "several")


def test_single_words_are_of_no_kind() -> None:
    seen = cases.processor()
    made = GeneratorInputs(processor=seen)
    hand = MaskRefill(masks=3, refills=3, singles="only")
    found = everything(seen, inputs=made, mask_refill=hand)
    assert {foil.kind for foil in found} == {"word"}
    assert made.kind(0, []) == "word"


def test_scores_are_the_models_and_the_hardest_come_first() -> None:
    seen = cases.processor()
    model = cases.host(seen)
    found = everything(seen, model=model, keep=99)
    by_text: dict[str, list[GeneratedCaption]] = {}
    for foil in found:
        by_text.setdefault(foil.text, []).append(foil)
    for text, foils in by_text.items():
        row = seen.dataset.text_ids.index(text)
        image = model.encode_images(seen.images(seen.dataset.text_to_image[[row]]))
        texts = seen.processor.process_texts(
            [seen.dataset.texts[row], *(foil.foil for foil in foils)]
        )
        true, *wrong = model.score_matrix(image, model.encode_texts(texts))[0].tolist()
        assert [foil.scores["foil"] for foil in foils] == pytest.approx(wrong, abs=1e-5)
        assert foils[0].scores["caption"] == pytest.approx(true, abs=1e-5)
        assert wrong == sorted(wrong, reverse=True)
    fewer = everything(seen, model=model, keep=2)
    assert fewer == [foil for foils in by_text.values() for foil in foils[:2]]


def test_nothing_hangs_on_what_stands_beside_a_caption() -> None:
    seen = cases.processor()
    whole = everything(seen, seed=3)
    rows = torch.randperm(len(seen.dataset.texts)).tolist()
    shuffled = list(writer(cases.processor(), seed=3).foils(rows))
    assert sorted(shuffled, key=lambda foil: foil.text) == sorted(whole, key=lambda foil: foil.text)
    alone = list(writer(cases.processor(), seed=3).foils([7]))
    assert alone == [foil for foil in whole if foil.text == "t7"]
    assert alone != list(writer(cases.processor(), seed=4).foils([7]))


def test_dropout_is_off_and_comes_back() -> None:
    seen = cases.processor()
    model = cases.host(seen, dropout=0.5).train()
    first, again = (everything(seen, model=model) for _ in range(2))
    assert first == again
    assert model.training


def test_the_sieve_decides() -> None:
    seen = cases.processor()
    plain = everything(seen, keep=99)
    strict = everything(
        seen, keep=99, candidate_filter=CandidateFilter(rules=("captions", "inflection"))
    )
    assert {(foil.text, foil.foil) for foil in strict} < {(f.text, f.foil) for f in plain}
    loose = everything(seen, keep=99, candidate_filter=CandidateFilter(rules=()))
    assert {(foil.text, foil.foil) for foil in plain} < {(f.text, f.foil) for f in loose}


def test_captions_that_cannot_be_changed_have_none() -> None:
    seen = cases.processor()
    seen.dataset.texts[2] = " ".join(seen.processor.tokenizer.words[4:])
    seen = seen.processor.process(seen.dataset)
    assert not list(writer(seen).foils([0, 1, 2])), "all words occur in the image's captions"
    seen = cases.processor()
    seen.dataset.texts[4] = "Xyzzy"
    seen = seen.processor.process(seen.dataset)
    hand = MaskRefill(masks=2, refills=2, singles="only")
    assert not list(writer(seen, mask_refill=hand).foils([4])), "no word of it is known"


def pixels() -> tuple[ProcessedDataset, ViLT]:
    """Pictures of scenes, and a ViLT that sees them."""
    dataset = load_dataset("scenes:images=30,size=32").split("test")
    seen = ProcessorConfig(images="pixels", size=32).fit(dataset).process(dataset)
    assert seen.processor.tokenizer
    torch.manual_seed(0)
    made = ViLT(
        layers=1,
        width=16,
        heads=2,
        inner=16,
        vocabulary=seen.processor.tokenizer.size,
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
    dataset = seen.dataset
    found = list(writer(seen, model=model, inputs=cases.inputs(seen)).foils(range(8)))
    assert len({foil.text for foil in found}) > 6
    model.eval()
    for foil in found[::5]:
        row = dataset.text_ids.index(foil.text)
        text_to_image = dataset.text_to_image[[row]]
        said = {
            w
            for t, o in zip(dataset.texts, dataset.text_to_image)
            if o == text_to_image
            for w in words(t)
        }
        assert words(foil.foil) - said, "the paper's rule"
        image = model.encode_images(seen.images(text_to_image))
        texts = model.encode_texts(seen.processor.process_texts([foil.caption, foil.foil]))
        true, wrong = model.score_matrix(image, texts)[0].tolist()
        assert foil.scores == pytest.approx({"caption": true, "foil": wrong}, abs=1e-5)
    alone = list(writer(seen, model=model, inputs=cases.inputs(seen)).foils([4]))
    assert alone == [foil for foil in found if foil.text == dataset.text_ids[4]]


def test_what_is_written_hangs_on_the_pixels() -> None:
    seen, model = pixels()
    found = list(writer(seen, model=model, inputs=cases.inputs(seen)).foils([0]))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 4:  # all patches look alike
                parameter.zero_()
    blind = list(writer(seen, model=model, inputs=cases.inputs(seen)).foils([0]))
    assert [foil.scores for foil in found] != [foil.scores for foil in blind]


def words(text: str) -> set[str]:
    return set(split_words(text))


def test_what_cannot_write() -> None:
    seen = cases.processor()
    with pytest.raises(ValueError, match="the generator Global does not read words; name a model"):
        writer(seen, model=train_cases.Global(words=9))
    with pytest.raises(ValueError, match="the generator UNITER has no heads for fill"):
        writer(seen, model=cases.host(seen, outputs=("rank",)))
    with pytest.raises(ValueError, match="keep=0 is not possible"):
        writer(seen, keep=0)
    with pytest.raises(ValueError, match="'alone' is not a way to hide"):
        MaskRefill(singles="alone")  # type: ignore[arg-type]
