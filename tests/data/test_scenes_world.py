from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from numpy._core._multiarray_umath import __cpu_dispatch__ as simd

from counterfoil.data.scenes import graphs, scene, scenes
from counterfoil.data.scenes.render import PALETTE, draw
from counterfoil.data.scenes.truth import describe, is_true
from counterfoil.data.scenes.world import (
    AIR,
    APART,
    CLOSE,
    EDGE,
    FAMILY,
    HARDLY_APART,
    NOT_CLOSE,
    OPPOSITE,
    PATTERNS,
    RELATIONS,
    SHAPES,
    Scene,
    Thing,
    _normal,
    lay_out,
    meaning,
    relates,
    within,
)

SOME = [lay_out(3, split, number) for split in ("train", "test") for number in range(300)]


@pytest.fixture(scope="module")
def dataset():
    return scenes(images=240, seed=5, size=32, features="regions")


def test_scenes_and_captions_never_change():
    captions = "\n".join(f"{one}\n" + "\n".join(describe(one)) for one in SOME[:200])
    assert hashlib.sha256(captions.encode()).hexdigest()[:16] == "57d3ad719181444f"


def test_same_seed_same_corpus_and_another_seed_another(dataset):
    again = scenes(images=240, seed=5, size=32, features="regions")
    assert again.fingerprint == dataset.fingerprint
    assert scenes(images=240, seed=6).fingerprint != dataset.fingerprint
    rows = torch.arange(240)
    assert torch.equal(again.features.take(rows).values, dataset.features.take(rows).values)
    assert again.pictures.open(17).tobytes() == dataset.pictures.open(17).tobytes()


def test_nothing_overlaps_leaves_the_picture_or_stands_in_doubt():
    for one in SOME:
        for thing in one.things:
            for middle in (thing.x, thing.y):
                assert EDGE <= middle - thing.radius < middle + thing.radius <= 1000 - EDGE, one
        for a, b in combinations(one.things, 2):
            assert not within(a, b, AIR), one
            assert within(a, b, CLOSE) or not within(a, b, NOT_CLOSE), one
            for gap in (abs(a.x - b.x), abs(a.y - b.y)):
                assert not HARDLY_APART < gap < APART, one


def test_relations_turn_round_and_exclude_each_other():
    for one in SOME[:100]:
        for a, b in permutations(one.things, 2):
            for relation in RELATIONS:
                assert relates(relation, a, b) == relates(OPPOSITE[relation], b, a)
            assert not (relates("left of", a, b) and relates("right of", a, b))
            assert not (relates("above", a, b) and relates("below", a, b))


@pytest.mark.parametrize(
    "relation, x, y, wanted",
    [
        ("left of", 620, 500, True),
        ("left of", 619, 500, False),
        ("right of", 380, 900, True),
        ("right of", 381, 900, False),
        ("above", 0, 620, True),
        ("above", 0, 619, False),
        ("below", 500, 380, True),
        ("below", 500, 381, False),
        ("next to", 500, 760, True),
        ("next to", 500, 761, False),
    ],
)
def test_relations_hold_to_the_thousandth(relation, x, y, wanted):
    one = Thing("star", "red", "small", "plain", 500, 500, 100)
    assert relates(relation, one, replace(one, x=x, y=y)) is wanted


def test_a_family_shares_most_of_what_there_is():
    for start in range(0, 60, FAMILY):
        first, *rest = (lay_out(1, "train", start + step) for step in range(FAMILY))
        for other in rest:
            assert len(other.things) == len(first.things)
            same = sum(a.look == b.look for a, b in zip(first.things, other.things))
            assert same >= len(first.things) - 2


def test_no_two_scenes_of_any_split_mean_the_same(dataset):
    assert dataset.split_names == ("train", "dev", "test")
    assert [len(dataset.split(name)) for name in dataset.split_names] == [160, 40, 40]
    assert len({meaning(one) for one in graphs(dataset)}) == len(dataset)


def test_the_test_split_is_the_same_for_every_number_of_training_images(dataset):
    more = scenes(images=400, seed=5, dev=40, test=40).split("test", "dev")
    assert more.image_ids == dataset.split("test", "dev").image_ids
    assert more.texts == dataset.split("test", "dev").texts


def test_meaning_depends_on_everything_but_appearance_and_order():
    a = Thing("star", "red", "small", "plain", 200, 500, 100, turn=4)
    b = Thing("star", "red", "small", "plain", 700, 500, 100)
    c = Thing("moon", "red", "small", "plain", 450, 200, 100)
    one = Scene("one", (a, b, c))
    assert meaning(Scene("two", (c, replace(b, turn=9, x=720), a), 3)) == meaning(one)
    for other in (replace(c, y=800), replace(c, colour="blue"), replace(c, x=200)):
        assert meaning(Scene("two", (a, b, other))) != meaning(one)
    assert meaning(Scene("two", (a, c))) != meaning(one)


def test_scenes_with_one_meaning_are_told_alike_by_every_caption():
    captions = [caption for one in SOME[:60] for caption in describe(one)]
    by_meaning: dict[object, list[Scene]] = {}
    for number in range(1200):
        one = lay_out(11, "train", number)
        by_meaning.setdefault(meaning(one), []).append(one)
    twins = [group for group in by_meaning.values() if len(group) > 1]
    assert twins
    for group in twins[:20]:
        for caption in captions:
            assert len({is_true(caption, one) for one in group}) == 1


def test_graphs_follow_the_corpus_through_splits_and_subsets(dataset):
    part = dataset.split("dev").subset(torch.tensor([5, 0, 3]))
    for one, image_id, row in zip(graphs(part), part.image_ids, range(3)):
        assert one.id == image_id
        assert tuple(part.texts[5 * row : 5 * row + 5]) == describe(one)
        assert part.pictures.open(row).tobytes() == draw(one, 32).tobytes()


@pytest.mark.parametrize(
    "given",
    [
        "42",
        "scene-0-val-00001",
        "scene-0-train-1",
        "scene-a-test-00001",
        "scene-0-test-000001",
        "scene-00-test-00001",
    ],
)
def test_an_unknown_image_id_is_refused(given):
    with pytest.raises(ValueError, match=r"is no scene.*scene-0-train-00042"):
        scene(given)


@pytest.mark.parametrize(
    "settings",
    [
        {"images": 0},
        {"images": 10, "dev": 5, "test": 5},
        {"images": 10, "dev": -1},
        {"seed": -1},
        {"size": 0},
    ],
)
def test_impossible_numbers_are_refused(settings):
    with pytest.raises(ValueError, match=r"there cannot be .* give more images"):
        scenes(**settings)


def test_unknown_features_are_refused():
    with pytest.raises(ValueError, match=r"'grid'.*regions"):
        scenes(images=30, features="grid")


@pytest.mark.parametrize("size", [16, 64, 96, 256])
def test_a_thing_has_its_colour_in_the_middle(size):
    for colour, wanted in PALETTE.items():
        thing = Thing("square", colour, "big", "plain", 400, 600, 170)
        picture = draw(Scene("one", (thing,)), size)
        assert picture.size == (size, size)
        assert picture.mode == "RGB"
        assert picture.getpixel((round(0.4 * size), round(0.6 * size))) == wanted
        assert min(picture.getpixel((size - 1, 0))) > 220


def test_every_detail_shows_in_the_picture():
    thing = Thing("circle", "red", "big", "plain", 500, 500, 170)
    seen = {draw(Scene("one", (thing,)), 64).tobytes()}
    shapes = [{"shape": shape} for shape in SHAPES if shape != "circle"]
    patterns = [{"pattern": pattern} for pattern in PATTERNS if pattern != "plain"]
    others = [{"colour": "pink"}, {"radius": 100}, {"x": 400}]
    for change in (*shapes, *patterns, *others):
        seen.add(draw(Scene("one", (replace(thing, **change),)), 64).tobytes())
    assert len(seen) == 14


def test_cached_pixels_of_two_corpora_never_share_a_name(dataset):
    def places(other):
        return {other.pictures.place(row) for row in range(len(other))}

    assert len(places(dataset)) == len(dataset)
    assert places(dataset.split("dev")) < places(dataset)
    for other in (scenes(images=240, seed=6, size=32), scenes(images=240, seed=5, size=64)):
        assert not places(dataset) & places(other)


def test_regions_have_boxes_inside_the_picture(dataset):
    found = dataset.features.take(torch.arange(240))
    assert found.values.shape == (240, 12, 128)
    assert found.mask.any(1).all()
    real = found.boxes[found.mask]
    assert (real[:, :2] < real[:, 2:]).all()
    assert 0 <= real.min() <= real.max() <= 1


def test_regions_of_an_image_do_not_depend_on_the_corpus(dataset):
    other = scenes(images=90, seed=5, dev=5, test=40, features="regions").split("test")
    rows = torch.arange(40)
    mine = dataset.split("test").features.take(rows)
    assert torch.equal(mine.values, other.features.take(rows).values)
    assert torch.equal(mine.boxes, other.features.take(rows).boxes)


OLD_CPU = {  # without AVX: other kernels of BLAS, of torch, of numpy's logarithms and cosines
    "OPENBLAS_CORETYPE": "Prescott",
    "MKL_CBWR": "COMPATIBLE",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "ATEN_CPU_CAPABILITY": "default",
    "NPY_DISABLE_CPU_FEATURES": " ".join(simd),
}
PRINT_DIGESTS = """
import hashlib
import numpy as np
from counterfoil.data.scenes import scenes
from counterfoil.pipelines.pipeline import data_contents
corpus = scenes(images=60, features="regions")
digest = hashlib.sha256(corpus.features.values.tobytes() + corpus.features.boxes.tobytes())
print(digest.hexdigest(), corpus.fingerprint, data_contents(corpus))
rows = np.random.default_rng(0).standard_normal((64, 999)).astype(np.float32)
print((np.log(np.abs(rows)) @ rows.T).sum(dtype=np.float64).hex())
"""


@pytest.mark.slow
def test_features_are_the_same_under_other_kernels(capsys):
    command = [sys.executable, "-c", PRINT_DIGESTS]
    old = subprocess.run(
        command, env={**os.environ, **OLD_CPU}, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    exec(PRINT_DIGESTS, {})
    here = capsys.readouterr().out.splitlines()
    if here[1] == old[1]:  # printed, for a CPU that has no other kernels
        print("a float32 product is the same under both here, so this shows little")
    assert here[0] == old[0]


def test_features_never_change():
    dataset = scenes(images=60, features="regions")
    digest = hashlib.sha256(dataset.features.values.tobytes()).hexdigest()[:16]
    assert digest == "44b0dec85005d2a9"


def test_normal_draws_are_those_of_torch():
    ours = _normal(5, 128, torch.Generator().manual_seed(3))
    theirs = torch.randn(5, 128, generator=torch.Generator().manual_seed(3)).numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
