"""Pictures of sets of foils are found by name, and never another in the place of one."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from counterfoil.corpus.foil_pictures import found_pictures


def painted(folder: Path, *names: str) -> dict[str, int]:
    """Pictures of one grey each, by name."""
    greys = {name: 10 + 20 * place for place, name in enumerate(names)}
    for name, grey in greys.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6), (grey, grey, grey)).save(folder / name)
    return greys


def greys(folder: Path, *names: str) -> list[int]:
    found = found_pictures([(name, None) for name in names], folder, "the set")
    return [found.open(row).getpixel((0, 0))[0] for row in range(len(names))]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("a.png", "a.png"),
        ("train/a.png", "train/a.png"),
        ("a.png", "below/and/below/a.png"),
        ("elsewhere/a.png", "a.png"),
        ("a.jpg", "a.png"),
        ("a", "a.png"),
        ("9", "COCO_val2014_000000000009.png"),
        ("COCO_val2014_000000000009.jpg", "000000000009.png"),
        ("v7w_2345.jpg", "2345.png"),
    ],
)
def test_a_name_that_leads_to_one_file(name, file, tmp_path):
    grey = painted(tmp_path, "other.png", file, "8.png", "19.png", "b/notes 9.png")[file]
    (tmp_path / "9.txt").write_text("no picture")
    assert greys(tmp_path, name) == [grey]


def test_the_nearest_name_is_meant(tmp_path):
    grey = painted(tmp_path, "x/a.png", "a.png", "x/000009.png", "9.png")
    assert greys(tmp_path, "a.png", "x/a.png", "9") == [
        grey["a.png"],
        grey["x/a.png"],
        grey["9.png"],
    ]


def test_of_several_with_one_name_it_is_always_the_same(tmp_path):
    grey = painted(tmp_path, "z/a.png", "b/a.png", "m/a.png")
    assert greys(tmp_path, "a.jpg") == [grey["b/a.png"]]


@pytest.mark.parametrize("lost", ["ex_1_img_0.png", "ex_1_img_0", "b_0"])
def test_pictures_that_only_end_in_the_same_number_are_others(lost, tmp_path):
    painted(tmp_path, "ex_0_img_0.png", "ex_0_img_1.png")
    with pytest.raises(ValueError, match=f"1 of 2 pictures of the set are not in .*'{lost}'"):
        found_pictures([("ex_0_img_0", None), (lost, None)], tmp_path, "the set")


def test_a_part_is_cut_out_and_has_a_name_of_its_own(tmp_path):
    picture = Image.new("RGB", (8, 6))
    picture.putpixel((3, 2), (255, 0, 0))
    picture.save(tmp_path / "a.png")
    shots = [("a.png", None), ("a.png", (3, 2, 4, 3)), ("a.png", (0, 0, 1, 1))]
    found = found_pictures(shots, tmp_path, "the set")
    assert [found.open(row).size for row in range(3)] == [(8, 6), (4, 3), (1, 1)]
    assert found.open(1).getpixel((0, 0)) == (255, 0, 0)
    assert len({found.place(row) for row in range(3)}) == 3
    again = found_pictures(shots[:2], tmp_path, "the set")
    assert again.place(0) != found.place(0), "named by all that is shown"


def test_no_folder(tmp_path):
    with pytest.raises(ValueError, match="is not a folder; the pictures of the set are needed"):
        found_pictures([("a", None)], tmp_path / "nowhere", "the set")
