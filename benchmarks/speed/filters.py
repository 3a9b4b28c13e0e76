"""Filters, masks of a guide and negatives from a denotation graph, against known false negatives.

``python -m benchmarks.speed.filters SOURCE --model FOLDER``

With ``--judged FILE`` (Flickr8k's CrowdFlowerAnnotations.txt) people have decided which captions of
other images are true; on scenes the grammar decides for every pair.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
from counterfoil.negatives.filters import FilterConfig, NegativeFilters
from counterfoil.negatives.mining import mine_lists
from counterfoil.negatives.teachers import GuideMask
from counterfoil.papers.compared.graph import graph_negatives
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.reducers import DenseScores
from counterfoil.scoring.stream import stream_scores

PLANS = (
    FilterConfig(),
    FilterConfig(captions=0.8),
    FilterConfig(captions=0.6),
    FilterConfig(captions=0.5),
    FilterConfig(captions=0.4),
    FilterConfig(pictures=0.7),
    FilterConfig(pictures=0.5),
    FilterConfig(meanings=0.8),
    FilterConfig(meanings=0.7),
    FilterConfig(meanings=0.6),
    FilterConfig(meanings=0.5),
    FilterConfig(below_positive=0.0),
    FilterConfig(below_positive=0.0, positive="highest"),
    FilterConfig(below_share=0.95),
    FilterConfig(below_share=0.95, positive="highest"),
    FilterConfig(guided=0.0),
    FilterConfig(guided=0.0, positive="highest"),
    FilterConfig(captions=0.5, pictures=0.7),
    FilterConfig(captions=0.5, meanings=0.7),
    FilterConfig(captions=0.5, guided=0.0, positive="highest"),
    FilterConfig(skip=5),
    FilterConfig(skip=20),
    FilterConfig(captions=0.5, skip=5),
    FilterConfig(meanings=0.6, skip=5),
)
MASKS = (
    *(GuideMask(margin=margin) for margin in (-0.2, -0.1, -0.05, 0.0, 0.05)),
    GuideMask(margin=0.05, kind="relative"),
)


def crowd(dataset: ImageTextDataset, path: Path) -> Tensor:
    """(I, T) int8: 1 where more people said yes than no of another image's caption, 0 where not.

    -1 where nobody was asked, and for an image's own captions.
    """
    images = {name.rpartition("/")[2]: row for row, name in enumerate(dataset.image_ids)}
    truth = torch.full((len(dataset), len(dataset.texts)), -1, dtype=torch.int8)
    for line in path.read_text(encoding="utf-8").splitlines():
        image, caption, _, yes, no = line.split("\t")
        text_to_image, _, number = caption.partition("#")
        if image in images and text_to_image in images and text_to_image != image:
            texts, _ = dataset.relation.captions(torch.tensor([images[text_to_image]]))
            truth[images[image], texts[int(number)]] = int(yes) > int(no)
    return truth


def exact(dataset: ImageTextDataset) -> Tensor:
    """(I, T) int8 of rendered scenes, as `crowd`, for all pairs."""
    from counterfoil.data.scenes import graphs
    from counterfoil.data.scenes.truth import truths

    truth = truths(graphs(dataset), dataset.texts)
    truth[dataset.text_to_image, torch.arange(len(dataset.texts))] = -1
    return truth


def rows(
    dataset: ImageTextDataset,
    members: list[EmbeddedDataset],
    guides: list[EmbeddedDataset],
    truth: Tensor,
    kept: int,
    encoder: str | None,
) -> Iterator[str]:
    """A line of the table for each plan."""
    yield f"| left out | of {int((truth == 1).sum()):,} true | of {int((truth == 0).sum()):,} false"
    yield f" | precision | true in lists of {kept} texts | true in lists of {kept // 5} images |\n"
    yield "|---|---|---|---|---|---|\n"
    for plan in PLANS:
        if (plan.needs_guide and not guides) or (plan.meanings and not encoder):
            continue
        plan = replace(plan, encoder=encoder if plan.meanings else None)
        filters = NegativeFilters(plan, dataset, guides=guides if plan.needs_guide else [])
        counted = "| | | "
        if not plan.skip:
            dense = DenseScores(*truth.shape)
            stream_scores(members, [filters.on("image", dense)])
            counted = cells(dense.scores.isneginf(), truth)
        lists = mine_lists(
            members,
            dataset.text_to_image,
            texts_per_image=kept,
            images_per_text=max(1, kept // 5),
            filters=filters,
        )
        found = rate(truth, lists.texts), rate(truth.T, lists.images)
        said = "; ".join(plan.describe()) or "own captions only"
        yield f"| {said} {counted}| {found[0]:.1%} | {found[1]:.1%} |\n"
    lists = graph_negatives(dataset, texts_per_image=kept, images_per_text=max(1, kept // 5)).lists
    found = rate(truth, lists.texts), rate(truth.T, lists.images)
    yield f"| denotation graph, without a model | | | | {found[0]:.1%} | {found[1]:.1%} |\n"


def cells(gone: Tensor, truth: Tensor) -> str:
    """Shares of the true and of the false pairs that are left out, and the precision.

    Args:
        gone: (I, T), True for a pair left out, or how likely it is.
        truth: (I, T) as from `crowd`.
    """
    true, false = (float(gone[truth == value].double().sum()) for value in (1, 0))
    share = f"{true / (true + false):.0%}" if true + false else ""
    shares = (true / max(1, int((truth == 1).sum())), false / max(1, int((truth == 0).sum())))
    return "".join(f"| {one:.1%} " for one in shares) + f"| {share} "


def masks(dataset: ImageTextDataset, guides: list[EmbeddedDataset], truth: Tensor) -> Iterator[str]:
    """A line of the table for each mask inside the loss.

    In a batch with one caption of each image, that caption is any of the image's own.
    """
    dense = DenseScores(*truth.shape)
    stream_scores(guides, [dense])
    own = dense.scores[dataset.text_to_image, torch.arange(len(dataset.texts))]
    captions = [dataset.relation.captions(torch.tensor([row]))[0] for row in range(len(dataset))]
    rounds = max(map(len, captions))
    for mask in MASKS:
        limit, gone = mask.limits(own), torch.zeros(truth.shape)
        for turn in range(rounds):
            anchor = torch.stack([texts[turn % len(texts)] for texts in captions])
            gone += (dense.scores > torch.maximum(limit[anchor, None], limit)) / rounds
        yield f"| in the loss: margin={mask.margin}, {mask.kind} {cells(gone, truth)}| | |\n"


def rate(truth: Tensor, lists: Tensor) -> float:
    """Share of true pairs among those in the lists of which it is known."""
    known = truth.gather(1, lists.clamp(min=0).long()).masked_fill(lists < 0, -1)
    return int((known == 1).sum()) / max(1, int((known >= 0).sum()))


def main() -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.filters", description=__doc__)
    parser.add_argument("source", help="a data set, or scenes:images=...")
    parser.add_argument("--features", help="features of its images")
    parser.add_argument("--model", required=True, help="whose scores are mined")
    parser.add_argument("--guide", help="a model that judges too")
    parser.add_argument("--encoder", help="a sentence encoder that compares captions")
    parser.add_argument("--judged", type=Path, help="CrowdFlowerAnnotations.txt")
    parser.add_argument("--split", default="test")
    parser.add_argument("--kept", type=int, default=50, help="texts listed for an image")
    given = parser.parse_args()
    dataset = load_dataset(given.source, features=given.features).split(given.split)
    truth = crowd(dataset, given.judged) if given.judged else exact(dataset)
    members = [load_model(given.model).embed(dataset)]
    guides = [load_model(given.guide).embed(dataset)] if given.guide else []
    print(f"{dataset.name} {given.split}, {len(dataset):,} images, {len(dataset.texts):,} texts\n")
    for line in rows(dataset, members, guides, truth, given.kept, given.encoder):
        print(line, end="", flush=True)
    for line in masks(dataset, guides, truth) if guides else ():
        print(line, end="", flush=True)


if __name__ == "__main__":
    main()
