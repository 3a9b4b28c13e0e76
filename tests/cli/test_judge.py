from __future__ import annotations

import base64
import csv
import html
import io
import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image

from analysis_cases import SCENES
from counterfoil import open_corpus
from counterfoil.corpus.pictures import open_picture
from counterfoil.evaluate.agreement import agreements, wilson
from counterfoil.negatives.written_store import WrittenStore
from recipes_cases import run

MANY = 5
PLACE = {"true": 0, "false": 1, "unsure": 2, "": -1}


@pytest.fixture
def stores(tmp_path, capsys) -> tuple[Path, Path]:
    """Two folders of foils of the training split."""
    found = tmp_path / "nouns", tmp_path / "others"
    for folder, kind in zip(found, ("noun", "numeral")):
        assert run("write", "rules", SCENES, "--kind", kind, "--out", folder) == 0
    capsys.readouterr()
    return found


@pytest.fixture
def sheet(stores, tmp_path, capsys) -> Path:
    folder = tmp_path / "sheet"
    code = run(
        "judge", "export", *stores, "--data", SCENES, "--count", MANY, "--originals", 2,
        "--annotators", 3, "--seed", 7, "--out", folder,
    )  # fmt: skip
    assert code == 0, capsys.readouterr().err
    capsys.readouterr()
    return folder


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"))))


def asked(page: Path) -> dict:
    told = page.read_text().split('type="application/json">')[1].split("</script>")[0]
    return json.loads(told)


def answer(folder: Path, judge: int, said: dict[str, str], **other: object) -> Path:
    plain = {"sheet": asked(folder / "annotator-1.html")["sheet"], "annotator": judge}
    path = folder.parent / f"answers-{judge}.json"
    path.write_text(json.dumps({**plain, "answers": said, **other}))
    return path


def test_a_sheet_is_blind_and_each_has_an_order(sheet, stores):
    key = json.loads((sheet / "key.json").read_text())
    items = {item["id"]: item for item in key["items"]}
    told = Counter(item["source"] for item in items.values())
    assert told == {"nouns": MANY, "others": MANY, "(true captions)": 2}
    assert len({item["image"] for item in items.values()}) == len(items)
    corpus = open_corpus(SCENES).split("train")
    foils = {
        (foil.image, foil.text, foil.caption, foil.foil)
        for folder in stores
        for foil in WrittenStore.open(folder, fingerprint=corpus.fingerprint).foils()
    }
    orders = []
    for n in (1, 2, 3):
        plain, rows = asked(sheet / f"annotator-{n}.html"), table(sheet / f"annotator-{n}.csv")
        orders.append([item["id"] for item in plain["items"]])
        assert plain["annotator"] == n
        assert plain["sheet"] == key["sheet"]
        assert [row["item"] for row in rows] == orders[-1]
        assert {(row["sheet"], row["annotator"], row["answer"]) for row in rows} == {
            (key["sheet"], str(n), "")
        }
        for item, row in zip(plain["items"], rows, strict=True):
            true = items[item["id"]]
            assert set(item) == {"id", "picture", "sentence"}
            assert item["sentence"] == row["sentence"] == true["sentence"]
            if true["source"] == "(true captions)":
                assert true["sentence"] == true["caption"] in corpus.texts
            else:
                one = (true["image"], true["text"], true["caption"], true["sentence"])
                assert one in foils
            coded = base64.b64decode(item["picture"].split(",")[1])
            drawn = corpus.pictures.open(corpus.image_ids.index(true["image"]))
            assert Image.open(io.BytesIO(coded)).size == drawn.size
            assert open_picture(sheet / row["picture"]).tobytes() == drawn.tobytes()
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(items)
    assert len({tuple(order) for order in orders}) == 3
    for n in (1, 2, 3):
        text = (sheet / f"annotator-{n}.html").read_text()
        assert "nouns" not in text
        assert "scene-" not in text
        assert "numeral" not in text


def test_a_sheet_is_the_same_of_the_same_seed(sheet, stores, tmp_path):
    words = "--data", SCENES, "--count", MANY, "--originals", 2, "--annotators", 3
    assert run("judge", "export", *stores, *words, "--seed", 7, "--out", tmp_path / "b") == 0
    for path in sheet.glob("annotator*"):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
    assert run("judge", "export", *stores, *words, "--seed", 8, "--out", tmp_path / "c") == 0
    assert (tmp_path / "c" / "key.json").read_text() != (sheet / "key.json").read_text()


def test_answers_are_counted(sheet, tmp_path, capsys):
    items = json.loads((sheet / "key.json").read_text())["items"]
    rng = torch.Generator().manual_seed(0)
    drawn = torch.randint(-1, 3, (2, len(items)), generator=rng)
    names = {place: name for name, place in PLACE.items()}
    said = [{item["id"]: names[a] for item, a in zip(items, row)} for row in drawn.tolist()]
    first = answer(sheet, 3, said[0])
    second = tmp_path / "back.csv"  # as a spreadsheet in Europe saves it
    rows = table(sheet / "annotator-1.csv")
    with second.open("w", newline="", encoding="utf-8-sig") as file:
        saved = csv.DictWriter(file, rows[0], delimiter=";")
        saved.writeheader()
        saved.writerows({**row, "answer": said[1][row["item"]].upper()} for row in rows)
    out = tmp_path / "judged.html"
    assert run("judge", "import", sheet, first, second, "--out", out) == 0
    shown = " ".join(capsys.readouterr().out.split())
    numbers, page = json.loads(out.with_suffix(".json").read_text()), html.unescape(out.read_text())
    assert numbers["annotators"] == [1, 3]
    for one in numbers["judgements"]:
        mine = [row for row, item in enumerate(items) if item["source"] == one["source"]]
        both = drawn[:, mine].T.tolist()
        if one["by"] == "by all":
            every = [pair for pair in both if min(pair) >= 0]
            alike = [pair[0] for pair in every if pair[0] == pair[1]]
            wanted, of, items_there = alike, len(every), len(every)
        else:
            at = {"annotator 1": (1,), "annotator 3": (0,), "all judgements": (0, 1)}[one["by"]]
            wanted = [pair[n] for pair in both for n in at if pair[n] >= 0]
            of = len(wanted)
            items_there = sum(any(pair[n] >= 0 for n in at) for pair in both)
        assert one["answered"] == of
        assert one["counts"] == {name: wanted.count(PLACE[name]) for name in one["counts"]}
        assert one["false"] == pytest.approx(100 * wanted.count(1) / of)
        assert one["interval"] == pytest.approx(wilson(one["false"], items_there).plain())
    [agreed] = numbers["agreement"]
    [slow] = agreements(drawn.flip(0))
    assert agreed["kappa"]["value"] == pytest.approx(slow.kappa.value)
    assert agreed["raw"]["value"] == pytest.approx(slow.raw.value)
    differ = [
        item["id"] for item, (a, b) in zip(items, drawn.T.tolist()) if a != b and min(a, b) >= 0
    ]
    assert [one["id"] for one in numbers["disagreements"]] == differ
    assert page.count('class="thumb"') == len(differ) > 0
    for said in ("annotators 1, 3 of 3", "96.5 % of 200", "each about a picture of its own"):
        assert said in shown


def test_three_agree_and_one_alone_agrees_with_nobody(sheet, capsys):
    ids = [item["id"] for item in json.loads((sheet / "key.json").read_text())["items"]]
    files = [answer(sheet, n, dict.fromkeys(ids, "false")) for n in (1, 2, 3)]
    assert run("judge", "import", sheet, *files) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 and 2 and 3" in shown
    assert "Judged false: others: 100.0 %" in shown or "Judged false: nouns: 100.0 %" in shown
    assert "Disagreements" not in shown
    assert run("judge", "import", sheet, files[1]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Agreement" not in shown
    assert "annotator 2 of 3" in shown


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"sheet": "sother"}, "answers sheet sother, but this one is"),
        ({"annotator": 4}, "is of annotator 4, and the sheet has 3"),
        ({"answers": {"s99": "true"}}, "answers 's99', which the sheet does not ask"),
        ({"answers": {"s01": "maybe"}}, "holds no answers: answers.s01"),
        ({"answers": {"s01": ""}}, "annotator 1 has answered nothing"),
        ({"more": 1}, "holds no answers: more"),
    ],
)
def test_other_answers_are_refused(sheet, capsys, change, sentence):
    path = answer(sheet, 1, {"s01": "true"}, **change)
    assert run("judge", "import", sheet, path) == 2
    assert sentence in capsys.readouterr().err


def test_tables_that_are_none_are_refused(sheet, tmp_path, capsys):
    path = tmp_path / "answers.csv"
    digest = json.loads((sheet / "key.json").read_text())["sheet"]
    head = "sheet,annotator,item,answer\n"
    for text, sentence in (
        ("sheet,annotator,item\na,1,s01\n", "no column 'answer'"),
        ("", "no column 'sheet'"),
        (f"{head}{digest},1,s01,true\n{digest},2,s02,true\n", "mixes sheets or annotators"),
        (f"{head}{digest},1,s01,ture\n", "did you mean 'true'"),
    ):
        path.write_text(text)
        assert run("judge", "import", sheet, path) == 2
        assert sentence in capsys.readouterr().err


def test_answers_of_one_person_twice(sheet, tmp_path, capsys):
    path = answer(sheet, 2, {"s01": "true"})
    twice = tmp_path / "again.json"
    twice.write_bytes(path.read_bytes())
    assert run("judge", "import", sheet, path, twice) == 2
    assert "two files are of annotator 2" in capsys.readouterr().err
