"""Evaluations and ledger entries for the tests of tables of experiments."""

from __future__ import annotations

import torch

from benchmarks.experiments.ledger import Entry, bands
from counterfoil.evaluation.metrics import METRICS, EvaluationReport
from counterfoil.evaluation.protocols import evaluate_scores

IMAGES, CAPTIONS = 40, 3


def report(seed: int, gain: float = 0.5) -> EvaluationReport:
    """An evaluation of random scores whose true pairs score higher by `gain`."""
    text_to_image = torch.arange(IMAGES * CAPTIONS) // CAPTIONS
    scores = torch.rand(IMAGES, IMAGES * CAPTIONS, generator=torch.Generator().manual_seed(seed))
    scores[text_to_image, torch.arange(len(text_to_image))] += gain
    return evaluate_scores(scores, text_to_image, dataset="toy", split="test")


def entry(
    measured: EvaluationReport, method: str = "online", seed: int = 0, host: str = "VSE++"
) -> Entry:
    """What is kept of an evaluation."""
    i2t, t2i = measured.ranked
    return Entry(
        table="evidence/toy",
        budget="cpu",
        host=host,
        method=method,
        seed=seed,
        protocol=f"{measured.setting.line()}; seed {seed}",
        digest="0",
        data="toy",
        numbers=dict(zip(METRICS, measured.numbers, strict=True)),
        images="".join(bands(i2t)),
        texts=" ".join(bands(t2i)),
    )
