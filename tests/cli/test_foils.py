from __future__ import annotations

import html
import json

import numpy as np
import pytest
import torch

import foil_cases
from corpus_cases import random_array
from counterfoil.evaluation.foils.sets import open_foil_set
from counterfoil.model import load_model
from recipes_cases import run

SCENES = "scenes:images=36"


def bare(text: str) -> str:
    """Text without blanks, as a narrow terminal breaks it anywhere."""
    return "".join(text.split())


@pytest.fixture
def asked(capsys, tmp_path):
    """The numbers and the page; the protocol stands under each table of the terminal."""

    def asked(*words: object):
        out, page = tmp_path / "numbers.json", tmp_path / "page.html"
        for path in (out, page):  # of the call before; the verb overwrites nothing
            path.unlink(missing_ok=True)
        capsys.readouterr()
        code = run("foils", *words, "--json", out, "--output", page)
        shown = capsys.readouterr()
        assert code == 0, shown.err
        plain = json.loads(out.read_text())
        text = html.unescape(page.read_text())
        tables = len({line["measure"] for line in plain["lines"]})
        assert bare(shown.out).count(bare(plain["protocol"])) == tables > 0
        assert plain["protocol"] in text
        return plain, text

    return asked


def test_numbers_are_those_of_the_scores(models, asked):
    plain, page = asked(models / "pixels", SCENES)
    model = load_model(models / "pixels")
    foils = open_foil_set([SCENES])
    assert len(plain["items"]) == len(foils)
    right = 0
    for item, told in zip(foils.items, plain["items"]):
        picture = foils.dataset.pictures.open(item.images[0])
        scores = model.score(picture, told["captions"])
        torch.testing.assert_close(torch.tensor(told["scores"]), scores, atol=1e-5, rtol=0)
        assert told["captions"] == [foils.dataset.texts[row] for row in item.texts]
        right += told["scores"][0] > told["scores"][1]
    whole = next(line for line in plain["lines"] if line["of"] == "all items")
    assert whole["value"] == pytest.approx(100 * right / len(foils))
    assert whole["interval"]["low"] <= whole["value"] <= whole["interval"]["high"]
    assert plain["protocol"].startswith(
        f"foils of scenes test: {len(foils)} items, 6 pictures; ties wrong; "
        "single model, score: cosine; seed 0; 95 %"
    )
    assert page.count('class="card retrieval"') == 12
    assert "data:image/" in page
    worst = min(plain["items"], key=lambda told: told["margin"])
    true, foil = worst["scores"]
    assert worst["margin"] == pytest.approx(true - foil)
    first = page[page.index('class="card retrieval"') :]
    assert worst["id"] in first[: first.index("</article>")]


def test_the_blind_model_learns_nothing_of_the_set(models, asked, tmp_path):
    foils = open_foil_set([SCENES])
    captions = tmp_path / "captions.txt"
    others = ["a red circle", "a blue star left of a heart", ""]
    captions.write_text("\n".join([*others, *foils.dataset.texts[:7]]) + "\n")
    plain, page = asked(models / "pixels", SCENES, "--blind", captions)
    assert "3-gram model of 2 captions" in plain["protocol"]
    assert "7 of the set left out" in plain["protocol"]
    assert len(plain["blind"]) == len(plain["lines"])
    assert "blind" in page
    alone = asked("blind", SCENES, "--blind", captions)[0]
    for line, guess in zip(alone["lines"], plain["blind"]):
        assert line["value"] == guess["value"]
    assert alone["blind"] == []


def test_blind_alone_needs_no_pictures(asked, tmp_path):
    rows = [
        {"image": f"{n}", "caption": f"a dog in the snow {n}", "foil": f"snow {n} the dog a in"}
        for n in range(20)
    ]
    source = foil_cases.dump(tmp_path / "pairs.json", rows)
    captions = tmp_path / "captions.txt"
    captions.write_text("a dog in the snow\na dog in the rain\n")
    plain, page = asked("blind", source, "--blind", captions)
    assert plain["lines"][0]["value"] == 100
    assert "the blind model alone" in plain["protocol"]
    assert page.count('class="card retrieval"') == 12


def test_a_blind_model_above_chance_marks_the_set(models, asked, tmp_path):
    source = foil_cases.sugarcrepe(tmp_path / "s")
    captions = tmp_path / "captions.txt"
    captions.write_text("a red dog in the snow\na red dog 0 in the snow\na red dog in the park\n")
    plain, page = asked(models / "pixels", source, "--blind", captions)
    assert all(line["suspicious"] for line in plain["blind"])
    assert "!: suspicious: the blind model is surely more than 10 points above chance" in page
    assert "100.0 !" in page


def test_sugarcrepe_twice_and_its_weights_on_page_and_terminal(models, asked, tmp_path):
    plain, page = asked(models / "pixels", foil_cases.sugarcrepe_twice(tmp_path / "set"))
    lines = {(line["measure"], line["of"]): line for line in plain["lines"]}
    assert {measure for measure, _ in lines} == {"ITT", "TOT", "pairwise"}
    items = plain["items"]
    right = [min(i["scores"][:2]) > i["scores"][2] for i in items]
    assert lines["ITT", "all items"]["value"] == pytest.approx(100 * sum(right) / len(items))
    alike = [i["cosines"][0] > max(i["cosines"][1:]) for i in items]
    assert lines["TOT", "all items"]["value"] == pytest.approx(100 * sum(alike) / len(items))
    model = load_model(models / "pixels")
    vectors = torch.nn.functional.normalize(torch.tensor(model.encode_texts(items[0]["captions"])))
    cosines = [float(vectors[a] @ vectors[b]) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert items[0]["cosines"] == pytest.approx(cosines, abs=1e-5)
    assert lines["ITT", "swap_obj"]["chance"] == pytest.approx(100 / 3)
    assert lines["ITT", "mean of 2 kinds"]["weights"] == {"replace_att": 0.5, "swap_obj": 0.5}
    assert "swap_obj *" in page
    assert "all items *" not in page
    assert "of a kind in all items and in the mean over kinds" in page
    assert "both true captions score above the foil" in page


@pytest.mark.parametrize("form", ["aro-relation", "valse", "vsr", "bivlc"])
def test_every_form_from_end_to_end(form, models, asked, tmp_path):
    source = foil_cases.WRITERS[form](tmp_path / "set")
    plain, page = asked(models / "pixels", f"{source}:images={tmp_path / 'set' / 'images'}")
    assert plain["form"] == form
    assert plain["lines"]
    assert "data:image/" in page
    judged = form in ("vsr", "valse")
    assert ("thresholds chosen on one half" in plain["protocol"]) == judged


def test_winoground_has_no_blind_column(models, asked, tmp_path):
    source = foil_cases.winoground(tmp_path / "set")
    blind = ("--blind", "scenes:images=36")
    plain, page = asked(models / "pixels", source, *blind)
    assert plain["blind"] == []
    assert {line["measure"] for line in plain["lines"]} == {"text", "image", "group"}
    assert page.count('class="card retrieval"') == 6  # a card for each picture


def test_region_features_and_ensembles(models, asked, tmp_path):
    source = foil_cases.sugarcrepe(tmp_path / "set")
    folder = tmp_path / "regions"
    folder.mkdir()
    np.save(folder / "features.npy", random_array(3, 2, 4))
    (folder / "features.json").write_text(json.dumps({"ids": list(foil_cases.COCO)}))
    names = (f"{models / 'regions'}+{models / 'pixels'}", models / "regions", models / "pixels")
    both, *single = (asked(name, f"{source}:features={folder}")[0] for name in names)
    assert "ensemble of 2 by mean score" in both["protocol"]
    for mean, one, other in zip(both["items"], single[0]["items"], single[1]["items"]):
        means = [(a + b) / 2 for a, b in zip(one["scores"], other["scores"])]
        assert mean["scores"] == pytest.approx(means, abs=1e-6)
