"""Evaluation in one call."""

from __future__ import annotations

import counterfoil as cf
import recipes_cases


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
