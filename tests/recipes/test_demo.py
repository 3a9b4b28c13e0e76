"""The demo on a few scenes: its page opens with pictures, its verdict with words."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.recipes.catalogue import find_recipe, smoke_recipe

SCENES = "scenes:images=90,features=regions"


def test_the_page_opens_with_what_both_models_find(tmp_path, capsys):
    recipe = smoke_recipe(find_recipe("demo"))
    assert run_pipeline(recipe, DataSource(SCENES), tmp_path)
    lines = capsys.readouterr().out.splitlines()
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
    better = re.search(r"answers (\d+) of 75 captions better and (\d+) worse", opening)
    assert better
    assert "Captions against foils" in rest


def test_every_model_is_called_by_its_own_name():
    *_, report = find_recipe("demo").stages
    for names in (("one",), ("one", "one"), ("one", "two", "three")):
        with pytest.raises(ValueError, match="different names for 2 results"):
            replace(report, called=names)
