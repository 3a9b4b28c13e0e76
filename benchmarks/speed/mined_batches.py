"""How hard the hardest negative of a batch is: random batches and those composed of mined lists.

``python -m benchmarks.speed.mined_batches SOURCE --lists FOLDER --model FOLDER``

The hardest wrong caption of an image in its batch has a rank among all wrong captions of the data
set, by the scores of a model; so has the hardest wrong image of a caption.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from counterfoil.data.batching import BatchSampler
from counterfoil.data.dataset import Relation
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
from counterfoil.negatives.batch_mining import BatchMiningConfig, NeighbourBatches
from counterfoil.negatives.store import HardNegativeLists, NegativeStore
from counterfoil.scoring.encode import EmbeddedDataset

SIZES, SKIPS = (8, 32, 128), (0, 5, 30)


def ranks(
    member: EmbeddedDataset, relation: Relation, batches: list[Tensor]
) -> tuple[float, float]:
    """Mean ranks of the hardest wrong captions and of the hardest wrong images in batches."""
    every_image, every_text = torch.arange(relation.images), torch.arange(len(member.texts))
    texts = torch.cat(batches)
    images = relation.text_to_image[texts]
    of_images = member.model.score_matrix(member.images.rows(images), member.texts)
    of_texts = member.model.score_matrix(member.images, member.texts.rows(texts)).T
    of_images.masked_fill_(relation.positive(images, every_text), -torch.inf)
    of_texts = of_texts.masked_fill(relation.positive(every_image, texts).T, -torch.inf)
    sizes = [len(batch) for batch in batches]
    parts = zip(batches, images.split(sizes), of_images.split(sizes), of_texts.split(sizes))
    found = [(_ranks(scores, batch), _ranks(other, own)) for batch, own, scores, other in parts]
    captions, pictures = (torch.cat(kind) for kind in zip(*found))
    return float(captions.mean()), float(pictures.mean())


def _ranks(scores: Tensor, batch: Tensor) -> Tensor:
    """Rank, among all wrong columns, of the highest of those in the batch, for each row."""
    hardest = scores[:, batch].max(1, keepdim=True).values
    return (scores > hardest).sum(1).double() + 1


@torch.no_grad()
def rows(
    members: list[EmbeddedDataset], relation: Relation, lists: HardNegativeLists, anchors: int
) -> Iterator[str]:
    """A line of the table for each size of a batch and way to make it."""
    names = "".join(
        f" caption, {who} | image, {who} |" for who in ("miner", "other")[: len(members)]
    )
    yield f"| batch | composed |{names}\n|---|---|{'---|' * 2 * len(members)}\n"
    for size in SIZES:
        for skip in (None, *SKIPS):
            partition = None
            if skip is not None:
                partition = NeighbourBatches(lists, relation, BatchMiningConfig(skip=skip))
            sampler = BatchSampler(relation, batch=size, seed=0, partition=partition)
            batches = list(islice(sampler.epoch(0), anchors // size))
            cells = ""
            for member in members:
                found = ranks(member, relation, batches)
                cells += f" {found[0]:,.0f} | {found[1]:,.0f} |"
            how = "random" if skip is None else f"mined, `skip={skip}`"
            yield f"| {size} | {how} |{cells}\n"


def main() -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.mined_batches", description=__doc__
    )
    parser.add_argument("source", help="a data set, or scenes:images=...")
    parser.add_argument("--features", help="features of its images")
    parser.add_argument("--lists", type=Path, required=True, help="mined from the training split")
    parser.add_argument("--model", required=True, help="that mined them")
    parser.add_argument("--other", help="a model that ranks too, and did not mine")
    parser.add_argument("--anchors", type=int, default=1024, help="captions in the batches")
    given = parser.parse_args()
    dataset = load_dataset(given.source, features=given.features).split("train")
    lists = NegativeStore.open(given.lists, fingerprint=dataset.fingerprint).lists
    models = [given.model, *([given.other] if given.other else [])]
    members = [load_model(name).embed(dataset) for name in models]
    print(f"{dataset.name} train, {len(dataset):,} images, {len(dataset.texts):,} texts\n")
    for line in rows(members, dataset.relation, lists, given.anchors):
        print(line, end="", flush=True)


if __name__ == "__main__":
    main()
