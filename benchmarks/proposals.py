"""How many of the exact ten the proposals of multi-vector search keep; see docs/search.md.

``python -m benchmarks.proposals MODEL`` measures a multi-vector model on 8,000 scenes, with items
of other scenes as queries; ``--train`` first trains a FILIP on scenes into that folder.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor

from counterfoil.core.config import config, lazy
from counterfoil.core.types import Embeddings
from counterfoil.data.processor import ProcessorConfig
from counterfoil.data.readers import load_dataset
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.model import Model, load_model
from counterfoil.models.filip import FILIP
from counterfoil.models.layers.late_interaction import MaxSimModel
from counterfoil.models.layers.towers import GRU, PatchTower
from counterfoil.scoring.encode import Side, encode_images, encode_texts
from counterfoil.search.proposals import MaxSimProposals, rank_side, vocabulary_sentences
from counterfoil.training.config import CosineLR, OptimizerConfig, TrainConfig
from counterfoil.training.trainer import Trainer

GALLERY, QUERIES, TRAIN = (
    "scenes:images=8000,seed=1",
    "scenes:images=300,seed=2",
    "scenes:images=4000",
)
SHARES, FOUND, WIDTH = (0.01, 0.02, 0.05), 10, 128


def main() -> None:
    """Measure and print one line for each direction and kind of index."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="Folder of a multi-vector model.")
    parser.add_argument("--data", default=GALLERY, help="Data set that is searched.")
    parser.add_argument("--queries", default=QUERIES, help="Data set whose items are queries.")
    parser.add_argument("--train", action="store_true", help="Train a FILIP into the folder first.")
    options = parser.parse_args()
    model = train(Path(options.model)) if options.train else load_model(options.model)
    assert isinstance(model.model, MaxSimModel), f"{model.name} is no multi-vector model"
    images, texts = encoded(model, options.data)
    query_images, query_texts = encoded(model, options.queries)
    print(f"{len(images):,} images, {len(texts):,} captions; recall of the exact {FOUND}")
    kinds = ("captions and images", texts), ("images alone", vocabulary_sentences(model))
    for name, known in kinds:
        proposals = MaxSimProposals.fit(model.model, images, known)
        measure(f"{name}: images by caption", model.model, proposals, "image", images, query_texts)
        if known is texts:
            measure(
                f"{name}: captions by image", model.model, proposals, "text", texts, query_images
            )


def encoded(model: Model, name: str) -> tuple[Embeddings, Embeddings]:
    """Return all images, and the first caption of each."""
    dataset = load_dataset(name)
    first = torch.tensor(
        [int((dataset.text_to_image == row).nonzero()[0]) for row in range(len(dataset))]
    )
    inputs = model.process(dataset)
    return (
        encode_images(model.model, inputs.images, len(dataset)),
        encode_texts(model.model, lambda rows: inputs.texts(first[rows]), len(first)),
    )


@torch.inference_mode()
def measure(
    name: str,
    network: MaxSimModel,
    proposals: MaxSimProposals,
    side: Side,
    items: Embeddings,
    queries: Embeddings,
) -> None:
    """Print the recall for each share of proposed items, and the seconds of a query."""
    as_result, as_query = proposals.image_vectors, proposals.text_vectors
    if side == "text":
        as_result, as_query = as_query, as_result
    vectors, wanted = as_result(items), as_query(queries)
    hits: dict[float, list[float]] = {share: [] for share in SHARES}
    seconds = {"exact": 0.0, "proposed": 0.0}
    for row in range(len(queries)):
        query = queries.rows(slice(row, row + 1))
        start = time.perf_counter()
        best = rank_side(side, items, query, network).topk(FOUND).indices
        seconds["exact"] += time.perf_counter() - start
        order = (vectors @ wanted[row]).topk(round(max(SHARES) * len(items))).indices
        for share in SHARES:
            proposed = order[: round(share * len(items))]
            hits[share].append(float(torch.isin(best, proposed).float().mean()))
        start = time.perf_counter()
        _search(vectors, wanted[row], items, query, side, network)
        seconds["proposed"] += time.perf_counter() - start
    recalls = ", ".join(
        f"{sum(values) / len(values):.4f} at {100 * share:.0f} %" for share, values in hits.items()
    )
    times = " against ".join(
        f"{1000 * seconds[k] / len(queries):.1f}" for k in ("proposed", "exact")
    )
    print(f"{name}: {recalls}; {times} ms a query; vectors of {proposals.width}", flush=True)


def _search(
    vectors: Tensor,
    wanted: Tensor,
    items: Embeddings,
    query: Embeddings,
    side: Side,
    network: MaxSimModel,
) -> Tensor:
    rows = (vectors @ wanted).topk(round(max(SHARES) * len(items))).indices
    return rows[rank_side(side, items.rows(rows), query, network).topk(FOUND).indices]


def train(folder: Path) -> Model:
    """Train a small FILIP, whose words look for patches, on rendered scenes."""
    torch.manual_seed(0)
    data = load_dataset(TRAIN)
    processor = ProcessorConfig(images="pixels", size=64).fit(data["train"])
    assert processor.tokenizer is not None
    spec = config(
        FILIP,
        image=lazy(PatchTower, size=64, patch=16, width=WIDTH),
        text=lazy(GRU, words=processor.tokenizer.size, word_width=WIDTH, width=WIDTH),
        direction="t2i",
    )
    return Trainer(
        Model(spec.build(), processor, "filip", spec),
        loss=InfoNCELoss(temperature=0.07),
        train=data["train"],
        dev=data["dev"],
        output=folder,
        config=TrainConfig(
            epochs=5,
            batch=64,
            optimiser=OptimizerConfig(rule="adamw", rate=1e-3),
            schedule=CosineLR(warmup=50),
        ),
    ).train()


if __name__ == "__main__":
    main()
