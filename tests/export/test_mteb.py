"""The interfaces of mteb 2, called by its own runner and, as that loads for long, by a stand-in.

The stand-in has what `mteb` documents: runtime protocols of an encoder and of a search, a
description that forbids further fields, and retrieval with either.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import pytest
import torch
from pydantic import BaseModel, ConfigDict

import counterfoil as cf
import recipes_cases
from counterfoil.core.config import config, lazy
from counterfoil.data.processor import PixelProcessor, Processor
from counterfoil.data.scenes import scenes
from counterfoil.data.tokenizers import WordTokenizer
from counterfoil.export.mteb import MTEBEncoder, MTEBSearch
from counterfoil.model import Model
from counterfoil.models.layers.towers import GRU, PatchTower
from counterfoil.models.vsepp import VSEPP
from counterfoil.papers.models.scan import SCAN


@runtime_checkable
class EncoderProtocol(Protocol):
    def encode(
        self, inputs, *, task_metadata, hf_split, hf_subset, prompt_type=None, **kwargs
    ) -> Any: ...
    def similarity(self, embeddings1, embeddings2) -> Any: ...
    def similarity_pairwise(self, embeddings1, embeddings2) -> Any: ...
    @property
    def mteb_model_meta(self) -> Any: ...


@runtime_checkable
class SearchProtocol(Protocol):
    def index(self, corpus, *, task_metadata, hf_split, hf_subset, encode_kwargs) -> None: ...
    def search(
        self, queries, *, task_metadata, hf_split, hf_subset, top_k, encode_kwargs, top_ranked
    ) -> Any: ...
    @property
    def mteb_model_meta(self) -> Any: ...


class ModelMeta(BaseModel):
    """Fields of mteb's, those without a default included."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())
    loader: Any
    name: str
    revision: str | None
    release_date: str | None
    languages: list[str] | None
    n_parameters: int | None
    memory_usage_mb: float | None
    max_tokens: float | None
    embed_dim: int | None
    license: str | None
    open_weights: bool | None
    public_training_code: str | None
    public_training_data: str | bool | None
    framework: list[Literal["PyTorch", "Transformers"]]
    reference: str | None = None
    similarity_fn_name: Literal["cosine", "dot", "MaxSim"] | None
    use_instructions: bool | None
    training_datasets: set[str] | None
    modalities: list[Literal["text", "image"]] = ["text"]
    model_type: list[Literal["dense", "late-interaction"]] = ["dense"]


@pytest.fixture
def mteb(monkeypatch):
    for name in ("mteb", "mteb.models", "mteb.models.model_meta"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(ModelMeta=ModelMeta))


TASK = {"task_metadata": object(), "hf_split": "test", "hf_subset": "default"}


def batches(rows: list[dict[str, Any]], size: int = 7):
    """A data loader of dicts of lists."""
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        yield {key: [row[key] for row in part] for key in part[0]}


def retrieve(model, queries, corpus, top_k: int) -> dict[str, dict[str, float]]:
    """Retrieval as mteb's runner does it with either kind of model."""
    if isinstance(model, SearchProtocol):
        model.index(corpus, **TASK, encode_kwargs={"batch_size": 8})
        return model.search(queries, **TASK, top_k=top_k, encode_kwargs={"batch_size": 8})
    assert isinstance(model, EncoderProtocol)
    sides = [
        model.encode(batches(rows), **TASK, prompt_type=kind, batch_size=7)
        for rows, kind in ((queries, "query"), (corpus, "document"))
    ]
    scores, places = torch.topk(torch.as_tensor(model.similarity(*sides)), top_k)
    return {
        query["id"]: {corpus[p]["id"]: float(s) for s, p in zip(scores[row], places[row])}
        for row, query in enumerate(queries)
    }


def words(data) -> Processor:
    return Processor(PixelProcessor(16), WordTokenizer.of(data.texts))


@pytest.fixture(scope="module")
def data():
    return scenes(images=24, dev=2, test=14).split("test")


def made(kind: str, data, folder) -> Model:
    if kind == "clip":
        return cf.load_model(recipes_cases.clip_like(folder))
    processor = words(data)
    image = lazy(PatchTower, size=16, patch=8, width=8, channels=4)
    text = lazy(GRU, words=processor.tokenizer.size, width=8, word_width=4)
    more = {"measure": "order"} if kind == "order" else {}
    spec = config(SCAN if kind == "scan" else VSEPP, image=image, text=text, **more)
    return Model(spec.build().eval(), processor, kind, spec)


@pytest.mark.parametrize("kind", ["clip", "cosine", "order", "scan"])
@pytest.mark.usefixtures("mteb")
def test_retrieval_is_that_of_the_model(kind, data, tmp_path):
    model = made(kind, data, tmp_path / "clip")
    wrapped = cf.as_mteb(model)
    assert type(wrapped) is (MTEBEncoder if kind in ("clip", "cosine") else MTEBSearch)
    images = [
        {"id": id_, "image": data.pictures.open(row)} for row, id_ in enumerate(data.image_ids)
    ]
    texts = [{"id": id_, "text": text} for id_, text in zip(data.text_ids, data.texts)][::5]
    scores = model.similarity([row["image"] for row in images], [row["text"] for row in texts])
    for found, wanted, queries, corpus in (
        (retrieve(wrapped, texts, images, 5), scores.T, texts, images),
        (retrieve(wrapped, images, texts, 5), scores, images, texts),
    ):
        assert list(found) == [query["id"] for query in queries]
        for row, ranked in enumerate(found.values()):
            order = np.argsort(-wanted[row], kind="stable")[:5]
            np.testing.assert_allclose(list(ranked.values()), wanted[row][order], atol=1e-5)
            listed = dict(zip([document["id"] for document in corpus], wanted[row]))
            for document, score in ranked.items():
                assert score == pytest.approx(listed[document], abs=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of its libraries
@pytest.mark.parametrize("kind", ["cosine", "scan"])
def test_the_runner_of_mteb_finds_our_numbers(kind, data, tmp_path):
    runner = pytest.importorskip("mteb")
    model = made(kind, data, tmp_path)
    # of equal captions it may rank either first
    first = {text: row for row, text in reversed(list(enumerate(data.texts)))}
    texts = torch.tensor(sorted(first.values()))
    data = data.cut(torch.arange(len(data)), texts, data.text_to_image[texts])
    found = cf.evaluate(model, data, metrics=["MRR@10"])
    for direction in ("i2t", "t2i"):
        results = runner.evaluate(
            cf.as_mteb(model),
            task(direction, data),
            cache=None,
            co2_tracker=False,
            show_progress_bar=False,
        )
        (scores,) = results.task_results[0].scores["test"]
        for k in (1, 5, 10):
            ours = found.metrics[f"{direction} R@{k}"]
            assert 100 * scores[f"hit_rate_at_{k}"] == pytest.approx(ours, abs=1e-3), k
        ours = found.metrics[f"{direction} MRR@10"]
        assert 100 * scores["mrr_at_10"] == pytest.approx(ours, abs=1e-3)
        assert 0 < ours < 100


def task(direction: str, data):
    """A retrieval task of mteb over a split, as its authors write one of their own data."""
    import datasets
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    pictures = [data.pictures.open(row) for row in range(len(data))]
    kinds = {"id": datasets.Value("string"), "image": datasets.Image()}
    images = datasets.Dataset.from_dict(
        {"id": list(data.image_ids), "image": pictures}, features=datasets.Features(kinds)
    )
    texts = datasets.Dataset.from_dict({"id": list(data.text_ids), "text": list(data.texts)})
    by_text = direction == "t2i"
    relevant: dict[str, dict[str, int]] = {}
    for text, image in zip(data.text_ids, data.text_to_image.tolist()):
        pair = (text, data.image_ids[image])
        query, document = pair if by_text else pair[::-1]
        relevant.setdefault(query, {})[document] = 1
    unknown = dict.fromkeys(
        [
            "reference",
            "date",
            "domains",
            "task_subtypes",
            "license",
            "annotations_creators",
            "dialect",
            "sample_creation",
            "bibtex_citation",
        ]
    )

    class Scenes(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name=f"Scenes{direction.upper()}Retrieval",
            description="rendered scenes",
            dataset={"path": "none/none", "revision": "1"},
            type="Any2AnyRetrieval",
            category=direction,
            modalities=["text", "image"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="hit_rate_at_1",
            **unknown,
        )

        def load_data(self, *_: object, **__: object) -> None:
            sides = (texts, images) if by_text else (images, texts)
            names = ("queries", "corpus")
            split = dict(zip(names, sides), relevant_docs=relevant, top_ranked=None)
            self.dataset, self.data_loaded = {"default": {"test": split}}, True

    return Scenes()


def test_items_of_a_text_and_an_image_are_fused(data, tmp_path):
    model = made("clip", data, tmp_path / "clip")
    wrapped = cf.as_mteb(model)
    pictures, texts = [data.pictures.open(row) for row in range(3)], ["a dog", " ", "a red circle"]
    both = wrapped.encode(batches([{"image": p, "text": t} for p, t in zip(pictures, texts)]))
    image, text = model.encode_images(pictures), model.encode_texts(["a dog", "a", "a red circle"])
    for row in (0, 2):
        fused = image[row] + text[row]
        np.testing.assert_allclose(both[row], fused / np.linalg.norm(fused), atol=1e-6)
    np.testing.assert_allclose(both[1], image[1] / 2, atol=1e-6)
    alone = wrapped.encode(batches([{"text": text} for text in texts]))
    assert not alone[1].any()
    pairwise = wrapped.similarity_pairwise(alone, alone)
    np.testing.assert_allclose(pairwise, [1, 0, 1], atol=1e-6)
    with pytest.raises(ValueError, match="a batch of audio was given"):
        wrapped.encode([{"audio": [None]}])


def test_reranking_chooses_from_what_is_given(data, tmp_path):
    wrapped = cf.as_mteb(made("scan", data, tmp_path))
    images = [{"id": f"i{row}", "image": data.pictures.open(row)} for row in range(6)]
    texts = [{"id": f"t{row}", "title": "a dog", "text": data.texts[row]} for row in range(3)]
    wrapped.index(images, **TASK, encode_kwargs={})
    among = {"t0": ["i4", "i1"], "t2": ["i0", "i3", "i5"]}
    found = wrapped.search(texts, **TASK, top_k=2, encode_kwargs={}, top_ranked=among)
    every = wrapped.search(texts, **TASK, top_k=6, encode_kwargs={})
    assert list(found) == ["t0", "t2"]
    for query, documents in among.items():
        best = sorted(documents, key=every[query].get, reverse=True)[:2]
        assert list(found[query]) == best
        assert found[query] == pytest.approx({d: every[query][d] for d in best})
    with pytest.raises(ValueError, match="queries and documents of this task are images"):
        wrapped.search(images, **TASK, top_k=2, encode_kwargs={})


def test_the_description_needs_mteb(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(ValueError, match="pip install mteb"):
        _ = cf.as_mteb(made("cosine", data, tmp_path)).mteb_model_meta


@pytest.mark.usefixtures("mteb")
def test_the_description_has_the_fields_of_mteb(data, tmp_path):
    model = made("clip", data, tmp_path / "my-clip")
    meta = cf.as_mteb(model).mteb_model_meta
    assert meta.name == "counterfoil/my-clip"
    assert meta.revision == model.digest()
    assert meta.embed_dim == model.encode_texts("a").shape[1]
    assert meta.max_tokens == 12
    assert meta.n_parameters == sum(p.numel() for p in model.model.parameters())
    assert meta.memory_usage_mb == pytest.approx(meta.n_parameters * 4 / 2**20)
    assert meta.modalities == ["image", "text"]
    scan = cf.as_mteb(made("scan", data, tmp_path)).mteb_model_meta
    assert scan.model_type == ["late-interaction"]
    assert scan.similarity_fn_name is None


def test_models_of_features_are_refused(tmp_path):
    recipes_cases.feature_model(tmp_path / "regions")
    with pytest.raises(ValueError, match="does not read pictures, which MTEB gives"):
        cf.as_mteb(cf.load_model(tmp_path / "regions"))
