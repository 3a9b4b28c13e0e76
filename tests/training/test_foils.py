"""Foils as a source of training: matched with captions, scored in both directions, from files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import recipes_cases
import train_cases
from corpus_cases import write_picture
from counterfoil.core.types import Role
from counterfoil.data.batching import collate
from counterfoil.data.features import FeatureArray
from counterfoil.data.readers import load_dataset
from counterfoil.evaluation.foils.readers import FoilEntry
from counterfoil.evaluation.foils.sets import FoilSet, build_foil_set
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.contrastive import InfoNCEWithCandidatesLoss, TripletCLIPLoss
from counterfoil.model import load_model
from counterfoil.training.config import TrainConfig
from counterfoil.training.foils import Foils
from counterfoil.training.step import TrainingStep
from counterfoil.training.trainer import Trainer
from foil_cases import lines
from sources_cases import begun

INF = torch.inf
ANCHORS = [0, 4, 8, 13]


def foil_set(data: Any, captions: list[tuple[str, str, str]]) -> FoilSet:
    """Entries (image, caption, foil), each with a picture of the foil, of random features."""
    entries = [
        FoilEntry(str(row), "kind", (f"some/{image}.png", f"foil-{row}.png"), (caption, foil))
        for row, (image, caption, foil) in enumerate(captions)
    ]
    found = build_foil_set("bivlc", entries, {}, "test", name="mine")
    width, count = data.features.width, len(found.dataset)
    values = torch.randn(count, 2, width, generator=torch.Generator().manual_seed(1)).numpy()
    return replace(found, dataset=replace(found.dataset, features=FeatureArray.of(values)))


@pytest.fixture
def seen():
    return train_cases.processor()


def foil_of(row: int, words: str = "there") -> str:
    """In words that the model knows, and no caption of the data."""
    return f"{words} {train_cases.THINGS[row % len(train_cases.THINGS)]}"


def told(data: Any, rows: list[int], words: str = "there") -> list[tuple[str, str, str]]:
    owners = data.text_to_image.tolist()
    return [
        (data.image_ids[owners[row]], data.texts[row].upper(), foil_of(row, words)) for row in rows
    ]


def proposed(source: Foils, seen: Any, model: Any, anchors: list[int] = ANCHORS) -> Any:
    batch = collate(seen, torch.tensor(anchors))
    views = model(batch)
    rng = torch.Generator().manual_seed(0)
    return source.propose(model, batch, views, torch.zeros(batch.block), rng).scores, batch, views


def test_scores_are_those_of_the_model_and_of_the_right_pairs(seen):
    data, model = seen.dataset, train_cases.host("global", seen).eval()
    foils = foil_set(data, told(data, [0, 4, 13, 20]))
    source = begun(Foils(foils), seen, model)
    scores, batch, views = proposed(source, seen, model)
    assert {*scores} == {Role.WRITTEN, Role.WRITTEN_IMAGE, Role.WRITTEN_PAIR} == source.gives.roles
    inputs = seen.processor.process(foils.dataset)
    owner = {0: 0, 1: 1, 3: 2}  # the entry of each anchor; the third has none
    images, texts = views.inference.images, views.inference.texts
    shown = model.encode_images(inputs.images(torch.tensor([1, 3, 5])))
    written = model.encode_texts(inputs.texts(torch.tensor([1, 3, 5])))
    assert [foils.dataset.texts[row] for row in (1, 3, 5)] == [foil_of(n) for n in (0, 4, 13)]
    assert written.tokens.squeeze(1).unique(dim=0).shape[0] == 3
    for anchor in range(4):
        for column in range(4):
            place = owner.get(column)
            if place is None:
                assert all(table[anchor, column] == -INF for table in scores.values())
                continue
            image = images.rows(batch.anchors.image[anchor : anchor + 1])
            text = texts.rows(batch.anchors.text[anchor : anchor + 1])
            one, other = written.rows(slice(place, place + 1)), shown.rows(slice(place, place + 1))
            torch.testing.assert_close(
                scores[Role.WRITTEN][anchor, column], model.score_matrix(image, one)[0, 0]
            )
            torch.testing.assert_close(
                scores[Role.WRITTEN_IMAGE][anchor, column], model.score_matrix(other, text)[0, 0]
            )
            own = owner.get(anchor)
            pair = scores[Role.WRITTEN_PAIR][anchor, column]
            if own is None:
                assert pair == -INF
            else:
                mine = shown.rows(slice(own, own + 1))
                torch.testing.assert_close(pair, model.score_matrix(mine, one)[0, 0])


def test_gradients_reach_both_towers_through_foils_alone(seen):
    model = train_cases.host("global", seen)
    source = begun(Foils(foil_set(seen.dataset, told(seen.dataset, [0, 4]))), seen, model)
    scores, _, _ = proposed(source, seen, model)
    scores[Role.WRITTEN_PAIR][0, 1].backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_without_foils_in_a_batch_the_loss_is_that_of_the_batch(seen):
    model = train_cases.host("global", seen).eval()
    source = begun(Foils(foil_set(seen.dataset, told(seen.dataset, [20]))), seen, model)
    scores, _, _ = proposed(source, seen, model)
    assert all((table == -INF).all() for table in scores.values())
    loss = WeightedSum(terms={"contrast": (1.0, TripletCLIPLoss())})
    value = TrainingStep(model, loss, sources=[source])(collate(seen, torch.tensor(ANCHORS)))
    assert value["contrast"].isfinite()
    value["contrast"].backward()


def test_what_says_the_same_is_no_negative(seen):
    """A foil that is another image's caption; a caption, and a foil, that say what a foil says."""
    data, model = seen.dataset, train_cases.host("global", seen).eval()
    rows = told(data, [0, 4, 13])
    rows[0] = (*rows[0][:2], f" {data.texts[4]}.")
    rows[2] = (*rows[2][:2], f"{foil_of(4).capitalize()}.")
    source = begun(Foils(foil_set(data, rows)), seen, model)
    scores, _, _ = proposed(source, seen, model)
    written, image, pair = (
        scores[role].isneginf() for role in (Role.WRITTEN, Role.WRITTEN_IMAGE, Role.WRITTEN_PAIR)
    )
    none = torch.zeros(4, 4, dtype=torch.bool)
    none[:, 2] = True  # the third anchor has no foil
    expected = none.clone()
    expected[1, 0] = True
    assert (written == expected).all()
    assert (image == expected).all()  # the fourth caption does not say what a foil says
    expected = none.clone()
    expected[2] = True
    expected[1, 3] = expected[3, 1] = True
    assert (pair == expected).all()
    counted = train_cases.processor()
    apart = counted.processor.process(counted.dataset.with_positives("id"))
    source = begun(Foils(foil_set(data, rows)), apart, model)
    scores, _, _ = proposed(source, apart, model)
    assert (scores[Role.WRITTEN].isneginf() == none).all()


def test_a_foil_that_is_a_caption_of_its_image_is_left_out(seen):
    data = seen.dataset
    rows = told(data, [0, 4])
    rows[0] = (*rows[0][:2], data.texts[1])  # of the same image
    source = Foils(foil_set(data, rows))
    source.check(None, data)  # type: ignore[arg-type]
    assert 0 not in source._items
    assert 4 in source._items


def test_draws_depend_on_the_seed_alone_and_vary(seen):
    data, model = seen.dataset, train_cases.host("global", seen).eval()
    several = [row for words in ("is", "there", "a a") for row in told(data, ANCHORS, words)]
    source = begun(Foils(foil_set(data, several)), seen, model)
    batch = collate(seen, torch.tensor(ANCHORS))
    views = model(batch)

    def drawn(seed: int):
        rng = torch.Generator().manual_seed(seed)
        found = source.propose(model, batch, views, torch.zeros(batch.block), rng)
        return found.scores[Role.WRITTEN]

    assert torch.equal(drawn(0), drawn(0))
    assert len({tuple(drawn(seed).flatten().tolist()) for seed in range(6)}) > 1


def test_foils_of_other_data_or_without_pictures_are_refused(seen, tmp_path):
    data = seen.dataset
    other = foil_set(data, [("elsewhere", "a caption", "a foil")])
    with pytest.raises(ValueError, match=r"mine has no foil of a caption of .*'a caption'"):
        Foils(other).check(None, data)  # type: ignore[arg-type]
    row = {"image": data.image_ids[0], "caption": data.texts[0], "foil": "a foil"}
    path = lines(tmp_path / "mine.jsonl", [row])
    with pytest.raises(ValueError, match=r"no pictures of its foils, a negative_image"):
        Foils(path).check(None, data)  # type: ignore[arg-type]
    source = Foils(path, pictures=False)
    source.check(None, data)  # type: ignore[arg-type]
    assert source.gives.roles == {Role.WRITTEN}
    first = source.describe()
    lines(path, [row | {"foil": "another"}])
    again = Foils(path, pictures=False)
    again.check(None, data)  # type: ignore[arg-type]
    assert first != again.describe(), "a training does not go on with other foils"


def test_foils_without_what_the_model_reads_of_their_pictures_are_refused(seen):
    data, host = seen.dataset, train_cases.host("global", seen)
    foils = foil_set(data, told(data, ANCHORS))
    source = Foils(replace(foils, dataset=replace(foils.dataset, features=None)))
    source.check(host, data)
    loss = WeightedSum(terms={"contrast": (1.0, TripletCLIPLoss())})
    with pytest.raises(ValueError, match=r"reads features and mine comes without.*:features="):
        source.begin(host, seen, loss, batches=1)


# --- files that people bring ---------------------------------------------------------------------


@pytest.fixture
def mine(tmp_path) -> Path:
    """A file with an image, a caption, and a false caption with a picture, and the pictures."""
    rows = []
    for place in range(24):
        colour, other = ("red", "blue")[:: 1 - 2 * (place % 2)]
        for name in (f"{place}.png", f"{place}-foil.png"):
            (tmp_path / "pictures").mkdir(exist_ok=True)
            write_picture(tmp_path / "pictures" / name, seed=len(rows) + 50 * ("foil" in name))
        rows.append(
            {
                "image": f"{place}.png",
                "caption": f"a {colour} circle and the square in the snow {place}",
                "negative_caption": f"a {other} circle and the square in the snow {place}",
                "negative_image": f"{place}-foil.png",
            }
        )
    return lines(tmp_path / "mine.jsonl", rows)


@pytest.mark.parametrize("pictures", [True, False])
def test_the_trainer_trains_on_a_file_of_both(pictures, mine, tmp_path):
    folder = recipes_cases.clip_like(tmp_path / "clip")
    data = load_dataset(str(mine), images=tmp_path / "pictures")
    loss = TripletCLIPLoss if pictures else InfoNCEWithCandidatesLoss
    model = load_model(str(folder))
    before = model.identity()
    tuned = Trainer(
        model,
        loss=loss(temperature=0.05, reduction="mean"),
        train=data,
        sources=[Foils(f"{mine}:images={tmp_path / 'pictures'}", pictures=pictures)],
        output=tmp_path / "run",
        config=TrainConfig(epochs=1, batch=8, log_every=1),
    ).train()
    assert tuned.identity() != before
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert "written_above" in first, "foils were scored"


@pytest.mark.parametrize(
    ("loss", "way", "wanted"),
    [
        ("contrastive", "full", {"loss_contrast"}),
        ("contrastive", "frozen", {"loss_contrast"}),
        ("triplet", "frozen", {"loss_triplet", "loss_written", "loss_written_image"}),
    ],
)
def test_the_command_trains_on_a_file_of_both(loss, way, wanted, mine, tmp_path, capsys):
    folder = recipes_cases.clip_like(tmp_path / "clip")
    there = f"{mine}:images={tmp_path / 'pictures'}"
    words = (loss, "--model", folder, "--tune", way, "--data", there, "--written", there)
    more = ("--epochs", 1, "--batch-size", 8, "--output", tmp_path / "run")
    assert recipes_cases.run("train", *words, *more, "--set", "*.log_every=1") == 0
    metrics = (tmp_path / "run" / "tuned" / "metrics.jsonl").read_text().splitlines()
    first = json.loads(metrics[0])
    assert {name for name in first if name.startswith("loss_")} == wanted
    assert "written_above" in first, "foils were scored"
