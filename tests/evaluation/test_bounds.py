"""Bounds under incomplete judgement: against every assignment, one at a time."""

from __future__ import annotations

from itertools import product

import pytest
import torch

import counterfoil as cf
from counterfoil.core.types import Pairs
from counterfoil.evaluation.bounds import UNJUDGED, FirstPlaces, bounds, narrowing
from counterfoil.evaluation.protocols import WHOLE
from counterfoil.evaluation.truth import Side, Truth
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
from evaluation_cases import member, unnamed


def measured(places: list[int], true: int, cap: int) -> tuple[float, float]:
    """R-precision and mAP@R of the first places, 1 for true, and a number of true ones."""
    size = min(true, cap)
    first = places[:size]
    precision = [sum(first[: at + 1]) / (at + 1) for at in range(len(first)) if first[at]]
    return sum(first) / size, sum(precision) / size


def every(places: list[int], true: int, cap: int) -> list[tuple[float, float]]:
    """The measures under each assignment of the unjudged places."""
    open_ = [at for at, verdict in enumerate(places) if verdict == UNJUDGED]
    values = []
    for verdicts in product((0, 1), repeat=len(open_)):
        one = list(places)
        for at, verdict in zip(open_, verdicts, strict=True):
            one[at] = verdict
        values.append(measured(one, true + sum(verdicts), cap))
    return values


def widths(places: list[int], true: int, cap: int) -> float:
    """Width of the bounds of mAP@R."""
    values = [value[1] for value in every(places, true, cap)]
    return max(values) - min(values)


def case(seed: int, queries: int = 12, length: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    """Verdicts, and known true ones, of which some are beyond the first places."""
    rng = torch.Generator().manual_seed(seed)
    verdicts = torch.randint(-1, 2, (queries, length), generator=rng).to(torch.int8)
    more = torch.randint(1, 3, (queries,), generator=rng)
    return verdicts, (verdicts == 1).sum(1) + more


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cap", [3, 6, 50])
def test_bounds_are_those_of_all_assignments(seed, cap):
    verdicts, true = case(seed)
    found = bounds(verdicts, true, cap)
    for query, places in enumerate(verdicts.tolist()):
        values = every(places, int(true[query]), cap)
        for place, ends in enumerate((found.r_precision, found.map_at_r)):
            column = [value[place] for value in values]
            assert ends[:, query].tolist() == pytest.approx([min(column), max(column)])


def test_all_false_and_all_true_are_not_the_bounds():
    """One more true one at the last place raises R, and so lowers what is found among the first."""
    verdicts = torch.tensor([[1, 0, 0, -1]], dtype=torch.int8)
    found = bounds(verdicts, torch.tensor([1]))
    assert found.map_at_r.flatten().tolist() == [0.5, 1.0]
    assert measured([1, 0, 0, 0], 1, 50)[1] == 1.0  # all false is the best
    assert measured([1, 0, 0, 1], 2, 50)[1] == 0.5


def test_with_all_pairs_judged_both_ends_are_the_measure():
    rng = torch.Generator().manual_seed(0)
    verdicts = torch.randint(0, 2, (20, 80), generator=rng).to(torch.int8)
    true = verdicts.sum(1)
    found = bounds(verdicts, true)
    for query, places in enumerate(verdicts.tolist()):
        wanted = measured(places, int(true[query]), 50)
        assert found.r_precision[:, query].tolist() == pytest.approx([wanted[0]] * 2)
        assert found.map_at_r[:, query].tolist() == pytest.approx([wanted[1]] * 2)


def test_a_query_without_a_known_or_possible_true_one_has_no_bounds():
    found = bounds(torch.zeros(1, 5, dtype=torch.int8), torch.tensor([0]))
    assert bool(found.map_at_r.isnan().all())


@pytest.mark.parametrize("share", [0.5, 0.2])
@pytest.mark.parametrize("cap", [3, 50])
def test_what_a_verdict_narrows_is_the_mean_over_both(share, cap):
    verdicts, true = case(9, queries=5, length=7)
    places = FirstPlaces(verdicts, torch.arange(7).expand_as(verdicts), true)
    found = narrowing(places, share, cap)
    for query, line in enumerate(verdicts.tolist()):
        known = int(true[query])
        for place, verdict in enumerate(line):
            if verdict != UNJUDGED:
                assert found[query, place] == 0
                continue
            yes, no = ([*line[:place], said, *line[place + 1 :]] for said in (1, 0))
            left = share * widths(yes, known + 1, cap) + (1 - share) * widths(no, known, cap)
            wanted = widths(line, known, cap) - left
            assert float(found[query, place]) == pytest.approx(wanted)


@pytest.mark.parametrize("side", ["image", "text"])
def test_places_know_what_was_judged(side):
    rows = torch.tensor([[2, 0, 1], [1, 2, -1], [0, 1, 2]])
    true = Pairs(torch.tensor([0, 1, 2]), torch.tensor([2, 1, 0]))
    false = Pairs(torch.tensor([0, 1]), torch.tensor([1, 2]))
    found = FirstPlaces.of(side, rows, true, false, texts=3)
    known = dict.fromkeys(zip(true.image.tolist(), true.text.tolist()), 1)
    known |= dict.fromkeys(zip(false.image.tolist(), false.text.tolist()), 0)
    for query, line in enumerate(rows.tolist()):
        pairs = [(query, row) if side == "image" else (row, query) for row in line]
        wanted = [0 if min(pair) < 0 else known.get(pair, -1) for pair in pairs]
        assert found.verdicts[query].tolist() == wanted
    assert found.true.tolist() == [1, 1, 1]


def test_an_evaluation_has_the_bounds_of_every_query_and_keeps_them(tmp_path):
    rng = torch.Generator().manual_seed(5)
    owners = torch.tensor([0, 0, 1, 2, 2, 3, 4, -1])
    scores = torch.randint(0, 4, (5, 8), generator=rng).float()
    own = owners == torch.arange(5).unsqueeze(1)
    drawn = torch.rand(5, 8, generator=rng)
    true, false = own | (drawn < 0.2), ~own & (drawn > 0.6)
    pairs = Pairs(*true.nonzero(as_tuple=True))
    side = Side(pairs, Pairs(*false.nonzero(as_tuple=True)))
    truth = Truth("judged", "a test", side, side)
    members, data = [member(scores)], unnamed(owners, 5)
    evaluated = RetrievalEvaluation.of(members, data, WHOLE, truth=truth, bounded=True)
    wanted: dict[str, float] = {}
    for name, turned in (("i2t", lambda m: m), ("t2i", lambda m: m.T)):
        values = []
        lines = (turned(matrix).tolist() for matrix in (scores, true, false, own))
        for ranking, right, wrong, mine in zip(*lines, strict=True):
            if any(mine):
                rows = sorted(range(len(ranking)), key=lambda row: (-ranking[row], row))
                known = [1 if right[row] else 0 if wrong[row] else UNJUDGED for row in rows]
                values.append(every(known, sum(right), 50))
        for place, measure in enumerate(("R-precision", "mAP@R")):
            for end, pick in (("least", min), ("most", max)):
                each = [pick(value[place] for value in some) for some in values]
                wanted[f"{name} {measure} at {end}"] = 100 * sum(each) / len(each)
    evaluated.save(tmp_path / "kept")
    again = RetrievalEvaluation.open(tmp_path / "kept")
    for report in (evaluated.report, again.report):
        found = dict(zip(report.names, report.numbers, strict=True))
        assert {name: found[name] for name in wanted} == pytest.approx(wanted)
    assert "whatever the unjudged of the first 100 places are" in again.report.setting.line()
    plain = again.to_dict()["i2t"]
    assert plain["map_at_r_at_least"] <= plain["map_at_r_at_most"]
    # as people see the judged ones alone, the number need not lie between the bounds of all
    assert "map_at_r" in plain


def test_bounds_are_of_judged_pairs_with_ties_by_row():
    data = unnamed(torch.tensor([0, 1]), 2)
    for truth, tie in (("own", "row"), ("complete", "row"), ("judged", "optimistic")):
        with pytest.raises(ValueError, match="pairs that nobody judged, with ties by row"):
            cf.evaluate([], data, truth=truth, ties=tie, bounds=True)
