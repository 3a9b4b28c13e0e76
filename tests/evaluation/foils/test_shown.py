"""Foils of scenes with pictures of their own: exact truth, files, and the group score."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
import torch

from counterfoil.data.scenes import graphs, scenes
from counterfoil.data.scenes.shown import foil_scene
from counterfoil.data.scenes.truth import foils, foils_by_kind, is_true
from counterfoil.data.scenes.world import Scene, Thing, is_clear, meaning
from counterfoil.evaluation.foils import shown
from counterfoil.evaluation.foils.measures import foil_pairs, measure_foils
from counterfoil.evaluation.foils.sets import open_foil_set
from recipes_cases import run

DATA = scenes(images=30, features="regions").split("test")


def some_foils(dataset):
    rng = torch.Generator().manual_seed(0)
    for row, caption in enumerate(dataset.texts):
        scene = graphs(dataset)[int(dataset.text_to_image[row])]
        for foil in foils_by_kind(caption, scene, rng):
            yield caption, foil, scene


def test_of_each_picture_one_caption_is_true():
    kinds = Counter()
    for caption, foil, scene in some_foils(DATA):
        other = foil_scene(caption, foil.caption, scene)
        assert other == foil_scene(caption, foil.caption, scene)
        truth = [is_true(text, one) for one in (scene, other) for text in (caption, foil.caption)]
        assert truth == [True, False, False, True], (caption, foil.caption, str(other))
        assert 2 <= len(other.things) <= 4
        assert all(is_clear(thing, other.things[:at]) for at, thing in enumerate(other.things))
        assert meaning(other) != meaning(scene)
        kinds[foil.kind] += 1
    assert kinds.keys() >= {"colour", "object", "pattern", "relation", "size", "swap"}


def test_an_attribute_changes_alone():
    same = []
    for caption, foil, scene in some_foils(DATA):
        if foil.kind == "colour":
            other = foil_scene(caption, foil.caption, scene)
            same.append(len(set(other.things) ^ set(scene.things)) == 2)
    assert sum(same) > 0.9 * len(same)


def test_number_is_shown_by_things_that_come():
    star = Thing("star", "red", "small", "plain", 300, 300, 100)
    scene = Scene("two", (star, Thing("star", "blue", "small", "plain", 700, 700, 100)))
    other = foil_scene("Two stars.", "Four stars.", scene)
    assert [thing.shape for thing in other.things] == ["star"] * 4


def test_what_cannot_be_shown_is_none_and_other_words_are_refused():
    two = (
        Thing("circle", "red", "small", "plain", 300, 300, 100),
        Thing("star", "blue", "small", "plain", 700, 700, 100),
    )
    assert foil_scene("A circle.", "Six circles.", Scene("no room", two)) is None
    assert foil_scene("A shape.", "A circle.", Scene("follows", two)) is None
    with pytest.raises(ValueError, match="outside the grammar of scenes"):
        foil_scene("A circle.", "A dog.", Scene("dog", two))


def test_the_first_foils_differ_in_kind():
    caption, scene = DATA.texts[3], graphs(DATA)[0]
    found = foils(caption, scene, torch.Generator().manual_seed(3))
    first = list(foils_by_kind(caption, scene, torch.Generator().manual_seed(3)))
    assert first == found[: len(first)]
    assert len({foil.kind for foil in found}) == len(first) == len({f.kind for f in first})


@pytest.fixture
def written(tmp_path, capsys):
    folder = tmp_path / "foils"
    words = ("scenes:images=30,features=regions", "--output", folder, "--most", "2")
    assert run("data", "foils", *words) == 0
    return folder, capsys.readouterr().out


def test_the_verb_writes_what_the_reader_of_bivlc_reads(written):
    folder, said = written
    rows = [json.loads(line) for line in (folder / shown.ROWS).read_text().splitlines()]
    assert f"{len(rows)} foils with their pictures" in said
    counts = Counter(row["type"] for row in rows)
    assert {f"{kind} {count}" for kind, count in counts.items()} <= set(
        re.findall(r"\w+ \d+", said)
    )
    found = open_foil_set([str(folder)], features=folder / "features")
    assert (found.form, found.published, len(found)) == ("bivlc", False, len(rows))
    assert found.dataset.pictures.open(0).size == (64, 64)
    by_name = {one: row for row, one in enumerate(DATA.image_ids)}
    for row, (item, line) in enumerate(zip(found.items, rows, strict=True)):
        names = [found.dataset.image_ids[image] for image in item.images]
        assert names == [line["image"], line["negative_image"]]
        drawn = DATA.pictures.open(by_name[names[0].removesuffix(".png")])
        stored = [found.dataset.pictures.open(image) for image in item.images]
        assert drawn.tobytes() == stored[0].tobytes() != stored[1].tobytes()
        if row < 20:  # features of the scene are those of the data set
            ours = DATA.features.take(torch.tensor([by_name[names[0].removesuffix(".png")]]))
            theirs = found.dataset.features.take(torch.tensor([item.images[0]]))
            assert torch.equal(ours.values, theirs.values)


def test_an_existing_folder_and_photos_are_refused(written, capsys, tmp_path):
    folder, _ = written
    before = sorted(folder.rglob("*"))
    assert run("data", "foils", "scenes:images=30", "--output", folder) == 2
    assert "exists and is left alone" in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before


def test_who_knows_the_truth_gets_every_group(written):
    """And who reads the captions alone, or sees the pictures alone, none."""
    folder, _ = written
    found = open_foil_set([str(folder)])
    truth = [[1.0, 0.0], [0.0, 1.0]]
    reader, viewer = [[1.0, 0.0], [1.0, 0.0]], [[1.0, 1.0], [0.0, 0.0]]
    pairs = [side.tolist() for side in foil_pairs(found)]
    for table, group in ((truth, 100.0), (reader, 0.0), (viewer, 0.0)):
        known = {}
        for item in found.items:
            for at, image in enumerate(item.images):
                for text, row in enumerate(item.texts):
                    known[image, row] = table[at][text]
        scores = [known[pair] for pair in zip(*pairs, strict=True)]
        lines = {
            (line.measure, line.of): line for line in measure_foils(found, torch.tensor(scores))
        }
        assert lines["group", "all items"].value == group
        chances = [lines[name, "all items"].chance for name in ("I2T", "T2I", "group")]
        assert chances == pytest.approx([25, 25, 50 / 3])
