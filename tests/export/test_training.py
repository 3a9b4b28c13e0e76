"""What is exported is trained with."""

from __future__ import annotations

import logging

import pytest
import torch

import recipes_cases
from counterfoil.export.models import export_model
from counterfoil.model import load_model
from recipes_cases import run

DATA = "scenes:images=36"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
@pytest.mark.parametrize("direction", ["image-to-text", "text-to-image"])
def test_sentence_transformers_learns_from_mined_negatives(direction, tmp_path):
    """A CLIP mines, sentence-transformers trains it on what was mined, and the loss falls."""
    pytest.importorskip("sentence_transformers")
    import datasets
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    clip = recipes_cases.clip_like(tmp_path / "clip")
    lists, folder = tmp_path / "lists", tmp_path / "negatives"
    assert run("mine", clip, "--data", DATA, "--split", "train", "--output", lists) == 0
    asked = ("--to", "sentence-transformers", "--data", DATA, "--most", "2", "--output", folder)
    assert run("export", lists, *asked) == 0
    export_model(*_parts(clip), "sentence-transformers", tmp_path / "st", name="clip")

    rows = datasets.load_dataset(
        str(folder), direction, split="train", cache_dir=str(tmp_path / "cache")
    ).select(range(32))
    assert rows.column_names == ["anchor", "positive", "negative_1", "negative_2"]
    model = SentenceTransformer(str(tmp_path / "st"), device="cpu")
    before = {name: value.clone() for name, value in model.named_parameters()}
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "run"),
        max_steps=24,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        logging_steps=4,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        loss=MultipleNegativesRankingLoss(model),
    )
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert len(losses) == 6
    assert losses[-1] < losses[0] - 0.05
    moved = {name.split(".")[2] for name, v in model.named_parameters() if _moved(v, before[name])}
    assert {"text_model", "vision_model"} <= moved  # pictures were seen, not their paths read


def _moved(now: torch.Tensor, before: torch.Tensor) -> bool:
    return not torch.equal(now, before)


def _parts(clip):
    model = load_model(clip)
    return model.model, model.processor
