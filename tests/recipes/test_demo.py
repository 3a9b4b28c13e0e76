"""The demo on a few scenes: its page opens with pictures, its verdict with words."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
from counterfoil.recipes.catalogue import find_recipe, smoke_recipe

SCENES = "scenes:images=90,features=regions"


def test_the_page_opens_with_what_both_models_find(tmp_path, capsys):
    recipe = smoke_recipe(find_recipe("demo"))
    assert run_pipeline(recipe, DataSource(SCENES), tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:2])) < 200
    verdict = "The model trained on the hardest finds a right caption first for"
    assert lines[0].startswith(verdict)
    assert lines[-1] == f"open {tmp_path / 'report' / 'report.html'}"
    assert len(lines) <= 25
    page = (tmp_path / "report" / "report.html").read_text()
    opening, rest = page.split("<table", 1)
    assert opening.index(verdict) < opening.index("The same questions to both models")
    cards = re.findall(r"<article.*?</article>", opening, re.S)
    assert 2 <= len(cards) <= 5
    for card in cards:
        heads = re.findall(r"<h4>(.*?)</h4>", card)
        assert heads == ["trained on all negatives", "trained on the hardest"]
        assert 'class="thumb"' in card
        ranks = [int(place) for place in re.findall(r"first true one at place (\d+)", card)]
        assert len(ranks) == 2
        assert ranks[0] != ranks[1]
    by_all = [RetrievalEvaluation.open(tmp_path / f"true-{name}") for name in ("alike", "hardest")]
    (note,) = {each.report.setting.truth for each in by_all}
    assert note.startswith("complete: every pair decided")
    own = [RetrievalEvaluation.open(tmp_path / f"test-{name}") for name in ("alike", "hardest")]
    numbers = [dict(zip(each.report.names, each.report.numbers)) for each in (*own, *by_all)]
    beside = [f"{numbers[1]['RSum']:.1f}", f"{numbers[3]['t2i mAP@R']:.1f}"]
    rows = [[cell for cell in line.split() if cell in beside] for line in lines[1:]]
    assert beside in rows  # in one row of the terminal's table
    table = re.search(r"By own captions, and by all true pairs.*?</table>", page, re.S)[0]
    for number in (*(f"{each['RSum']:.1f}" for each in numbers[:2]), *beside):
        assert number in table
    assert f"mAP@R is {numbers[3]['t2i mAP@R']:.1f} against {numbers[2]['t2i mAP@R']:.1f}" in page
    better = re.search(r"answers (\d+) of 75 captions better and (\d+) worse", opening)
    assert better
    assert "Captions against foils" in rest


def test_every_model_is_called_by_its_own_name():
    *_, report = find_recipe("demo").stages
    for names in (("one",), ("one", "one"), ("one", "two", "three")):
        with pytest.raises(ValueError, match="different names for 2 results"):
            replace(report, called=names)
    with pytest.raises(ValueError, match="several has 1 evaluations for 2 results"):
        replace(report, several=("true-alike",))
