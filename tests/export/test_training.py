"""What is exported is trained with."""

from __future__ import annotations

import logging

import pytest
import torch

import recipes_cases
from counterfoil.data.readers import load_dataset
from counterfoil.export.models import export_model
from counterfoil.model import load_model
from counterfoil.negatives.mining import mine_hard_negatives
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
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    clip = recipes_cases.clip_like(tmp_path / "clip")
    lists, folder = tmp_path / "lists", tmp_path / "negatives"
    assert run("mine", clip, "--data", DATA, "--split", "train", "--output", lists) == 0
    asked = ("--to", "sentence-transformers", "--data", DATA, "--most", "2", "--output", folder)
    assert run("export", lists, *asked) == 0
    export_model(*_parts(clip), "sentence-transformers", tmp_path / "st", name="clip")

    # captions are the queries where no configuration is named
    named = () if direction == "text-to-image" else (direction,)
    rows = datasets.load_dataset(
        str(folder), *named, split="train", cache_dir=str(tmp_path / "cache")
    ).select(range(32))
    assert rows.column_names == ["anchor", "positive", "negative_1", "negative_2"]
    assert rows[0]["anchor"].endswith(".png") is (direction == "image-to-text")
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


@pytest.fixture(scope="module")
def mined(tmp_path_factory):
    """A tiny CLIP as Hugging Face saves it, and what it mined."""
    clip = recipes_cases.clip_like(tmp_path_factory.mktemp("mined") / "clip")
    data = load_dataset(DATA).split("train")
    return clip, mine_hard_negatives(load_model(clip), data, texts_per_image=6, images_per_text=6)


SETTINGS = {
    "max_steps": 24,
    "per_device_train_batch_size": 8,
    "learning_rate": 3e-3,
    "logging_steps": 4,
    "report_to": "none",
    "save_strategy": "no",
    "use_cpu": True,
    "disable_tqdm": True,
}


def check_learned(losses: list[float], model, before) -> None:
    assert sum(losses[-2:]) < sum(losses[:2])
    moved = {name for name, value in model.named_parameters() if _moved(value, before[name])}
    for tower in ("text_model", "vision_model"):  # captions and pictures were both read
        assert any(f"{tower}.encoder" in name for name in moved), tower


def parameters(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
@pytest.mark.parametrize(
    "form, direction, loss",
    [
        ("n-tuple", "both", "MultipleNegativesRankingLoss"),
        ("triplet", "text-to-image", "TripletLoss"),
        ("triplet", "image-to-text", "MultipleNegativesRankingLoss"),
        ("labeled-pair", "image-to-text", "ContrastiveLoss"),
    ],
)
def test_sentence_transformers_takes_the_table_as_it_is(form, direction, loss, mined, tmp_path):
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import losses

    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    clip, negatives = mined
    model = st.SentenceTransformer(str(clip), device="cpu")
    model.max_seq_length = 12
    before = parameters(model)
    trainer = st.SentenceTransformerTrainer(
        model=model,
        args=st.SentenceTransformerTrainingArguments(output_dir=str(tmp_path), **SETTINGS),
        train_dataset=negatives.to_dataset(form, direction, most=2),
        loss=getattr(losses, loss)(model),
    )
    trainer.train()
    found = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert len(found) == 6
    check_learned(found, model, before)


class Triplets(torch.nn.Module):
    """A CLIP whose forward is the loss of triplets, as Hugging Face's `Trainer` wants it."""

    def __init__(self, clip):
        super().__init__()
        import transformers

        self.clip = transformers.CLIPModel.from_pretrained(clip)
        self.processor = transformers.CLIPProcessor(
            transformers.CLIPImageProcessorPil.from_pretrained(clip),
            transformers.AutoTokenizer.from_pretrained(clip),
        )

    def collate(self, rows):
        words = self.processor.tokenizer(
            [row["anchor"] for row in rows], padding=True, truncation=True, max_length=12,
            return_tensors="pt",
        )  # fmt: skip
        pictures = self.processor.image_processor(
            [row[name] for name in ("positive", "negative") for row in rows], return_tensors="pt"
        )
        return {**words, **pictures}

    def forward(self, input_ids, attention_mask, pixel_values, **_):
        found = self.clip(
            input_ids=input_ids, attention_mask=attention_mask, pixel_values=pixel_values
        )
        true, wrong = found.image_embeds.chunk(2)
        gap = (found.text_embeds * (wrong - true)).sum(1)
        return {"loss": torch.nn.functional.softplus(10 * gap).mean()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_hugging_faces_trainer_takes_the_table_as_it_is(mined, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    clip, negatives = mined
    model = Triplets(clip)
    before = parameters(model)
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path), remove_unused_columns=False, **SETTINGS
        ),
        train_dataset=negatives.to_dataset(most=2),
        data_collator=model.collate,
    )
    trainer.train()
    check_learned([x["loss"] for x in trainer.state.log_history if "loss" in x], model, before)


@pytest.mark.slow
def test_a_plain_loop_takes_the_table_as_it_is(mined):
    clip, negatives = mined
    model = Triplets(clip)
    before, losses = parameters(model), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    table = negatives.to_dataset("triplet", most=2)
    torch.manual_seed(0)
    for batch in torch.utils.data.DataLoader(
        table, batch_size=16, shuffle=True, collate_fn=model.collate
    ):
        loss = model(**batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    check_learned(losses, model, before)


def _moved(now: torch.Tensor, before: torch.Tensor) -> bool:
    return not torch.equal(now, before)


def _parts(clip):
    model = load_model(clip)
    return model.model, model.processor
