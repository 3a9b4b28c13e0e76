from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import recipes_cases
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import FeatureArray
from counterfoil.data.images import open_picture
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
from counterfoil.scoring.encode import encode_images
from counterfoil.search import changes
from counterfoil.search import index as index_module
from counterfoil.search.changes import file_stamp, image_digest, with_id_prefix
from counterfoil.search.index import (
    IMAGE_FOLDER,
    IndexUpdate,
    SearchIndex,
    build_index,
    open_index,
)
from counterfoil.search.vector_index import IndexEntry, NewVectors


def paint(path: Path, colour: str) -> None:
    path.parent.mkdir(exist_ok=True)
    Image.new("RGB", (16, 16), colour).save(path)


@pytest.fixture
def photos(tmp_path) -> Path:
    for name, colour in (("beach.png", "yellow"), ("snow.png", "white"), ("wood.png", "green")):
        paint(tmp_path / "mine" / name, colour)
    return tmp_path / "mine"


@pytest.fixture
def index(photos, tmp_path) -> SearchIndex:
    model = load_model(recipes_cases.pixel_model(tmp_path / "model"))
    return build_index(model, load_dataset(photos), tmp_path / "x")


def vector(index: SearchIndex, name: str) -> torch.Tensor:
    return index.vectors.images.vectors(torch.tensor([index.vectors.images.rows.get(name)]))


def stands(index: SearchIndex, name: str, picture: Path) -> None:
    """The vector, and the path that is shown, are of this picture."""
    torch.testing.assert_close(vector(index, name), index.model.encode([picture]).tokens[:, 0])
    assert index.image_path(name).resolve() == picture.resolve()


def test_a_file_that_has_changed_is_looked_at_again(index, photos):
    paint(photos / "beach.png", "navy")
    assert index.add(load_dataset(photos)) == IndexUpdate(1, 0, 2, 1)
    stands(index, "beach.png", photos / "beach.png")
    assert index.add(load_dataset(photos)) == IndexUpdate(0, 0, 3)
    assert len(index.vectors.images) == 3


def test_another_picture_of_the_same_name_is_not_taken_for_it(index, photos, tmp_path):
    paint(tmp_path / "trip" / "beach.png", "navy")
    paint(tmp_path / "trip" / "hill.png", "red")
    trip, state = load_dataset(tmp_path / "trip"), index.vectors.state
    with pytest.raises(ValueError, match=r"'beach.png' of trip is another picture .* --prefix"):
        index.add(trip)
    assert index.vectors.state == state
    assert index.add(with_id_prefix(trip, "trip/")) == IndexUpdate(2, 0, 0)
    stands(index, "beach.png", photos / "beach.png")
    stands(index, "trip/beach.png", tmp_path / "trip" / "beach.png")
    assert index.add(trip, replace=True) == IndexUpdate(2, 0, 0, 1)
    stands(index, "beach.png", tmp_path / "trip" / "beach.png")


def test_the_same_picture_elsewhere_is_the_same(index, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "copy")
    assert index.add(load_dataset(tmp_path / "copy")) == IndexUpdate(0, 0, 3)
    stands(index, "beach.png", photos / "beach.png")
    photos.rename(tmp_path / "moved")
    assert index.add(load_dataset(tmp_path / "moved")) == IndexUpdate(0, 0, moved=3)
    stands(index, "beach.png", tmp_path / "moved" / "beach.png")


def never_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("an image is encoded")

    monkeypatch.setattr(index_module, "encode_images", refused)


def test_a_renamed_picture_keeps_its_vector(index, photos, monkeypatch):
    known = vector(index, "beach.png")
    (photos / "sea").mkdir()
    (photos / "beach.png").rename(photos / "sea" / "b.png")
    never_encoded(monkeypatch)
    assert index.add(load_dataset(photos)) == IndexUpdate(0, 0, 2, moved=1)
    assert sorted(index.vectors.images.rows) == ["sea/b.png", "snow.png", "wood.png"]
    assert torch.equal(vector(index, "sea/b.png"), known)
    assert index.image_path("sea/b.png").resolve() == (photos / "sea" / "b.png").resolve()
    assert index.add(load_dataset(photos), prune=True) == IndexUpdate(0, 0, 3)


def test_captions_follow_a_renamed_picture(photos, tmp_path):
    (photos / "beach.txt").write_text("a yellow beach\n")
    model = load_model(recipes_cases.pixel_model(tmp_path / "model"))
    index = build_index(model, load_dataset(photos), tmp_path / "x")
    (photos / "beach.txt").unlink()
    (photos / "beach.png").rename(photos / "b.png")
    assert index.add(load_dataset(photos)) == IndexUpdate(0, 0, 2, moved=1)
    assert index.captions("b.png") == ("a yellow beach",)
    (photos / "b.png").rename(photos / "c.png")
    (photos / "c.txt").write_text("sand\n")
    assert index.add(load_dataset(photos)) == IndexUpdate(0, 1, 2, moved=1)
    assert index.captions("c.png") == ("sand",)
    assert len(index.vectors.texts) == 1


def test_pruned_are_the_entries_whose_files_are_gone(index, photos, tmp_path):
    (photos / "beach.png").unlink()
    assert index.is_missing("beach.png")
    hits = {hit.id: hit for hit in index.search("a beach", 3)}
    assert hits["beach.png"].missing
    assert hits["beach.png"].to_dict()["missing"]
    assert "missing" not in hits["snow.png"].to_dict()
    paint(photos / "hill.png", "red")
    assert index.add(load_dataset(photos)) == IndexUpdate(1, 0, 2, gone=1)
    assert index.add(load_dataset(photos), prune=True) == IndexUpdate(0, 0, 3, pruned=1)
    assert sorted(index.vectors.images.rows) == ["hill.png", "snow.png", "wood.png"]
    photos.rename(tmp_path / "away")  # as a drive that is not connected
    paint(tmp_path / "trip" / "lake.png", "blue")
    state = index.vectors.state
    with pytest.raises(ValueError, match=r"none of the 3 pictures .* is the drive connected\?"):
        index.add(load_dataset(tmp_path / "trip"), prune=True)
    assert index.vectors.state == state


def test_all_pictures_of_a_folder_may_be_replaced(index, photos):
    for path in photos.iterdir():
        path.unlink()
    paint(photos / "hill.png", "red")
    assert index.add(load_dataset(photos), prune=True) == IndexUpdate(1, 0, 0, pruned=3)
    assert [*index.vectors.images.rows] == ["hill.png"]


def test_equal_pictures_are_one_result(photos, tmp_path):
    for name in ("snow-1.png", "snow-2.png", "a/snow.png"):
        (photos / name).parent.mkdir(exist_ok=True)
        shutil.copy(photos / "snow.png", photos / name)
    model = load_model(recipes_cases.pixel_model(tmp_path / "model"))
    index = build_index(model, load_dataset(photos), tmp_path / "x")
    hits = index.search("a white picture", 3)
    equal = {"a/snow.png", "snow-1.png", "snow-2.png", "snow.png"}
    groups = [{hit.id, *hit.same} for hit in hits]
    assert sorted(map(len, groups)) == [1, 1, 4]
    assert equal in groups
    assert [hit.rank for hit in hits] == [1, 2, 3]
    assert len(index.search("a white picture", 2)) == 2
    twin = index.search_id("snow.png", 1, find="images")[0]
    assert twin.id in equal - {"snow.png"}
    first = next(hit for hit in hits if hit.same)
    (photos / first.id).unlink()  # the result is one whose file is there
    again = next(hit for hit in index.search("a white picture", 3) if hit.same)
    assert again.id in first.same
    assert not again.missing


def test_unreadable_pictures_are_left_out_of_an_addition(index, photos, capsys):
    paint(photos / "hill.png", "red")
    (photos / "lake.png").write_bytes(b"no picture")
    (photos / "snow.png").write_bytes(b"damaged since")
    update = index.add(load_dataset(photos), skip_unreadable=True)
    assert update == IndexUpdate(1, 0, 2, damaged=1)
    assert "left out 2 unreadable pictures" in " ".join(capsys.readouterr().err.split())
    assert sorted(index.vectors.images.rows) == ["beach.png", "hill.png", "wood.png"]
    paint(photos / "snow.png", "white")  # as from a backup
    assert index.add(load_dataset(photos), skip_unreadable=True) == IndexUpdate(1, 0, 3)
    stands(index, "snow.png", photos / "snow.png")


def test_a_damaged_picture_goes_with_its_captions(index, photos):
    table = [{"image": name, "captions": [name]} for name in ("beach.png", "snow.png")]
    lines = "".join(f"{json.dumps(row)}\n" for row in table)
    (photos / "captions.jsonl").write_text(lines)
    index.add(load_dataset(photos))
    before = len(index.vectors.texts)
    (photos / "snow.png").write_bytes(b"damaged since")
    update = index.add(load_dataset(photos), skip_unreadable=True)
    assert (update.damaged, len(index.vectors.texts)) == (1, before - 1)
    assert {hit.image_id for hit in index.search("snow", 9)} == {"beach.png", "wood.png"}


def test_of_an_index_with_no_readable_picture_nothing_is_dropped(index, photos):
    for path in photos.iterdir():
        path.write_bytes(b"damaged since")
    with pytest.raises(ValueError, match=r"none of the 3 pictures of .* can be read any more"):
        index.add(load_dataset(photos), skip_unreadable=True)
    assert len(index.vectors.images) == 3


def test_an_entry_stays_whose_successor_cannot_be_read(index, photos, tmp_path):
    (tmp_path / "trip").mkdir()
    (tmp_path / "trip" / "beach.png").write_bytes(b"no picture")
    dataset = load_dataset(tmp_path / "trip")
    assert index.add(dataset, replace=True, skip_unreadable=True) == IndexUpdate(0, 0)
    stands(index, "beach.png", photos / "beach.png")


def test_an_index_inside_the_photos_is_not_indexed(photos, tmp_path):
    model = load_model(recipes_cases.pixel_model(tmp_path / "model"))
    build_index(model, load_dataset(photos), photos / "index").close()
    with open_index(photos / "index") as index:
        assert index.add(load_dataset(photos), prune=True) == IndexUpdate(0, 0, 3)


def test_a_picture_that_is_gone_does_not_make_room_for_another(index, photos, tmp_path):
    """Its disk may be out of reach for a while."""
    photos.rename(tmp_path / "away")
    paint(tmp_path / "trip" / "beach.png", "navy")
    with pytest.raises(ValueError, match="is another picture"):
        index.add(load_dataset(tmp_path / "trip"))


def test_a_known_picture_that_cannot_be_read_is_left_as_it_is(index, photos, tmp_path):
    dataset = load_dataset(photos)
    (photos / "beach.png").unlink()
    assert index.add(dataset) == IndexUpdate(0, 0, 3)


def aged(photos: Path, seconds: int) -> None:
    for path in photos.iterdir():
        os.utime(path, (time.time() - seconds,) * 2)


def test_files_as_old_and_large_as_they_were_are_not_read_again(photos, tmp_path, monkeypatch):
    aged(photos, 1000)
    model = load_model(recipes_cases.pixel_model(tmp_path / "model"))
    index = build_index(model, load_dataset(photos), tmp_path / "x")
    dataset, looked = load_dataset(photos), []

    def noting(dataset: ImageTextDataset, row: int) -> str:
        looked.append(row)
        return image_digest(dataset, row)

    monkeypatch.setattr(changes, "image_digest", noting)
    assert index.add(dataset) == IndexUpdate(0, 0, 3)
    assert looked == []
    aged(photos, 500)  # touched, and the same
    assert index.add(dataset) == IndexUpdate(0, 0, 3)
    assert looked == [0, 1, 2]
    paint(photos / "beach.png", "navy")
    assert index.add(dataset) == IndexUpdate(1, 0, 2, 1)
    stands(index, "beach.png", photos / "beach.png")


def test_one_file_in_the_place_of_another_is_read(photos, tmp_path):
    """As large and as old, under the same id, elsewhere."""
    paint(tmp_path / "trip" / "beach.png", "navy")
    for path in (tmp_path / "trip" / "beach.png", photos / "beach.png"):
        path.write_bytes(path.read_bytes().ljust(200, b"\0"))
        os.utime(path, (1000, 1000))
    model = load_model(recipes_cases.pixel_model(tmp_path / "model"))
    index = build_index(model, load_dataset(photos), tmp_path / "x")
    with pytest.raises(ValueError, match="is another picture"):
        index.add(load_dataset(tmp_path / "trip"))


def test_a_file_that_changed_just_now_has_no_stamp(photos):
    dataset = load_dataset(photos)
    aged(photos, 10)
    assert [file_stamp(dataset, row).split()[0] for row in range(3)] == [
        str(path.stat().st_size) for path in dataset.pictures.paths
    ]
    aged(photos, 0)
    assert {file_stamp(dataset, row) for row in range(3)} == {""}
    aged(photos, -1000)  # by a clock that is ahead
    assert {file_stamp(dataset, row) for row in range(3)} == {""}


def test_what_changes_while_it_is_encoded_is_looked_at_again(photos, tmp_path, monkeypatch):
    aged(photos, 1000)
    model = load_model(recipes_cases.pixel_model(tmp_path / "model"))
    encode, colours = encode_images, iter(["navy", "red"])

    def late(*given):
        found = encode(*given)
        paint(photos / "beach.png", next(colours))
        return found

    monkeypatch.setattr(index_module, "encode_images", late)
    index = build_index(model, load_dataset(photos), tmp_path / "x")
    monkeypatch.undo()
    assert index.add(load_dataset(photos)) == IndexUpdate(1, 0, 2, 1)
    stands(index, "beach.png", photos / "beach.png")


def test_what_nobody_noted_is_known_by_its_id(index, photos):
    row = index.vectors.images.rows.get("snow.png")
    old = IndexEntry("snow.png", place=str(photos / "snow.png"))
    index.vectors.change(images=NewVectors([old], vector(index, "snow.png")), remove_images=[row])
    paint(photos / "snow.png", "red")
    assert index.add(load_dataset(photos)) == IndexUpdate(0, 0, 3)


def drawn(seed: int) -> ImageTextDataset:
    return load_dataset(f"scenes:images=36,seed={seed}").subset(torch.arange(2))


def test_drawn_pictures_are_compared_and_exchanged_with_their_files(tmp_path):
    model = load_model(recipes_cases.pixel_model(tmp_path / "model"))
    index, other = build_index(model, drawn(0), tmp_path / "x"), drawn(0)
    other = replace(other, pictures=drawn(1).pictures)
    assert index.add(drawn(0)).images == 0
    with pytest.raises(ValueError, match=r"another picture .* \(2 images, 0 captions\)"):
        index.add(other)
    index.add(other, replace=True)
    assert len(list((tmp_path / "x" / IMAGE_FOLDER).iterdir())) == 2
    for row, name in enumerate(other.image_ids):
        shown = open_picture(index.image_path(name))
        assert shown.tobytes() == other.pictures.open(row).tobytes()


def test_pictures_that_nothing_names_are_removed_and_no_others(tmp_path, monkeypatch):
    model = load_model(recipes_cases.pixel_model(tmp_path / "model"))
    index, own = build_index(model, drawn(0), tmp_path / "x"), tmp_path / "x" / IMAGE_FOLDER
    kept = {path.name for path in own.iterdir()}
    left = ["00000007-0123abcd.png", ".00000008-0123abcd.png.xyz.part"]  # by a killed addition
    foreign = ["mine.png", "00000007.png"]
    for name in (*left, *foreign):
        (own / name).write_bytes(b"x")

    def full(*words, **more):
        raise OSError(28, "No space left on device")

    other = replace(drawn(1), image_ids=("a", "b"), text_ids=tuple(map(str, range(10))))
    with monkeypatch.context() as patch:
        patch.setattr(index.vectors, "change", full)
        with pytest.raises(OSError, match="No space"):
            index.add(other)
    assert {path.name for path in own.iterdir()} == {*kept, *foreign}
    index.delete([drawn(0).image_ids[0]])
    assert len([path for path in own.iterdir() if path.name in kept]) == 1


def test_links_are_not_followed(tmp_path):
    model = load_model(recipes_cases.pixel_model(tmp_path / "model"))
    index, own = build_index(model, drawn(0), tmp_path / "x"), tmp_path / "x" / IMAGE_FOLDER
    outside = own.rename(tmp_path / "elsewhere")
    own.symlink_to(outside)
    index.delete([drawn(0).image_ids[0]])
    assert len(list(outside.iterdir())) == 2
    other = replace(drawn(1), image_ids=("a", "b"), text_ids=tuple(map(str, range(10))))
    with pytest.raises(ValueError, match="is a link, which is not followed"):
        index.add(other)


def test_the_second_of_two_additions_is_refused_before_it_encodes(tmp_path, monkeypatch):
    model = load_model(recipes_cases.pixel_model(tmp_path / "model"))
    index, again = build_index(model, drawn(0), tmp_path / "x"), open_index(tmp_path / "x")
    monkeypatch.setattr(index_module, "_encode", lambda *_: pytest.fail("it encoded"))
    with index.vectors.writing(), pytest.raises(ValueError, match="is being written by process"):
        again.add(drawn(1))


def test_a_caption_of_another_image_is_not_taken_for_it(tmp_path):
    model, dataset = load_model(recipes_cases.pixel_model(tmp_path / "model")), drawn(0)
    index = build_index(model, dataset, tmp_path / "x")
    before = index.captions(dataset.image_ids[0])
    turned = replace(dataset, text_to_image=1 - dataset.text_to_image)
    with pytest.raises(ValueError, match=r"is another image's caption .* --exchange"):
        index.add(turned)
    assert index.captions(dataset.image_ids[0]) == before
    assert index.add(turned, replace=True) == IndexUpdate(0, len(dataset.texts), 2)
    assert index.captions(dataset.image_ids[1]) == before


def test_features_are_compared_where_there_are_no_pictures(tmp_path):
    values = torch.arange(12.0).view(2, 2, 3)
    dataset = replace(drawn(0), pictures=None, features=FeatureArray.of(values.numpy()))
    other = replace(dataset, features=FeatureArray.of((values + 1).numpy()))
    assert image_digest(dataset, 0) == image_digest(dataset, 0)
    assert len({image_digest(one, row) for one in (dataset, other) for row in (0, 1)}) == 4
    assert image_digest(replace(dataset, features=None), 0) == ""
