"""``python -m benchmarks.judge``: precision and recall of judges of mined negatives on `scenes`.

A VSE++ is trained on region features, mines the training split and judges its lists; so do a second
VSE++, of another seed, and with ``--scan`` a SCAN. Every caption of `scenes` can be decided, so the
share of true pairs among the promoted and the dropped ones is exact.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from tempfile import TemporaryDirectory
from typing import final

import torch
from torch import Tensor

from counterfoil.core.config import Config, lazy
from counterfoil.core.types import Pairs
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.processor import ProcessorConfig
from counterfoil.data.readers import load_dataset
from counterfoil.data.scenes import scene
from counterfoil.data.scenes.grammar import parse
from counterfoil.data.scenes.truth import holds
from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.model import Model
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.judging import JudgedNegatives, judge_negatives
from counterfoil.negatives.mining import mine_lists
from counterfoil.papers.models.configs import scan_config, vsepp_config
from counterfoil.papers.systems import small_plan
from counterfoil.recipes.base import MARGIN, with_warmup
from counterfoil.training.trainer import Trainer

DATA = "scenes:images=1400,dev=200,test=200,features=regions"
QUANTILES = (0.3, 0.5, 0.7, 0.9, 0.95, 0.99)
TEXTS, IMAGES = 50, 10  # of the lists
WIDTH, WARMUP = 128, 150
EPOCHS = {"VSE++": 6, "SCAN": 3}


@final
@dataclass(frozen=True, slots=True)
class JudgeRow:
    """Pairs that reach a quantile of true pairs.

    Attributes:
        judge: name of the model.
        quantile: of true pairs, see `JudgeConfig`.
        pairs: number that reaches it.
        precision: share of them that is true.
        recall: share of the true pairs of the lists that reaches it.
        left: share of the other pairs that is true.
    """

    judge: str
    quantile: float
    pairs: int
    precision: float
    recall: float
    left: float


def measure(
    judged: Mapping[str, JudgedNegatives], true: Tensor, quantiles: Sequence[float] = QUANTILES
) -> Iterator[JudgeRow]:
    """Measure judges of the same pairs.

    Args:
        judged: verdicts of each judge, by name.
        true: (P,) bool, whether each pair is true.
        quantiles: where to measure.
    """
    for name, verdicts in judged.items():
        for quantile in quantiles:
            reached = verdicts.quantile >= quantile
            hits, count = int((reached & true).sum()), int(reached.sum())
            yield JudgeRow(
                name,
                quantile,
                count,
                hits / max(1, count),
                hits / max(1, int(true.sum())),
                int((true & ~reached).sum()) / max(1, len(true) - count),
            )


def truth(dataset: ImageTextDataset, pairs: Pairs) -> Tensor:
    """(P,) bool, whether pairs of `scenes` are true; False where the grammar does not decide."""
    forms = cache(lambda row: (parsed := parse(dataset.texts[row])) and parsed.form)
    scenes = cache(lambda row: scene(dataset.image_ids[row]))
    rows = zip(pairs.image.tolist(), pairs.text.tolist(), strict=True)
    return torch.tensor([bool((form := forms(t)) and holds(form, scenes(i))) for i, t in rows])


def train(name: str, data: ImageTextDataset, seed: int, epochs: int) -> Model:
    """Train a small model on region features."""
    spec: Config[RetrievalModel] = (
        scan_config(width=WIDTH)
        if name == "SCAN"
        else vsepp_config(width=WIDTH, word_width=64, image_pool="mean+max", two_way=True)
    )
    processor = ProcessorConfig(images="features").fit(data["train"])
    assert processor.tokenizer
    known = {"words": processor.tokenizer.size, "features": processor.image_processor.width}
    torch.manual_seed(seed)
    model = Model(spec.fill(known).build(), processor, name, spec.fill(known))
    loss = with_warmup(lazy(HardestTripletLoss, margin=MARGIN), WARMUP).build()
    plan = replace(small_plan("scenes", seed), epochs=epochs)
    with TemporaryDirectory() as folder:
        return Trainer(
            model, loss=loss, train=data["train"], dev=data["dev"], output=folder, config=plan
        ).train()


def results(
    data: ImageTextDataset, epochs: Mapping[str, int], *, scan: bool
) -> tuple[list[JudgeRow], Tensor]:
    """Train, mine, judge; the rows and the truth of the mined pairs."""
    split = data["train"]
    miner = train("VSE++", data, 0, epochs["VSE++"])
    judges = {"VSE++, the miner": miner, "VSE++": train("VSE++", data, 1, epochs["VSE++"])}
    if scan:
        judges["SCAN"] = train("SCAN", data, 1, epochs["SCAN"])
    lists = mine_lists(
        [miner.embed(split)], split.text_to_image, texts_per_image=TEXTS, images_per_text=IMAGES
    )
    judged = {
        name: judge_negatives([model.embed(split)], split.relation, lists)
        for name, model in judges.items()
    }
    true = truth(split, judged["VSE++"].pairs)
    return [*measure(judged, true)], true


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judge", description=__doc__)
    parser.add_argument("--data", default=DATA, help=f"scenes with regions; default {DATA}")
    parser.add_argument("--scan", action="store_true", help="let a SCAN judge too, some minutes")
    given = parser.parse_args(arguments)
    rows, true = results(load_dataset(given.data), EPOCHS, scan=given.scan)
    print(f"\n{len(true):,} mined pairs, {100 * true.float().mean():.1f} % of them true\n")
    print("| judge | quantile | pairs | precision | recall | true among the rest |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        shares = (f"{100 * share:.1f} %" for share in (row.precision, row.recall, row.left))
        print(f"| {row.judge} | {row.quantile:g} | {row.pairs:,} | {' | '.join(shares)} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
