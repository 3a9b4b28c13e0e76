"""LightningDOT (https://arxiv.org/abs/2103.08784): what a re-ranking cascade finds for its cost."""

from __future__ import annotations

from counterfoil.analysis.runs import common_setting, finished_evaluations
from counterfoil.evaluation.cascade import ShortlistReport
from counterfoil.evaluation.results import cascade_figure, cascade_table
from counterfoil.papers.analyses import Runs, analysis
from counterfoil.report.analysis import Analysis


@analysis(
    "cascade", "counterfoil papers analyse cascade runs/cascade/vsepp-scenes --output page.html"
)
def cascade_curve(folders: Runs) -> Analysis:
    """Draw the recall of cascades against the pairs that are scored for a query (LightningDOT).

    All evaluations with shortlists of the runs count.
    """
    curves: dict[str, ShortlistReport] = {}
    measured = []
    for run in finished_evaluations(folders):
        shortlists = run.evaluation.shortlists
        if shortlists and shortlists.curve:
            measured.append(run)
            curves[f"{run.run}: {run.name}" if len(folders) > 1 else run.name] = shortlists
    if not measured:
        raise ValueError(
            f"{', '.join(map(str, folders))} holds no evaluation on shortlists that are shorter "
            "than the split; name runs of the recipe cascade"
        )
    name, last = next(reversed(curves.items()))
    deepest = last.curve[-1]
    return Analysis(
        title="Recall against the cost of a cascade",
        headline=(
            f"{name} reaches RSum {deepest.report.rsum:.1f} with {deepest.depth:,} pairs scored "
            f"for a query, the first model alone {last.first.rsum:.1f}."
        ),
        protocol=common_setting(measured),
        figures=(cascade_figure(curves),),
        tables=tuple(cascade_table(name, curve) for name, curve in curves.items()),
        numbers={
            "cascades": [
                {
                    "name": name,
                    "first": curve.first.to_dict(),
                    "full": curve.full.to_dict() if curve.full else None,
                    "curve": [
                        {"depth": p.depth, "pairs": p.pairs, **p.report.to_dict()}
                        for p in curve.curve
                    ],
                }
                for name, curve in curves.items()
            ]
        },
    )
