"""Recall, ECCV Caption and CxC against the authors' own code."""

from __future__ import annotations

import pytest
import torch

import golden_vectors
from counterfoil.core.types import Pairs
from counterfoil.evaluation import cxc
from counterfoil.evaluation.metrics import OF_ALL_POSITIVES, Protocol, ranks_of
from counterfoil.evaluation.protocols import evaluate_protocol, evaluate_scores
from counterfoil.evaluation.truth import PUBLISHED_QUERIES, Side, Truth
from evaluation_cases import member, unnamed

SYSTEM = "eval"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]


@golden_vectors.cached
def golden():
    return golden_vectors.load(SYSTEM)


def _owner(scores):
    return torch.arange(scores.shape[1]) // 5


def _data(scores):
    return unnamed(_owner(scores), len(scores))


@golden_vectors.cached
def whole():
    scores = golden().inputs["recall/scores"]
    return evaluate_protocol([member(scores)], _data(scores))


@golden_vectors.cached
def folds():
    scores = golden().inputs["recall/scores"]
    return evaluate_protocol([member(scores)], _data(scores), Protocol("5 folds", folds=5))


@golden_vectors.cached
def ensemble():
    first, second = (golden().inputs[f"recall/scores{end}"] for end in ("", "_second_model"))
    return evaluate_protocol([member(first), member(second)], _data(first))


def five(side):
    """The numbers that the authors' code returns for one direction."""
    return [side.r1, side.r5, side.r10, side.median_rank, side.mean_rank]


def _each(pair):
    i2t, t2i = pair
    return [*five(i2t), *five(t2i), i2t.total + t2i.total]


@golden_vectors.cached
def many(name):
    inputs = golden().inputs
    queries, offsets, items = (
        inputs[f"{name}/{part}"].tolist() for part in ("query_ids", "gt_offsets", "gt_items")
    )
    spans = zip(queries, offsets, offsets[1:], strict=False)
    truth = {query: frozenset(items[start:stop]) for query, start, stop in spans}
    rankings = inputs[f"{name}/rankings"].tolist()
    items = sorted({item for row in rankings for item in row if item >= 0}.union(*truth.values()))
    rows = {item: row for row, item in enumerate(items)}
    scores = torch.full((len(truth), len(items)), -1e6)
    for line, ranking in zip(scores, rankings, strict=True):
        for place, item in enumerate(ranking):
            if item >= 0:
                line[rows[item]] = -place
    true = [(q, rows[item]) for q, found in enumerate(truth.values()) for item in found]
    report = by_lists(scores, true, torch.ones(len(truth), dtype=torch.bool))
    named = {metric.name: metric.values(report.ranked[0]) / 100 for metric in OF_ALL_POSITIVES}
    return report.i2t, named["mAP@R"], named["R-precision"]


def by_lists(scores, true, asked):
    """The evaluation of an image-to-text matrix by lists of true pairs of some images."""
    images, texts = torch.tensor(true).T
    side = Side(Pairs(images, texts), None, asked)
    other = Side(side.true, None, torch.ones(scores.shape[1], dtype=torch.bool))
    data = unnamed(torch.full((scores.shape[1],), -1), len(scores))
    truth = Truth("complete", "lists", side, other)
    return evaluate_protocol([member(scores)], data, truth=truth)


def _rated(direction, queries):
    inputs = golden().inputs
    offsets = inputs[f"cxc/{direction}_offsets"].tolist()
    pairs = list(
        zip(inputs[f"cxc/{direction}_items"].tolist(), inputs[f"cxc/{direction}_ratings"].tolist())
    )
    return {q: pairs[a:b] for q, a, b in zip(queries.tolist(), offsets, offsets[1:], strict=False)}


@golden_vectors.cached
def crissed(kind, own="excluded"):
    inputs = golden().inputs
    image_ids, caption_ids = inputs["cxc/image_ids"], inputs["cxc/caption_ids"]
    pictures, captions = inputs["cxc/img_emb"], inputs["cxc/cap_emb"]
    rated = _rated(kind, image_ids if kind.startswith("i") else caption_ids)
    if kind == "i2i":
        return cxc.cxc_images(pictures, image_ids, rated, own)
    if kind == "t2t":
        return cxc.cxc_texts(captions, caption_ids, torch.arange(len(captions)) // 5, rated, own)
    scores = pictures @ captions.T if kind == "i2t" else captions @ pictures.T
    queries, ids = (image_ids, caption_ids) if kind == "i2t" else (caption_ids, image_ids)
    items = {item: row for row, item in enumerate(ids.tolist())}
    true = [
        (row, items[item])
        for row, query in enumerate(queries.tolist())
        for item, _ in rated.get(query, ())
        if item in items
    ]
    asked = torch.tensor([query in rated for query in queries.tolist()])
    return by_lists(scores, true, asked).i2t


def _six(found):
    return _each((found.i2t, found.t2i))


def _recalls(found):
    return [found.r1, found.r5, found.r10]


OURS = {
    "recall/i2t_r1_r5_r10_medr_meanr": lambda: five(whole().i2t),
    "recall/t2i_r1_r5_r10_medr_meanr": lambda: five(whole().t2i),
    "recall/i2t_rank": lambda: whole().ranked[0].ranks,
    "recall/t2i_rank": lambda: whole().ranked[1].ranks,
    "recall/i2t_top1": lambda: golden().inputs["recall/scores"].argmax(1),
    "recall/t2i_top1": lambda: golden().inputs["recall/scores"].argmax(0),
    "recall/rsum": lambda: whole().rsum,
    "recall/fold5_mean": lambda: _six(folds()),
    "recall/fold5_each": lambda: [_each(pair) for pair in folds().folds],
    "recall/ensemble": lambda: _six(ensemble()),
    "hand/map_at_r": lambda: many("hand")[1].mean(),
    "hand/rprecision": lambda: many("hand")[2].mean(),
    "hand/rprecision_fn": lambda: many("hand")[2].mean(),
    "hand/r1": lambda: many("hand")[0].r1 / 100,
    "hand/recall_at_1": lambda: many("hand")[0].r1 / 100,
    "hand/recall_at_5": lambda: many("hand")[0].r5 / 100,
    "hand/recall_at_10": lambda: many("hand")[0].r10 / 100,
    "hand/per_query_map_at_r": lambda: many("hand")[1],
    "hand/per_query_rprecision": lambda: many("hand")[2],
    "cxc/i2t_r1_r5_r10": lambda: _recalls(crissed("i2t")),
    "cxc/t2i_r1_r5_r10": lambda: _recalls(crissed("t2i")),
    "cxc/i2i_r1_r5_r10_compat_diag0": lambda: _recalls(crissed("i2i", "zero")),
    "cxc/t2t_r1_r5_r10_compat_diag0": lambda: _recalls(crissed("t2t", "zero")),
    "cxc/i2i_r1_r5_r10_self_excluded": lambda: _recalls(crissed("i2i")),
    "cxc/t2t_r1_r5_r10_self_excluded": lambda: _recalls(crissed("t2t")),
}
for direction in ("i2t", "t2i"):
    name = f"package_{direction}"
    OURS |= {
        f"{name}/eccv_map_at_r": lambda n=name: many(n)[1].mean(),
        f"{name}/eccv_rprecision": lambda n=name: many(n)[2].mean(),
        f"{name}/eccv_r1": lambda n=name: many(n)[0].r1 / 100,
        f"{name}/recall_at_5": lambda n=name: many(n)[0].r5 / 100,
        f"{name}/recall_at_10": lambda n=name: many(n)[0].r10 / 100,
        f"{name}/n_queries_full_package": lambda d=direction: PUBLISHED_QUERIES[d],
    }


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_equals_the_authors_code(key):
    ours = torch.as_tensor(OURS[key](), dtype=torch.float64)
    golden_vectors.same(golden(), key, ours)


def test_every_output_is_described_and_compared():
    assert set(golden().outputs) == set(golden().meta["outputs"]) == set(OURS)


@pytest.mark.parametrize("direction", ["i2t", "t2i"])
def test_the_case_holds_every_other_query_of_the_published_ones(direction):
    queries = len(golden().inputs[f"package_{direction}/query_ids"])
    whole = PUBLISHED_QUERIES[direction]
    assert queries in (whole // 2, whole - whole // 2)


def test_a_matrix_that_is_held_gives_the_same():
    scores = golden().inputs["recall/scores"]
    assert evaluate_scores(scores, _owner(scores)).numbers == whole().numbers


def test_all_tie_rules_agree_where_nothing_is_tied():
    scores = golden().inputs["recall/scores"]
    for tie in ("optimistic", "pessimistic"):
        i2t, t2i = ranks_of(scores, _owner(scores), tie)
        assert torch.equal(i2t, whole().ranked[0].ranks)
        assert torch.equal(t2i, whole().ranked[1].ranks)
