"""Other people's programs run on what we write, and their numbers are ours."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch

import counterfoil as cf
import recipes_cases
from corpus_cases import write_folder
from counterfoil.data.readers import load_dataset
from counterfoil.export.models import export_model
from counterfoil.export.rankings import export_rankings
from counterfoil.negatives.mining import mine_hard_negatives

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos") / "photos"
    write_folder(load_dataset("scenes:images=36"), folder)
    return load_dataset(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return cf.load_model(recipes_cases.clip_like(tmp_path_factory.mktemp("model") / "clip"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_sentence_transformers_mines_the_same_negatives(data, model, tmp_path):
    """Its own miner, on the exported model: the same images of every caption, in one order."""
    st = pytest.importorskip("sentence_transformers")
    import datasets
    from sentence_transformers.util import mine_hard_negatives as theirs

    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    export_model(model.model, model.processor, "sentence-transformers", tmp_path / "st", name="x")
    train = data.split("train")
    paths = [str(path) for path in train.pictures.paths]
    pairs = {
        "anchor": train.texts,
        "positive": [paths[image] for image in train.text_to_image.tolist()],
    }
    table = theirs(
        datasets.Dataset.from_dict(pairs),
        st.SentenceTransformer(str(tmp_path / "st"), device="cpu"),
        corpus=paths,
        num_negatives=3,
        output_format="n-tuple",
        verbose=False,
    )
    ours = mine_hard_negatives(model, train, images_per_text=3)
    rows = ours.to_dataset("n-tuple", images=False, most=3)
    names = dict(zip(paths, train.image_ids))
    found = {row["anchor"]: [names[row[f"negative_{n}"]] for n in (1, 2, 3)] for row in table}
    # equal captions are one query to them, with several positives
    single = [row for row in rows if train.texts.count(row["anchor"]) == 1]
    assert len(single) > 100
    for row in single:
        assert found[row["anchor"]] == [row[f"negative_{n}"] for n in (1, 2, 3)]


def test_ranx_counts_our_recalls_from_runs(data, model, tmp_path):
    ranx = pytest.importorskip("ranx")
    test = data.split("test")
    export_rankings([model], tmp_path / "runs", test)
    found = cf.evaluate(model, test, metrics=["R@20", "MRR"])
    for side, direction in (("i2t", "image-to-text"), ("t2i", "text-to-image")):
        qrels = ranx.Qrels.from_file(str(tmp_path / "runs" / f"{direction}.qrels"), kind="trec")
        run = ranx.Run.from_file(str(tmp_path / "runs" / f"{direction}.run"), kind="trec")
        asked = [f"hit_rate@{k}" for k in (1, 5, 10, 20)] + ["mrr"]
        theirs = ranx.evaluate(qrels, run, asked)
        for k in (1, 5, 10, 20):
            assert 100 * theirs[f"hit_rate@{k}"] == pytest.approx(found.metrics[f"{side} R@{k}"])
        assert 100 * theirs["mrr"] == pytest.approx(found.metrics[f"{side} MRR"])


def test_faiss_searches_the_arrays_of_an_index(data, model, tmp_path):
    """The vectors are plain arrays, and the names of their rows stand beside them."""
    faiss = pytest.importorskip("faiss")
    with cf.build_index(model, data, tmp_path / "index") as index:
        queries = sorted({*data.texts})[:40]
        ours = [index.search(text, top_k=5) for text in queries]
    (rows,), (names,) = (
        sorted((tmp_path / "index").glob(f"*-images.{end}")) for end in ("npy", "jsonl")
    )
    vectors = np.load(rows).astype(np.float32)
    ids = [json.loads(line)["id"] for line in names.read_text().splitlines()]
    theirs = faiss.IndexFlatIP(vectors.shape[1])
    theirs.add(vectors)
    scores, found = theirs.search(model.encode_texts(queries), 5)
    for hits, listed, row in zip(ours, scores, found.tolist()):
        assert [hit.score for hit in hits] == pytest.approx(listed, abs=1e-3)
        for hit, place, score in zip(hits, row, listed):
            # of equal scores either may come first
            assert hit.id == ids[place] or hit.score == pytest.approx(score, abs=1e-5)


def test_torchmetrics_counts_our_recalls_from_scores(data, model):
    retrieval = pytest.importorskip("torchmetrics.retrieval")
    test = data.split("test")
    pictures = [test.pictures.open(row) for row in range(len(test))]
    scores = torch.from_numpy(model.similarity(pictures, list(test.texts)))
    truth = test.text_to_image == torch.arange(len(test)).unsqueeze(1)
    found = cf.evaluate(model, test, metrics=["MRR"])
    for side, sided, true in (("i2t", scores, truth), ("t2i", scores.T, truth.T)):
        query = torch.arange(len(sided)).unsqueeze(1).expand_as(sided)
        # it takes scores above 0 and breaks ties as it likes, we by row: so it gets 1 / place
        places = sided.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        asked = (1 / (1 + places)).flatten(), true.flatten()
        for k in (1, 5, 10):
            theirs = retrieval.RetrievalHitRate(top_k=k)(*asked, indexes=query.flatten())
            assert 100 * float(theirs) == pytest.approx(found.metrics[f"{side} R@{k}"], abs=1e-3)
        theirs = retrieval.RetrievalMRR()(*asked, indexes=query.flatten())
        assert 100 * float(theirs) == pytest.approx(found.metrics[f"{side} MRR"], abs=1e-3)
