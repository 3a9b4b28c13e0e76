"""Retrieval metrics against the evaluation code of SCAN, VSE++ and UNITER."""

from __future__ import annotations

import pytest
import torch

import golden_vectors
from counterfoil.evaluation.metrics import Protocol, ranks_of
from counterfoil.evaluation.protocols import evaluate_protocol
from evaluation_cases import member, unnamed

SYSTEM = "eval_a"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]


@golden_vectors.cached
def golden():
    return golden_vectors.load(SYSTEM)


def _scores(case):
    inputs = golden().inputs
    if case == "ensemble":
        return (inputs["scores1"] + inputs["scores2"]) / 2
    if case == "emb_cosine":
        return inputs["img_emb"] @ inputs["cap_emb"].T
    if case == "emb_order":
        # order embeddings are absolute values (`use_abs`); the axes are those of the authors
        above = inputs["cap_emb"].abs().unsqueeze(1) - inputs["img_emb"].abs().unsqueeze(0)
        return -above.clamp(min=0).pow(2).sum(2).sqrt().T
    return inputs[case]


def _owner(scores):
    return torch.arange(scores.shape[1]) // (scores.shape[1] // scores.shape[0])


@golden_vectors.cached
def report(case, folds=1):
    scores = _scores(case)
    members = [member(scores)]
    if case == "ensemble":
        members = [member(golden().inputs[name]) for name in ("scores1", "scores2")]
    return evaluate_protocol(
        members, unnamed(_owner(scores), len(scores)), Protocol("cut", folds=folds)
    )


def five(side):
    """The numbers that the authors' code returns for one direction."""
    return [side.r1, side.r5, side.r10, side.median_rank, side.mean_rank]


def _per_fold():
    return [[*five(i2t), *five(t2i)] for i2t, t2i in report("scores1", 5).folds]


def _both(found):
    return [*five(found.i2t), *five(found.t2i)]


def _inflated():
    """UNITER counts both coordinates of its hits: place in the list and row of the query."""
    ranks = report("scores1").ranked[1].ranks
    hits = ((ranks >= 0) & (ranks < 10)).nonzero().flatten()
    right = torch.tensor(five(report("scores1").t2i)[:3])
    rows = torch.tensor([(hits < k).sum() for k in (1, 5, 10)])
    return right + 100 * rows / len(report("scores1").ranked[1])


def _ties(direction, rule):
    scores = golden().inputs["tied_scores"]
    return ranks_of(scores, _owner(scores), rule)[0 if direction == "i2t" else 1]


OURS = {
    "fold5/per_fold": _per_fold,
    "fold5/mean": lambda: _both(report("scores1", 5)),
    "fold5/rsum": lambda: report("scores1", 5).rsum,
    "uniter_itm_eval/text_retrieval": lambda: five(report("scores1").i2t)[:3],
    "uniter_itm_eval/image_retrieval_correct": lambda: five(report("scores1").t2i)[:3],
    "uniter_itm_eval/image_retrieval_released": _inflated,
}
for case in ("scores1", "scores2", "ensemble", "emb_cosine", "emb_order"):
    OURS |= {
        f"{case}/i2t_metrics": lambda c=case: five(report(c).i2t),
        f"{case}/t2i_metrics": lambda c=case: five(report(c).t2i),
        f"{case}/i2t_ranks": lambda c=case: report(c).ranked[0].ranks,
        f"{case}/t2i_ranks": lambda c=case: report(c).ranked[1].ranks,
    }
    if not case.startswith("emb"):
        OURS |= {
            f"{case}/rsum": lambda c=case: report(c).rsum,
            f"{case}/i2t_top1": lambda c=case: _scores(c).argmax(1),
            f"{case}/t2i_top1": lambda c=case: _scores(c).argmax(0),
        }
for rule in ("optimistic", "pessimistic"):
    OURS |= {
        f"ties/i2t_{rule}": lambda r=rule: _ties("i2t", r),
        f"ties/t2i_{rule}": lambda r=rule: _ties("t2i", r),
    }


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_equals_the_authors_code(key):
    golden_vectors.same(golden(), key, torch.as_tensor(OURS[key](), dtype=torch.float64))


def test_every_output_is_described_and_compared():
    compared = {key for key in golden().outputs if not key.endswith("_author_numpy")}
    assert compared == set(OURS)
    assert set(golden().outputs) == set(golden().meta["outputs"])


@pytest.mark.parametrize("tie", ["row", "optimistic", "pessimistic"])
def test_streamed_ties_equal_those_of_a_matrix_that_is_held(tie):
    scores = golden().inputs["tied_scores"]
    streamed = evaluate_protocol([member(scores)], unnamed(_owner(scores), len(scores)), tie=tie)
    for ranked in streamed.ranked:
        assert torch.equal(ranked.ranks, _ties(ranked.direction, tie))


@pytest.mark.parametrize("line", ["rsum", "average_i2t", "average_t2i"])
def test_fold_summary_has_the_right_columns(line):
    """The summary lines of the family's repositories print other columns than they name."""
    whole = report("scores1", 5)
    ours = {
        "rsum": whole.rsum,
        "average_i2t": whole.i2t.total / 3,
        "average_t2i": whole.t2i.total / 3,
    }
    lines = golden().meta["fold5_summary_lines_printed_by_the_repositories"]
    assert ours[line] == pytest.approx(lines["right"][line], abs=1e-6)
    assert ours[line] != pytest.approx(lines["SCAN_BFAN_VSRN"][line])


def test_lower_row_lies_between_the_extremes_of_the_ties():
    for direction in ("i2t", "t2i"):
        low, rule, high = (_ties(direction, tie) for tie in ("optimistic", "row", "pessimistic"))
        assert ((low <= rule) & (rule <= high)).all()
        assert (low < rule).any()
        assert (rule < high).any()
