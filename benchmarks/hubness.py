"""Hubness correction at query time: recalls with and without `counterfoil.search.hubness`.

``python -m benchmarks.hubness MODEL DATA [--features F]`` takes the training split as the bank,
chooses alpha and k on dev, and compares test with and without correction, with paired intervals
(images drawn anew with all their captions). The package's own numbers, k 128 and alpha 0.75, are
compared too. MODEL makes one vector of an item.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.readers import load_dataset
from counterfoil.evaluation.bootstrap import compare
from counterfoil.evaluation.metrics import METRICS, EvaluationReport
from counterfoil.evaluation.protocols import evaluate_protocol
from counterfoil.evaluation.results import chance, signed
from counterfoil.model import Model, load_model
from counterfoil.models.embeddings import EmbeddingModel
from counterfoil.models.layers.pooling import single_vector
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.search.hubness import ALPHA, NEAREST, bank_rows, neighbour_bias

ALPHAS, COUNTS = (0.25, 0.5, 0.75, 1.0), (8, 32, 128)
SHOWN = ("i2t R@1", "t2i R@1", "RSum")
Sides = tuple[Tensor, Tensor]


def vectors(model: Model, part: ImageTextDataset) -> Sides:
    """Images and texts."""
    embedded = model.embed(part)
    return embedded.images.tokens[:, 0].float().cpu(), embedded.texts.tokens[:, 0].float().cpu()


def measured(
    part: ImageTextDataset, sides: Sides, bank: Sides, alpha: float, nearest: int
) -> EvaluationReport:
    """Recalls with both directions corrected: s - alpha (b(image) + b(text)).

    For one query the bias of the query is the same everywhere, so one matrix serves both.
    """
    images, texts = sides
    image_bias = neighbour_bias(images, bank[1], nearest).unsqueeze(1)
    text_bias = neighbour_bias(texts, bank[0], nearest).unsqueeze(1)
    left = torch.cat([images, -alpha * image_bias, torch.ones_like(image_bias)], 1)
    right = torch.cat([texts, torch.ones_like(text_bias), -alpha * text_bias], 1)
    member = EmbeddedDataset(
        EmbeddingModel(normalise=False), single_vector(left), single_vector(right)
    )
    return evaluate_protocol([member], part)


def main() -> None:
    """Print the rows of the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--features")
    given = parser.parse_args()
    data, model = load_dataset(given.data, features=given.features), load_model(given.model)
    images, texts = vectors(model, data["train"])
    bank = images[bank_rows(len(images))], texts[bank_rows(len(texts))]
    dev, test = vectors(model, data["dev"]), vectors(model, data["test"])
    sums = {
        (alpha, nearest): measured(data["dev"], dev, bank, alpha, nearest).rsum
        for alpha in ALPHAS
        for nearest in COUNTS
    }
    best = max(sums, key=lambda key: sums[key])
    plain = measured(data["test"], test, bank, 0.0, 1)
    print(f"{given.data}: {len(bank[1]):,} captions and {len(bank[0]):,} images in the bank")
    print(f"on dev best of {len(sums)}: alpha {best[0]:g}, k {best[1]}")
    print("| correction | " + " | ".join(SHOWN) + " |")
    print("| none | " + " | ".join(f"{plain.numbers[METRICS.index(m)]:.1f}" for m in SHOWN) + " |")
    for name, (alpha, nearest) in (("published", (ALPHA, NEAREST)), ("best on dev", best)):
        report = measured(data["test"], test, bank, alpha, nearest)
        changes, cells = compare(plain, report), []
        for metric in SHOWN:
            change = changes[METRICS.index(metric)]
            span = f"{signed(change.interval.low)} to {signed(change.interval.high)}"
            number = report.numbers[METRICS.index(metric)]
            cells.append(
                f"{number:.1f}: {signed(change.difference)} ({span}; p {chance(change.p)})"
            )
        print(f"| {name}: alpha {alpha:g}, k {nearest} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
