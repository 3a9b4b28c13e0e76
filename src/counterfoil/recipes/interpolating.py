"""Between the weights of a model and what it was trained further to (WiSE-FT, arXiv:2109.01903).

What is tuned to some photos forgets a part of what it knew; weights in between often keep more of
both. How much is forgotten is told by the same test and by other data, query by query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from torch import Tensor

from counterfoil import world
from counterfoil.core.console import output
from counterfoil.corpus.corpus import Corpus
from counterfoil.evaluate.protocols import evaluate
from counterfoil.evaluate.report import headline, result_table, results
from counterfoil.evaluate.result import Report
from counterfoil.files import check_folder, check_new
from counterfoil.matcher import LowRank
from counterfoil.models.adapted import Adapted
from counterfoil.recipes.context import DEV
from counterfoil.recipes.model import Model, open_model
from counterfoil.recipes.pairs import knows_nothing
from counterfoil.recipes.run import Source
from counterfoil.recipes.show import console
from counterfoil.report.page import TableBlock
from counterfoil.report.tables import terminal_table
from counterfoil.train.saved import save_model

ALPHAS = tuple(step / 10 for step in range(11))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What was saved.

    Attributes:
        alpha: share of the tuned weights.
        rsum: on dev of each alpha that was tried; empty where none was chosen.
    """

    alpha: float
    rsum: Mapping[float, float]


def interpolated(original: Model, tuned: Model, alpha: float) -> Model:
    """A model with the weights (1 - alpha) original + alpha tuned.

    Args:
        original: what the training began with.
        tuned: a saved model that it came to; low-rank adapters are merged first.
        alpha: from 0, the original, to 1.

    Raises:
        ValueError: an alpha out of range, or weights that are not of one model.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha={alpha} is not between the two; give 0 (original) to 1 (tuned)")
    _check(original, tuned)
    assert tuned.spec is not None
    spec, matcher = tuned.spec, deepcopy(tuned.matcher)
    for one in (matcher, before := deepcopy(original.matcher)):
        if isinstance(one, LowRank) and one.lora:
            one.merge()
    if isinstance(matcher, LowRank):
        spec = spec.but(lora=0) if "lora" in spec.arguments else spec
    own, other = matcher.state_dict(), before.state_dict()
    if {name: t.shape for name, t in own.items()} != {name: t.shape for name, t in other.items()}:
        raise ValueError(
            f"{tuned.name} does not have the weights of {original.name}: one has to come from the "
            "other by training; name the model that its training began with"
        )
    matcher.load_state_dict({name: _between(other[name], t, alpha) for name, t in own.items()})
    return replace(tuned, matcher=matcher.eval(), name=f"alpha {alpha:g}", spec=spec)


def interpolate_with(
    original: str,
    tuned: str,
    out: Path,
    *,
    alphas: Sequence[float] = (),
    source: Source | None = None,
    other: Source | None = None,
) -> Chosen:
    """Save the weights in between that are best on dev, and say what all of them forget.

    Args:
        original: model that the training began with, as `open_model` opens it.
        tuned: the saved model that it came to.
        out: the new folder.
        alphas: to choose from by RSum on dev; none for 0, 0.1, ..., 1.
        source: the photos; needed where there is a choice. All three are measured on its test.
        other: other data that all three are measured on, its test split or all of it.

    Raises:
        ValueError: `out` exists, nothing to choose by, or models and data do not fit.
    """
    check_new(out, "a new folder with --out")
    check_folder(out)
    if len(alphas) != 1 and source is None:
        raise ValueError("the best alpha is chosen on dev; name the photos with --data, or --alpha")
    world.join()
    models = open_model(original), open_model(tuned)
    many = tuple(sorted(set(alphas))) or ALPHAS
    first = interpolated(*models, many[0])  # refuses before anything is encoded
    sums: dict[float, float] = {}
    if len(many) > 1 and source is not None:
        sums = _on_dev(models, many, _dev(source.open()))
        show = [(f"{alpha:g}", f"{rsum:.1f}") for alpha, rsum in sums.items()]
        note = "0 is the original, 1 the tuned model"
        console.print(
            terminal_table(TableBlock("RSum on dev", ("alpha", "RSum"), tuple(show), note))
        )
    alpha = max(sums, key=lambda one: (sums[one], -one)) if sums else many[0]
    made = first if alpha == many[0] else interpolated(*models, alpha)
    for data in (source, other):
        if data is not None:
            named = {"original": models[0], "tuned": models[1], made.name: made}
            compare(named, _tested(data.open()))
    _save(made, out, original=original, tuned=tuned, alpha=alpha, sums=sums)
    return Chosen(alpha=alpha, rsum=sums)


def compare(models: Mapping[str, Model], corpus: Corpus) -> dict[str, Report]:
    """Measure models on a split and print each beside the first, with intervals of the differences.

    Args:
        models: by the names that they have in the tables; the first is what the others came from.
        corpus: the split.
    """
    reports = {}
    for name, model in models.items():
        member = model.member(corpus)
        reports[name] = evaluate(
            [member], corpus.owner, len(corpus), dataset=corpus.name, split=corpus.part,
            besides=corpus.also, decided=corpus.decided,
        )  # fmt: skip
    first, *others = reports
    for name in others if world.rank() == 0 else ():
        runs = results({first: reports[first], name: reports[name]})
        console.print(terminal_table(result_table(runs), reports[name].setting.line()))
        output(f"{corpus.name}: {headline(runs)}")
    return reports


def _check(original: Model, tuned: Model) -> None:
    if tuned.spec is None or tuned.lens is None or tuned.card is None:
        raise ValueError(f"{tuned.name} is no saved model; name what a training has written")
    if isinstance(tuned.matcher, Adapted):
        raise ValueError(
            f"{tuned.name} has frozen towers, whose weights are those of the original: there is "
            "nothing in between; tune all of a model, or with lora"
        )
    if knows_nothing(original.name):
        raise ValueError(
            f"{original.name} begins with weights at random, so there is nothing between it and "
            f"{tuned.name}; name a pretrained model that training began with"
        )
    if original.lens is None or original.lens.eye != tuned.lens.eye:
        raise ValueError(
            f"{tuned.name} sees pictures in another way than {original.name}; name the model that "
            "its training began with"
        )


def _between(before: Tensor, after: Tensor, alpha: float) -> Tensor:
    if not after.is_floating_point():
        return after
    return before.to(after).lerp(after, alpha)


def _on_dev(
    models: tuple[Model, Model], alphas: Sequence[float], dev: Corpus
) -> dict[float, float]:
    found = {}
    for alpha in alphas:
        member = interpolated(*models, alpha).member(dev)
        found[alpha] = evaluate([member], dev.owner, len(dev), besides=dev.also).rsum
    return found


def _dev(corpus: Corpus) -> Corpus:
    found = [name for name in DEV if name in corpus.split_names]
    if not found:
        raise ValueError(
            f"{corpus.name} has no dev split, which the best alpha is chosen on; it has: "
            f"{', '.join(corpus.split_names)}; give one alpha"
        )
    return corpus.split(found[0])


def _tested(corpus: Corpus) -> Corpus:
    return corpus.split("test") if "test" in corpus.split_names else corpus


def _save(
    made: Model, out: Path, *, original: str, tuned: str, alpha: float, sums: Mapping[float, float]
) -> None:
    assert made.spec is not None
    assert made.lens is not None
    assert made.card is not None
    if world.rank() == 0:
        between = {"original": original, "tuned": tuned, "alpha": alpha}
        tried = {f"{one:g}": rsum for one, rsum in sums.items()}
        save_model(
            out,
            spec=made.spec,
            matcher=made.matcher,
            lens=made.lens,
            provenance={**made.card.provenance, "interpolated": {**between, "dev_rsum": tried}},
            metrics={"rsum": sums[alpha]} if sums else {},
        )
    world.wait()
    output(f"alpha {alpha:g}: {out}")
