"""Cross-retrieval ranks of several models side by side (AOQ, Fig. 5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from counterfoil import world
from counterfoil.evaluate.analysis_figures import cross_ranks as drawn
from counterfoil.evaluate.analysis_page import AnalysisPage, Rows
from counterfoil.evaluate.cross_rank import BINS, CrossRanks, cross_ranks
from counterfoil.recipes.analyses.results import check_out, publish
from counterfoil.recipes.analyses.scorers import open_scorers, said
from counterfoil.recipes.provenance import made_now
from counterfoil.recipes.run import Source


def cross_rank(
    names: Sequence[str], source: Source, out: Path, *, split: str = "test"
) -> dict[str, CrossRanks]:
    """Count true pairs by their cross-retrieval rank under each model.

    Args:
        names: of the models; joined by ``+``, an ensemble.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        split: which split.

    Returns:
        The ranks by the model's short name.

    Raises:
        ValueError: the page exists, or model and data do not fit.
    """
    check_out(out)
    world.join()
    corpus = source.split(split)
    scorers = open_scorers(names)
    found = {s.name: cross_ranks(s.on(corpus), corpus.owner) for s in scorers}
    shares = {name: ranks.shares() for name, ranks in found.items()}
    pairs, ratio = (next(iter(found.values())).cross.numel(), next(iter(found.values())).ratio)
    rows = (
        *((name, *(f"{shares[s][place]:.1f}" for s in shares)) for place, name in enumerate(BINS)),
        ("median rank", *(f"{ranks.cross.median():,.0f}" for ranks in found.values())),
    )
    note = (
        f"Percent of {pairs:,} true pairs by max({ratio:.4g} · (r_i − 1) + 1, r_t): r_i is the "
        f"pair's rank among wrong images of its text, r_t among wrong texts of its image, and "
        f"{ratio:.4g} texts fall on an image; at five this is max(5 r_i − 4, r_t)."
    )
    page = AnalysisPage(
        title="Cross-retrieval ranks",
        headline=_headline(shares),
        protocol=said(corpus, scorers),
        provenance=made_now(),
        figures=(drawn(list(shares.items())),),
        tables=(Rows("Shares of the true pairs", ("rank", *shares), rows, note),),
    )
    numbers = {
        "models": {scorer.name: scorer.given for scorer in scorers},
        "pairs": pairs,
        "texts_per_image": ratio,
        "bins": list(BINS),
        "percent": {name: list(share) for name, share in shares.items()},
        "median": {name: float(ranks.cross.median()) for name, ranks in found.items()},
    }
    publish(page, numbers, out)
    return found


def _headline(shares: dict[str, tuple[float, ...]]) -> str:
    words = ", ".join(f"{share[0]:.1f} % under {name}" for name, share in shares.items())
    far = ", ".join(f"{share[-1]:.1f} % under {name}" for name, share in shares.items())
    return f"Above every wrong pair: {words}. Beyond rank 200: {far}."
