"""The authors' UNITER and TAGS from golden weights, and their captions and images as items."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

import golden_scores
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.checkpoints import Checkpoint, State, longest_prefix
from counterfoil.papers.models.uniter import (
    KINDS,
    LAYER,
    OUR_LAYER,
    PREFIXES,
    PROJECTIONS,
    UNITER,
    VEIL,
    WORDS,
    convert_uniter,
    uniter_from_checkpoint,
)

FEATURES = "uniter.img_embeddings.img_linear.weight"
TIED = {
    "cls.predictions.decoder.weight": WORDS,
    "correction_output.predictions.decoder.weight": WORDS,
    "feat_regress.weight": FEATURES,
}


def build(system: str, **options: object) -> UNITER:
    """Their model in evaluation mode, with logits for scores unless told otherwise."""
    config = golden_scores.load(system).meta["config"]
    given = golden_scores.checkpoint(
        system, heads=config["num_attention_heads"], mask=config["MASK"]
    )
    found = uniter_from_checkpoint(Checkpoint(given.state, given.options))
    made = found.model.replace(score="logit", dropout=0.0, **options).build()
    assert isinstance(made, UNITER)
    made.load_state_dict(made.adopted(convert_uniter(given.state)))
    return made.eval()


def captions(system: str, rows: Tensor, ids: Tensor | None = None) -> ModalityBatch:
    """Their captions [CLS] w.. [SEP], as long as the longest; other ids may stand for the words."""
    golden = golden_scores.load(system)
    config, lengths = golden.meta["config"], golden.inputs["caption_lens"][rows]
    words = golden.inputs["caption_ids"][rows] if ids is None else ids
    long = int(lengths.max())
    full = torch.zeros(len(rows), long + 2, dtype=torch.long)
    full[:, 0], full[:, 1:-1] = config["CLS"], words[:, :long]
    mask = torch.arange(long + 2) < (lengths + 2).unsqueeze(1)
    full[torch.arange(len(rows)), lengths + 1] = config["SEP"]
    return ModalityBatch(rows, full.masked_fill(~mask, 0), mask)


def images(system: str, rows: Tensor) -> ModalityBatch:
    """Their images, as many regions as the one with the most."""
    inputs = golden_scores.load(system).inputs
    counts = inputs["num_bb"][rows]
    most = int(counts.max())
    mask = torch.arange(most) < counts.unsqueeze(1)
    values, boxes = (inputs[name][rows][:, :most] for name in ("region_feat", "region_box"))
    return ModalityBatch(rows, values, mask, boxes[..., :4])


def encoded(
    model: UNITER, system: str, image_rows: Tensor, text_rows: Tensor
) -> tuple[Embeddings, Embeddings]:
    """Both, encoded."""
    return (
        model.encode_images(images(system, image_rows)),
        model.encode_texts(captions(system, text_rows)),
    )


def authors_state(state: Mapping[str, Tensor]) -> State:
    """Rename the weights of a `UNITER` to the authors' names."""
    new: State = {}
    back = {ours: theirs for theirs, ours in PREFIXES.items()}
    layer_back = {ours: theirs for theirs, ours in LAYER.items()}
    for name, value in state.items():
        if layer := OUR_LAYER.fullmatch(name):
            before = f"uniter.encoder.layer.{layer[1]}."
            if layer[2].startswith("enter."):
                for part, own in zip(PROJECTIONS, value.chunk(3), strict=True):
                    kind = layer[2].removeprefix("enter.")
                    new[f"{before}attention.self.{part}.{kind}"] = own.clone()
            elif theirs := longest_prefix(layer[2], layer_back):
                new[before + theirs] = value
        elif theirs := longest_prefix(name, back):
            new[theirs] = value
    new[KINDS] = torch.stack([state["text.kind"], state["image.kind"]])
    if (veil := state.get("image.veil")) is not None:
        new[VEIL] = torch.stack([torch.zeros_like(veil), veil])
    heads = {name.partition(".")[0] for name in new}
    return new | {n: new[own] for n, own in TIED.items() if n.partition(".")[0] in heads}
