"""What an audit finds in data with planted faults, and that its decisions are honoured."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from corpus_cases import random_array, write_picture
from counterfoil import audit
from counterfoil.cli import audit as verb
from counterfoil.data.corrections import CORRECTIONS_FILE
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
from counterfoil.saved import SavedModelCard
from recipes_cases import pixel_model, run

SCENES = "scenes:images=36"


def photos(folder: Path) -> Path:
    """Twelve pictures, the last a copy of the first in another split, and odd captions."""
    lines = []
    for number in range(12):
        write_picture(folder / f"{number}.png", seed=number)
        captions = [f"picture {number}", f"<b>dog</b> {number} & more"]
        split = ("train", "train", "dev", "test")[number % 4]
        lines.append({"image": f"{number}.png", "captions": captions, "split": split})
    with Image.open(folder / "0.png") as first:
        first.resize((first.width * 2, first.height * 2)).save(folder / "11.png")
    lines[2]["captions"] = ["two dogs", " ", "Two  dogs."]
    lines[5]["captions"] = ["two dogs"]
    (folder / "captions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def audited(tmp_path, capsys):
    """The numbers, the page and what was printed of an audit."""

    def audited(data: object, *words: object, name: str = "audit"):
        out = tmp_path / name
        code = run("audit", data, "--output", out, *words)
        shown = capsys.readouterr()
        assert code == 0, shown.err
        page = (out / "audit.html").read_text()
        return json.loads((out / "audit.json").read_text()), page, shown.out

    return audited


def of(plain, kind):
    return [find["items"] for find in plain["found"][kind]["finds"]]


def test_what_was_planted_is_found_without_a_model(tmp_path, audited):
    plain, page, shown = audited(photos(tmp_path / "photos"))
    (leak,) = of(plain, "leaked")
    assert {item["image"] for item in leak} == {"0.png", "11.png"}
    assert leak[0]["was"] == "picture 0"
    assert leak[0]["measure"] > 0.97
    assert plain["found"]["repeated-images"]["found"] == 0
    ((empty,),) = of(plain, "empty")
    assert (empty["caption"], empty["was"].strip()) == ("2.png#1", "")
    (same,) = of(plain, "repeated-captions")
    assert [item["caption"] for item in same] == ["2.png#0", "2.png#2", "5.png#0"]
    assert "twice of this image" in same[0]["note"]
    assert "twice" not in same[2]["note"]
    assert "<b>dog" not in page
    assert page.count("<script") == page.count("</script>") == 2
    assert 'src="http' not in page
    assert "no model was used" in " ".join(shown.split())


def test_a_model_that_finds_most_captions_odd_is_said_to_be_too_weak(tmp_path, audited):
    model = pixel_model(tmp_path / "untrained")
    plain, page, _ = audited("scenes:images=60", "--model", model)
    found = plain["found"]["suspicious"]
    said = f"odd to {model}, more than can be wrong: it is too weak to find wrong ones here"
    assert found["found"] > 0.2 * 300
    assert said in found["note"]
    assert "too weak to find wrong ones here" in page


def test_a_model_that_was_trained_on_the_captions_takes_wrong_ones_for_right(
    tmp_path, monkeypatch, capsys
):
    """The page says so, too, and the commands that it names judge all by models that are new."""
    monkeypatch.chdir(tmp_path)
    data = "scenes:images=40,features=regions"
    train = ("train", "vsepp", "--data", data, "--output", "run")
    small = ("--epochs", 1, "--set", "*.batch=16")
    assert run(*train, *small) == 0
    said = "was trained on captions of scenes, and takes wrong ones among them for right"
    for split, told in (("all", True), ("test", False)):
        capsys.readouterr()
        options = ("--model", "run", "--split", split, "--output", split)
        assert run("audit", data, *options) == 0
        shown = capsys.readouterr()
        assert (said in " ".join(shown.err.split())) == told
        assert (said in Path(split, "audit.html").read_text()) == told
        plain = json.loads(Path(split, "audit.json").read_text())
        assert bool(plain["known"]) == bool(plain["again"]) == told
        assert all((command in shown.out) for command in plain["again"])
        assert ("counterfoil train" in shown.out) == told
    again = json.loads(Path("all", "audit.json").read_text())["again"]
    assert len(again) == 4
    assert again[1] == (
        f"counterfoil audit {data},half=1 --model all-half-1 --split test --output all-of-half-2"
    )
    for command in again:
        words = shlex.split(command)[1:]
        assert run(*words, *(small if words[0] == "train" else ())) == 0, command
        assert said not in " ".join(capsys.readouterr().err.split())
    more = ("--model", "run", "--output", "changed")
    assert run("audit", "scenes:images=44,features=regions", *more) == 0
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("contrastive-lora-own", ["contrastive", "--model", "CLIP", "--tune", "lora"]),
        ("aoq/gpo-own", ["aoq/gpo"]),
        ("demo", ["LOSS_OR_MODEL"]),  # it is not known from which command
    ],
)
def test_the_training_of_an_audited_model(recipe, words, tmp_path, models):
    model = load_model(models / "clip")
    card = SavedModelCard(model=model.spec, provenance={"recipe": recipe})
    known = [str(models / "clip") if word == "CLIP" else word for word in words]
    assert verb._training(replace(model, card=card)) == ["train", *known]


def test_pictures_that_cannot_be_read_are_found_and_the_rest_goes_on(tmp_path, audited):
    folder = photos(tmp_path / "photos")
    (folder / "4.png").write_bytes(b"no picture")
    plain, _, _ = audited(folder)
    ((broken,),) = of(plain, "unreadable")
    assert broken["image"] == "4.png"
    assert "cannot be read as a picture" in broken["note"]
    assert len(of(plain, "leaked")) == 1
    shown = audit._Display(load_dataset(folder), top=5)
    assert shown.image(4).picture is None
    assert shown.image(3).picture is not None
    decision = {"do": "drop", "image": "4.png", "was": broken["was"]}
    (folder / CORRECTIONS_FILE).write_text(json.dumps(decision) + "\n")
    again, page, _ = audited(folder, name="again")
    assert "unreadable" not in again["found"]
    assert again["decided"] == [decision]
    assert '"image": "4.png"' in page, "the page saves it again"


def test_every_find_can_be_decided_on(tmp_path, audited):
    folder = photos(tmp_path / "photos")
    plain, _, _ = audited(folder)
    lines = [
        {"do": "drop", **{key: item[key] for key in ("image", "caption", "was") if key in item}}
        for kind in plain["found"]
        for items in of(plain, kind)
        for item in items
    ]
    (folder / CORRECTIONS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    left = load_dataset(folder)
    assert "0.png" not in left.image_ids
    assert "two dogs" not in left.texts
    plain, _, _ = audited(folder, name="again")
    assert all(part["found"] == 0 for part in plain["found"].values())


def test_models_rank_captions_explain_words_and_judge_negatives(models, audited, tmp_path):
    plain, page, _ = audited(
        SCENES, "--model", models / "run/online", "--explainer", models / "run/online",
        "--negatives", models / "run/lists", "--set", "top=5",
    )  # fmt: skip
    worst = plain["found"]["suspicious"]
    assert worst["shown"] == len(worst["finds"]) == 5 <= worst["found"]
    shares = [items[0]["measure"] for items in of(plain, "suspicious")]
    assert shares == sorted(shares, reverse=True)
    assert 'class="word' in page
    doubtful = plain["found"]["false-negatives"]
    assert sum(len(find["items"]) for find in doubtful["finds"]) == doubtful["shown"] == 5
    folder = tmp_path / "decided.jsonl"
    item = doubtful["finds"][0]["items"][0]
    line = {"do": "true", **{key: item[key] for key in ("image", "caption", "was")}}
    folder.write_text(json.dumps(line) + "\n")
    told = load_dataset(SCENES, corrections=folder).split("train").extra_positives
    assert told is not None
    assert len(told.image) == 1


def test_negatives_are_judged_by_words_alone_without_a_model(models, audited):
    plain, _, _ = audited(SCENES, "--negatives", models / "run/lists", "--set", "alike=0.5")
    items = [item for items in of(plain, "false-negatives") for item in items]
    assert items
    assert all(item["measure"] is None for item in items)


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (("--split", "tst", "--model", "vectors"), "'tst'"),
        (("--explainer", "vectors"), "it ranks no captions alone"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_pictures_are_opened(
    tmp_path, capsys, monkeypatch, more, complaint
):
    monkeypatch.setattr("counterfoil.audit._unreadable_images", pytest.fail)
    assert run("audit", SCENES, "--output", tmp_path / "audit", *more) == 2
    assert complaint in " ".join(capsys.readouterr().err.split())


def test_captions_that_are_vectors_cannot_be_fixed(tmp_path, audited):
    np.save(tmp_path / "images.npy", random_array(6, 8))
    np.save(tmp_path / "texts.npy", -random_array(6, 8))
    plain, page, _ = audited(tmp_path, "--model", "vectors")
    assert plain["found"]["suspicious"]["found"] > 0
    assert '<button type="button" data-do="drop"' in page
    assert '<button type="button" data-do="fix"' not in page
    assert "empty" not in plain["found"]
