"""Region features of one's own pictures, by detectors of DETR's kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import hub_cases
from corpus_cases import small_corpus
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.extract import class_probabilities, extract_features
from counterfoil.data.features import FeatureTable
from counterfoil.data.readers import load_dataset

transformers = pytest.importorskip("transformers")

DETECTORS = {"detr": hub_cases.detr, "rt-detr": hub_cases.rt_detr, "yolos": hub_cases.yolos}
SIZES = ((64, 64), (64, 40), (40, 64), (64, 40), (90, 30), (64, 64))  # width and height
REGIONS = 4


@pytest.fixture(scope="module")
def detectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("detectors")
    for name, write in DETECTORS.items():
        write(root / name)
    hub_cases.vit(root / "vit")
    hub_cases.processor(root / "vit", image_processor_type="ViTImageProcessor")
    return root


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> ImageTextDataset:
    """Scenes as picture files of different sizes, with captions and splits."""
    folder = tmp_path_factory.mktemp("photos")
    scenes = load_dataset(f"scenes:images={len(SIZES)},dev=1,test=1")
    lines = ["image,caption,split"]
    for row, size in enumerate(SIZES):
        scenes.pictures.open(row).resize(size).save(folder / f"{row}.png")
        split = "train" if row < len(SIZES) - 2 else ("dev", "test")[row % 2]
        lines += [f'{row}.png,"{text}",{split}' for text in scenes.texts[5 * row : 5 * row + 5]]
    (folder / "captions.csv").write_text("\n".join(lines) + "\n")
    return load_dataset(folder)


def extracted(dataset: ImageTextDataset, model: Path, out: Path, **settings: int) -> FeatureTable:
    settings = {"regions": REGIONS, **settings}
    return extract_features(dataset, str(model), out, kind="float32", **settings)


def slow_regions(model: Path, picture, count: int) -> dict[str, np.ndarray]:
    """The queries of one picture one by one, with transformers' own boxes."""
    network = transformers.AutoModelForObjectDetection.from_pretrained(model).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(model, backend="pil")
    inputs = processor(images=picture, return_tensors="pt")
    with torch.inference_mode():
        out = network(**inputs)
    states = out.last_hidden_state[0][-12:].numpy()
    rows = []
    for query in range(12):
        logits = [float(number) for number in out.logits[0, query]]
        x, y, width, height = (float(number) for number in out.pred_boxes[0, query])
        corners = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
        if len(logits) == 6:
            total = sum(np.exp(logit) for logit in logits)
            likely = [np.exp(logit) / total for logit in logits]
            confidence, classes = max(likely[:5]), [likely[5], *likely[:5]]
        else:
            each = [1 / (1 + np.exp(-logit)) for logit in logits]
            confidence = max(each)
            classes = [1 - confidence, *(confidence * p / sum(each) for p in each)]
        box = [min(1.0, max(0.0, corner)) for corner in corners]
        rows.append((-confidence, query, box, classes, states[query]))
    rows.sort(key=lambda row: row[:2])
    names = ("boxes", "classes", "features")
    return {name: np.array([row[2 + n] for row in rows[:count]]) for n, name in enumerate(names)}


@pytest.mark.parametrize("name", DETECTORS)
def test_regions_are_the_queries_of_the_detector(detectors, photos, tmp_path, name):
    table = extracted(photos, detectors / name, tmp_path / "f", shard=4)
    assert table.ids == list(photos.image_ids)
    rows = torch.arange(len(photos))
    items, classes = table.features.take(rows), table.features.likely(rows)
    assert items.values.shape == (len(photos), REGIONS, 16)
    assert items.values[:, 0].std(0).min() > 0  # pictures differ
    assert items.values.std(1).min() > 0  # and their regions
    assert 0 <= items.boxes.min() <= items.boxes.max() <= 1
    assert (items.boxes[..., :2] <= items.boxes[..., 2:]).all()
    torch.testing.assert_close(classes.sum(-1), torch.ones(classes.shape[:2]), atol=2e-3, rtol=0)
    for row in (0, 1, 4):
        slow = slow_regions(detectors / name, photos.pictures.open(row), REGIONS)
        np.testing.assert_allclose(items.values[row], slow["features"], atol=1e-5)
        np.testing.assert_allclose(items.boxes[row], slow["boxes"], atol=1e-5)
        np.testing.assert_allclose(classes[row], slow["classes"], atol=1e-3)


def test_regions_do_not_depend_on_the_pictures_beside(detectors, photos, tmp_path):
    together = extracted(photos, detectors / "detr", tmp_path / "all", batch=6)
    with pytest.raises(ValueError, match="exists and does not hold these features"):
        extracted(photos, detectors / "detr", tmp_path / "all", regions=5)
    order = torch.tensor([4, 1, 0])
    some = extracted(photos.subset(order), detectors / "detr", tmp_path / "some", batch=2, shard=2)
    one, other = together.features.take(order), some.features.take(torch.arange(3))
    assert torch.equal(one.values, other.values)
    assert torch.equal(one.boxes, other.boxes)


def test_of_equal_confidence_the_first_query_comes_first():
    logits = torch.zeros(3, 6)
    logits[1, 2] = 1.0
    _, confidence = class_probabilities(logits, 5)
    assert confidence.sort(descending=True, stable=True).indices.tolist() == [1, 0, 2]


def test_bad_input_in_one_sentence(detectors, photos, tmp_path):
    out = tmp_path / "f"
    with pytest.raises(ValueError, match="has no pictures to extract features of"):
        extracted(small_corpus(), detectors / "detr", out)
    with pytest.raises(ValueError, match=r"vit' is no detector that can be read: Unrecognized"):
        extracted(photos, detectors / "vit", out)
    with pytest.raises(ValueError, match="has 12 queries, so an image has at most as many"):
        extracted(photos, detectors / "detr", out, regions=13)
    with pytest.raises(ValueError, match="regions 4 and grid 2: give a number of one"):
        extracted(photos, detectors / "detr", out, grid=2)
    assert not list(tmp_path.iterdir())


def test_a_detector_without_queries_is_refused(detectors, photos, tmp_path, monkeypatch):
    forward = transformers.DetrForObjectDetection.forward

    def boxless(*args: object, **kwargs: object) -> object:
        out = forward(*args, **kwargs)
        return type(out)(logits=out.logits)

    monkeypatch.setattr(transformers.DetrForObjectDetection, "forward", boxless)
    with pytest.raises(ValueError, match="predicts no boxes from queries; use a detector of DETR"):
        extracted(photos, detectors / "detr", tmp_path / "f")
