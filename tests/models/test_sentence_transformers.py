"""Folders of sentence-transformers are models of ours, with the library's own numbers."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError
from PIL import Image

import sentence_cases
import sentence_transformer_cases as cases
from counterfoil.evaluation.similarity_maps import similarity_maps
from counterfoil.loading import load_pretrained, sentence_transformers_folder
from counterfoil.model import load_model
from counterfoil.models.sentence_transformers import (
    CrossEncoderModel,
    DenseEmbedder,
    MultiVectorEmbedder,
)
from counterfoil.saved import save_model

SENTENCE = "a red blue circle square left of right above . big small"
WORDS = SENTENCE.split()
TEXTS = ["a red circle", "a big blue square left of a red circle .", "blue"]
MAKERS = {
    "clip": (lambda folder: cases.dense(folder, WORDS), DenseEmbedder),
    "llava": (lambda folder: cases.dense(folder, WORDS, "llava"), DenseEmbedder),
    "multi": (lambda folder: cases.multi(folder, WORDS), MultiVectorEmbedder),
    "mean": (lambda folder: cases.multi(folder, WORDS, mean=True), MultiVectorEmbedder),
    "judge": (lambda folder: cases.judge(folder, WORDS), CrossEncoderModel),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: make(tmp_path_factory.mktemp(name)) for name, (make, _) in MAKERS.items()}


def pictures():
    rng = np.random.default_rng(0)
    sizes = ((20, 16), (16, 30), (16, 16), (7, 40))
    return [Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)) for size in sizes]


def library_scores(name, folder):
    """The scores that the library gives all pictures with all texts."""
    import sentence_transformers as st

    if name == "judge":
        model = st.CrossEncoder(str(folder), device="cpu")
        chances = model.predict([(text, picture) for picture in pictures() for text in TEXTS])
        return np.log(chances / (1 - chances)).reshape(len(pictures()), len(TEXTS))
    kind = st.SentenceTransformer if name in ("clip", "llava") else st.MultiVectorEncoder
    model = kind(str(folder), device="cpu")
    found = model.similarity(model.encode_query(TEXTS), model.encode_document(pictures()))
    return found.T.numpy()


@pytest.mark.parametrize("name", MAKERS)
def test_scores_are_the_librarys(name, folders):
    model = load_model(folders[name])
    assert type(model.model) is MAKERS[name][1]
    found = model.similarity(pictures(), TEXTS)
    np.testing.assert_allclose(found, library_scores(name, folders[name]), rtol=1e-4, atol=1e-5)
    assert "which its library prepares" in repr(model)


@pytest.mark.parametrize("name", MAKERS)
def test_a_saved_model_needs_nothing_else(name, folders, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(folders[name], source)
    model = load_model(source)
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter.mul_(1.01)
    wanted = model.similarity(pictures(), TEXTS)
    save_model(tmp_path / "ours", spec=model.spec, model=model.model, processor=model.processor)
    shutil.rmtree(source)
    shutil.move(tmp_path / "ours", tmp_path / "moved")
    found = load_model(tmp_path / "moved")
    np.testing.assert_array_equal(found.similarity(pictures(), TEXTS), wanted)
    assert found.identity() == load_model(tmp_path / "moved").identity()
    assert abs(wanted - load_model(folders[name]).similarity(pictures(), TEXTS)).max() > 1e-4
    large = (tmp_path / "moved").rglob("*.safetensors")
    assert max(large, key=lambda path: path.stat().st_size).name == "model.safetensors"
    shutil.rmtree(tmp_path / "moved" / "encoder")
    with pytest.raises(ValueError, match="encoder is missing"):
        load_model(tmp_path / "moved")


def test_a_changed_setting_is_another_model(folders, tmp_path):
    shutil.copytree(folders["clip"], tmp_path / "other")
    before, path = load_model(folders["clip"]).identity(), "config_sentence_transformers.json"
    assert load_model(tmp_path / "other").identity() == before
    plain = json.loads((tmp_path / "other" / path).read_text())
    plain["prompts"] = {"query": "big ", "document": ""}
    (tmp_path / "other" / path).write_text(json.dumps(plain))
    other = load_model(tmp_path / "other")
    assert other.identity() != before
    # the prompt stands before captions, as in the library's `encode_query`
    plain, prompted = load_model(folders["clip"]), other.encode(["red circle"]).tokens
    assert torch.equal(prompted, plain.encode(["big red circle"]).tokens)


@pytest.mark.parametrize("name", ["llava", "multi", "judge"])
def test_batches_of_few_tokens_change_nothing(name, folders):
    model = load_model(folders[name])
    seen = []
    body = model.model.body
    preprocess = body.preprocess

    def counted(inputs, **options):
        seen.append(len(inputs))
        return preprocess(inputs, **options)

    body.preprocess = counted
    whole = model.similarity(pictures(), TEXTS)
    passes = len(seen)
    model.model.tokens = 16
    np.testing.assert_allclose(model.similarity(pictures(), TEXTS), whole, rtol=1e-4, atol=1e-5)
    assert len(seen) > 2 * passes
    assert min(seen) == 1


def test_tokens_that_the_library_leaves_out_have_no_vector(folders):
    from sentence_transformers import MultiVectorEncoder

    model = load_model(folders["multi"])
    bags = model.encode(["a red circle", "a red circle ."])
    kept = bags.mask.sum(1).tolist()
    # only documents lose their stops; the template adds two tokens
    assert kept == [5, 6]
    library = MultiVectorEncoder(str(folders["multi"]), device="cpu")
    for bag, mask, text in zip(bags.tokens, bags.mask, ["a red circle", "a red circle ."]):
        torch.testing.assert_close(bag[mask], library.encode_query(text), rtol=1e-4, atol=1e-5)


def test_what_reads_no_pictures_is_refused(tmp_path):
    folder = sentence_cases.encoder(tmp_path / "bert", WORDS)
    with pytest.raises(ValueError, match=r"reads text and no pictures; give a model of"):
        load_model(folder)


def test_a_name_on_the_hub_is_asked_once_for_its_kind(folders, monkeypatch):
    """Its settings are downloaded; a name without `modules.json` belongs to another library."""
    asked = []

    def download(name, file):
        asked.append((name, file))
        if name == "them/clip":
            raise EntryNotFoundError("404")
        return str(folders["clip"] / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    settings = {"us/embedder": folders["clip"], "us/judge": folders["judge"]}
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda name, allow_patterns: str(settings[name])
    )
    for name, own in (("us/embedder", True), ("us/judge", True), ("them/clip", False)):
        assert (sentence_transformers_folder(name) is not None) == own
    assert sentence_transformers_folder("no name") is None
    assert asked == [(name, "modules.json") for name in ("us/embedder", "us/judge", "them/clip")]


def test_another_kind_of_model_is_refused(folders, tmp_path):
    shutil.copytree(folders["clip"], tmp_path / "other")
    settings = tmp_path / "other" / "config_sentence_transformers.json"
    settings.write_text(json.dumps({"model_type": "SparseEncoder"}))
    with pytest.raises(ValueError, match="is a SparseEncoder of sentence-transformers; give a Sen"):
        load_model(tmp_path / "other")


def test_another_similarity_is_refused(folders, tmp_path):
    shutil.copytree(folders["clip"], tmp_path / "other")
    settings = tmp_path / "other" / "config_sentence_transformers.json"
    plain = json.loads(settings.read_text())
    settings.write_text(json.dumps({**plain, "similarity_fn_name": "euclidean"}))
    with pytest.raises(ValueError, match="compares vectors by euclidean; cosine and inner product"):
        load_model(tmp_path / "other")


def test_adapters_alone_are_trained(folders):
    spec = load_pretrained(str(folders["llava"])).trained(frozen=False, lora=2)
    model = spec.fill({"pretrained": True}).build()
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    assert names
    assert all(".lora_" in name for name in names)
    plain = load_model(folders["llava"]).model.state_dict()
    model.load_state_dict(model.adopted(plain))
    model.merge()
    assert set(model.state_dict()) == set(plain)


def test_only_single_vectors_have_adapters_behind_them(folders):
    with pytest.raises(ValueError, match="does not make one vector of an item"):
        load_pretrained(str(folders["multi"])).trained(frozen=True, lora=0)


@pytest.mark.parametrize("name", ["multi", "mean"])
def test_maps_of_words_are_the_librarys(name, folders, monkeypatch):
    from sentence_transformers.multi_vector_encoder import interpretability

    model, text, seen = load_model(folders[name]), "  a big blue square . Red", pictures()[0]
    library = model.model.body
    # as PaliGemma's processor says it; this one says nothing, so that nothing is placed
    assert similarity_maps(model, seen, text).grid is None
    monkeypatch.setattr(library.processor, "image_seq_length", 4, raising=False)
    maps = similarity_maps(model, seen, text)
    assert (maps.shows, maps.grid) == ("similarity", (2, 2))
    assert maps.boxes[1] == (0.5, 0.0, 1.0, 0.5)
    assert [word.text for word in maps.words] == ["a", "big", "blue", "square", "Red"]
    query = library.encode_query([text.strip()])[0]
    query = query[interpretability.real_query_token_slice(library, text.strip())]
    ids = library.preprocess([seen], task="document")["input_ids"][0]
    document = library.encode_document([seen])[0]
    patches = (ids == library.tokenizer.convert_tokens_to_ids("<image>"))[-len(document) :]
    wanted = interpretability.maxsim_similarity_map(query, document, (2, 2), image_mask=patches)
    np.testing.assert_allclose(maps.array(), wanted[[0, 1, 2, 3, 5]], rtol=1e-4, atol=1e-5)


def test_what_a_library_crops_is_not_placed(folders, monkeypatch):
    model = load_model(folders["multi"])
    monkeypatch.setattr(model.model.body.processor, "image_seq_length", 4, raising=False)
    prepares = model.model.body.processor.image_processor
    monkeypatch.setattr(prepares, "size", {"shortest_edge": 20})
    assert similarity_maps(model, pictures()[1], "red").boxes is None
