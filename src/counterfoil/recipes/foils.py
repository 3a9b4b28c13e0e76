"""``counterfoil foils``: the terminal, the page and the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final, get_args

from torch import Tensor

from counterfoil import world
from counterfoil.analysis.base import Scorer, open_scorers
from counterfoil.corpus.foil_sets import FoilSet, open_foil_set
from counterfoil.corpus.lens import FeatureEye
from counterfoil.corpus.lines import read_lines
from counterfoil.corpus.reading import open_corpus
from counterfoil.evaluate.foils import (
    THRESHOLDS,
    FoilScore,
    blind_scores,
    margins,
    measured,
    score_items,
)
from counterfoil.evaluate.foils_measures import Ties
from counterfoil.evaluate.ngrams import NGrams
from counterfoil.files import check_file, write_json, write_text
from counterfoil.recipes import foils_page
from counterfoil.recipes.model import Model
from counterfoil.recipes.show import console, say
from counterfoil.report.tables import terminal_table
from counterfoil.spec import unknown

BLIND = "blind"
TIES = {
    "wrong": "ties wrong",
    "aro": "ties as in ARO's code, to the option that stands first",
}


@final
@dataclass(frozen=True, slots=True)
class FoilPlan:
    """How to ask.

    Attributes:
        split: of scenes.
        seed: of foils that are made, of halves for thresholds, and of intervals.
        ties: "wrong", or "aro" for ARO's own rule on ARO's sets.
        blind: captions to train a model on that sees nothing: a text file with one a line, or data
            whose training split is read; None for no such model.
        decisions: about those data, if not beside them.
        examples: of the worst items on the page.
    """

    split: str = "test"
    seed: int = 0
    ties: str = "wrong"
    blind: str | None = None
    decisions: Path | None = None
    examples: int = 12


@final
@dataclass(frozen=True, slots=True, eq=False)
class FoilResult:
    """What was measured.

    Attributes:
        foils: the set.
        scores: (P,) of its pairs.
        lines: the numbers.
        blind: the same numbers of the blind model, or none.
        protocol: in one sentence.
    """

    foils: FoilSet
    scores: Tensor
    lines: tuple[FoilScore, ...]
    blind: tuple[FoilScore, ...]
    protocol: str

    def plain(self) -> dict[str, Any]:
        """JSON-ready form, with the scores of every item."""
        blind = [line.plain() | {"suspicious": line.suspicious} for line in self.blind]
        return {
            "set": self.foils.name,
            "form": self.foils.form,
            "protocol": self.protocol,
            "left_out": dict(self.foils.left_out),
            "lines": [line.plain() for line in self.lines],
            "blind": blind,
            "items": _items(self.foils, self.scores),
        }


def foils_with(
    name: str,
    sources: Sequence[str],
    plan: FoilPlan,
    *,
    images: Path | None = None,
    features: Path | None = None,
    page: Path | None = None,
    out: Path | None = None,
) -> FoilResult:
    """Ask a model to tell captions from foils, print the tables and, if asked, write them.

    Args:
        name: of the model; joined by ``+``, an ensemble; "blind" for the blind model alone.
        sources: the set, see `open_foil_set`.
        plan: how to ask.
        images: folder of the pictures.
        features: stored features of the pictures.
        page: where a page with the worst items goes.
        out: where the numbers go.

    Raises:
        ValueError: an unknown rule for ties, or model and set do not fit.
    """
    ties: Ties | None = next((one for one in get_args(Ties) if one == plan.ties), None)
    if ties is None:
        raise ValueError(unknown(plan.ties, list(TIES), "a rule for ties"))
    if name == BLIND and plan.blind is None:
        raise ValueError("the blind model learns from captions; name them with --blind")
    for path in (page, out):
        if path is not None:
            check_file(path)
    world.join()
    foils = open_foil_set(
        sources, images=images, features=features, split=plan.split, seed=plan.seed
    )
    scorer = None if name == BLIND else open_scorers([name])[0]
    for model in scorer.models if scorer else ():
        _check_sees(model, foils)
    blind, told = _blind(plan.blind, plan.decisions, foils) if plan.blind else (None, "")
    scores = score_items(scorer.on(foils.corpus), foils) if scorer else blind
    assert scores is not None
    protocol = _protocol(foils, plan, scorer, told, ties)
    seen = measured(foils, scores, ties=ties, seed=plan.seed)
    guessed = measured(foils, blind, ties=ties, seed=plan.seed) if blind is not None else ()
    if foils.task == "crossed" or scorer is None:
        guessed = ()  # both captions are true once, and no picture tells them apart
    found = FoilResult(foils, scores, seen, guessed, protocol)
    if world.rank() == 0:
        _show(found, name, plan, page, out)
    return found


def _show(
    found: FoilResult, name: str, plan: FoilPlan, page: Path | None, out: Path | None
) -> None:
    for table in foils_page.tables(found.lines, found.blind):
        console.print(terminal_table(table, found.protocol))
    say(foils_page.headline(found.lines))
    if page is not None:
        worst = margins(found.foils, found.scores).argsort(stable=True)[: plan.examples].tolist()
        text = foils_page.rendered(
            found.foils, found.scores, found.lines, found.blind, found.protocol, worst, plan.seed
        )
        write_text(page, text)
        say(f"{page}")
    if out is not None:
        write_json(out, {"model": name, "seed": plan.seed, "ties": plan.ties, **found.plain()})
        say(f"{out}")


def _check_sees(model: Model, foils: FoilSet) -> None:
    """Refuse a model that cannot see the pictures of a set, before anything is encoded."""
    corpus = foils.corpus
    if model.lens is None or model.lens.tokenizer is None:
        raise ValueError(
            f"{model.name} compares ready-made vectors and cannot read the captions of "
            f"{foils.name}; give a model folder or the name of a model"
        )
    reads = isinstance(model.lens.eye, FeatureEye)
    if reads and corpus.features is None:
        raise ValueError(
            f"{model.name} reads stored features of pictures and {foils.name} comes without; "
            f"extract those of its pictures and name their folder with --features; a picture is "
            f"called as in {corpus.image_ids[0]!r}"
        )
    if not reads and corpus.pictures is None:
        raise ValueError(
            f"{foils.name} comes without pictures, such as {corpus.image_ids[0]!r}; name their "
            "folder with --images"
        )


def _blind(source: str, decisions: Path | None, foils: FoilSet) -> tuple[Tensor, str]:
    """Scores of a model of captions that are not in the set, and what it learnt from in words."""
    asked = set(foils.corpus.texts)
    if source.endswith(".txt"):
        held = [line for line in read_lines(Path(source), "captions") if line.strip()]
    else:
        held = list(open_corpus(source, decisions=decisions).split("train").texts)
    kept = [caption for caption in held if caption not in asked]
    if not kept:
        raise ValueError(
            f"{source} holds no caption that is not in {foils.name}; the blind model needs others"
        )
    model = NGrams.of(kept)
    told = (
        f"blind: {model.order}-gram model of {len(kept):,} captions of {source}, mean log "
        f"probability of a word"
    )
    left = len(held) - len(kept)
    return blind_scores(model, foils), told + (f", {left:,} of the set left out" if left else "")


def _protocol(foils: FoilSet, plan: FoilPlan, scorer: Scorer | None, told: str, ties: Ties) -> str:
    left = ", ".join(f"{many:,} {why}" for why, many in foils.left_out.items())
    level = "thresholds chosen on one half of the pictures for the other"
    parts = [
        f"{foils.name}: {len(foils):,} items, {len(foils.corpus):,} pictures",
        f"left out: {left}" if left else "",
        TIES[ties],
        level if foils.form in THRESHOLDS else "",
        "the blind model alone" if scorer is None else scorer.describe(),
        f"seed {plan.seed}",
        told,
        "95 % intervals: pictures drawn anew with all their items, 1,000 times",
    ]
    return "; ".join(part for part in parts if part)


def _items(foils: FoilSet, scores: Tensor) -> list[dict[str, Any]]:
    rows, right, start = [], margins(foils, scores).tolist(), 0
    for item, margin in zip(foils.items, right):
        stop = start + len(item.images) * len(item.texts)
        rows.append(
            {
                "id": item.id,
                "category": item.category,
                "pictures": [foils.corpus.image_ids[row] for row in item.images],
                "captions": [foils.corpus.texts[row] for row in item.texts],
                "true": item.true,
                "scores": scores[start:stop].tolist(),
                "margin": margin,
            }
        )
        start = stop
    return rows
