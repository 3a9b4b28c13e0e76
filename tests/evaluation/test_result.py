from __future__ import annotations

import json
from dataclasses import replace

import torch

from counterfoil.evaluation.metrics import METRICS, EvaluationSetting, Protocol
from counterfoil.evaluation.protocols import COCO_1K, evaluate_scores


def test_the_line_says_all_that_is_needed():
    setting = EvaluationSetting(COCO_1K, 5000, 25010, "row", 2, "MS-COCO", "test", 3)
    assert setting.line() == (
        "MS-COCO test; COCO 1K: 5,000 images, 25,010 texts, mean of 5 disjoint folds; truth own: "
        "the captions of an image; any hit: a query counts when any true counterpart is in the "
        "first K; ties: of equal scores the lower row comes first; ensemble of 2 by mean score; "
        "seed 3"
    )
    single = replace(setting, members=1, seed=None, dataset="", split="", protocol=Protocol("x"))
    assert single.line().startswith("x: 5,000 images, 25,010 texts, ranked as a whole;")
    assert single.line().endswith("; single model")


def test_a_report_is_json_without_single_queries():
    text_to_image = torch.tensor([0, 1, 1, -1])
    report = evaluate_scores(torch.eye(2)[:, [0, 1, 1, 0]], text_to_image, dataset="toy")
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["rsum"] == report.rsum == report.numbers[METRICS.index("RSum")]
    assert plain["setting"]["texts"] == 4
    assert plain["t2i"]["left_out"] == 1
    assert plain["protocol"] == report.setting.line()
    assert len(plain["folds"]) == 1
