"""Captions that a frozen model generates, as text, as token ids and in parts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import processes
import tailored_cases as cases
import train_cases
from counterfoil.core.resumable import WorkStopped
from counterfoil.data.processor import ProcessedDataset, ProcessorConfig
from counterfoil.data.readers import load_dataset
from counterfoil.data.tokenizers import split_words
from counterfoil.negatives.generated import ROWS, GeneratedCaption, GeneratedStore
from counterfoil.papers.models.vilt import ViLT
from counterfoil.papers.tags import generator as generator_module
from counterfoil.papers.tags.generation import MaskRefill
from counterfoil.papers.tags.generator import (
    GeneratedItems,
    ModelGenerator,
    generate_in_parts,
)
from counterfoil.papers.tags.inputs import CandidateFilter, GeneratorInputs
from tailored_cases import ANCHORS, host, processor

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


@cache
def default_foils(keep: int = 6) -> list[GeneratedCaption]:
    return everything(cases.processor(), keep=keep)


def test_foils_differ_where_they_say_and_may_be_false() -> None:
    dataset = cases.dataset()
    said: dict[str, list[str]] = {}
    for text, image in zip(dataset.texts, dataset.text_to_image.tolist()):
        said.setdefault(dataset.image_ids[image], []).append(text.lower())
    found = default_foils()
    assert {foil.text for foil in found} == set(dataset.text_ids)
    assert {"object", "attribute", "relation", "several"} >= {foil.kind for foil in found}
    assert len({foil.kind for foil in found}) > 2
    assert len({(foil.text, foil.foil) for foil in found}) == len(found), "nothing twice"
    for foil in found:
        row = dataset.text_ids.index(foil.text)
        assert foil.caption == dataset.texts[row]
        assert foil.image == dataset.image_ids[int(dataset.text_to_image[row])]
        assert foil.foil.lower() not in said[foil.image]
        known = {word for text in said[foil.image] for word in text.split()}
        assert {change.new.lower() for change in foil.changed} - known, "the paper's rule"
        assert cases.undone(foil) == foil.caption


def test_kinds_are_those_of_the_phrases() -> None:
    lists = {
        "attribute": cases.COLOURS,
        "object": cases.THINGS,
        "relation": cases.RELATIONS,
    }
    for foil in default_foils():
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
    found = default_foils(keep=99)
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
    first, again = (list(writer(seen, model=model).foils(range(9))) for _ in range(2))
    assert first == again
    assert model.training


def test_the_sieve_decides() -> None:
    seen = cases.processor()
    plain = default_foils(keep=99)
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


CAPTION_ROWS = torch.tensor([*ANCHORS, 2, 3, 7, 20])


def items(model: Any = None, **options: Any) -> list[GeneratedItems]:
    seen = processor()
    made = writer(seen, model=model or host(seen).eval(), **options)
    return list(made.items(CAPTION_ROWS))


def test_what_is_written():
    seen = processor()
    model = host(seen).eval()
    for part in items():
        assert torch.equal(part.original, seen.texts(part.rows).values[:, : part.original.shape[1]])
        changed = part.texts.values != part.original
        assert bool(changed.any(1).all())
        assert not bool((changed & ~part.slots).any())
        images = model.encode_images(seen.images(seen.dataset.text_to_image[part.rows]))
        found = model.score_pairs(images, model.encode_texts(part.texts))
        torch.testing.assert_close(part.scores, found.detach(), atol=1e-5, rtol=1e-5)
        for row in part.rows.unique().tolist():
            mine = part.rows == row
            assert part.place[mine].tolist() == list(range(int(mine.sum())))
            assert part.scores[mine].tolist() == sorted(part.scores[mine].tolist(), reverse=True)


def test_every_caption_has_its_turn_and_no_more_than_are_kept():
    rows = torch.cat([part.rows for part in items(keep=3)]).tolist()
    assert set(rows) == set(CAPTION_ROWS.tolist())
    assert max(map(rows.count, rows)) == 3


def test_the_seed_alone_decides():
    one, same, other = items(), items(), items(seed=1)
    assert all(torch.equal(a.texts.values, b.texts.values) for a, b in zip(one, same, strict=True))
    words = [torch.cat([part.texts.values.flatten() for part in some]) for some in (one, other)]
    assert words[0].tolist() != words[1].tolist()


def test_the_model_stays_in_its_mode():
    model = host(processor()).train()
    for part in writer(processor(), model=model).items(CAPTION_ROWS):
        assert not part.scores.requires_grad
        assert torch.is_grad_enabled()
        assert model.training


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator_module, "CAPTIONS", 5)


class Counting:
    """Writes a foil of every caption, and breaks off at some caption, as a kill would."""

    def __init__(self, breaks: int = -1) -> None:
        self.breaks, self.rows = breaks, list[int]()

    def foils(self, rows: Sequence[int]) -> Iterator[GeneratedCaption]:
        for row in rows:
            if row == self.breaks:
                raise KeyboardInterrupt
            self.rows.append(row)
            yield GeneratedCaption("i", f"t{row}", "é", f"ü {row}", "noun", (), {"foil": row / 7})


def write(folder: Path, made: Any, **options: Any) -> GeneratedStore:
    told = {"writer": "somebody", "settings": {"rules": ("captions",)}, "seed": 2, **options}
    partial = folder.with_name("partial")
    return generate_in_parts(folder, cases.dataset(), made.foils, partial=partial, **told)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_killed_writing_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    whole = Counting()
    store = write(tmp_path / "whole", whole)
    assert whole.rows == list(range(24))
    assert [foil.text for foil in store.foils()] == [f"t{row}" for row in range(24)]
    assert not (tmp_path / "partial").exists()
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "w", Counting(breaks=13))
    assert not (tmp_path / "w").exists()
    rest = Counting()
    write(tmp_path / "w", rest)
    assert rest.rows == list(range(10, 24)), "only the part that was broken off is written again"
    assert files(tmp_path / "w") == files(tmp_path / "whole")


def test_a_stop_keeps_what_is_written(tmp_path: Path) -> None:
    first = Counting()
    with pytest.raises(WorkStopped):
        write(tmp_path / "w", first, stop=lambda: len(first.rows) >= 10)
    assert first.rows == list(range(10))
    rest = Counting()
    assert len(write(tmp_path / "w", rest, stop=lambda: len(rest.rows) >= 14)) == 24
    assert rest.rows == list(range(10, 24)), "at its end nothing is stopped"


def test_captions_of_no_image_are_left_out(tmp_path: Path) -> None:
    plain = cases.dataset()
    text_to_image = plain.text_to_image.clone()
    text_to_image[3] = -1
    dataset, writer = replace(plain, text_to_image=text_to_image), Counting()
    generate_in_parts(
        tmp_path / "w",
        dataset,
        writer.foils,
        partial=tmp_path / "p",
        writer="",
        settings={},
        seed=0,
    )
    assert writer.rows == [row for row in range(24) if row != 3]


@pytest.mark.parametrize(
    ("change", "named"),
    [({"seed": 3}, "seed"), ({"writer": "me"}, "writer"), ({"settings": {"rules": ()}}, "rules")],
)
def test_another_writing_is_refused(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "w", Counting(breaks=7))
    with pytest.raises(ValueError, match=f"begun otherwise: {named} is .* there and .* here; "):
        write(tmp_path / "w", Counting(), **change)


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "w", Counting(breaks=7))
    (tmp_path / "partial" / "000000.jsonl").write_text("{\n")
    with pytest.raises(ValueError, match=r"000000.jsonl, line 1 is damaged"):
        write(tmp_path / "w", Counting())
    assert not (tmp_path / "w").exists()


def by_a_model(folder: str) -> bytes:
    generator_module.CAPTIONS = 5
    seen = cases.processor()
    hand = MaskRefill(masks=3, refills=3)
    writer = ModelGenerator(
        inputs=cases.inputs(seen), model=cases.host(seen), mask_refill=hand, keep=3
    )
    write(Path(folder) / "w", writer)
    return (Path(folder) / "w" / ROWS).read_bytes()


def test_any_number_of_processes_writes_the_same(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    alone = by_a_model(str(tmp_path / "one"))
    assert processes.run(by_a_model, 2, str(tmp_path / "two")) == [alone, alone]
    assert len(alone.splitlines()) > 24
    manifests = [
        json.loads((tmp_path / n / "w" / "manifest.json").read_text()) for n in ("one", "two")
    ]
    assert manifests[0] == manifests[1]
