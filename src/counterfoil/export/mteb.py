"""Models behind the interfaces of MTEB and its image benchmark MIEB (mteb 2).

`as_mteb` returns what ``mteb.evaluate`` takes: an encoder where a score is an inner product of two
vectors, for every kind of task, else a search in which the model scores every image with every
text. mteb itself is imported for the description of the model alone, when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterfoil.core.optional import optional_import
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.loading import HUB_NAME
from counterfoil.model import Model
from counterfoil.models.base import SingleVectorModel
from counterfoil.scoring.encode import EmbeddedDataset, encode_images, encode_texts
from counterfoil.scoring.reducers import TopK
from counterfoil.scoring.stream import stream_scores

Array: TypeAlias = NDArray[np.float32] | Tensor
BatchedInput: TypeAlias = Mapping[str, Sequence[Any]]  # "text", "image", ... of the rows of a batch
Row: TypeAlias = Mapping[str, Any]


def as_mteb(model: Model) -> MTEBEncoder | MTEBSearch:
    """Wrap a model for ``mteb.evaluate``.

    Args:
        model: that reads pictures and captions.

    Returns:
        An encoder where the score is the inner product of one vector of each side, which does any
        task of texts, images or both; else a search, which does retrieval and re-ranking between
        images and texts.

    Raises:
        ValueError: the model reads features or vectors, not pictures.

    >>> mteb.evaluate(cf.as_mteb(model), mteb.get_tasks(tasks=["Flickr30kT2IRetrieval"]))
    ... # doctest: +SKIP
    """
    if not model.reads_pixels:
        raise ValueError(
            f"{model.name} does not read pictures, which MTEB gives; wrap a model of pixels"
        )
    return MTEBEncoder(model) if _scores_by_product(model) else MTEBSearch(model)


def _scores_by_product(model: Model) -> bool:
    """Return True if a score is the inner product of two vectors."""
    if not isinstance(model.model, SingleVectorModel):
        return False
    images, texts = torch.eye(3).unsqueeze(1), torch.tensor([[0.6, -0.8, 0.0]]).unsqueeze(1)
    with torch.inference_mode():
        scores = model.model.score_matrix(_bags(images), _bags(texts))
    return torch.allclose(scores, torch.tensor([[0.6], [-0.8], [0.0]]))


def _bags(tokens: Tensor) -> Embeddings:
    return Embeddings(tokens, torch.ones(tokens.shape[:2], dtype=torch.bool))


class _Described:
    """A model with the description that mteb stores with its results."""

    model_type = "dense"

    def __init__(self, model: Model) -> None:
        self.model = model

    @cached_property  # `isinstance` of a runtime protocol reads it, and the digest takes time
    def mteb_model_meta(self) -> Any:
        """What MTEB writes about the model beside its results, a ``mteb.models.ModelMeta``.

        Raises:
            ValueError: mteb is not installed.
        """
        needs = "the description of a model for MTEB needs mteb: pip install mteb"
        meta = optional_import("mteb.models.model_meta", needs).ModelMeta
        model = self.model
        parameters = list(model.model.parameters())
        count = sum(parameter.numel() for parameter in parameters)
        size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
        tokenizer = model.processor.tokenizer if model.processor else None
        path = Path(model.name).resolve()
        name = model.name if not path.exists() and HUB_NAME.fullmatch(model.name) else path.name
        hub = "/" in name
        return meta(
            loader=None,
            name=name if hub else f"counterfoil/{name}",
            revision=model.digest(),
            release_date=None,
            languages=None,
            n_parameters=count,
            memory_usage_mb=size / 2**20,
            max_tokens=getattr(tokenizer, "longest", None),
            embed_dim=model.encode("a").tokens.shape[-1],
            license=None,
            open_weights=True if hub else None,
            public_training_code=None,
            public_training_data=None,
            framework=["PyTorch"],
            reference=f"https://huggingface.co/{name}" if hub else None,
            similarity_fn_name="dot" if self.model_type == "dense" else None,
            use_instructions=False,
            training_datasets=None,
            modalities=["image", "text"],
            model_type=[self.model_type],
        )


@final
class MTEBEncoder(_Described):
    """An encoder of mteb (its ``EncoderProtocol``)."""

    def encode(
        self,
        inputs: Iterable[BatchedInput],
        *,
        task_metadata: Any = None,
        hf_split: str = "",
        hf_subset: str = "",
        prompt_type: Any = None,
        **kwargs: Any,
    ) -> NDArray[np.float32]:
        """Encode batches of texts, images, or both as (N, D) vectors.

        An item with a text and an image gets the sum of its two vectors, scaled to their mean
        length. An empty text gets the zero vector. What the task is makes no difference.

        Raises:
            ValueError: a batch has neither texts nor images.
        """
        return np.concatenate([self._encode(batch) for batch in inputs])

    def similarity(self, embeddings1: Array, embeddings2: Array) -> Tensor:
        """Return the (N, M) inner products of (N, D) with (M, D) vectors."""
        one, other = (torch.as_tensor(vectors) for vectors in (embeddings1, embeddings2))
        scores: Tensor = one.reshape(-1, one.shape[-1]) @ other.reshape(-1, other.shape[-1]).T
        return scores

    def similarity_pairwise(self, embeddings1: Array, embeddings2: Array) -> Tensor:
        """Return the (N,) inner products of the rows of (N, D) with those of (N, D) vectors."""
        product: Tensor = torch.as_tensor(embeddings1) * torch.as_tensor(embeddings2)
        return product.sum(-1)

    def _encode(self, batch: BatchedInput) -> NDArray[np.float32]:
        sides = []
        if "image" in batch:
            sides.append(self.model.encode_images(list(batch["image"])))
        if "text" in batch:
            sides.append(self._encode_texts(list(batch["text"])))
        if not sides:
            raise ValueError(
                f"a batch of {', '.join(batch) or 'nothing'} was given; this model encodes text "
                "and image"
            )
        if len(sides) == 1:
            return sides[0]
        both = sides[0] + sides[1]
        length, *lengths = (np.linalg.norm(v, axis=1, keepdims=True) for v in (both, *sides))
        scaled = both * (sum(lengths) / 2 / np.maximum(length, 1e-12))
        return np.asarray(scaled, dtype=np.float32)

    def _encode_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        filled = [text if text.strip() else "a" for text in texts]
        vectors = self.model.encode_texts(filled)
        vectors[[not text.strip() for text in texts]] = 0
        return vectors


def _text(row: Row) -> str:
    """A document's title and text."""
    return " ".join(str(row[key]) for key in ("title", "text") if row.get(key))


@final
class MTEBSearch(_Described):
    """A search of mteb (its ``SearchProtocol``): every image is scored with every text."""

    model_type = "late-interaction"

    def index(
        self,
        corpus: Iterable[Row],
        *,
        task_metadata: Any = None,
        hf_split: str = "",
        hf_subset: str = "",
        encode_kwargs: Mapping[str, Any] | None = None,
        num_proc: int | None = None,
    ) -> None:
        """Encode the documents, rows of ``id`` and either ``image`` or ``text`` (and ``title``)."""
        self._ids, self._images, self._encoded = self._side(corpus, encode_kwargs)

    def search(
        self,
        queries: Iterable[Row],
        *,
        task_metadata: Any = None,
        hf_split: str = "",
        hf_subset: str = "",
        top_k: int,
        encode_kwargs: Mapping[str, Any] | None = None,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        num_proc: int | None = None,
    ) -> dict[str, dict[str, float]]:
        """Score the documents for queries; returns the `top_k` best of each with their scores.

        Args:
            queries: rows of ``id`` and either ``image`` or ``text``, of the other kind than the
                documents.
            task_metadata: is not read.
            hf_split: is not read.
            hf_subset: is not read.
            top_k: documents of a query.
            encode_kwargs: ``batch_size`` is read.
            top_ranked: documents of each query to choose from; None for all.
            num_proc: is not read.

        Raises:
            ValueError: queries and documents are of one kind, which the model does not compare.
        """
        ids, images, encoded = self._side(queries, encode_kwargs)
        if images == self._images:
            kind = "images" if images else "texts"
            raise ValueError(
                f"{self.model.name} compares images with texts; queries and documents of this task "
                f"are {kind}: choose tasks of both"
            )
        place = {id_: row for row, id_ in enumerate(self._ids)}
        everything = torch.arange(len(self._ids))
        found: dict[str, dict[str, float]] = {}
        if top_ranked is None:
            return self._best(ids, encoded, everything, top_k, images=images)
        for row, id_ in enumerate(ids):
            among = torch.tensor([place[document] for document in top_ranked.get(id_, ())])
            query = encoded.rows(slice(row, row + 1))
            found |= self._best([id_], query, among, top_k, images=images) if len(among) else {}
        return found

    def _side(
        self, rows: Iterable[Row], encode_kwargs: Mapping[str, Any] | None
    ) -> tuple[list[str], bool, Embeddings]:
        """Ids of the rows, whether they are images, and their encodings."""
        listed = list(rows)
        batch = int((encode_kwargs or {}).get("batch_size", 32))
        processor = self.model.processor
        assert processor is not None
        images = bool(listed) and listed[0].get("image") is not None
        if any(
            (row.get("image") is not None) != images or (images and _text(row).strip())
            for row in listed
        ):
            raise ValueError(
                f"{self.model.name} encodes images or texts; this task has rows of both kinds, or "
                "with an image and a text together: choose another task"
            )
        ids = [str(row["id"]) for row in listed]
        values = [row["image"] if images else _text(row) for row in listed]

        def load(rows: Tensor) -> ModalityBatch:
            chosen = [values[row] for row in rows.tolist()]
            read = processor.process_images if images else processor.process_texts
            return read(chosen)

        encode = encode_images if images else encode_texts
        return ids, images, encode(self.model.model, load, len(ids), batch=batch)

    def _best(
        self, ids: Sequence[str], queries: Embeddings, among: Tensor, top_k: int, *, images: bool
    ) -> dict[str, dict[str, float]]:
        """The best documents of each query; `images` if the queries are images."""
        documents = self._encoded.rows(among)
        sides = (queries, documents) if images else (documents, queries)
        best = TopK("image" if images else "text", len(ids), min(top_k, len(among)))
        stream_scores([EmbeddedDataset(self.model.model, *sides)], [best])
        names = [self._ids[row] for row in among.tolist()]
        return {
            id_: {names[r]: s for r, s in zip(rows, scores, strict=True) if r >= 0}
            for id_, rows, scores in zip(ids, best.rows.tolist(), best.scores.tolist(), strict=True)
        }
