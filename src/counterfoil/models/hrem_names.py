"""HREM's tensors under our names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from counterfoil.models.authors import Checkpoint, Converted, State, image_tower, text_tower
from counterfoil.models.blocks.graph import BatchGraph
from counterfoil.models.hrem import HREM
from counterfoil.models.tensor_names import POSITIONS, TensorNames
from counterfoil.spec import of, part

JUDGES = {"mlp_i2t": "by_images", "mlp_t2i": "by_texts"}
PREFIXES = {
    "img_enc.fc.fc.": "image.fc.",
    "img_enc.fc.mlp.layers.0.": "image.enter.",
    "img_enc.fc.mlp.layers.1.": "image.leave.",
    "img_enc.fc.mlp.bns.0.": "image.norm.",
    "img_enc.aggr.layers.0.": "image_pool.layer.",
    "txt_enc.bert.": "text.body.",
    "txt_enc.linear.": "text.fc.",
    "txt_enc.aggr.layers.0.": "text_pool.layer.",
    "graph.gnn.layers.0.": "graph.layer.",
    **{
        f"graph.adj_model.adj_learning.{theirs}.{place}.": f"graph.{ours}.{own}."
        for theirs, ours in JUDGES.items()
        for place, own in ((0, 0), (3, 2))  # a dropout of 0 stood between
    },
}
NEEDED = (
    "image.fc.weight",
    "image.norm.running_mean",
    "image_pool.layer.linear1.weight",
    "text.body.embeddings.word_embeddings.weight",
    "text.fc.weight",
    "text_pool.layer.linear1.weight",
)
NAMES = TensorNames(
    system="an HREM",
    prefixes=PREFIXES,
    unused=("img_enc.fc.mlp.bns.1.", POSITIONS),
    needed=NEEDED,
)


def convert_hrem(state: Mapping[str, Tensor]) -> State:
    """HREM's tensors under the names of `HREM`, with its graph's where they are there.

    Raises:
        ValueError: a tensor is missing or unknown.
    """
    return NAMES.renamed(state)


def hrem(checkpoint: Checkpoint, *, bert: str = "bert-base-uncased") -> Converted:
    """HREM from a checkpoint alone.

    The authors save no graph, which nothing asks at test time; where its tensors are there all the
    same, under "graph.", it is built as their code has it, padding and all. Every item is pooled on
    its own, which differs from theirs only behind items of a single vector.

    Args:
        checkpoint: what they saved.
        bert: folder or name of the text model that was trained, for its configuration.

    Raises:
        ValueError: it is not an HREM checkpoint.
    """
    state, options = convert_hrem(checkpoint.state), checkpoint.options
    heads, dropout = int(options.get("nhead", 16)), float(options.get("dropout", 0.1))
    spec = of(
        HREM,
        image=image_tower(state),
        text=text_tower(state, bert),
        graph=_graph(state, options, heads, dropout),
        heads=heads,
        dropout=dropout,
        residual=float(options.get("residual_weight", 0.8)),
    )
    return Converted(spec, state)


def _graph(
    state: State, options: Mapping[str, Any], heads: int, dropout: float
) -> BatchGraph | None:
    if "graph.by_texts.0.weight" not in state:
        return None
    return part(
        BatchGraph,
        width=len(state["image.fc.weight"]),
        heads=heads,
        dropout=dropout,
        share=float(options.get("threshold", 0.5)),
        best=len(state["graph.by_texts.0.weight"]),
        mask_weight=float(options.get("mask_weight", 1.0)),
        penalty=float(options.get("reg_loss_weight", 10.0)),
        divergence="reverse",
        padding="borrowed",
        sigma=float(options.get("sigma", 1.0)),
        temperature=float(options.get("T", 1.0)),
    )
