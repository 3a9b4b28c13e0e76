"""SGRAF: similarity graph reasoning and attention filtration (Diao et al., AAAI 2021)."""

from __future__ import annotations

from typing import Literal, final, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.base import LOGIT_SCALE, probabilities
from counterfoil.models.checkpoints import (
    THIRD,
    Checkpoint,
    ConvertedModel,
    TensorNames,
    convert_towers,
)
from counterfoil.models.layers.cross_attention import (
    IMAGES_AT_ONCE,
    CrossAttention,
    attended_pairs,
    attended_vectors,
    pack_texts,
)
from counterfoil.models.layers.fused import prepare_context
from counterfoil.models.layers.pooling import (
    ImageTower,
    TextTower,
    batch_norm_rows,
    check_choice,
    check_positive,
    ensure_nonempty,
    full_precision,
    projection,
    unit_vectors,
)
from counterfoil.models.layers.towers import TwoTowerModel

Module = Literal["SGR", "SAF"]
NUMBERS_AT_ONCE = 1 << 24  # entries of attended vectors: 64 MB of float32
Moments = tuple[Tensor, Tensor]  # means and unbiased variances


@final
class GlobalPool(nn.Module):
    """One vector per item: the mean of its tokens queries them (section 3.1).

    With tokens v_j and their mean m: l_j = tanh(norm(A v_j)), g = tanh(norm(B m)), and weights
    softmax_j(c . (l_j * g)). Images have batch norms, texts have none.

    Departs from the authors' code in: padding takes no part, in the batch statistics either.
    """

    def __init__(self, *, width: int, regions: int | None = None, dropout: float = 0.4) -> None:
        """Initialise the module.

        Args:
            width: of the tokens.
            regions: the most tokens an item has, for batch norms over the places of tokens; None
                for no batch norm.
            dropout: share of entries dropped after each tanh in training.
        """
        super().__init__()
        self.local, self.query = projection(width, width), projection(width, width)
        self.common = projection(width, 1)
        self.dropout = nn.Dropout(dropout)
        self.local_norm = None if regions is None else nn.BatchNorm1d(regions)
        self.query_norm = None if regions is None else nn.BatchNorm1d(width)

    def forward(self, bag: Embeddings) -> Embeddings:
        """Put the pooled vector of length 1 before the (N, L, D) tokens: (N, 1 + L, D)."""
        tokens, mask = bag.tokens, bag.mask  # tokens are 0 at padding
        mean = tokens.sum(1) / mask.sum(1, keepdim=True)
        local, query = self.local(tokens), self.query(mean)
        if self.local_norm is not None and self.query_norm is not None:
            local = batch_norm_places(self.local_norm, local, mask)
            query = batch_norm_rows(self.query_norm, query)
        local, query = self.dropout(local.tanh()), self.dropout(query.tanh())
        logits = self.common(local * query.unsqueeze(1)).squeeze(2)
        weights = logits.masked_fill(~mask, -torch.inf).softmax(1)
        pooled = normalize((weights.unsqueeze(2) * tokens).sum(1), dim=1).unsqueeze(1)
        return Embeddings(
            torch.cat([pooled, tokens], 1), torch.cat([mask.new_ones(len(mask), 1), mask], 1)
        )


def batch_norm_places(norm: nn.BatchNorm1d, tokens: Tensor, mask: Tensor) -> Tensor:
    """Normalise (N, L, D) over items and width, place by place; padding takes no part."""
    places = tokens.shape[1]
    if places > norm.num_features:
        raise ValueError(
            f"images of {places} regions do not fit a model built with regions="
            f"{norm.num_features}; build it with regions={places}"
        )
    assert norm.running_mean is not None
    assert norm.running_var is not None
    mean, variance = norm.running_mean[:places], norm.running_var[:places]
    if norm.training:
        real = mask.unsqueeze(2)
        count = (mask.sum(0) * tokens.shape[2]).clamp(min=1)
        mean = (tokens * real).sum((0, 2)) / count
        squares = ((tokens - mean.unsqueeze(1)) * real).square().sum((0, 2))
        variance = squares / count
        unbiased = squares / (count - 1).clamp(min=1)
        occupied = mask.any(0)  # a place that no item has keeps its statistics
        _move(norm, (mean.detach(), unbiased.detach()), occupied)
    scale = (variance + norm.eps).rsqrt() * norm.weight[:places]
    return (tokens - mean.unsqueeze(1)) * scale.unsqueeze(1) + norm.bias[:places].unsqueeze(1)


def _move(norm: nn.BatchNorm1d, moments: Moments, where: Tensor) -> None:
    """Move the running statistics of the first features by one batch, where there was any."""
    momentum = 0.1 if norm.momentum is None else norm.momentum
    for running, value in zip((norm.running_mean, norm.running_var), moments, strict=True):
        assert running is not None
        part = running[: len(value)]
        part.copy_(torch.where(where, torch.lerp(part, value, momentum), part))
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)


@final
class GraphReasoning(nn.Module):
    """One step of reasoning on the graph of all similarity vectors (section 3.2.1)."""

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.query, self.key = projection(width, width), projection(width, width)
        self.update = projection(width, width)

    def forward(self, nodes: Tensor, mask: Tensor | None) -> Tensor:
        """Map nodes (..., K, S) to the same; the mask (..., K) is False at nodes not to be read."""
        edges = self.query(nodes) @ self.key(nodes).mT
        if mask is not None:
            edges = edges.masked_fill(~mask.unsqueeze(-2), -torch.inf)
        out: Tensor = self.update(edges.softmax(-1) @ nodes).relu()
        return out


@final
class AttentionFiltration(nn.Module):
    """Weights of similarity vectors (section 3.2.2), normalised per caption in training."""

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.attention = projection(width, 1)
        self.norm = nn.BatchNorm1d(1)

    def forward(
        self, nodes: Tensor, mask: Tensor | None, *, per_caption: bool
    ) -> tuple[Tensor, Moments | None]:
        """Return (I, n, S) filtered vectors of nodes (I, n, K, S), and the batch statistics."""
        logits = self.attention(nodes).squeeze(-1)
        norm, moments = self.norm, None
        assert norm.running_mean is not None
        assert norm.running_var is not None
        mean, variance = norm.running_mean, norm.running_var
        if per_caption:
            variance, mean = torch.var_mean(logits, (0, 2), correction=0, keepdim=True)
            count = logits.shape[0] * logits.shape[2]
            unbiased = variance * (count / max(1, count - 1))
            moments = (mean.detach().flatten(), unbiased.detach().flatten())
        normal = (logits - mean) * (variance + norm.eps).rsqrt() * norm.weight + norm.bias
        weights = normal.sigmoid()
        if mask is not None:
            weights = weights.masked_fill(~mask, 0)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-8)
        return normalize((weights.unsqueeze(-1) * nodes).sum(-2), dim=-1), moments

    def track(self, means: Tensor, variances: Tensor) -> None:
        """Move the running statistics caption by caption, in this order."""
        everywhere = torch.ones(1, dtype=torch.bool, device=means.device)
        for moments in zip(torch.split(means, 1), torch.split(variances, 1), strict=True):
            _move(self.norm, moments, everywhere)


@final
class SGRAF(TwoTowerModel):
    """Similarity vectors between words and attended regions, reasoned on or filtered.

    Each word w_i attends to the regions as in SCAN, which gives c_i; the similarity vector of both
    is W (c_i - w_i)^2, and one more compares the pooled image with the pooled caption. The module
    reduces them to one vector: "SGR" by steps on their graph, three in the paper, "SAF" by weights.
    The score is the logit of a linear layer; losses read its sigmoid. The paper's SGRAF is the mean
    of the scores of two models, one of each module: an ensemble.

    A similarity vector needs the whole attended vector, not its cosine, so these are formed, a few
    captions at a time: the fast score of `counterfoil.papers.models.scan.SCAN` does not apply.

    Departs from the authors' code in: images may have fewer regions; aligned and listed pairs
    are normalised by the running statistics of "SAF" in training too, because a caption has only
    one image there; a score is the logit of theirs, whose sigmoid losses read, so that an ensemble
    averages logits.
    """

    score_scale = LOGIT_SCALE

    def __init__(
        self,
        *,
        image: ImageTower,
        text: TextTower,
        module: Module = "SGR",
        regions: int = 36,
        similarity_width: int = 256,
        steps: int = 3,
        lambda_softmax: float = 9.0,
        dropout: float = 0.4,
    ) -> None:
        """Initialise the module.

        Args:
            image: encoder of images.
            text: encoder of texts.
            module: "SGR": graph reasoning; "SAF": attention filtration.
            regions: the most regions an image has; their places are normalised one by one.
            similarity_width: of the similarity vectors.
            steps: of the reasoning.
            lambda_softmax: inverse temperature of the attention.
            dropout: share of entries dropped in both global poolings in training.

        Raises:
            ValueError: an option that is not known, a size below 1, or towers of different widths.
        """
        super().__init__(image, text)
        check_choice("module", module, get_args(Module))
        check_positive(regions=regions, similarity_width=similarity_width, steps=steps)
        self.head = CrossAttention("t2i", "clipped_l2norm", lambda_softmax)
        self.image_pool = GlobalPool(width=image.width, regions=regions, dropout=dropout)
        self.text_pool = GlobalPool(width=text.width, dropout=dropout)
        self.local = projection(image.width, similarity_width)
        self.whole = projection(image.width, similarity_width)
        self.rank = projection(similarity_width, 1)
        graph = steps if module == "SGR" else 0
        self.reasoning = nn.ModuleList(GraphReasoning(width=similarity_width) for _ in range(graph))
        self.filtration = AttentionFiltration(width=similarity_width) if module == "SAF" else None

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode N images as a pooled vector followed by region vectors, all of length 1."""
        return self.pool_images(unit_vectors(self.image(images)))

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Encode N texts as a pooled vector followed by word vectors, all of length 1."""
        return self.pool_texts(unit_vectors(self.text(texts)))

    def pool_images(self, regions: Embeddings) -> Embeddings:
        """Put the pooled vector before N images' region vectors."""
        pooled: Embeddings = self.image_pool(ensure_nonempty(regions))
        return pooled

    def pool_texts(self, words: Embeddings) -> Embeddings:
        """Put the pooled vector before N texts' word vectors."""
        pooled: Embeddings = self.text_pool(ensure_nonempty(words))
        return pooled

    @property
    def score_name(self) -> str:
        return f"logit of cross-attention {self.head.direction}"

    def loss_scores(self, scores: Tensor) -> Tensor:
        return probabilities(scores)

    @property
    def loss_scale(self) -> float:
        return 1.0

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        images, texts = (prepare_context(items, gram=False) for items in (images, texts))
        regions, words = _without_pooled(images), _without_pooled(texts)
        attended = attended_pairs(regions, words, self.head)
        nodes = self._nodes(images.tokens[:, :1], attended[:, None], texts.tokens[:, None])
        scores, _ = self._reduce(nodes, texts.mask[:, None], per_caption=False)
        return scores[:, 0]

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (I, T) scores, a few captions of equal length at a time."""
        images = prepare_context(images, gram=False)
        packed, order = pack_texts(texts)
        by_batch = self.training and self.filtration is not None
        # the statistics of a caption are over all images of the batch
        step = max(1, len(images)) if by_batch else IMAGES_AT_ONCE
        columns, moments, width = [], [], images.tokens.shape[2]
        for run in packed.runs():
            cells = run.length * min(step, len(images)) * width
            for cut in run.cut(run.length * max(1, NUMBERS_AT_ONCE // max(1, cells))):
                words = packed.words[cut.words].reshape(cut.n, cut.length, width)
                rows = []
                for first in range(0, len(images), step):
                    image_part = images.rows(slice(first, first + step))
                    attended = attended_vectors(
                        _without_pooled(image_part), words[:, 1:], self.head
                    )
                    nodes = self._nodes(image_part.tokens[:, :1], attended, words[None])
                    scores, statistics = self._reduce(nodes, None, per_caption=by_batch)
                    rows.append(scores)
                    moments += [statistics] if statistics else []
                columns.append(torch.cat(rows))
        back = order.argsort()
        if moments and self.filtration is not None:
            means, variances = (torch.cat(parts)[back] for parts in zip(*moments, strict=True))
            # the authors sort a batch by length, so the shortest caption comes last
            longest_first = texts.mask.sum(1).argsort(descending=True, stable=True)
            self.filtration.track(means[longest_first], variances[longest_first])
        return torch.cat(columns, 1)[:, back]

    def _nodes(self, image: Tensor, attended: Tensor, words: Tensor) -> Tensor:
        """Return the (I, n, 1 + L, S) similarity vectors, that of the pooled vectors first."""
        local = self.local((normalize(attended, dim=-1) - words[:, :, 1:]).square())
        similarity = self.whole((image - words[:, :, 0]).square()).unsqueeze(2)
        return normalize(torch.cat([similarity, local], 2), dim=-1)

    def _reduce(
        self, nodes: Tensor, mask: Tensor | None, *, per_caption: bool
    ) -> tuple[Tensor, Moments | None]:
        """Return (I, n) scores of similarity vectors (I, n, K, S), and statistics of "SAF"."""
        moments = None
        if self.filtration is not None:
            vectors, moments = self.filtration(nodes, mask, per_caption=per_caption)
        else:
            for step in self.reasoning:
                nodes = step(nodes, mask)
            vectors = nodes[:, :, 0]
        return full_precision(self.rank(vectors)).squeeze(-1), moments


def _without_pooled(items: Embeddings) -> Embeddings:
    return Embeddings(items.tokens[:, 1:], items.mask[:, 1:])


# The authors' checkpoints, whose third state dict is the similarity module.


POOL_NAMES = {
    "embedding_local.0.": "local.",
    "embedding_local.1.": "local_norm.",
    "embedding_global.0.": "query.",
    "embedding_global.1.": "query_norm.",
    "embedding_common.0.": "common.",
}
MOST_STEPS = 64  # of the reasoning, for names alone; how many there are is read off the tensors
_STEP = {"graph_query_w.": "query.", "graph_key_w.": "key.", "sim_graph_w.": "update."}
NAMES = TensorNames(
    system="an SGRAF",
    prefixes={
        "img_enc.fc.": "image.fc.",
        "txt_enc.embed.": "text.embed.",
        "txt_enc.cap_rnn.": "text.rnn.",
        **{f"{THIRD}v_global_w.{a}": f"image_pool.{b}" for a, b in POOL_NAMES.items()},
        **{f"{THIRD}t_global_w.{a}": f"text_pool.{b}" for a, b in POOL_NAMES.items()},
        f"{THIRD}sim_tranloc_w.": "local.",
        f"{THIRD}sim_tranglo_w.": "whole.",
        f"{THIRD}sim_eval_w.": "rank.",
        **{
            f"{THIRD}SGR_module.{k}.{a}": f"reasoning.{k}.{b}"
            for k in range(MOST_STEPS)
            for a, b in _STEP.items()
        },
        f"{THIRD}SAF_module.attn_sim_w.": "filtration.attention.",
        f"{THIRD}SAF_module.bn.": "filtration.norm.",
    },
    needed=("image.fc.weight", "text.embed.weight", "rank.weight"),
    either=("reasoning.0.query.weight", "filtration.norm.weight"),
)


def sgraf_from_checkpoint(checkpoint: Checkpoint) -> ConvertedModel:
    """Convert a checkpoint of SGR, with as many steps as it has, or of SAF."""
    state = NAMES.renamed(checkpoint.state)
    steps = len({name.split(".")[1] for name in state if name.startswith("reasoning.")})
    return convert_towers(
        SGRAF,
        checkpoint,
        state,
        module="SGR" if steps else "SAF",
        regions=len(state["image_pool.local_norm.weight"]),
        similarity_width=state["rank.weight"].shape[1],
        steps=steps or 3,  # "SAF" has none
    )
