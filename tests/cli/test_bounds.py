"""Bounds while pairs are unjudged, and the pages that narrow them."""

from __future__ import annotations

import json

import pytest
import torch

import counterfoil as cf
from cli_fixture_cases import SCENES
from counterfoil.data.scenes import graphs
from counterfoil.data.scenes.truth import is_true
from counterfoil.evaluation.bounds import narrowing, next_pairs
from counterfoil.evaluation.truth import judged_truth


def written(path, items, dataset):
    """A file of somebody's verdicts on the pairs of a page."""
    shown = dict(zip(dataset.image_ids, graphs(dataset)))
    lines = [
        {"do": "true" if is_true(item["was"], shown[item["image"]]) else "keep"}
        | {key: item[key] for key in ("image", "caption", "was")}
        for item in items
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_verdicts_in_the_pages_order_narrow_what_evaluate_says(models, printed, tmp_path):
    model, data = models / "pixels", cf.load_dataset(SCENES)["test"]
    file, ends = None, []
    for turn in range(2):
        judged = ("--judgements", file) if file else ()
        asked = ("--model", model, "--split", "test", "--set", "order=bounds", *judged)
        printed("audit", SCENES, *asked, "--set", "top=40", "--output", tmp_path / f"page{turn}")
        page = json.loads((tmp_path / f"page{turn}" / "audit.json").read_text())
        found = page["found"]["next"]
        assert found["shown"] == 40 < found["found"]
        assert f"between {found['low']:.1f} and {found['high']:.1f} %" in found["note"]
        items = [item for find in found["finds"] for item in find["items"]]
        ends.append((found["low"], found["high"]))
        file = written(tmp_path / f"judged{turn}.jsonl", items, data)
        if turn:
            file.write_text(file.read_text() + (tmp_path / "judged0.jsonl").read_text())
        numbers = tmp_path / f"numbers{turn}.json"
        words = ("--data", SCENES, "--truth", "judged", "--judgements", file, "--bounds")
        shown = printed("evaluate", model, *words, "--json", numbers)
        assert "whatever the unjudged of the first 100 places are" in shown
        plain = json.loads(numbers.read_text())
        ends.append(
            tuple(
                sum(plain[side][f"map_at_r_at_{end}"] for side in ("i2t", "t2i")) / 2
                for end in ("least", "most")
            )
        )
    # page, evaluation with its verdicts, page with them, evaluation with all
    assert ends[1] == pytest.approx(ends[2], abs=1e-6)
    assert ends[0][1] - ends[0][0] > ends[1][1] - ends[1][0] > ends[3][1] - ends[3][0]


def test_the_first_pair_is_the_one_that_narrows_most(models):
    data = cf.load_dataset(SCENES)["test"]
    member = cf.load_model(models / "pixels").embed(data)
    found = next_pairs([member], judged_truth(data, {}), data.text_to_image)
    keys = list(zip(found.pairs.image.tolist(), found.pairs.text.tolist()))
    assert len(set(keys)) == len(keys)
    gains = torch.zeros(len(data), len(data.texts), dtype=torch.float64)
    for side, table in zip(found.places, (gains, gains.T)):
        each = narrowing(side)
        for query, answers in enumerate(side.answers.tolist()):
            for place, answer in enumerate(answers):
                table[query, answer] += each[query, place] / len(side.answers) / 2
    assert found.gain.tolist() == pytest.approx([float(gains[key]) for key in keys])
    assert found.gain.tolist() == sorted(found.gain.tolist(), reverse=True)
    assert not any(int(data.text_to_image[text]) == image for image, text in keys)
