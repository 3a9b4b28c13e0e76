"""Pictures as image processors of transformers prepare them: the one of Pillow, to the last bit."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import hub_cases
import recipes_cases
from counterfoil.data.images import ResizeCrop, open_picture
from counterfoil.data.processor import PixelProcessor, Processor
from counterfoil.export.models import _image_settings
from counterfoil.model import load_model
from counterfoil.models.layers.pretrained import picture_format

transformers = pytest.importorskip("transformers")

MEAN, DEVIATION = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
SIDES = [(640, 480), (333, 500), (1000, 120), (97, 640), (56, 56), (150, 151), (41, 40)]
CLIP = {
    "image_processor_type": "CLIPImageProcessor", "do_resize": True, "size": {"shortest_edge": 56},
    "resample": 3, "do_center_crop": True, "crop_size": {"height": 56, "width": 56},
    "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": MEAN,
    "image_std": DEVIATION, "do_convert_rgb": True,
}  # fmt: skip
SQUARE = {"size": {"height": 48, "width": 48}, "do_center_crop": False, "crop_size": None}
OLD = {
    "feature_extractor_type": "CLIPFeatureExtractor", "crop_size": 56, "do_center_crop": True,
    "do_normalize": True, "do_resize": True, "image_mean": MEAN, "image_std": DEVIATION,
    "resample": 3, "size": 56,
}  # fmt: skip
FORMS = {
    "clip": CLIP,
    "clip of older files": OLD,
    "clip that crops more": CLIP | {"size": {"shortest_edge": 64}},
    "clip with odd margins": CLIP | {"crop_size": {"height": 49, "width": 49}},
    "clip by bilinear": CLIP | {"resample": 2},
    "clip by lanczos": CLIP | {"resample": 1},
    "clip by nearest": CLIP | {"resample": 0},
    "clip without mean": CLIP | {"do_normalize": False},
    "clip in bytes": CLIP | {"do_rescale": False, "image_mean": [120] * 3, "image_std": [60] * 3},
    "clip to -1 and 1": CLIP | {"rescale_factor": 1 / 127.5, "image_mean": [1] * 3},
    "siglip": CLIP | SQUARE | {"image_processor_type": "SiglipImageProcessor"},
    "siglip by bilinear": CLIP
    | SQUARE
    | {"image_processor_type": "SiglipImageProcessor", "resample": 2},
    "blip": CLIP | SQUARE | {"image_processor_type": "BlipImageProcessor"},
    "vit": CLIP | SQUARE | {"image_processor_type": "ViTImageProcessor", "size": 48, "resample": 2},
    "deit": CLIP | {"image_processor_type": "DeiTImageProcessor", "size": 64},
    "convnext": {
        "image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 56},
        "crop_pct": 0.875, "resample": 3, "image_mean": MEAN, "image_std": DEVIATION,
    },
}  # fmt: skip


def noise(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(width * height)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


PICTURES = [noise(*sides) for sides in SIDES]


def theirs(folder: str, pictures: list[Image.Image]) -> torch.Tensor:
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    found = processor(pictures, return_tensors="np").pixel_values
    return torch.as_tensor(np.array(found)).float()


def of_folder(folder: str) -> PixelProcessor:
    form = picture_format(folder)
    return PixelProcessor(form.size, form.mean, form.deviation, form.crop, frame=form.frame)


def assert_same(images: PixelProcessor, folder: str, pictures: list[Image.Image]) -> None:
    found, wanted = images.from_images(pictures).values, theirs(folder, pictures)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_pixels_are_those_of_transformers(form, tmp_path):
    """CLIP's pictures were cropped before they were resized."""
    folder = hub_cases.processor(tmp_path / "p", **FORMS[form])
    assert_same(of_folder(folder), folder, PICTURES)


@pytest.mark.skipif("COUNTERFOIL_DATA" not in os.environ, reason="no real data")
@pytest.mark.parametrize("size", [224, 336])
def test_photos_are_those_of_transformers(size, tmp_path):
    square = {"height": size, "width": size}
    folder = hub_cases.processor(
        tmp_path / "p", **CLIP | {"size": {"shortest_edge": size}, "crop_size": square}
    )
    photos = sorted((Path(os.environ["COUNTERFOIL_DATA"]) / "coco_mini" / "images").glob("*.jpg"))
    assert_same(of_folder(folder), folder, [open_picture(path) for path in photos[:8]])


def test_what_is_opened_is_cropped_so_and_stays_so_when_saved(tmp_path):
    folder = recipes_cases.clip_like(tmp_path / "clip")
    hub_cases.processor(
        folder, **CLIP | {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    )
    model = load_model(folder)
    assert model.processor.image_processor.transform == ResizeCrop(32, "shortest-floor")
    model.save_pretrained(tmp_path / "saved")
    again = load_model(tmp_path / "saved").processor
    assert again.image_processor == model.processor.image_processor


@pytest.mark.parametrize("form", ["clip", "clip that crops more", "clip by lanczos", "siglip"])
def test_an_export_prepares_pictures_as_its_model(form, tmp_path):
    folder = hub_cases.processor(tmp_path / "p", **FORMS[form])
    images = of_folder(folder)
    written = _image_settings(Processor(images, None), "siglip" if form == "siglip" else "clip")
    assert_same(images, hub_cases.processor(tmp_path / "q", **written), PICTURES)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"do_resize": False}, "with do_resize False"),
        ({"resample": 9}, "resample 9"),
        ({"resample": "bicubic"}, "resample bicubic"),
        ({"resample": [3]}, "resample"),
        ({"crop_size": {"height": 64, "width": 64}}, "crop a square of what they resized"),
        ({"crop_size": {"height": 56, "width": 40}}, "only square ones"),
        ({"size": {"height": 56, "width": 40}}, "only square ones"),
        ({"size": {"longest_edge": 56}}, "only square ones"),
        ({"size": {"shortest_edge": None}}, "only square ones"),
        ({"size": {"shortest_edge": 56.5}}, "only square ones"),
        ({"size": {"shortest_edge": 56, "longest_edge": 70}}, "only square ones"),
        ({"size": {"shortest_edge": -56}}, "only square ones"),
        ({"crop_pct": 0.9}, "with crop_pct 0.9"),
        ({"image_mean": [None, 1, 1]}, "gives image_mean"),
        ({"image_std": [1, 1]}, "gives image_std"),
        ({"image_std": 0.5}, "gives image_std"),
        ({"rescale_factor": None}, "scales pixels by None"),
        ({"rescale_factor": -1}, "scales pixels by -1"),
    ],
)
def test_what_is_not_known_is_refused(change, words, tmp_path):
    folder = hub_cases.processor(tmp_path / "p", **CLIP | change)
    with pytest.raises(ValueError, match=words):
        picture_format(folder)
