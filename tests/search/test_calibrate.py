from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.nn.functional import normalize

import recipes_cases
from counterfoil.core.tensors import read_tensors, write_tensors
from counterfoil.data.readers import load_dataset
from counterfoil.evaluation.caption_check import CAPTION_CHECK
from counterfoil.model import load_model
from counterfoil.search.calibrate import (
    CALIBRATION,
    Calibration,
    UnfitError,
    fit_calibration,
    hit_features,
    labelled_hits,
)
from counterfoil.search.index import build_index, open_index
from counterfoil.serve.service import SearchService


def pairs(count: int, noise: float, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Captions, twice as many images, the first of which they describe, and the truth."""
    generator = torch.Generator().manual_seed(seed)
    images = normalize(torch.randn(2 * count, 32, generator=generator), dim=1)
    texts = images[:count] + noise * torch.randn(count, 32, generator=generator)
    return normalize(texts, dim=1), images, torch.eye(count, 2 * count, dtype=torch.bool)


def test_probabilities_are_the_share_of_true_results():
    fitted = fit_calibration(*pairs(600, 0.25, seed=0))
    features, labels = labelled_hits(*pairs(600, 0.25, seed=1), count=1)
    logits = features @ torch.tensor(fitted.slopes).double().numpy() + fitted.offset
    probability = torch.from_numpy(logits).sigmoid()
    true = torch.from_numpy(labels)
    assert min(fitted.slopes) >= 0
    for low, high in ((0, 0.2), (0.2, 0.8), (0.8, 1)):
        own = (probability >= low) & (probability <= high)
        assert own.sum() > 20
        assert probability[own].mean() == pytest.approx(float(true[own].mean()), abs=0.08)


def test_surprise_counts_the_null_scores_above():
    """On a null with an exponential tail, the expected number is the number counted."""
    null = torch.distributions.Exponential(1.0).icdf(torch.linspace(0.0005, 0.9995, 1000))
    scores = torch.tensor([[3.0, 4.0, 5.0]])
    expected = torch.from_numpy(-hit_features(scores, null.unsqueeze(0), 1000)[0, :, 1]).exp()
    counted = torch.tensor([(null > score).sum() for score in scores[0]]).double()
    torch.testing.assert_close(expected, counted, rtol=0.2, atol=1)
    twice = hit_features(scores, null.unsqueeze(0), 2000)[0, :, 1]
    torch.testing.assert_close(torch.from_numpy(-twice).exp(), 2 * expected)


def test_too_little_to_calibrate_with_is_refused():
    with pytest.raises(ValueError, match=r"needs 20 captions .* there are 5 and 10; give more"):
        fit_calibration(*pairs(5, 0.1, seed=0))
    texts, images, matches = pairs(60, 0.1, seed=0)
    with pytest.raises(ValueError, match="none of 60 captions finds its image"):
        fit_calibration(texts, images, torch.zeros_like(matches))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("calibrating")
    model = load_model(recipes_cases.pixel_model(root / "mine"))
    build_index(model, load_dataset("scenes:images=200")["test"], root / "index").close()
    return root


@pytest.fixture
def index(place, tmp_path) -> Path:
    return Path(shutil.copytree(place / "index", tmp_path / "index"))


def test_an_uncalibrated_index_has_no_probabilities(index):
    with open_index(index) as opened:
        assert opened.search("a red circle", 1)[0].probability is None
        assert "probability" not in opened.search("a red circle", 1)[0].to_dict()
        with pytest.raises(ValueError, match=r"is not calibrated, .*--calibrate DATA"):
            opened.search("a red circle", min_probability=0.5)


def test_a_calibrated_index_leaves_out_what_is_improbable(index):
    with open_index(index) as opened:
        opened.calibrate(load_dataset("scenes:images=200")["dev"])
    with open_index(index) as opened:  # from the file
        hits = opened.search("a red circle", 40)
        known = [hit.probability for hit in hits]
        assert known == sorted(known, reverse=True)
        assert 0 <= known[-1] < known[0] <= 1
        assert opened.search("a red circle", 40, min_probability=known[4]) == hits[:5]
        assert opened.search("a red circle", min_probability=1) == []
        image = opened.image_path(hits[0].id)
        assert opened.search_image(image, 1)[0].probability is None
        with pytest.raises(ValueError, match="probabilities are those of images"):
            opened.search("a red circle", find="captions", min_probability=0.5)
        with pytest.raises(ValueError, match="is 2; give a number from 0 to 1"):
            opened.search("a red circle", min_probability=2)
        opened.delete([hit.id for hit in hits[:25]])
        assert opened.search("a red circle", 1)[0].probability is None
        with pytest.raises(ValueError, match="probabilities need 20 images"):
            opened.search("a red circle", min_probability=0.5)


def test_a_damaged_calibration_is_refused(index):
    Calibration((1.0, 0.0, 2.0), -3.0, 50).write(index)
    assert Calibration.read(index) == Calibration((1.0, 0.0, 2.0), -3.0, 50)
    (index / CALIBRATION).write_text('{"format": 9}')
    with pytest.raises(ValueError, match=r"calibration\.json holds .*, not a calibration"):
        Calibration.read(index)


def test_command_line(index, capsys):
    data = "scenes:images=200"
    assert recipes_cases.run("index", "--output", index, "--calibrate", data) == 0
    told = capsys.readouterr().out
    assert "captions are judged by 66 photos with 330 captions of scenes (dev, test)" in told
    assert "probabilities of results are calibrated on" in told
    ask = ("search", index, "a red circle")
    assert recipes_cases.run(*ask, "--min-probability", "1") == 0
    assert "nothing here matches" in capsys.readouterr().out
    assert recipes_cases.run(*ask, "--json", "--min-probability", "1") == 0
    assert json.loads(capsys.readouterr().out)["results"] == []
    assert recipes_cases.run(*ask, "--json") == 0
    assert 0 < json.loads(capsys.readouterr().out)["results"][0]["probability"] < 1
    assert recipes_cases.run(*ask) == 0
    assert "probability" in capsys.readouterr().out


def test_verdicts_do_not_wait_for_probabilities(index, capsys, monkeypatch):
    """A model that finds nothing has none, and the calibration of captions stays."""

    def unfit(*_: object) -> None:
        raise UnfitError("none of 5 captions finds its image")

    monkeypatch.setattr("counterfoil.search.index.fit_calibration", unfit)
    assert recipes_cases.run("index", "--output", index, "--calibrate", "scenes:images=60") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "probabilities of results cannot be calibrated: none of 5 captions finds" in told
    assert (index / CAPTION_CHECK).exists()
    assert not (index / CALIBRATION).exists()


def test_exchanges_of_an_index_doubt_words(index, tmp_path, capsys):
    data = "scenes:images=60"
    assert recipes_cases.run("index", "--output", index, "--calibrate", data, "--words") == 0
    assert "a word is doubted where another gains more than" in capsys.readouterr().out
    picture = next((index / "pictures").glob("*.png"))
    ask = ("explain", index / "model", picture, "a red circle", "--index", index)
    assert (
        recipes_cases.run(*ask, "--json", tmp_path / "e.json", "--output", tmp_path / "e.html") == 0
    )
    assert "scores better by more than" in capsys.readouterr().out
    assert "Function words" in (tmp_path / "e.html").read_text()
    words = json.loads((tmp_path / "e.json").read_text())["words"]
    assert [word["doubt"] is None for word in words] == [True, False, False]
    everything = ("explain", index / "model", "--data", data, "--index", index)
    assert recipes_cases.run(*everything, "--json", tmp_path / "all.jsonl") == 0
    assert "have a word whose doubt is 0.5 or more" in capsys.readouterr().out
    with open_index(index) as opened:
        service = SearchService(opened)
        assert service.basis.startswith("judged by 60 photos")
        assert service.explain(Image.open(picture), "a red circle").doubts
    other = recipes_cases.pixel_model(tmp_path / "other")
    tensors, about = read_tensors(other / "model.safetensors", "a model")
    changed = {name: 2 * one for name, one in tensors.items()}
    write_tensors(other / "model.safetensors", changed, about)
    assert recipes_cases.run("explain", other, *ask[2:]) == 2
    assert "was calibrated with another model" in capsys.readouterr().err


def test_exchanges_are_asked_of_a_calibrated_index(index, capsys):
    ask = ("explain", index / "model", "x.png", "a red circle", "--index", index)
    assert recipes_cases.run(*ask) == 2
    assert "is not calibrated; do it with" in capsys.readouterr().err
    assert recipes_cases.run("index", "--output", index, "--words") == 2
