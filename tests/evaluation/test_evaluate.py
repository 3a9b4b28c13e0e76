"""Evaluation in one call."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import counterfoil as cf
import recipes_cases

PROTOCOLS = Path(__file__).parents[2] / "docs" / "protocols.md"


def test_of_a_whole_data_set_test_is_evaluated_and_said(tmp_path, capsys):
    model = cf.load_model(recipes_cases.clip_like(tmp_path / "clip"))
    data = cf.load_dataset("scenes:images=36")
    whole = cf.evaluate(model, data)
    said = capsys.readouterr().err
    assert "scenes has the splits train, dev, test: test is evaluated" in said
    assert "data['train'], all are data.split('train', 'dev', 'test')" in said
    alone = cf.evaluate(model, data["test"])
    assert whole.metrics == alone.metrics
    assert "test is evaluated" not in capsys.readouterr().err
    every = cf.evaluate(model, data.split("train", "dev", "test"))
    assert every.report.setting.images == len(data) > alone.report.setting.images


def test_two_results_are_compared_as_the_page_shows_and_the_shell_prints(tmp_path, capsys):
    """The block of the page, run."""
    first = recipes_cases.pixel_model(tmp_path / "before")
    second = recipes_cases.clip_like(tmp_path / "after")
    data = cf.load_dataset("scenes:images=36")
    blocks = re.findall(r"^```python\n(.*?)^```", PROTOCOLS.read_text(), re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if ".compare(" in block]
    names = {"cf": cf, "first": first, "second": second, "data": data}
    exec(compile(block, PROTOCOLS, "exec"), names)
    capsys.readouterr()
    assert recipes_cases.run("evaluate", first, second, "--data", "scenes:images=36") == 0
    shell = capsys.readouterr().out
    assert "On scenes test, after reaches RSum" in shell
    assert repr(names["comparison"]).split() == shell.split()
    change, before, after = names["rsum"], names["before"], names["after"]
    assert change.metric == "RSum"
    assert change.difference == pytest.approx(after.rsum - before.rsum)
    assert change.interval.low <= change.difference <= change.interval.high
    same = before.compare(before).differences["RSum"]
    assert (same.difference, same.p) == (0, 1)


def test_results_that_cannot_be_compared(tmp_path):
    model = cf.load_model(recipes_cases.pixel_model(tmp_path / "m"))
    data = cf.load_dataset("scenes:images=36")
    result = cf.evaluate(model, data["test"])
    with pytest.raises(ValueError, match="differ in split, 'test' and 'dev'"):
        result.compare(cf.evaluate(model, data["dev"]))
    with pytest.raises(TypeError, match=r"what cf.evaluate returned for the other model"):
        result.compare("RSum")
    with pytest.raises(ValueError, match="two different names"):
        result.compare(result, names=("m", "m"))
