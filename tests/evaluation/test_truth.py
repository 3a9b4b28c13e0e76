"""Measures of all true pairs, by slow loops and by ranx; where the truth comes from."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import counterfoil as cf
import engine_cases
import evaluation_cases
import processes
import recipes_cases
from counterfoil.core.types import Pairs
from counterfoil.data.scenes import graphs, scenes
from counterfoil.data.scenes.truth import truths
from counterfoil.evaluation.bootstrap import compare, intervals
from counterfoil.evaluation.metrics import OF_ALL_POSITIVES, R_CAP
from counterfoil.evaluation.protocols import COCO_1K, evaluate_protocol
from counterfoil.evaluation.results import result_table, results
from counterfoil.evaluation.truth import Side, Truth, open_truth, own_truth
from counterfoil.scoring.stream import stream_scores
from evaluation_cases import member, unnamed

NAMES = [metric.name for metric in OF_ALL_POSITIVES]
IMAGES = 61


def listed(name: str, true: Tensor, false: Tensor | None = None) -> Truth:
    """A truth of matrices, (I, T) bool."""
    known = None if false is None else Pairs(*false.nonzero(as_tuple=True))
    side = Side(Pairs(*true.nonzero(as_tuple=True)), known)
    return Truth(name, "a test", side, side)


def case(seed: int = 3, levels: int | None = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, owners and what else is true: some images have more than `R_CAP` true captions."""
    owners = evaluation_cases.ragged(IMAGES, seed, orphans=3)
    rng = torch.Generator().manual_seed(seed)
    share = torch.rand(IMAGES, 1, generator=rng) ** 3
    true = torch.rand(IMAGES, len(owners), generator=rng) < share
    true |= owners == torch.arange(IMAGES).unsqueeze(1)
    return evaluation_cases.scores(IMAGES, owners, seed, levels), owners, true


def order(scores: list[float], true: list[bool], known: list[bool], tie: str) -> list[int]:
    """Rows of the known counterparts, best first."""
    late = {"row": 0, "optimistic": 1, "pessimistic": -1}[tie]
    rows = [row for row, there in enumerate(known) if there]
    return sorted(rows, key=lambda row: (-scores[row], late * (not true[row]), row))


def slow(scores: list[float], true: list[bool], known: list[bool], tie: str) -> dict[str, float]:
    """The measures of one query, NaN where there is nothing to tell apart."""
    ranking = [true[row] for row in order(scores, true, known, tie)]
    count = sum(ranking)
    if count in (0, len(ranking)):
        return dict.fromkeys(("R-precision", "mAP@R", "mAP", "nDCG", "AUC"), math.nan)
    size = min(count, R_CAP)
    precisions = [sum(ranking[: at + 1]) / (at + 1) for at in range(len(ranking)) if ranking[at]]
    first = [sum(ranking[: at + 1]) / (at + 1) for at in range(size) if ranking[at]]
    gain = sum(1 / math.log2(at + 2) for at, right in enumerate(ranking) if right)
    wins = [
        (scores[one] > scores[other]) + 0.5 * (scores[one] == scores[other])
        for one in range(len(true))
        for other in range(len(true))
        if known[one] and known[other] and true[one] and not true[other]
    ]
    return {
        "R-precision": sum(ranking[:size]) / size,
        "mAP@R": sum(first) / size,
        "mAP": sum(precisions) / count,
        "nDCG": gain / sum(1 / math.log2(at + 2) for at in range(count)),
        "AUC": sum(wins) / len(wins),
    }


def loop(scores: Tensor, owners: Tensor, true: Tensor, known: Tensor, tie: str) -> dict[str, float]:
    """Every measure of both directions, one query at a time."""
    own = owners == torch.arange(len(scores)).unsqueeze(1)
    found = {}
    for side, turned in (("i2t", lambda m: m), ("t2i", lambda m: m.T)):
        lines = [turned(matrix).tolist() for matrix in (scores, true, known, own)]
        queries = [query for query in zip(*lines, strict=True) if any(query[3])]
        of_all = [slow(s, t, k, tie) for s, t, k, _ in queries]
        others = [
            slow(s, t, [known and not mine for known, mine in zip(k, o)], tie)
            for s, t, k, o in queries
        ]
        columns = {name: (of_all, name) for name in NAMES if " of " not in name}
        columns |= {"mAP of others": (others, "mAP"), "AUC of others": (others, "AUC")}
        for name, (measured, key) in columns.items():
            values = [one[key] for one in measured if not math.isnan(one[key])]
            found[f"{side} {name}"] = 100 * sum(values) / len(values) if values else math.nan
    return found


def best_ranks(scores: Tensor, true: Tensor, tie: str) -> Tensor:
    """Rank of the best true one of each query, one at a time."""
    lines = zip(scores.tolist(), true.tolist(), strict=True)
    return torch.tensor([engine_cases.best_rank(line, right, tie) for line, right in lines])


@pytest.mark.parametrize("tie", ["row", "optimistic", "pessimistic"])
@pytest.mark.parametrize("levels", [1, 2, None])
def test_complete_truth_is_a_loop(tie, levels):
    scores, owners, true = case(levels=levels)
    assert int(true.sum(1).max()) > R_CAP
    data = unnamed(owners, IMAGES)
    report = evaluate_protocol([member(scores)], data, tie=tie, truth=listed("complete", true))
    found = dict(zip(report.names, report.numbers, strict=True))
    wanted = loop(scores, owners, true, torch.ones_like(true), tie)
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, abs=1e-9)
    described = torch.bincount(owners[owners >= 0], minlength=IMAGES) > 0
    assert not described.all()  # such an image is no query, and a right answer
    queries = described, owners >= 0
    for side, there in enumerate(queries):
        best = best_ranks(*((scores, true) if side == 0 else (scores.T, true.T)), tie)
        assert torch.equal(report.ranked[side].ranks, best.masked_fill(~there, -1))


@pytest.mark.parametrize("tie", ["row", "optimistic", "pessimistic"])
def test_judged_truth_leaves_out_what_nobody_judged(tie):
    scores, owners, true = case(seed=4)
    rng = torch.Generator().manual_seed(1)
    judged = torch.rand(true.shape, generator=rng) < 0.4
    own = owners == torch.arange(IMAGES).unsqueeze(1)
    true &= judged | own
    truth = listed("judged", true, judged & ~true)
    report = evaluate_protocol([member(scores)], unnamed(owners, IMAGES), tie=tie, truth=truth)
    found = dict(zip(report.names, report.numbers, strict=True))
    wanted = loop(scores, owners, true, judged | own, tie)
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, abs=1e-9)
    complete = evaluate_protocol(
        [member(scores)], unnamed(owners, IMAGES), tie=tie, truth=listed("complete", true)
    )
    assert (report.i2t, report.t2i) == (complete.i2t, complete.t2i)  # recalls are among all


def test_a_predicate_gives_what_lists_give_whatever_the_tiles():
    scores, owners, true = case()
    wanted = listed("complete", true).reducers(owners)
    stream_scores([member(scores)], wanted)
    asked: list[int] = []

    def true_in(images: Tensor, texts: Tensor) -> Tensor:
        asked.append(len(images) * len(texts))
        return true[images][:, texts]

    side = Side(true_in)
    for tile in ((7, 16), (61, 200)):
        found = Truth("complete", "", side, side).reducers(owners)
        stream_scores([member(scores)], found, tile=tile, memory=1)
        for ours, theirs in zip(found, wanted):
            one, other = ours.places("row"), theirs.places("row")
            for field in ("query", "answer", "above", "outscored", "false", "tied"):
                assert torch.equal(getattr(one, field), getattr(other, field)), field
    assert max(asked) <= 61 * 200


def _shared(parts: int) -> list[float]:
    scores, owners, true = case()
    truth = listed("complete", true)
    return [*evaluate_protocol([member(scores)], unnamed(owners, IMAGES), truth=truth).numbers]


@pytest.mark.slow
def test_processes_count_together():
    wanted = _shared(1)
    assert processes.run(_shared, 2, 2) == [wanted, wanted]


def test_own_truth_measures_all_captions_and_changes_no_recall():
    scores, owners, _ = case(levels=None)
    data, own = unnamed(owners, IMAGES), owners == torch.arange(IMAGES).unsqueeze(1)
    plain = evaluate_protocol([member(scores)], data)
    report = evaluate_protocol([member(scores)], data, truth=own_truth(data))
    assert report.numbers == plain.numbers
    assert report.setting == plain.setting
    asked = replace(report, further=OF_ALL_POSITIVES[:4])
    found = dict(zip(asked.names, asked.numbers, strict=True))
    wanted = loop(scores, owners, own, torch.ones_like(own), "row")
    for name in (name for name in wanted if " of " not in name):
        assert found[name] == pytest.approx(wanted[name])
    assert found["t2i R-precision"] == pytest.approx(found["t2i R@1"])  # a caption has one image


@pytest.mark.filterwarnings("ignore")
def test_equals_ranx():
    ranx = pytest.importorskip("ranx")
    scores, owners, true = case(levels=None)
    report = evaluate_protocol(
        [member(scores)], unnamed(owners, IMAGES), truth=listed("complete", true)
    )
    found = dict(zip(report.names, report.numbers, strict=True))
    for side, matrix, right in (("i2t", scores, true), ("t2i", scores.T, true.T)):
        asked = report.ranked[side == "t2i"].counted & ~right.all(1)
        rows = asked.nonzero().flatten().tolist()
        qrels = {f"q{q}": {f"d{d}": 1 for d in right[q].nonzero().flatten().tolist()} for q in rows}
        run = {f"q{q}": {f"d{d}": s for d, s in enumerate(matrix[q].tolist())} for q in rows}
        theirs = ranx.evaluate(ranx.Qrels(qrels), ranx.Run(run), ["map", "ndcg"])
        assert found[f"{side} mAP"] == pytest.approx(100 * theirs["map"])
        assert found[f"{side} nDCG"] == pytest.approx(100 * theirs["ndcg"])
        few = {name: hits for name, hits in qrels.items() if len(hits) <= R_CAP}
        r_precision = ranx.evaluate(
            ranx.Qrels(few), ranx.Run({name: run[name] for name in few}), "r-precision"
        )
        metric = OF_ALL_POSITIVES[0].values(report.ranked[side == "t2i"])
        kept = [row for row in rows if f"q{row}" in few]
        assert metric[kept].mean().item() == pytest.approx(100 * float(r_precision))


def test_intervals_and_paired_differences_are_of_the_same_queries():
    scores, owners, true = case()
    data, truth = unnamed(owners, IMAGES), listed("complete", true)
    one = evaluate_protocol([member(scores)], data, truth=truth)
    other = evaluate_protocol([member(scores + 2.0 * true)], data, truth=truth)
    spans = dict(zip(one.names, intervals(one), strict=True))
    for name, number in zip(one.names, one.numbers, strict=True):
        assert spans[name].low <= number <= spans[name].high, name
    changes = {change.metric: change for change in compare(one, other)}
    for name, before, after in zip(one.names, one.numbers, other.numbers, strict=True):
        assert changes[name].difference == pytest.approx(after - before)
    assert changes["i2t mAP of others"].interval.low > 0
    assert changes["i2t mAP of others"].p < 0.01
    table = result_table(results({"a": one, "b": other}))
    shown = [row[0] for row in table.rows]
    for name in (*NAMES, "Median rank"):
        assert shown.count(name) == 2
    same = {change.metric: change for change in compare(one, one)}
    assert same["t2i nDCG"].p == 1.0


# -- where the truth comes from -------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return cf.load_model(recipes_cases.pixel_model(tmp_path_factory.mktemp("m") / "m"))


def test_scenes_know_every_true_pair(model):
    data = scenes(images=60, dev=10, test=20)["test"]
    result = cf.evaluate(model, data, truth="complete")
    true = truths(graphs(data), data.texts) == 1
    embedded = model.embed(data)
    scores = embedded.images.tokens[:, 0] @ embedded.texts.tokens[:, 0].T
    wanted = evaluate_protocol([member(scores)], data, truth=listed("complete", true))
    assert [*result.report.numbers] == pytest.approx([*wanted.numbers])
    assert "; truth complete: every pair decided by the scenes of the pictures; " in result.protocol
    assert "mAP@R and R-precision read 50 places at most" in result.protocol
    plain = result.to_dict()
    assert plain["i2t"]["map_at_r"] == result.metrics["i2t mAP@R"]
    assert "AUC of others" in repr(result)
    assert result.metrics["RSum"] > cf.evaluate(model, data).metrics["RSum"]


def test_judgements_of_experts_crowd_and_audit(tmp_path):
    data = unnamed(torch.tensor([0, 0, 1, 2]), 3, texts=["a", "b", "c", "d"])
    (tmp_path / "ExpertAnnotations.txt").write_text(
        "i0\ti1#0\t3\t3\t3\ni0\ti2#0\t4\t1\t3\ni9\ti2#0\t4\t4\t4\ni0\ti0#0\t1\t1\t1\n"
    )
    (tmp_path / "CrowdFlowerAnnotations.txt").write_text(
        "i1\ti0#1\t0.67\t2\t1\ni0\ti1#0\t0\t0\t3\ni2\ti1#0\t0.5\t1\t1\n"
    )
    corrections = [
        {"do": "true", "image": "i2", "caption": "t0", "was": "a"},
        {"do": "keep", "image": "i1", "caption": "t3", "was": "d"},
        {"do": "keep", "caption": "t3", "was": "d"},
    ]
    (tmp_path / "corrections.jsonl").write_text("".join(json.dumps(c) + "\n" for c in corrections))
    truth = open_truth("judged", data, tmp_path)
    true, false = (
        sorted(zip(pairs.image.tolist(), pairs.text.tolist()))
        for pairs in (truth.i2t.true, truth.i2t.false)
    )
    assert true == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 0), (2, 3)]
    assert false == [(0, 3), (1, 3), (2, 2)]
    assert truth.line.startswith("judged: own captions, and 3 of 6 judged pairs of others (Expert")
    alone = open_truth("judged", data, tmp_path / "corrections.jsonl")
    assert alone.line.startswith("judged: own captions, and 1 of 2 judged pairs of others (corr")


def test_lists_of_all_true_pairs(tmp_path, model):
    """ECCV's and CxC's files; with the captions of each image, the recalls are the plain ones."""
    data = scenes(images=60, dev=10, test=20)["test"]
    numbered = replace(
        data,
        image_ids=[f"COCO_val2014_{n:012d}.jpg" for n in range(1, 21)],
        text_ids=[str(100 + n) for n in range(100)],
    )
    i2t = {str(n + 1): [100 + t for t in range(5 * n, 5 * n + 5)] for n in range(20)}
    t2i = {str(100 + t): [[t // 5 + 1, 4.5], [999, 3.0]] for t in range(100)}
    for name, lists in (("i2t", i2t), ("t2i", t2i)):
        (tmp_path / f"{name}.json").write_text(json.dumps(lists))
    found = cf.evaluate(model, numbered, truth="complete", judgements=tmp_path)
    plain = cf.evaluate(model, data)
    assert {n: found.metrics[n] for n in plain.metrics} == plain.metrics
    assert found.metrics["t2i R-precision"] == pytest.approx(found.metrics["t2i R@1"])
    assert math.isnan(found.metrics["i2t mAP of others"])  # nobody else's caption is true
    assert found.to_dict()["i2t"]["map_of_others"] is None
    json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert "–" in repr(found)
    table = result_table(results({"a": found.report, "b": found.report}))
    assert "nan" not in repr(table)
    json.dumps([run.to_dict() for run in results({"a": found.report})], allow_nan=False)
    assert "hold all true pairs of 20 images and 100 captions" in found.protocol
    # only some are asked, and one has no true item here: it is missed
    (tmp_path / "i2t.json").write_text(json.dumps({"3": i2t["3"], "5": []}))
    some = cf.evaluate(model, numbered, truth="complete", judgements=tmp_path)
    assert (some.report.i2t.queries, some.report.i2t.left_out) == (2, 18)
    assert some.report.ranked[0].ranks[4] == 100
    words = replace(data, image_ids=[f"photo-{n}-x" for n in range(20)])
    with pytest.raises(ValueError, match="is not a COCO id"):
        cf.evaluate(model, words, truth="complete", judgements=tmp_path)
    (tmp_path / "i2t.json").write_text(json.dumps({"77": [100]}))
    with pytest.raises(ValueError, match=r"1 of the 1 queries .* \(the first is 77\)"):
        cf.evaluate(model, numbered, truth="complete", judgements=tmp_path)


@pytest.mark.parametrize("content", ["[[1, 2]]", '{"a": [1]}', '{"1": 5}', '{"1": ["x"]}', "{"])
def test_bad_lists(tmp_path, content):
    for name in ("i2t", "t2i"):
        (tmp_path / f"{name}.json").write_text(content)
    data = unnamed(torch.tensor([0, 1]), 2, name="x")
    with pytest.raises(ValueError, match="ground-truth file"):
        open_truth("complete", replace(data, image_ids=["1", "2"], text_ids=["3", "4"]), tmp_path)


@pytest.mark.parametrize(
    "truth, files, message",
    [
        ("everything", None, "not a truth"),
        ("own", {"x.txt": ""}, "truth 'own' reads no judgements"),
        ("judged", None, "truth 'judged' needs judgements"),
        ("judged", {}, "holds none of ExpertAnnotations.txt"),
        ("judged", {"i2t.json": "{}", "t2i.json": "{}"}, "lists of true pairs are for truth 'comp"),
        ("judged", {"CrowdFlowerAnnotations.txt": "a\tb\t1\t1\t0\n"}, "judges no pair of"),
        ("judged", {"ExpertAnnotations.txt": "a\tb\t1\t1\t5\n"}, "line 1 is no judgement"),
        ("judged", {"ExpertAnnotations.txt": "\n"}, "holds no judgements"),
        ("complete", None, "truth 'complete' has to know every true pair, and x all does not tell"),
        (
            "complete",
            {"ExpertAnnotations.txt": "x"},
            "judges some of the pairs; use truth 'judged'",
        ),
    ],
)
def test_bad_input(tmp_path, truth, files, message):
    data = unnamed(torch.tensor([0, 1]), 2, name="x")
    data = replace(data, split_name="all")
    for name, content in (files or {}).items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        open_truth(truth, data, None if files is None else tmp_path)


def test_folds_are_refused():
    scores, owners, true = case()
    with pytest.raises(ValueError, match="COCO 1K has 5 folds; use the protocol 'whole'"):
        evaluate_protocol(
            [member(scores)], unnamed(owners, IMAGES), COCO_1K, truth=listed("complete", true)
        )


def test_others_need_more_than_own_captions(model):
    data = scenes(images=60, dev=10, test=20)["test"]
    result = cf.evaluate(model, data, metrics=["map@r", "R@20"])
    assert result.report.setting.truth == ""
    assert [*result.metrics][-5:-1] == ["i2t mAP@R", "i2t R@20", "t2i mAP@R", "t2i R@20"]
    with pytest.raises(ValueError, match="'mAP of others' is about true pairs besides"):
        cf.evaluate(model, data, metrics=["mAP of others"])
