"""Copies that an audit finds: re-encoded, scaled and mirrored ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image, ImageOps

from counterfoil.audit import AuditConfig, audit_dataset
from counterfoil.data.readers import load_dataset


@pytest.fixture
def photos(tmp_path) -> Path:
    pictures = load_dataset("scenes:images=8").pictures
    for row in range(8):
        pictures.open(row).save(tmp_path / f"{row}.png")
    return tmp_path


def groups(photos: Path) -> list[list[tuple[str, bool]]]:
    """Names of the pictures of each group, and whether one is said to be mirrored."""
    sections = audit_dataset(load_dataset(photos), AuditConfig())
    (section,) = (one for one in sections if one.kind == "repeated-images")
    return [
        sorted((item.image, "mirrored" in item.note) for item in find.items)
        for find in section.finds
    ]


def test_copies_and_mirror_images_are_near(photos):
    assert groups(photos) == []
    first, second = Image.open(photos / "0.png"), Image.open(photos / "1.png")
    first.convert("RGB").save(photos / "small.jpg", quality=60)
    ImageOps.mirror(second).save(photos / "turned.png")
    found = groups(photos)
    assert sorted(map(sorted, found)) == [
        [("0.png", False), ("small.jpg", False)],
        [("1.png", True), ("turned.png", True)],
    ]


def test_a_picture_is_no_copy_of_its_own_mirror_image(photos):
    half = load_dataset("scenes:images=8,seed=5").pictures.open(0)  # of none here
    both = Image.new("RGB", (2 * half.width, half.height))
    both.paste(half, (0, 0))
    both.paste(ImageOps.mirror(half), (half.width, 0))
    both.save(photos / "symmetric.png")
    assert groups(photos) == []
    both.save(photos / "again.png")
    assert groups(photos) == [[("again.png", False), ("symmetric.png", False)]]


def test_crops_are_found_within_and_across_splits(photos):
    whole = Image.open(photos / "0.png").convert("RGB")
    wide, high = whole.size
    box = (round(0.05 * wide), round(0.1 * high), round(0.9 * wide), round(0.85 * high))
    whole.crop(box).resize((90, 80)).save(photos / "part.jpg", quality=70)
    (kinds,) = notes(photos)["repeated-images"]
    assert kinds == {"part.jpg": "a part of 0.png", "0.png": "part.jpg is a part of it"}
    lines = [f"{path.name},a dog,train" for path in sorted(photos.glob("*.png"))]
    table = "\n".join(["image,caption,split", *lines, "part.jpg,a dog,test"])
    (photos / "captions.csv").write_text(table)
    (kinds,) = notes(photos)["leaked"]
    assert set(kinds) == {"0.png", "part.jpg"}
    assert kinds["part.jpg"] == "a part of 0.png"


def notes(photos: Path) -> dict[str, list[dict[str, str]]]:
    """What is said of each picture of each group, of all kinds of findings."""
    sections = audit_dataset(load_dataset(photos), AuditConfig())
    return {
        section.kind: [
            {item.image: item.note.rpartition(" · ")[2] for item in find.items}
            for find in section.finds
        ]
        for section in sections
    }
