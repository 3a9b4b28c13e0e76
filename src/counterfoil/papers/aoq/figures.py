"""Figures of AOQ (https://arxiv.org/abs/2003.03669): section 1 and Figures 3, 4 and 5."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median_low
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from counterfoil.analysis.runs import METRICS, describe_notes, training_folders, training_note
from counterfoil.cli.options import Models, OneModel, Seed, Split
from counterfoil.core.console import progress
from counterfoil.data.dataset import ImageTextDataset, Relation
from counterfoil.evaluation.galleries import shown_caption, shown_image
from counterfoil.evaluation.metrics import Direction, check_text_to_image
from counterfoil.negatives.sampling import images_for_texts
from counterfoil.negatives.store import HardNegativeLists, NegativeStore
from counterfoil.papers.analyses import Batch, Trainings, analysis
from counterfoil.pipelines.run import DataSource
from counterfoil.pipelines.scorers import describe_protocol, open_scorers, short_names
from counterfoil.pipelines.stages.compare import learning_curve
from counterfoil.report.analysis import Analysis, Column, cells, table
from counterfoil.report.figures import (
    LearningCurve,
    expected_by_batch,
    learning_curves,
    recall_curves,
    share_bars,
)
from counterfoil.report.page import CardColumn, CardSection, ExampleCard, TableBlock
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.reducers import DenseScores, PairRanks, Ranks
from counterfoil.scoring.stream import stream_scores

# -- Section 1: rank of a batch's hardest negative in the whole training set ----------------------
# With 500K pairs and batches of 128 the paper has an expected rank of about 4000, and a chance of
# about 2.2 % for one of the 100 hardest. Both follow from counting, for any model.
#
# A batch has an anchor caption and B - 1 of the T - 1 others, drawn uniformly. Its hardest negative
# text ranks below the k hardest if none of those k is drawn:
#
#     P(R > k) = C(T - 1 - k, B - 1) / C(T - 1, B - 1)
#
# and the sum over k is E[R] = T / B, exactly, as long as B exceeds the captions of one image. An
# image comes with c captions, so that k hard images are missed when k c captions are.
#
# The two numbers of the paper are of two sizes of MS-COCO: 500K / 128 = 3906, while 2.2 % is the
# chance in the 566,435 captions of its training split; in 500K it would be 2.5 %.

BATCHES = (32, 64, 128, 256, 512, 1024)
_SIDES: dict[Direction, str] = {"i2t": "captions for an image", "t2i": "images for a caption"}
_NUMBERS = 2**25  # scores held at once


def missed(count: Tensor, texts: int, batch: int) -> Tensor:
    """(n,) probability that none of `count` captions is in the batch of another caption.

    `count` is (n,); a batch has `batch` of `texts` captions, B of T.
    """
    wrong_texts, others = texts - 1, batch - 1
    remaining = (wrong_texts - count.double()).clamp(min=0)
    chance = (
        torch.lgamma(remaining + 1)
        - torch.lgamma((remaining - others).clamp(min=0) + 1)
        - torch.lgamma(torch.tensor(wrong_texts + 1.0, dtype=torch.double))
        + torch.lgamma(torch.tensor(wrong_texts - others + 1.0, dtype=torch.double))
    ).exp()
    return chance.where(remaining >= others, 0.0)


def chance_of_top(k: int, texts: int, batch: int, *, captions: float = 1) -> float:
    """Probability that the hardest negative of a batch is one of the k hardest of all.

    A batch has `batch` of `texts` captions, the anchor among them. `captions` is the number of
    captions per negative: 1 for texts, captions per image for images.
    """
    return 1 - float(missed(torch.tensor([k * captions]), texts, batch))


def expected_rank(texts: int, batch: int, *, captions: float = 1) -> float:
    """Expected rank, from 1, of the hardest negative of a batch; T / B for texts.

    Arguments as of `chance_of_top`; a batch has more captions than one image.
    """
    if captions == 1:
        return texts / batch
    ranks = torch.arange(int((texts - 1) / captions), dtype=torch.double)
    return float(missed(ranks * captions, texts, batch).sum())


def online_ranks(
    members: Sequence[EmbeddedDataset],
    relation: Relation,
    *,
    batches: Sequence[int],
    anchors: int,
    draws: int,
    rng: torch.Generator,
) -> dict[Direction, tuple[Tensor, Tensor]]:
    """Rank the hardest negatives of random batches, in both directions.

    S anchor captions and the rest of their batches, D of each of N sizes, are drawn from the
    captions that describe an image, as in training; smaller batches are the heads of larger ones.
    Each anchor is compared with everything, and of equal scores the lower row ranks first.

    Returns:
        For each direction (N, S, D) ranks among all wrong counterparts, from 1 and 0 where a batch
        has none, and (N, S, D) scores of the negative minus score of the anchor pair, NaN there.

    Raises:
        ValueError: a batch of fewer than 2 captions, or of more than there are.
    """
    text_to_image = relation.text_to_image
    owned = relation.owned
    if not batches or min(batches) < 2 or max(batches) > len(owned):
        raise ValueError(
            f"batches of {', '.join(map(str, batches)) or 'nothing'} cannot be drawn from "
            f"{len(owned):,} captions; each needs 2 to {len(owned):,}"
        )
    chosen = owned[torch.randperm(len(owned), generator=rng)[:anchors]]
    heads = torch.tensor(batches) - 2  # a batch of B has B - 1 draws besides the anchor
    measured: dict[Direction, list[tuple[Tensor, Tensor]]] = {"i2t": [], "t2i": []}
    at_once = max(1, _NUMBERS // max(len(text_to_image), relation.images))
    with progress("anchors ranked", len(chosen)) as advance:
        for part in torch.split(chosen, at_once):
            to_texts = query_scores(members, "i2t", text_to_image[part])
            to_images = query_scores(members, "t2i", part)
            for row, texts, images in zip(part, to_texts, to_images):
                image = text_to_image[row]
                wrong_texts, wrong_images = wrong_counterparts(relation, image)
                drawn = draw_batches(owned[owned != row], max(batches) - 1, draws, rng)
                sides: tuple[tuple[Direction, Tensor, Tensor, Tensor], ...] = (
                    ("i2t", places(texts, wrong_texts), texts - texts[row], drawn),
                    (
                        "t2i",
                        places(images, wrong_images),
                        images - images[image],
                        text_to_image[drawn],
                    ),
                )
                for direction, place, gaps, negatives in sides:
                    # column n: the best of the first n + 1, so that one pass serves all sizes
                    best, at = place[negatives].cummin(1)
                    rank, gap = best[:, heads].T, gaps[negatives].gather(1, at)[:, heads].T
                    none = rank > len(place)
                    measured[direction].append(
                        (rank.masked_fill(none, 0), gap.masked_fill(none, torch.nan))
                    )
                advance(1)
    return {
        direction: (torch.stack([r for r, _ in each], 1), torch.stack([g for _, g in each], 1))
        for direction, each in measured.items()
    }


def mean_rank(ranks: Tensor) -> tuple[float, float]:
    """Mean of (S, D) ranks, and half of its 95 % interval over anchors."""
    means = ranks.double().masked_fill(ranks == 0, torch.nan).nanmean(1)
    means = means[means.isfinite()]
    spread = means.std().item() if len(means) > 1 else float("nan")
    return means.mean().item(), 1.96 * spread / len(means) ** 0.5


def percent_among(ranks: Tensor, k: int) -> float:
    """Percent of batches whose hardest negative is one of the k hardest of all."""
    return 100 * ((ranks > 0) & (ranks <= k)).double().mean().item()


def query_scores(members: Sequence[EmbeddedDataset], direction: Direction, rows: Tensor) -> Tensor:
    """(S, N) scores of some images with all texts, "i2t", or of some texts with all images."""
    of_images = direction == "i2t"
    if of_images:
        some = [EmbeddedDataset(m.model, m.images.rows(rows), m.texts) for m in members]
    else:
        some = [EmbeddedDataset(m.model, m.images, m.texts.rows(rows)) for m in members]
    dense = DenseScores(len(some[0].images), len(some[0].texts))
    stream_scores(some, [dense])
    scores = dense.scores.cpu()
    return scores if of_images else scores.T.contiguous()


def places(scores: Tensor, wrong: Tensor) -> Tensor:
    """(n,) rank of each negative among the negatives, from 1; n + 1 for positives."""
    order = scores.masked_fill(~wrong, -torch.inf).argsort(descending=True, stable=True)
    order = order[wrong[order]]
    ranks = torch.full((len(scores),), len(scores) + 1)
    ranks[order] = torch.arange(1, len(order) + 1)
    return ranks


def wrong_counterparts(relation: Relation, image: Tensor) -> tuple[Tensor, Tensor]:
    """(T,) bool, texts of other images, and (I,) bool, other images that have texts."""
    text_to_image = relation.text_to_image
    texts = (text_to_image >= 0) & (text_to_image != image)
    return texts, (relation.counts > 0) & (relation.rows() != image)


def draw_batches(others: Tensor, size: int, count: int, rng: torch.Generator) -> Tensor:
    """(count, size) captions besides the anchor of as many batches."""
    draws = [torch.randperm(len(others), generator=rng)[:size] for _ in range(count)]
    return others[torch.stack(draws)]


@analysis(
    "online-rank",
    "counterfoil papers analyse online-rank runs/mine/online --data my-photos/ --output rank.html",
)
def online_rank(
    model: OneModel,
    source: DataSource,
    split: Split = "train",
    batch: Annotated[
        list[int] | None,
        typer.Option(min=2, help="Captions in a batch; repeatable; default 32 to 1,024."),
    ] = None,
    anchors: Annotated[int, typer.Option(min=2, help="Number of anchor captions.")] = 200,
    draws: Annotated[int, typer.Option(min=1, help="Batches for each anchor and size.")] = 20,
    top: Annotated[
        int, typer.Option(min=1, help="Number of captions that count as hardest.")
    ] = 100,
    seed: Seed = 0,
) -> Analysis:
    """Rank the hardest negatives of random batches in a whole split, for several batch sizes.

    Images count as among the hardest in proportion to texts: 20 images for 100 captions if an image
    has five, as the paper takes 60 images for 300 texts.
    """
    dataset, scorers = source.split(split), open_scorers([model])
    owned = int((dataset.text_to_image >= 0).sum())
    sizes = sorted(set(batch or ())) or [b for b in BATCHES if b <= owned] or [owned]
    measured = online_ranks(
        scorers[0].on(dataset),
        dataset.relation,
        batches=sizes,
        anchors=anchors,
        draws=draws,
        rng=torch.Generator().manual_seed(seed),
    )
    lines: dict[Direction, list[dict[str, Any]]] = {}
    for direction, (ranks, gaps) in measured.items():
        described = int((dataset.relation.counts > 0).sum())
        captions = 1.0 if direction == "i2t" else owned / described
        hardest = max(1, round(top / captions))
        lines[direction] = [
            {
                "direction": direction,
                "batch": size,
                **dict(zip(("mean_rank", "half_interval"), mean_rank(rank))),
                "expected_rank": expected_rank(owned, size, captions=captions),
                "hardest": hardest,
                "top": percent_among(rank, hardest),
                "expected_top": 100 * chance_of_top(hardest, owned, size, captions=captions),
                "median_gap": gap.nanmedian().item(),
            }
            for size, rank, gap in zip(sizes, ranks, gaps)
        ]
    columns: dict[str, Column] = {
        "batch": "batch",
        "mean rank": lambda one: f"{one['mean_rank']:,.1f}\u00a0±\u00a0{one['half_interval']:,.1f}",
        "expected": ("expected_rank", ",.1f"),
        "among the hardest": lambda one: f"{one['top']:.2f}\u00a0%",
        "expected share": lambda one: f"{one['expected_top']:.2f}\u00a0%",
        "median gap": ("median_gap", "+.3f"),
    }

    def note(direction: Direction) -> str:
        return (
            f"Rank among all wrong {_SIDES[direction].split()[0]} of the split, from 1; ± is a 95 "
            "% interval over anchors. Hardest: the first "
            f"{lines[direction][0]['hardest']:,}. Gap: score of the negative minus "
            "score of the anchor pair. Expected: by counting, for any model."
        )

    def series(*keys: str) -> dict[str, list[list[float]]]:
        return {
            _SIDES[way]: [[one[key] for one in some] for key in keys] for way, some in lines.items()
        }

    i2t, t2i = lines.values()
    shown = next((line for line in i2t if line["batch"] == 128), i2t[-1])
    often = (
        f"How often it is one of the hardest {i2t[0]['hardest']:,} captions or "
        f"{t2i[0]['hardest']:,} images."
    )
    ranked = series("expected_rank", "mean_rank", "half_interval")
    return Analysis(
        title="How hard online negatives are",
        headline=(
            f"The hardest wrong caption of a batch of {shown['batch']:,} has rank "
            f"{_rank(shown['mean_rank'])} on average in {len(dataset.texts):,} captions (by "
            f"counting {_rank(shown['expected_rank'])}) and is one of the {shown['hardest']:,} "
            f"hardest in {shown['top']:.1f} % of batches (by counting "
            f"{shown['expected_top']:.1f} %)."
        ),
        protocol=(
            f"{describe_protocol(dataset, scorers, seed=seed)}; {min(anchors, owned):,} anchors, "
            f"{draws} batches of each size for each"
        ),
        numbers={"models": [model], "seed": seed, "lines": [*i2t, *t2i]},
        figures=(
            expected_by_batch(
                sizes, ranked, "mean rank", "rank", "Its rank in the whole split.", log=True
            ),
            expected_by_batch(
                sizes, series("expected_top", "top"), "share of batches, %", "top", often
            ),
        ),
        tables=tuple(
            table(f"Online negatives: {_SIDES[direction]}", some, columns, note(direction))
            for direction, some in lines.items()
        ),
    )


def _rank(rank: float) -> str:
    return f"{rank:,.0f}" if rank >= 100 else f"{rank:.1f}"


# -- Figure 3: anchors with their online and offline negatives -------------------------------------


def examples(
    members: Sequence[EmbeddedDataset],
    relation: Relation,
    *,
    anchors: int,
    batch: int,
    texts: int,
    images: int,
    shown: int,
    rng: torch.Generator,
    lists: HardNegativeLists | None = None,
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Images and one caption of each, with online and offline negatives, at most `shown` of a kind.

    An online negative is the hardest of a random batch of `batch` captions; offline ones are drawn
    from the first `texts` of an image's list and `images` of a text's: of mined lists, or of all
    by the members' own scores.

    Returns:
        For each anchor pair the image's side and the text's side, JSON-ready: its "row", and
        "true", "online" and "offline" with the "rows" of each, highest score first, their "scores"
        and "places": 1 + the number of negatives before it.

    Raises:
        ValueError: no two images are described.
    """
    described = relation.described
    if len(described) < 2:
        raise ValueError(f"{len(described)} images have captions; negatives need at least 2")
    chosen = described[torch.randperm(len(described), generator=rng)[:anchors]]
    captions = relation.random_caption(chosen, rng)
    text_to_image = relation.text_to_image
    scored = query_scores(members, "i2t", chosen), query_scores(members, "t2i", captions)
    pairs = []
    for image, text, to_texts, to_images in zip(chosen, captions, *scored):
        wrong_texts, wrong_images = wrong_counterparts(relation, image)
        true_texts = (text_to_image == image).nonzero().squeeze(1)
        others = relation.owned[relation.owned != text]
        batches = draw_batches(others, min(batch - 1, len(others)), shown, rng)
        mined = (lists.texts[image], lists.images[text]) if lists else (None, None)
        sides = []
        for row, scores, wrong, true, online, count, listed in (
            (image, to_texts, wrong_texts, true_texts, batches, texts, mined[0]),
            (text, to_images, wrong_images, image[None], text_to_image[batches], images, mined[1]),
        ):
            place = places(scores, wrong)
            hardest = torch.unique(hardest_drawn(place, online))
            if listed is None:
                offline = (wrong & (place <= count)).nonzero().squeeze(1)
            else:
                offline = listed[listed >= 0][:count].long()
            offline = offline[torch.randperm(len(offline), generator=rng)[:shown]]
            kinds = {"true": true, "online": hardest[hardest >= 0], "offline": offline}
            sides.append(
                {
                    "row": int(row),
                    **{kind: _listed(scores, place, wrong, rows) for kind, rows in kinds.items()},
                }
            )
        pairs.append((sides[0], sides[1]))
    return pairs


def hardest_drawn(place: Tensor, drawn: Tensor) -> Tensor:
    """(D,) the hardest of each of D batches by its `places`; -1 where a batch has no negative."""
    best = drawn.gather(1, place[drawn].argmin(1, keepdim=True)).squeeze(1)
    return best.masked_fill(place[best] > len(place), -1)


def _listed(scores: Tensor, place: Tensor, wrong: Tensor, rows: Tensor) -> dict[str, list[Any]]:
    rows = rows[scores[rows].argsort(descending=True, stable=True)]
    ahead = [
        int(place[row]) if wrong[row] else 1 + int((wrong & (scores > scores[row])).sum())
        for row in rows
    ]
    return {"rows": rows.tolist(), "places": ahead, "scores": scores[rows].tolist()}


@analysis(
    "negatives",
    "counterfoil papers analyse negatives runs/mine/online --data my-photos/ --lists lists/ "
    "--output negatives.html",
)
def negative_examples(
    model: OneModel,
    source: DataSource,
    split: Split = "train",
    lists: Annotated[
        Path | None,
        typer.Option(help="Folder of mined negatives; default the hardest by the model."),
    ] = None,
    anchors: Annotated[int, typer.Option(min=1, help="Number of images.")] = 6,
    batch: Batch = 128,
    top: Annotated[
        int, typer.Option(min=1, help="Sample offline negatives from this many hardest captions.")
    ] = 300,
    shown: Annotated[int, typer.Option(min=1, help="Negatives of each kind.")] = 3,
    seed: Seed = 0,
) -> Analysis:
    """Show online and offline negatives of some anchors side by side (Figure 3).

    Offline negatives are drawn from the `top` hardest captions of an image, and from
    proportionally fewer images of a caption: 60 for 300 at five captions an image.
    """
    dataset, scorers = source.split(split), open_scorers([model])
    mined = None
    if lists:
        relation, fingerprint = dataset.relation, dataset.fingerprint
        mined = NegativeStore.open(lists, fingerprint=fingerprint, relation=relation).lists
    most = max(1, len(dataset.texts))
    texts = min(top, most)
    images = images_for_texts(texts, dataset.relation)
    if mined is not None:
        texts, images = min(texts, mined.texts.shape[1]), min(images, mined.images.shape[1])
    sizes = {"batch": min(batch, most), "texts": texts, "images": images, "shown": shown}
    pairs = examples(
        scorers[0].on(dataset),
        dataset.relation,
        **sizes,
        anchors=anchors,
        rng=torch.Generator().manual_seed(seed),
        lists=mined,
    )
    medians = []
    for of, side in zip(("captions of an image", "images of a caption"), zip(*pairs)):
        for kind in ("true", "online", "offline"):
            ranks = [place for example in side for place in example[kind]["places"]]
            scores = [score for example in side for score in example[kind]["scores"]]
            rank, score = (median_low(ranks), median_low(scores)) if ranks else (None, None)
            medians.append({"of": f"{of}, {kind}", "rank": rank, "score": score})
    origin = f"lists of {lists}" if lists else "the model's own lists"
    return Analysis(
        title="Online and offline negatives",
        headline=(
            f"Negatives of a batch of {sizes['batch']}, and of {len(dataset.texts):,} captions and "
            f"{len(dataset):,} images."
        ),
        protocol=(
            f"{describe_protocol(dataset, scorers, seed=seed)}; batches of {sizes['batch']}; "
            f"offline: drawn from {texts} texts and {images} images, {origin}"
        ),
        numbers={
            "models": [model],
            "seed": seed,
            **sizes,
            "anchors": [
                {
                    "image": dataset.image_ids[image["row"]],
                    "caption": dataset.texts[text["row"]],
                    "texts": image,
                    "images": text,
                }
                for image, text in pairs
            ],
        },
        tables=(
            table(
                "In these examples",
                medians,
                {"": "of", "median rank": "rank", "median score": ("score", ".3f")},
                "Rank among all wrong counterparts of the split, from 1.",
            ),
        ),
        sections=(
            CardSection(
                "Images and wrong captions",
                "Before each caption its rank among the wrong ones, after it its score.",
                tuple(_example_card(dataset, image, shown, texts) for image, _ in pairs),
            ),
            CardSection(
                "Captions and wrong images",
                "Under each image its rank among the wrong ones and its score.",
                tuple(
                    _example_card(dataset, text, shown, images, of_image=False) for _, text in pairs
                ),
            ),
        ),
    )


def _example_card(
    dataset: ImageTextDataset,
    example: dict[str, Any],
    shown: int,
    hardest: int,
    *,
    of_image: bool = True,
) -> ExampleCard:
    item, query = (shown_caption, shown_image) if of_image else (shown_image, shown_caption)
    columns = []
    for kind, title, note in (
        ("true", "Positive", ""),
        ("online", "Online", f"hardest of each of {shown} batches"),
        ("offline", "Offline", f"drawn from the {hardest} hardest"),
    ):
        listed = zip(*example[kind].values())  # rows, places and scores
        items = (
            item(dataset, row, example["row"], place - 1, score) for row, place, score in listed
        )
        columns.append(CardColumn(title, note, tuple(items)))
    return ExampleCard(query(dataset, example["row"]), "", tuple(columns))


# -- Figure 4: learning curves --------------------------------------------------------------------


@analysis("curves", "counterfoil papers analyse curves runs/mine --output curves.html")
def curves(folders: Trainings) -> Analysis:
    """Draw learning curves of several trainings, as one per loss (Figure 4)."""
    places = training_folders(folders)
    measured: list[LearningCurve] = []
    trainings: list[dict[str, Any]] = []
    for name, place in zip(short_names(places), places):
        curve = learning_curve(name, place / METRICS)
        if not curve.epochs:
            raise ValueError(f"{place / METRICS} holds no epoch; was the training stopped at once?")
        note = training_note(place)
        losses = _loss_names(note.stage.objective.get("terms")) if note else ()
        measured.append(curve)
        trainings.append(
            {
                "curve": curve,
                "folder": str(place),
                "losses": ", ".join(dict.fromkeys(losses)),
                "seed": note.seed if note else None,
                "data": note.data.name if note else "",
                "fingerprint": note.data.fingerprint if note else "",
            }
        )
    data, seeds = describe_notes(map(training_note, places))
    columns: dict[str, Column] = {
        "training": lambda one: one["curve"].name,
        "loss": lambda one: one["losses"] or None,
        "seed": "seed",
        "best dev RSum": lambda one: max(one["curve"].dev_rsum, default=None),
        "at epoch": lambda one: (_at_best(one["curve"], one["curve"].epochs), "g"),
        "R@1 i2t there": lambda one: _at_best(one["curve"], one["curve"].dev_i2t_r1),
        "R@1 t2i there": lambda one: _at_best(one["curve"], one["curve"].dev_t2i_r1),
        "last RSum": lambda one: one["curve"].dev_rsum[-1] if one["curve"].dev_rsum else None,
    }
    same_data = len({one["fingerprint"] for one in trainings if one["fingerprint"]}) < 2
    return Analysis(
        title="Learning curves",
        headline=_curves_headline(measured, same_data=same_data),
        protocol=(
            f"{data}dev, whole split: RSum after each epoch, sum of R@1, R@5 and R@10 both ways, "
            f"and R@1 each way, any hit; single models{seeds}"
        ),
        numbers={"trainings": trainings},
        figures=(*recall_curves(measured), *learning_curves(measured)),
        tables=(table("Trainings", trainings, columns),),
    )


def _at_best(curve: LearningCurve, values: Sequence[float]) -> float | None:
    """The value of the epoch with the best RSum on dev, if both were measured."""
    if not curve.dev_rsum or not values:
        return None
    return values[curve.dev_rsum.index(max(curve.dev_rsum))]


def _loss_names(written: Any) -> Iterator[str]:
    """Names of the losses in a written call; losses in sequence are joined by "then"."""
    if isinstance(written, dict):
        name = str(written.get("call", "")).rpartition(":")[2].removesuffix("Loss")
        if name == "SwitchAfter":
            parts = ("first", "second")
            yield " then ".join(name for key in parts for name in _loss_names(written.get(key)))
            return
        if name:
            yield name
        written = list(written.values())
    if isinstance(written, list):
        for value in written:
            yield from _loss_names(value)


def _curves_headline(trainings: Sequence[LearningCurve], *, same_data: bool) -> str:
    measured = [training for training in trainings if training.dev_rsum]
    if not measured:
        return f"Training loss of {len(trainings)} trainings; none was measured on dev."
    top = max(measured, key=lambda one: max(one.dev_rsum))
    best = max(top.dev_rsum)
    if len(measured) == 1:
        return f"{top.name} reaches dev RSum {best:.1f} in {len(top.epochs)} epochs."
    if not same_data:
        return f"{len(trainings)} trainings on different data, whose figures do not compare."
    others = ", ".join(f"{max(o.dev_rsum):.1f} by {o.name}" for o in measured if o is not top)
    return f"The best dev RSum is {best:.1f} by {top.name}; {others}."


# -- Section 4.3 and Figure 5: cross-retrieval rank -----------------------------------------------

EDGES = (1, 5, 10, 20, 50, 100, 200)  # last rank of each bin but the open one
BINS = ("1", "2–5", "6–10", "11–20", "21–50", "51–100", "101–200", "above 200")


def pair_ranks(members: Sequence[EmbeddedDataset], text_to_image: Tensor) -> tuple[Tensor, Tensor]:
    """(P,) ranks of all true pairs, from 1 and in the order of the texts, in one pass.

    The first are among the wrong texts of the pair's image, r_t, the second among the wrong images
    of its text, r_i. Other true texts of the image count neither for nor against a pair; of equal
    scores the lower row comes first.

    Raises:
        ValueError: `text_to_image` does not fit the encodings, or no text describes an image.
    """
    check_text_to_image(text_to_image, len(members[0].images), len(members[0].texts))
    paired = text_to_image >= 0
    if not bool(paired.any()):
        raise ValueError(
            f"none of the {len(text_to_image)} texts describes an image; there is no pair"
        )
    texts, pictures = PairRanks(text_to_image), Ranks("text", len(text_to_image), text_to_image)
    stream_scores(members, [texts, pictures])
    r_t, r_i = (reducer.ranks().cpu()[paired.cpu()] + 1 for reducer in (texts, pictures))
    return r_t, r_i


def cross_ranks(r_t: Tensor, r_i: Tensor, ratio: float) -> Tensor:
    """(P,) double, max(ratio * (r_i - 1) + 1, r_t), with `ratio` texts per image.

    Section 4.3 has max(5 r_i - 4, r_t), which this is at five texts per image. Whole numbers stay
    whole if the ratio is one.
    """
    return torch.maximum(ratio * (r_i.double() - 1) + 1, r_t.double())


def rank_shares(ranks: Tensor) -> list[float]:
    """Percent of the ranks in each of `BINS`; a rank between two bins falls in the upper."""
    place = torch.bucketize(ranks, torch.tensor(EDGES, dtype=torch.double))
    shares: list[float] = (100 * torch.bincount(place, minlength=len(BINS)) / len(place)).tolist()
    return shares


@analysis(
    "cross-rank",
    "counterfoil papers analyse cross-rank runs/mine/online runs/mine/best --data my-photos/ "
    "--output cross.html",
)
def cross_rank(models: Models, source: DataSource, split: Split = "test") -> Analysis:
    """Count positive pairs by their rank among all wrong texts and images (Figure 5)."""
    dataset, scorers = source.split(split), open_scorers(models)
    pairs = int((dataset.text_to_image >= 0).sum())
    ratio = pairs / max(1, len(dataset))
    ranks = {
        scorer.name: cross_ranks(*pair_ranks(scorer.on(dataset), dataset.text_to_image), ratio)
        for scorer in scorers
    }
    shares = {name: rank_shares(model_ranks) for name, model_ranks in ranks.items()}
    medians = {name: float(model_ranks.median()) for name, model_ranks in ranks.items()}
    rows = [cells(*line) for line in zip(BINS, *shares.values())]
    rows.append(cells("median rank", *((each, ",.0f") for each in medians.values())))
    note = (
        f"Percent of {pairs:,} true pairs by max({ratio:.4g} · (r_i − 1) + 1, r_t): r_i is the "
        f"pair's rank among wrong images of its text, r_t among wrong texts of its image, and "
        f"{ratio:.4g} texts fall on an image; at five this is max(5 r_i − 4, r_t)."
    )
    best = ", ".join(f"{share[0]:.1f} % under {name}" for name, share in shares.items())
    far = ", ".join(f"{share[-1]:.1f} % under {name}" for name, share in shares.items())
    return Analysis(
        title="Cross-retrieval ranks",
        headline=f"Above every wrong pair: {best}. Beyond rank 200: {far}.",
        protocol=describe_protocol(dataset, scorers),
        numbers={
            "models": {scorer.name: scorer.given for scorer in scorers},
            "pairs": pairs,
            "texts_per_image": ratio,
            "bins": list(BINS),
            "percent": shares,
            "median": medians,
        },
        figures=(share_bars(list(shares.items()), BINS, "cross"),),
        tables=(TableBlock("Shares of the true pairs", ("rank", *shares), tuple(rows), note),),
    )
