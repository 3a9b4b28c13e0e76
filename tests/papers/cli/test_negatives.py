"""``counterfoil negatives``, ``judge`` and ``diagnose``."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

import recipes_cases
from corpus_cases import karpathy_image, random_array, write_karpathy
from counterfoil.data.corrections import read_corrections
from counterfoil.data.readers import load_dataset
from counterfoil.data.scenes import graphs
from counterfoil.data.scenes.truth import is_true
from counterfoil.model import load_model
from counterfoil.negatives.store import NegativeStore
from recipes_cases import run

SCENES = "scenes:images=36"


def opened(folder):
    return NegativeStore.open(folder, fingerprint=load_dataset(SCENES).split("train").fingerprint)


@pytest.fixture
def negatives(printed):
    return lambda *words: printed("papers", *words, "--data", SCENES)


def test_lists_go_to_aoqs_files_and_come_back(models, negatives, tmp_path):
    lists = opened(models / "run/lists").lists
    shown = negatives("export-lists", models / "run/lists", "--output", tmp_path / "aoq")
    assert "20 texts of each of 24 images and 5 images of each of 120 texts" in shown
    assert "reads 300 texts and 60 images" in shown
    assert np.load(tmp_path / "aoq/i2t_scenes.npy").shape == (24, 20)
    assert np.load(tmp_path / "aoq/t2i_scenes.npy").dtype == np.int32
    assert "from" in negatives("import-lists", tmp_path / "aoq", "--output", tmp_path / "lists")
    again = opened(tmp_path / "lists")
    assert torch.equal(again.lists.texts, lists.texts)
    assert torch.equal(again.lists.images, lists.images)
    assert again.manifest.sources == ()
    assert not again.manifest.scored


def test_exported_lists_are_cut_and_named_as_asked(models, negatives, tmp_path):
    asked = ("--texts-per-image", "7", "--images-per-text", "3", "--name", "f30k")
    negatives("export-lists", models / "run/lists", "--output", tmp_path, *asked)
    lists = opened(models / "run/lists").lists
    assert np.array_equal(np.load(tmp_path / "i2t_f30k.npy"), lists.texts[:, :7])
    assert np.array_equal(np.load(tmp_path / "t2i_f30k.npy"), lists.images[:, :3])
    negatives("export-lists", models / "run/lists", "--output", tmp_path, "--name", "coco")
    negatives("import-lists", tmp_path, "--output", tmp_path / "lists", "--name", "f30k")
    assert opened(tmp_path / "lists").lists.texts.shape == (24, 7)


def test_the_released_depths_are_the_default():
    import typer.main

    from counterfoil.cli import application

    group = typer.main.get_command(application()).commands["papers"]
    found = {p.name: p.default for p in group.commands["export-lists"].params}
    assert (found["texts"], found["hard_images"]) == (2000, 400)


def pairs_of(lists):
    """All pairs of lists, by rows."""
    texts = {(image, text) for image, row in enumerate(lists.texts.tolist()) for text in row}
    images = {(image, text) for text, row in enumerate(lists.images.tolist()) for image in row}
    return texts | images


def test_lists_are_judged_and_mined_again_without_the_pairs(models, printed, capsys, tmp_path):
    file = tmp_path / "corrections.jsonl"
    lists = ("--negatives", models / "run/lists")
    shown = printed("judge", models / "run/online", *lists, "--data", SCENES, "--output", file)
    assert str(file) in shown
    corrections = read_corrections(file)
    plain = load_dataset(SCENES).split("train")
    mined = NegativeStore.open(models / "run/lists", fingerprint=plain.fingerprint).lists
    images = {name: row for row, name in enumerate(plain.image_ids)}
    texts = {name: row for row, name in enumerate(plain.text_ids)}
    judged = [(images[one.image], texts[one.caption]) for one in corrections]
    assert len(set(judged)) == len(judged)
    assert set(judged) <= pairs_of(mined)
    assert {one.do for one in corrections} == {"true", "drop"}
    promoted = [one for one in corrections if one.do == "true"]
    assert f"{len(pairs_of(mined)):,} pairs judged" in shown
    assert f"{len(promoted):,} promoted" in shown
    assert all(one.was == plain.texts[texts[one.caption]] for one in corrections)
    data = load_dataset(SCENES, corrections=file).split("train")
    assert len(data.extra_positives.image) == len(promoted)
    assert len(data.ambiguous.image) == len(corrections) - len(promoted)
    again = tmp_path / "lists"
    words = ("--texts-per-image", 20, "--images-per-text", 5, "--output", again)
    corrected = f"{SCENES},corrections={file}"
    printed("mine", models / "run/online", "--data", corrected, *words)
    left = NegativeStore.open(again, fingerprint=data.fingerprint).lists
    assert not pairs_of(left) & set(judged)
    # the old lists are not those of the corrected data
    words = ("--data", corrected, "--output", tmp_path / "more.jsonl")
    assert run("judge", models / "run/online", *lists, *words) == 2
    assert "with the same corrections" in " ".join(capsys.readouterr().err.split())


def test_earlier_corrections_are_written_again_and_honoured(models, printed, tmp_path):
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    name, text = next(zip(load_dataset(SCENES).text_ids, load_dataset(SCENES).texts))
    earlier = {"do": "fix", "caption": name, "text": "A blue star.", "was": text}
    first.write_text(json.dumps(earlier) + "\n")
    lists = tmp_path / "lists"
    common = ("--data", f"{SCENES},corrections={first}")
    short = ("--texts-per-image", 5, "--images-per-text", 2)
    printed("mine", models / "run/online", *common, *short, "--output", lists)
    asked = (models / "run/online", "--negatives", lists, *common, "--output", second)
    assert "with 1 earlier corrections" in printed("judge", *asked)
    lines = [json.loads(line) for line in second.read_text().splitlines()]
    assert lines[0] == earlier
    assert len(lines) > 1
    both = load_dataset(SCENES, corrections=second)
    assert both.texts[0] == "A blue star."
    assert both.corrections.startswith("1 caption rewritten, ")
    assert torch.equal(both.text_to_image, load_dataset(SCENES).text_to_image)


@pytest.fixture
def told(capsys, tmp_path):
    """What a diagnosis printed, its numbers and its page."""

    def told(store: object, *words: object, data: object = SCENES):
        page, out = tmp_path / "page.html", tmp_path / "numbers.json"
        capsys.readouterr()
        code = run("diagnose", store, "--data", data, "--output", page, "--json", out, *words)
        shown = capsys.readouterr()
        assert code == 0, shown.err
        return " ".join(shown.out.split()), json.loads(out.read_text()), page.read_text()

    return told


def test_the_numbers_are_those_of_the_lists(models, told):
    name = models / "run/online"
    shown, plain, page = told(models / "run/lists", "--model", name)
    dataset = load_dataset(SCENES).split("train")
    lists = NegativeStore.open(models / "run/lists", fingerprint=dataset.fingerprint).lists
    member = load_model(name).embed(dataset)
    grid = member.model.score_matrix(member.images, member.texts).detach()
    anchors = torch.arange(120)
    negative = grid[
        dataset.text_to_image[anchors].unsqueeze(1), lists.texts[dataset.text_to_image].long()
    ]
    gaps = negative - grid[dataset.text_to_image, anchors].unsqueeze(1)
    whole = plain["wrong texts of images"]["ranks"][-1]
    assert whole["pairs"] == 120 * 20
    assert whole["gap"] == pytest.approx(gaps.median().item(), abs=2e-3)
    share = 100 * (gaps >= 0).float().mean().item()
    assert whole["suspected"]["above positive"] == pytest.approx(share, abs=0.5)
    shown_scenes = graphs(dataset)
    true = [
        is_true(dataset.texts[t], shown_scenes[int(dataset.text_to_image[a])])
        for a in anchors.tolist()
        for t in lists.texts[dataset.text_to_image[a]].tolist()
    ]
    assert whole["suspected"]["true"] == pytest.approx(100 * sum(true) / len(true))
    assert "120 captions looked at, drawn with seed 0" in shown
    assert (
        f"scores of {name} (single model, score: cosine, trained with seed 0), in lists as kept"
        in shown
    )
    assert "To reproduce" in page
    assert page.count('class="card retrieval"') == 12
    assert "Wrong images of texts" in page
    assert "data:image/" in page


def test_another_models_scores_are_computed(models, told):
    shown, plain, _ = told(models / "run/lists", "--model", models / "pixels")
    assert "as kept" not in shown
    assert plain["models"] == [str(models / "pixels")]
    dataset = load_dataset(SCENES).split("train")
    lists = NegativeStore.open(models / "run/lists", fingerprint=dataset.fingerprint).lists
    member = load_model(models / "pixels").embed(dataset)
    grid = member.model.score_matrix(member.images, member.texts).detach()
    found = grid[lists.images.long(), torch.arange(120).unsqueeze(1)]
    gaps = found - grid[dataset.text_to_image, torch.arange(120)].unsqueeze(1)
    whole = plain["wrong images of texts"]["ranks"][-1]
    assert whole["gap"] == pytest.approx(gaps.median().item(), abs=1e-5)


def test_without_a_model_scores_are_not_compared(models, told):
    shown, plain, page = told(models / "run/lists", "--set", "samples=30")
    assert "no model, so no score of a true pair" in shown
    assert "30 captions" in shown
    assert "median gap" not in shown
    assert "above positive" not in plain["wrong texts of images"]["estimates"]
    assert page.count('class="card retrieval"') == 12
    assert not re.search(r"\bnan\b", page)


def test_lists_without_scores_pictures_or_captions(told, tmp_path, capsys):
    """Ready-made vectors: nothing to read and nothing to see."""
    np.save(tmp_path / "images.npy", random_array(6, 8))
    np.save(tmp_path / "texts.npy", random_array(12, 8))
    lists = ("--texts-per-image", "4", "--images-per-text", "2")
    where = ("--split", "all", "--output", tmp_path / "lists")
    assert run("mine", "vectors", "--data", tmp_path, *where, *lists) == 0
    _, plain, page = told(tmp_path / "lists", "--model", "vectors", data=tmp_path)
    assert list(plain["wrong texts of images"]["estimates"]) == ["above positive"]
    assert plain["wrong texts of images"]["hubs"]["first"] == 4
    assert page.count('class="card retrieval"') > 2


def test_captions_are_escaped(models, told, tmp_path):
    split = ["train", "train", "dev", "test"]
    images = [
        karpathy_image(
            f"{n}.png", split[n % 4], [f"<b>[red]dog</b> {n}", f"[red]snow {n}"], first=2 * n
        )
        for n in range(12)
    ]
    write_karpathy(tmp_path / "photos", images)
    recipes_cases.pixel_model(tmp_path / "model")
    out = ("--data", tmp_path / "photos", "--output", tmp_path / "lists", "--texts-per-image", "4")
    assert run("mine", tmp_path / "model", *out, "--images-per-text", "2") == 0
    shown, _, page = told(tmp_path / "lists", data=tmp_path / "photos")
    assert "<b>[red]dog" not in page
    assert "&lt;b&gt;[red]dog" in page
    assert "[red]" in shown
