"""Pictures that are a part of another one, found by their pixels."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from PIL import Image

from counterfoil.data.images import DrawnPictures, PictureFiles, open_picture
from counterfoil.data.readers import load_dataset
from counterfoil.negatives import crops
from counterfoil.negatives.crops import find_crops
from counterfoil.negatives.filters import near_or_mirrored

DATA = Path(os.environ.get("COUNTERFOIL_DATA", "none"))


def made(row: int, size: tuple[int, int] = (160, 120)) -> Image.Image:
    """A picture of soft shapes of all sizes, as a photo has."""
    dice = torch.Generator().manual_seed(row)
    total = torch.zeros(3, size[1], size[0])
    for cells in (3, 6, 12, 24):
        noise = torch.randn(1, 3, cells, cells, generator=dice)
        shape = torch.nn.functional.interpolate(noise, size=size[::-1], mode="bicubic")
        total += shape[0] / cells**0.7
    pixels = ((total / 2 + 0.5).clamp(0, 1) * 255).byte()
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


def part(picture: Image.Image, dice: random.Random, least: float = 0.6) -> Image.Image:
    """A part of a picture at another size, as JPEG."""
    wide, high = (dice.uniform(least, 0.9) for _ in range(2))
    left, top = dice.uniform(0, 1 - wide), dice.uniform(0, 1 - high)
    edges = (left, top, left + wide, top + high)
    box = tuple(round(edge * (picture.size * 2)[side]) for side, edge in enumerate(edges))
    out = io.BytesIO()
    picture.crop(box).resize((100, 90)).save(out, "jpeg", quality=70)
    return Image.open(out)


def drawn(pictures: Sequence[Image.Image], name: str) -> DrawnPictures:
    return DrawnPictures(lambda row: pictures[row], range(len(pictures)), name)


def pairs(found: crops.Crops) -> set[tuple[int, int]]:
    return {*zip(found.crop.tolist(), found.whole.tolist())}


def test_parts_are_found_and_nothing_else():
    dice = random.Random(0)
    wholes = [made(row) for row in range(40)]
    parts = [part(wholes[row], dice) for row in range(20)]
    found = find_crops(drawn([*wholes, *parts], "parts"))
    planted = {(40 + row, row) for row in range(20)}
    assert pairs(found) <= planted
    assert len(found) >= 18
    assert (found.score >= crops.LEAST).all()


def test_neighbours_by_embeddings_are_candidates_and_proved(monkeypatch):
    dice = random.Random(1)
    wholes = [made(row) for row in range(12)]
    parts = [part(wholes[row], dice) for row in range(4)]
    pictures = drawn([*wholes, *parts], "neighbours")
    vectors = torch.nn.functional.normalize(torch.randn(12, 32), dim=1)
    vectors = torch.cat([vectors, vectors[:4]])  # a model to which a part is as its whole
    monkeypatch.setattr(crops, "MOST_BY_LOOKS", 2)
    assert len(find_crops(pictures)) == 0  # too many to compare
    assert pairs(find_crops(pictures, vectors)) == {(12 + row, row) for row in range(4)}
    same = vectors[:1].expand(16, -1)  # to which all are equal
    assert pairs(find_crops(pictures, same)) <= {(12 + row, row) for row in range(4)}


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_pictures(count):
    assert len(find_crops(drawn([made(row) for row in range(count)], f"few {count}"))) == 0
    plain = [Image.new("RGB", (50, 40), "grey")] * count
    assert len(find_crops(drawn(plain, f"plain {count}"))) == 0


@pytest.mark.parametrize("count", [60, pytest.param(500, marks=pytest.mark.slow)])
def test_different_scenes_are_no_parts_of_each_other(count):
    # many scenes differ by one shape or colour; those that are near as a whole are known already
    dataset = load_dataset(f"scenes:images={count}")
    near, _ = near_or_mirrored(dataset, least=0.97)
    known = {*zip(near.left.tolist(), near.right.tolist())}
    found = {(min(pair), max(pair)) for pair in pairs(find_crops(dataset.pictures))}
    assert found <= known


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="needs COUNTERFOIL_DATA")
@pytest.mark.parametrize("least, bound", [(0.55, 75), (0.75, 90)])
def test_parts_of_photos(tmp_path, least, bound):
    files = sorted((DATA / "flickr8k" / "images").glob("*.jpg"))[:600]
    dice, made_of = random.Random(2), {}
    for row in range(100):
        place = tmp_path / f"{row}.png"
        part(open_picture(files[row]), dice, least=least).save(place)
        made_of[600 + row] = row
    found = pairs(find_crops(PictureFiles([*files, *(tmp_path / f"{n}.png" for n in range(100))])))
    assert found <= {*made_of.items()}
    print(f"{len(found)} of 100 parts of at least {least:.0%} of each side were found")
    assert len(found) >= bound
