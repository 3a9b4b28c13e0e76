"""*Fits*, *does not fit*, *cannot tell*: the calibration, and the verdict in every place."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import recipes_cases
from corpus_cases import write_picture
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.data.dataset import ImageTextDataset, splits_of
from counterfoil.data.processor import FeatureProcessor, Processor
from counterfoil.data.readers import load_dataset
from counterfoil.data.readers.embeddings import dataset_of_vectors
from counterfoil.evaluation.caption_check import (
    CAPTION_CHECK,
    CaptionCheck,
    fit_caption_check,
    held_out,
    thresholds,
)
from counterfoil.evaluation.explain import Explanation, explain
from counterfoil.evaluation.explanation_page import headline
from counterfoil.model import Model, load_model
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.pooling import single_vector
from counterfoil.saved import SavedModelCard
from recipes_cases import run

WIDTH = 32


def photos(
    count: int,
    captions: int = 5,
    *,
    noise: float = 0.8,
    seed: int = 0,
    splits: list[str] | None = None,
) -> ImageTextDataset:
    """Vectors of photos and of captions, each its photo's vector with noise."""
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(count, WIDTH))
    texts = images.repeat(captions, 0) + noise * rng.normal(size=(count * captions, WIDTH))
    parts = {"images": images.astype("f4"), "texts": texts.astype("f4")}
    if splits:
        parts["splits"] = splits
    return dataset_of_vectors(parts, "photos", "photos")


def own_and_other(data: ImageTextDataset) -> tuple[np.ndarray, np.ndarray]:
    """Cosines of all captions with their photos, and of all with the next photo."""
    embedded = load_model("vectors").embed(data)
    images, texts = embedded.images.tokens[:, 0], embedded.texts.tokens[:, 0]
    own = data.text_to_image
    return tuple((images[rows] * texts).sum(1).numpy() for rows in (own, (own + 1) % len(data)))


@pytest.mark.parametrize(("count", "captions"), [(50, 1), (50, 5), (300, 1), (300, 5)])
def test_nine_of_ten_answers_are_right_on_other_photos(count, captions):
    check = fit_caption_check(load_model("vectors"), photos(count, captions, noise=1.6))
    assert (check.photos, check.captions) == (count, count * captions)
    own, other = own_and_other(photos(2000, 1, noise=1.6, seed=9))
    fits = [(scores >= check.high).mean() for scores in (own, other)]
    fails = [(scores < check.low).mean() for scores in (own, other)]
    assert fits[0] / sum(fits) > 0.9
    assert fails[1] / sum(fails) > 0.85  # at most a tenth is expected to be wrong; this is one draw
    assert sum(fits) + sum(fails) > 1, "more than half of the pairs are answered"
    assert check.verdict(-0.058) == "does not fit"
    assert check.verdict(0.99) == "fits"


@pytest.mark.parametrize("captions", [1, 5])
@pytest.mark.parametrize("count", [50, 120])
def test_a_model_at_chance_can_never_tell(count, captions):
    for seed in range(20):
        data = photos(count, captions, seed=seed)
        shuffled = replace(data, text_to_image=data.text_to_image.flip(0))
        check = fit_caption_check(load_model("vectors"), shuffled, seed=seed)
        assert (check.low, check.high) == (None, None)
        assert {check.verdict(score) for score in (-1e9, 0.0, 1e9)} == {"cannot tell"}
    assert "no score makes an answer reliable" in check.basis


def test_constant_scores_tell_nothing():
    zeros, rows = np.zeros(500), np.arange(500) % 100
    assert thresholds(zeros, rows, zeros, rows, rows[::-1])[:2] == (None, None)


def test_where_both_answers_are_sure_one_score_parts_them():
    rows = np.arange(1000) % 200
    rng = np.random.default_rng(0)
    right, wrong = rng.uniform(0.5, 1, 1000), rng.uniform(-1, 0.2, 1000)
    low, high, mistakes = thresholds(right, rows, wrong, rows, rows[::-1])
    assert mistakes == (0.1, 0.1)
    assert low == high
    assert wrong.max() < low <= np.quantile(right, 0.15)


def test_a_weak_model_says_probably():
    rows = np.arange(4000) % 800
    rng = np.random.default_rng(0)
    right, wrong = rng.normal(0.9, 1, 4000), rng.normal(0, 1, 4000)
    low, high, mistakes = thresholds(right, rows, wrong, rows, rows[::-1])
    assert mistakes[0] == 0.25
    share = (right < low).mean() / ((right < low).mean() + (wrong < low).mean())
    assert 0.1 < share < 0.25
    check = CaptionCheck(low, high, mistakes, 800, 4000, "photos (dev)", "m")
    told = check.applied(Explanation("a dog", low - 0.1, ()))
    assert (told.verdict, told.mistakes) == ("does not fit", 0.25)
    assert headline(told, 0.5).startswith("The caption probably does not fit the picture.")
    assert told.to_dict()["told"] == "The caption probably does not fit the picture."
    assert repr(told).startswith("'a dog': probably does not fit, score")
    assert f"one below {low:.3f} does not fit (at most 25 %" in check.basis


def test_few_photos_make_it_careful():
    few, many = (
        [fit_caption_check(load_model("vectors"), photos(n, noise=2, seed=s)) for s in range(5)]
        for n in (60, 800)
    )
    width = [
        np.mean([(c.high or 1) - (-1 if c.low is None else c.low) for c in cs])
        for cs in (few, many)
    ]
    assert width[0] > width[1]


def test_too_few_photos_are_counted_before_anything_is_computed(monkeypatch):
    model = load_model("vectors")
    monkeypatch.setattr(Model, "embed", lambda *_: pytest.fail("computed"))
    with pytest.raises(ValueError, match=r"has 49 photos with captions.*needs 50: 1 are missing"):
        fit_caption_check(model, photos(49))


def test_photos_that_the_model_was_not_trained_on_are_taken():
    model = load_model("vectors")
    names = ["train"] * 200 + ["dev"] * 60 + ["test"] * 60
    assert set(held_out(model, photos(320, splits=names)).photos.splits) == {"dev"}
    names = ["train"] * 260 + ["dev"] * 30 + ["test"] * 30
    data = photos(320, splits=names)
    assert set(held_out(model, data).photos.splits) == {"dev", "test"}
    small = photos(80, splits=["train"] * 60 + ["dev"] * 10 + ["test"] * 10)
    assert len(held_out(model, small).photos) == 80
    known = {"data_fingerprint": small.split("train").fingerprint}
    card = SavedModelCard(model=None, provenance=known)
    with pytest.raises(ValueError, match=r"without what .* was trained on has 20 photos.* 30 are"):
        held_out(replace(model, card=card), small)
    assert len(held_out(replace(model, card=card), data).photos) == 60


def test_splits_that_names_draw_hold_back_no_photo_from_a_model_trained_elsewhere(capsys):
    """A trained model may have seen the others of the folder before it grew: that is said."""
    model = load_model("vectors")
    names = splits_of(photos(400).image_ids)
    data = photos(400, splits=names)
    assert len(held_out(model, data).photos) == 400
    assert capsys.readouterr().err == ""
    card = SavedModelCard(model=None, provenance={"data_fingerprint": "of a smaller folder"})
    some = held_out(replace(model, card=card), data).photos
    assert set(some.splits) <= {"dev", "test"}
    said = " ".join(capsys.readouterr().err.split())
    assert f"calibrated on {len(some)} of 400 photos" in said
    assert "if it was not, give each a split in the data, test" in said
    assert len(held_out(replace(model, card=card), photos(60)).photos) == 60
    said = " ".join(capsys.readouterr().err.split())
    assert "photos that are in both make its answers too sure" in said


def test_a_calibration_remembers_that_its_photos_may_have_been_trained_on(tmp_path):
    model = load_model("vectors")
    data = photos(120, splits=["train"] * 60 + ["dev"] * 60)
    train = data.split("train")
    for trained, given, told in (
        (data, data, False),
        (photos(90), data, True),
        (train, train, True),
    ):
        card = SavedModelCard(model=None, provenance={"data_fingerprint": trained.fingerprint})
        check = fit_caption_check(replace(model, card=card), given)
        assert ("trained on some of these photos, more answers are wrong" in check.basis) == told
        place = tmp_path / f"{len(trained)}"
        check.write(place)
        assert CaptionCheck.read(place) == check
    assert not fit_caption_check(model, data).perhaps_seen


def test_photos_that_were_taken_are_taken_as_they_are(capsys):
    """Its own dev split, held out before, is not taken for other data that it may have seen."""
    data = photos(120, splits=["train"] * 60 + ["dev"] * 60)
    card = SavedModelCard(model=None, provenance={"data_fingerprint": data.fingerprint})
    model = replace(load_model("vectors"), card=card)
    taken = held_out(model, data)
    assert fit_caption_check(model, taken) == fit_caption_check(model, data)
    assert not taken.perhaps_seen
    assert capsys.readouterr().err == ""
    other = photos(130, splits=["train"] * 70 + ["dev"] * 60)
    assert held_out(model, other).perhaps_seen  # its dev may hold what the model was trained on
    assert "make its answers too sure" in " ".join(capsys.readouterr().err.split())


class Joint(RetrievalModel):
    """Scores pairs by a function of both, as joint encoders do; trained on probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        return single_vector(images.values[:, 0])

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        return single_vector(texts.values[:, 0])

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> torch.Tensor:
        return 5 - self.scale * (images.tokens - texts.tokens)[:, 0].norm(dim=1)

    def loss_scores(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.sigmoid()


def test_a_model_that_scores_pairs_alone():
    model = Model(Joint(), Processor(FeatureProcessor(WIDTH), None), "joint")
    check = fit_caption_check(model, photos(100))
    assert 0 < check.low <= check.high < 1, "as explanations score: probabilities"
    assert check.model == model.identity()


def twins(count: int, seed: int) -> ImageTextDataset:
    """Photos in pairs that are nearly the same, as those of a series; captions as of `photos`."""
    rng = np.random.default_rng(seed)
    first = rng.normal(size=(count // 2, WIDTH))
    second = first + 0.5 * rng.normal(size=first.shape)
    images = np.stack([first, second], 1).reshape(-1, WIDTH)
    texts = images.repeat(5, 0) + 0.8 * rng.normal(size=(5 * len(images), WIDTH))
    parts = {"images": images.astype("f4"), "texts": texts.astype("f4")}
    return dataset_of_vectors(parts, "twins", "twins")


def share_wrong(check: CaptionCheck, data: ImageTextDataset) -> float:
    """Of *fits*, those that are wrong, of right captions and the hardest tenth of wrong ones."""
    embedded = load_model("vectors").embed(data)
    scores = embedded.images.tokens[:, 0] @ embedded.texts.tokens[:, 0].T
    own = torch.nn.functional.one_hot(data.text_to_image, len(data)).T.bool()
    wrong = scores.masked_fill(own, -2).topk(round(0.1 * (len(data.texts) - 5)), 1).values
    bad, good = (float((part >= check.high).double().mean()) for part in (wrong, scores[own]))
    return bad / (bad + good)


def test_what_is_promised_holds_for_photos_as_alike_as_those_of_the_calibration():
    """Fresh photos keep it; near twins, where the calibration had none, break it: it says so."""
    checks = [fit_caption_check(load_model("vectors"), photos(300, seed=n)) for n in range(5)]
    promised = np.mean([check.mistakes[1] for check in checks])
    alone = np.mean([share_wrong(check, photos(50, seed=n + 50)) for n, check in enumerate(checks)])
    near = np.mean([share_wrong(check, twins(50, seed=n + 50)) for n, check in enumerate(checks)])
    assert alone <= promised < near
    own = [fit_caption_check(load_model("vectors"), twins(300, seed=n)) for n in range(5)]
    few = np.mean([share_wrong(check, twins(300, seed=n + 50)) for n, check in enumerate(own)])
    assert few <= np.mean([check.mistakes[1] for check in own])
    assert "more alike than these, more captions that fit are wrong" in checks[0].basis


def test_it_is_kept_in_a_folder(tmp_path):
    check = CaptionCheck(None, 0.5, (0.1, 0.25), 50, 250, "photos (dev)", "m")
    check.write(tmp_path / "new")
    assert CaptionCheck.read(tmp_path / "new") == check
    assert CaptionCheck.read(tmp_path) is None
    assert "a score from 0.500 on fits (at most 25 % expected to be wrong), no" in check.basis
    basis = "against the tenth of them that score highest with the photo; of photos that are more "
    assert check.basis.endswith(f"{basis}alike than these, more captions that fit are wrong")
    (tmp_path / CAPTION_CHECK).write_text('{"format": 9}')
    with pytest.raises(ValueError, match=r"caption-check\.json holds .*, not a caption check"):
        CaptionCheck.read(tmp_path)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("checked")
    recipes_cases.pixel_model(root / "mine")
    write_picture(root / "a.png")
    return root


def test_another_model_is_refused(place):
    model = load_model(place / "mine")
    with pytest.raises(ValueError, match="were not calibrated, but those of another model"):
        explain(
            model,
            place / "a.png",
            "a dog",
            check=CaptionCheck(0, 1, (0.1, 0.25), 50, 50, "d", "other"),
        )


def test_explanations_bear_the_verdict(place):
    model = load_model(place / "mine")
    plain = explain(model, place / "a.png", ["a red dog", "the snow"])
    assert [one.verdict for one in plain] == ["cannot tell"] * 2
    low, high = sorted(one.score for one in plain)
    check = CaptionCheck((low + high) / 2, high, (0.1, 0.25), 50, 50, "d", model.identity())
    told = explain(model, place / "a.png", ["a red dog", "the snow"], check=check)
    assert {one.score: one.verdict for one in told} == {low: "does not fit", high: "fits"}


def test_command_line(place, tmp_path, capsys):
    ask = ("explain", place / "mine", place / "a.png", "a red circle")
    assert run(*ask) == 0
    told = capsys.readouterr().out
    assert told.startswith("Cannot tell whether the caption fits the picture.")
    assert "calibrate it with 50 photos or more" in " ".join(told.split())

    assert run(*ask, "--calibrate", "scenes:images=40") == 2
    assert "40 photos with captions, and a calibration needs 50: 10 are" in capsys.readouterr().err
    folder = tmp_path / "check"
    assert run(*ask[:2], "--calibrate", "scenes:images=60", "--index", folder) == 0
    assert "captions are judged by 60 photos" in " ".join(capsys.readouterr().out.split())
    model = load_model(place / "mine")
    known = CaptionCheck.read(folder)
    assert known.model == model.identity()

    (folder / CAPTION_CHECK).write_text("damaged")
    assert run(*ask[:2], "--calibrate", "scenes:images=60", "--index", folder) == 0
    assert CaptionCheck.read(folder) == known
    replace(known, low=1e9, high=None, mistakes=(0.25, 0.1)).write(folder)
    capsys.readouterr()
    assert run(*ask, "--index", folder, "--json", tmp_path / "a.json") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("The caption probably does not fit the picture. Score ")
    assert "one below 1000000000.000 does not fit" in told
    assert json.loads((tmp_path / "a.json").read_text())["verdict"] == "does not fit"
    replace(known, model="another").write(folder)
    assert run(*ask, "--index", folder) == 2
    assert "was calibrated with another model" in capsys.readouterr().err
    assert run(*ask, "--index", tmp_path) == 2
    assert "is not calibrated; do it with" in capsys.readouterr().err


def test_a_data_set_is_counted_by_verdict(place, tmp_path, capsys):
    known = load_model(place / "mine").identity()
    CaptionCheck(1e9, None, (0.25, 0.25), 50, 50, "d", known).write(tmp_path)
    ask = ("explain", place / "mine", "--data", "scenes:images=36", "--split", "dev")
    page, lines = tmp_path / "p.html", tmp_path / "p.jsonl"
    files = ("--output", page, "--json", lines)
    assert run(*ask, "--index", tmp_path, "--top", 2, *files) == 0
    told = " ".join(capsys.readouterr().out.split())
    count = len(load_dataset("scenes:images=36").split("dev").texts)
    assert f"Of {count} captions {count} probably do not fit, 0 fit, and of 0 it" in told
    assert page.read_text().count("Probably does not fit · score") == 2
    written = [json.loads(line)["told"] for line in lines.read_text().splitlines()]
    assert written == ["The caption probably does not fit the picture."] * count
