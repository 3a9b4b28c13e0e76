from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import recipes_cases
from corpus_cases import random_array, small_corpus, write_folder, write_picture
from counterfoil.core.config import config
from counterfoil.data.features import FeatureArray
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
from counterfoil.papers.models.scan import SCAN
from counterfoil.scoring.encode import images_in_batches
from counterfoil.scoring.reducers import TopK
from counterfoil.scoring.stream import stream_scores
from counterfoil.search import index as index_module
from counterfoil.search.index import build_index, check_single_vectors, open_index
from counterfoil.search.rerank import Reranker
from engine_cases import vectors


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Two models, photos with captions, photos without, and an index of the first."""
    root = tmp_path_factory.mktemp("searching")
    recipes_cases.pixel_model(root / "mine")
    recipes_cases.clip_like(root / "clip")
    write_folder(load_dataset("scenes:images=36"), root / "photos")
    (root / "bare").mkdir()
    for path in sorted((root / "photos" / "images").iterdir())[:5]:
        shutil.copy(path, root / "bare" / f"bare-{path.name}")
    model, dataset = load_model(root / "mine"), load_dataset(root / "photos")
    build_index(model, dataset, root / "index").close()
    return root


@pytest.fixture
def copy(place, tmp_path):
    """The index, to be written to."""
    shutil.copytree(place / "index", tmp_path / "index")
    return open_index(tmp_path / "index")


def captions(dataset, row: int) -> list[int]:
    return dataset.relation.captions(torch.tensor([row]))[0].tolist()


def test_ranks_as_evaluation_does(place):
    """Both ways, the index finds what a sweep over the same model and data finds."""
    model, dataset = load_model(place / "mine"), load_dataset(place / "photos")
    member = model.embed(dataset)
    texts, images = TopK("image", 36, 7), TopK("text", len(dataset.texts), 7)
    stream_scores([member], [texts, images])
    with open_index(place / "index") as index:
        for lists, ids, asked, find in (
            (texts, dataset.text_ids, dataset.image_ids, "captions"),
            (images, dataset.image_ids, dataset.text_ids, "images"),
        ):
            for row in range(0, len(asked), 5):
                hits = index.search_id(asked[row], 7, find=find)
                assert [hit.rank for hit in hits] == [*range(1, 8)]
                torch.testing.assert_close(
                    torch.tensor([hit.score for hit in hits]), lists.scores[row], atol=1e-6, rtol=0
                )
                wanted = [ids[other] for other in lists.rows[row].tolist()]
                apart = lists.scores[row].diff().abs().min() > 1e-5
                if apart:
                    assert [hit.id for hit in hits] == wanted


def test_hits_say_what_they_are(place):
    dataset = load_dataset(place / "photos")
    with open_index(place / "index") as index:
        image = index.search("a red circle", 1)[0]
        row = dataset.image_ids.index(image.id)
        assert image.image_id == image.id
        assert image.captions == tuple(dataset.texts[t] for t in captions(dataset, row))
        assert image.path == Path(dataset.pictures.place(row)).resolve()
        text = index.search_image(image.path, 1)[0]
        row = dataset.text_ids.index(text.id)
        assert text.captions == (dataset.texts[row],)
        assert text.image_id == dataset.image_ids[int(dataset.text_to_image[row])]
        assert text.path == index.image_path(text.image_id)
        assert json.loads(json.dumps(text.to_dict()))["path"] == str(text.path)


def test_an_image_finds_itself_by_its_picture_and_others_by_its_id(place):
    with open_index(place / "index") as index:
        name = load_dataset(place / "photos").image_ids[3]
        by_picture = index.search_image(index.image_path(name), 4, find="images")
        by_id = index.search_id(name, 3, find="images")
        assert by_picture[0].id == name
        assert by_picture[0].score == pytest.approx(1, abs=1e-5)
        assert [hit.id for hit in by_id] == [hit.id for hit in by_picture[1:]]
        assert [hit.rank for hit in by_id] == [1, 2, 3]


def test_a_caption_finds_captions(place):
    with open_index(place / "index") as index:
        hits = index.search("a red circle", 3, find="captions")
        assert all(hit.id.startswith("scene") and len(hit.captions) == 1 for hit in hits)


def test_queries_together_are_answered_as_alone(place):
    asked = ["a red circle", "a dog in the snow", "snow"]
    with open_index(place / "index") as index:
        together = index.search_many(asked, 5, find="images")
        for query, hits in zip(asked, together, strict=True):
            alone = index.search(query, 5)
            assert [hit.score for hit in alone] == pytest.approx([h.score for h in hits], abs=1e-6)


def test_a_picture_finds_the_same_in_a_copy(place, tmp_path):
    """The index alone is enough: the model lies in it."""
    shutil.copytree(place / "index", tmp_path / "alone")
    write_picture(tmp_path / "new.png")
    with open_index(tmp_path / "alone") as alone, open_index(place / "index") as index:
        found = alone.search_image(tmp_path / "new.png", 3)
        assert found == index.search_image(tmp_path / "new.png", 3)


def test_another_model_is_refused(place, tmp_path):
    for other in (place / "clip", recipes_cases.feature_model(tmp_path / "other")):
        with pytest.raises(ValueError, match="cannot be compared; search with the model of the"):
            open_index(place / "index", model=other)
    open_index(place / "index", model=place / "mine")


def test_a_model_that_was_trained_on_is_refused(place, copy):
    saved = load_model(copy.folder / "model")
    with torch.no_grad():
        next(saved.model.parameters()).add_(0.1)
    with pytest.raises(ValueError, match="was trained on since"):
        open_index(copy.folder, model=saved)
    shutil.rmtree(copy.folder / "model")
    with pytest.raises(ValueError, match=r"the model of .* cannot be opened .*--model"):
        copy.search("a dog")
    with pytest.raises(ValueError, match=r"cf.open_index\('.*', model=MODEL\)"):
        open_index(copy.folder).search("a dog")
    assert open_index(copy.folder, model=place / "mine").search("a dog", 1)


def test_a_pretrained_model_is_named_and_not_copied(place, tmp_path):
    built = build_index(load_model(place / "clip"), load_dataset(place / "bare"), tmp_path / "x")
    assert not (tmp_path / "x" / "model").exists()
    assert built.model_name == str((place / "clip").resolve())
    with open_index(tmp_path / "x") as index:
        assert [hit.id for hit in index.search("a dog", 9)]
        assert index.description == "5 images and 0 captions"
        with pytest.raises(ValueError, match="there are no captions to find"):
            index.search("a dog", find="captions")


def test_add_takes_only_what_is_new(place, copy):
    dataset = load_dataset(place / "photos")
    assert copy.add(dataset) == index_module.IndexUpdate(0, 0, 36)
    assert copy.add(load_dataset(place / "bare")) == index_module.IndexUpdate(5, 0, 0)
    assert len(copy.vectors.images) == 41
    twin = copy.search_id("bare-00.png", 1, find="images")[0]
    assert twin.score == pytest.approx(1, abs=1e-5)


def test_add_puts_right_what_reads_otherwise_now(place, copy):
    dataset = load_dataset(place / "photos")
    texts = ["a dog in the snow" if row == 7 else text for row, text in enumerate(dataset.texts)]
    assert copy.add(replace(dataset, texts=texts)) == index_module.IndexUpdate(0, 1, 36)
    assert copy.search("a dog in the snow", 1, find="captions")[0].id == dataset.text_ids[7]
    assert len(copy.vectors.texts) == len(texts)


def test_added_and_deleted_equals_made_at_once(place, tmp_path):
    model, dataset = load_model(place / "mine"), load_dataset(place / "photos")
    first, rest = dataset.subset(torch.arange(20)), dataset.subset(torch.arange(10, 36))
    grown = build_index(model, first, tmp_path / "grown")
    grown.add(rest)
    gone = [dataset.image_ids[3], dataset.image_ids[30], dataset.text_ids[0]]
    found = grown.delete(gone)
    own = [captions(dataset, row) for row in (3, 30)]
    assert found == index_module.IndexUpdate(2, 1 + sum(map(len, own)))
    kept = torch.tensor([row for row in range(36) if row not in (3, 30)])
    once = build_index(model, dataset.subset(kept), tmp_path / "once")
    once.delete([dataset.text_ids[0]])
    for query in ("a red circle", "snow"):
        for find in ("images", "captions"):
            one, two = (
                {hit.id: (hit.score, hit.captions, hit.path) for hit in hits}
                for hits in (x.search(query, 500, find=find) for x in (grown, once))
            )
            assert one.keys() == two.keys()
            for name, (score, *what) in one.items():
                assert two[name][0] == pytest.approx(score, abs=1e-6)
                assert list(two[name][1:]) == what


def test_deleting_what_is_not_there_deletes_nothing(copy):
    known = copy.vectors.images.entry(0).id
    with pytest.raises(ValueError, match="'nobody' is not an id of"):
        copy.delete([known, "nobody"])
    assert copy.vectors.images.rows.get(known) == 0


def test_drawn_pictures_lie_in_the_index(place, tmp_path):
    dataset = load_dataset("scenes:images=36").subset(torch.arange(4))
    index = build_index(load_model(place / "mine"), dataset, tmp_path / "x")
    moved = shutil.move(tmp_path / "x", tmp_path / "y")
    index = open_index(moved)
    path = index.image_path(dataset.image_ids[2])
    assert path.is_file()
    assert path.is_relative_to(tmp_path / "y")
    assert index.search_image(path, 1, find="images")[0].id == dataset.image_ids[2]
    index.delete([dataset.image_ids[2]])
    assert not path.exists()


def test_a_killed_build_leaves_nothing(place, tmp_path, monkeypatch):
    def killed(*words):
        raise KeyboardInterrupt

    monkeypatch.setattr(index_module, "_write", killed)
    with pytest.raises(KeyboardInterrupt):
        build_index(load_model(place / "mine"), load_dataset(place / "photos"), tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_a_killed_build_of_many_items_goes_on(place, tmp_path, monkeypatch):
    """The images stay encoded; another model or other photos are refused and lose nothing."""
    model, photos = load_model(place / "mine"), load_dataset(place / "photos")
    monkeypatch.setattr(index_module, "_RESUMABLE", 20)
    batches = []

    def killed(*words, **options):
        raise KeyboardInterrupt

    def counted(*words, **options):
        for batch in images_in_batches(*words, **options):
            batches.append(batch)
            yield batch

    monkeypatch.setattr(index_module, "images_in_batches", counted)
    with monkeypatch.context() as patch:
        patch.setattr(index_module, "texts_in_batches", killed)
        with pytest.raises(KeyboardInterrupt):
            build_index(model, photos, tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["x.partial"]
    assert len(batches) == 1
    for other_model, other_photos, fact in (
        (load_model(place / "clip"), photos, "model"),
        (model, photos.subset(torch.arange(20)), "images"),
    ):
        with pytest.raises(ValueError, match=rf"x.partial was begun otherwise: {fact} is"):
            build_index(other_model, other_photos, tmp_path / "x")
    with build_index(model, photos, tmp_path / "x") as index, open_index(place / "index") as whole:
        for side in ("image", "text"):
            rows = torch.arange(len(index.vectors.collection(side)))
            assert torch.equal(
                index.vectors.collection(side).vectors(rows),
                whole.vectors.collection(side).vectors(rows),
            )
    assert len(batches) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_vectors_are_asked_by_id(tmp_path):
    (tmp_path / "v").mkdir()
    images, texts = random_array(4, 6), random_array(8, 6, seed=1)
    np.save(tmp_path / "v" / "images.npy", images)
    np.save(tmp_path / "v" / "texts.npy", texts)
    dataset = load_dataset(tmp_path / "v")
    index = build_index(load_model("vectors"), dataset, tmp_path / "x", half=True)
    hits = index.search_id(dataset.text_ids[5], 4)
    order = np.argsort(-(images @ texts[5]))
    assert [hit.id for hit in hits] == [dataset.image_ids[row] for row in order]
    assert hits[0].path is None
    with pytest.raises(ValueError, match="ready-made vectors have no encoder"):
        index.search("a dog")


# hosts that fit in no index


def scan(width: int = 4):
    from counterfoil.core.config import lazy
    from counterfoil.models.layers.towers import GRU, Regions

    text = lazy(GRU, words=len(recipes_cases.WORDS), width=8, word_width=4)
    return config(SCAN, image=lazy(Regions, features=width, width=8), text=text)


def test_a_host_of_many_vectors_is_told_where_it_fits(tmp_path):
    model = recipes_cases.feature_model(tmp_path / "m")
    many = replace(load_model(model), model=scan().build(), name="runs/scan")
    with pytest.raises(ValueError, match=r"one vector .* --rerank runs/scan"):
        build_index(many, small_corpus((2, 2)), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_score_that_is_no_product_is_refused(tmp_path):
    model = load_model(recipes_cases.feature_model(tmp_path / "m"))
    images, texts = vectors(torch.rand(3, 8)), vectors(torch.rand(4, 8))
    check_single_vectors(model, images, texts)
    model.model.measure = "order"
    with pytest.raises(ValueError, match="by inner product"):
        check_single_vectors(model, images, texts)


# re-ranking


def test_reranked_by_another_model_of_pixels(place):
    """All of the first results, in the order of the other model's scores."""
    other = load_model(place / "clip")
    with open_index(place / "index") as index:
        first = index.search("a red circle", 12)
    with open_index(place / "index", rerank=Reranker(other, 12)) as index:
        hits = index.search("a red circle", 5)
    scores = other.model.score_matrix(
        other.encode([hit.path for hit in first]), other.encode(["a red circle"])
    )[:, 0]
    best = scores.topk(5)
    assert [hit.id for hit in hits] == [first[row].id for row in best.indices.tolist()]
    assert [hit.score for hit in hits] == pytest.approx(best.values.tolist(), abs=1e-6)


def test_reranked_by_a_host_that_reads_pairs(place, tmp_path):
    other = load_model(recipes_cases.blip_like(tmp_path / "blip"))
    with open_index(place / "index") as index:
        first = index.search("a red circle", 8)
    with open_index(place / "index", rerank=Reranker(other, 8)) as index:
        hits = index.search("a red circle", 3)
    scores = [float(other.score(hit.path, ["a red circle"])) for hit in first]
    assert [hit.score for hit in hits] == pytest.approx(sorted(scores)[:-4:-1], abs=1e-5)


def test_captions_of_a_picture_reranked(place):
    other, photo = load_model(place / "clip"), sorted((place / "bare").iterdir())[0]
    with open_index(place / "index") as index:
        first = index.search_image(photo, 40)
    with open_index(place / "index", rerank=Reranker(other, 40)) as index:
        hits = index.search_image(photo, 5)
        with pytest.raises(ValueError, match="only the first 40 are re-ranked"):
            index.search_image(photo, 41)
        with pytest.raises(ValueError, match="cannot compare one image with another"):
            index.search_image(photo, 5, find="images")
    captions = [hit.captions[0] for hit in first]
    best = other.score(photo, captions).topk(5).values
    assert [hit.score for hit in hits] == pytest.approx(best.tolist(), abs=1e-6)
    for hit in hits:
        assert float(other.score(photo, hit.captions)) == pytest.approx(hit.score, abs=1e-5)


def test_reranked_by_a_host_of_regions(place, tmp_path):
    """SCAN reads features by id; the index was made of pixels."""
    dataset = load_dataset(place / "photos")
    dataset = replace(dataset, features=FeatureArray.of(random_array(36, 3, 4)))
    model = load_model(recipes_cases.feature_model(tmp_path / "m"))
    torch.manual_seed(1)
    many = replace(model, model=scan().build().eval(), name="runs/scan")
    with pytest.raises(ValueError, match="name the data that have them"):
        Reranker(many, 10)
    with open_index(place / "index", rerank=Reranker(many, 10, dataset)) as index:
        hits = index.search("a red circle", 10)
        again = index.search_id(dataset.image_ids[4], 3)
    member = many.embed(dataset)
    scores = many.model.score_matrix(member.images, many.encode(["a red circle"]))[:, 0]
    rows = [dataset.image_ids.index(hit.id) for hit in hits]
    assert [hit.score for hit in hits] == pytest.approx(scores[rows].tolist(), abs=1e-5)
    assert scores[rows].diff().max() <= 1e-6
    row = dataset.text_ids.index(again[0].id)
    wanted = many.model.score_matrix(
        member.images.rows(slice(4, 5)), member.texts.rows(slice(row, row + 1))
    )
    assert again[0].score == pytest.approx(float(wanted), abs=1e-5)
    with (
        open_index(
            place / "index", rerank=Reranker(many, 10, dataset.subset(torch.arange(3)))
        ) as x,
        pytest.raises(ValueError, match="holds no image"),
    ):
        x.search("a red circle", 10)


# folders of pictures alone


def test_bare_folders(place, tmp_path):
    dataset = load_dataset(place / "bare")
    assert dataset.name == "bare"
    assert list(dataset.image_ids) == [f"bare-{n:02}.png" for n in range(5)]
    (place / "bare" / "README.md").write_text("holiday")
    assert load_dataset(place / "bare").image_ids == dataset.image_ids


def test_pictures_alone_are_encoded(place, tmp_path):
    written = load_model(place / "clip").write_vectors(load_dataset(place / "bare"), tmp_path / "v")
    assert written.image_ids == load_dataset(place / "bare").image_ids
    assert written.texts == []
    assert len(written.features) == 5


def test_pictures_beside_a_table_are_found_and_never_evaluated(place, tmp_path):
    folder = tmp_path / "photos"
    shutil.copytree(place / "bare", folder)
    named, second, *others = sorted(path.name for path in folder.glob("*.png"))
    (folder / "captions.csv").write_text(f"image,id,caption\n{named},{second},one\n")
    dataset = load_dataset(folder)
    assert list(dataset.unlisted) == [second, *others]
    wanted = {second, f"./{second}", *others}  # an id that the table gave to another picture
    model = load_model(place / "clip")
    with build_index(model, dataset, tmp_path / "x") as index:
        assert {*index.vectors.images.rows} == wanted
        assert index.add(load_dataset(folder)).images == 0
        assert index.image_path(f"./{second}") == (folder / second).resolve()
    assert model.embed(dataset).images.tokens.shape[0] == 1
    with build_index(model, dataset.split(*dataset.split_names), tmp_path / "y") as index:
        assert {*index.vectors.images.rows} == {second}
