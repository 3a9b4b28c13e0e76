from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import recipes_cases
from corpus_cases import random_array, small_corpus, write_picture
from counterfoil.data.readers import load_dataset
from counterfoil.data.readers.embeddings import read_embeddings
from counterfoil.evaluation.protocols import evaluate_protocol
from counterfoil.model import VECTORS, load_model
from counterfoil.saved import save_model

SCENES = load_dataset("scenes:images=12")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    recipes_cases.pixel_model(root / "pixels")
    recipes_cases.feature_model(root / "regions")
    recipes_cases.pixel_model(root / "stage" / "model")
    for kind in ("clip", "siglip"):
        recipes_cases.clip_like(root / kind, kind)
    recipes_cases.vilt_like(root / "vilt", "ImageAndTextRetrieval")
    recipes_cases.blip_like(root / "blip")
    return root


def test_dropout_of_a_single_part_is_off_too(folders):
    """A part may have been set to train while the whole was not."""
    model = load_model(folders / "clip")
    parts = [part for part in model.model.modules() if isinstance(vars(part).get("dropout"), float)]
    want = model.encode(["a red circle"]).tokens
    parts[0].dropout = 0.9
    assert torch.equal(model.encode(["a red circle"]).tokens, want)
    parts[0].train()
    assert not model.model.training
    assert torch.equal(model.encode(["a red circle"]).tokens, want)
    assert not parts[0].training


def test_one_item_is_as_good_as_a_list(folders, tmp_path):
    model = load_model(folders / "clip")
    write_picture(tmp_path / "dog.png")
    picture = Image.open(tmp_path / "dog.png").convert("RGB")
    wanted = model.encode([picture]).tokens
    pixels = np.asarray(picture)
    for same in (
        picture,
        tmp_path / "dog.png",
        (tmp_path / "dog.png").read_bytes(),
        pixels,
        pixels[None],
        [pixels],
    ):
        assert torch.equal(model.encode(same).tokens, wanted)
        assert np.array_equal(model.encode_images(same), wanted[:, 0].numpy())
    assert np.array_equal(model.encode_images(str(tmp_path / "dog.png")), wanted[:, 0].numpy())
    assert torch.equal(model.encode("dog").tokens, model.encode(["dog"]).tokens)
    assert model.encode_texts("dog").shape[0] == 1
    assert torch.equal(model.score(picture, "dog"), model.score(picture, ["dog"]))


@pytest.mark.parametrize(
    "name, items, message",
    [
        ("clip", np.zeros((4, 4, 3)), r"shape \(4, 4, 3\) and type float64 is no image"),
        ("clip", np.zeros((4, 4), np.uint8), r"give \(height, width, 3\) of uint8"),
        ("clip", b"no image", "an image of 8 bytes cannot be read as a picture"),
        ("clip", [3], "int is neither a caption nor an image"),
        ("pixels", [], "give captions .* or pictures"),
        ("pixels", ["a dog", Image.new("RGB", (4, 4))], "give captions .* or pictures .* not both"),
        ("pixels", [" "], "caption 0 of 1 is empty"),
        ("regions", [Image.new("RGB", (4, 4))], "reads stored features, not pictures"),
    ],
)
def test_what_cannot_be_encoded(name, items, message, folders):
    model = load_model(folders / name)
    assert len(model.encode(["a dog"])) == 1
    with pytest.raises(ValueError, match=message):
        model.encode(items)
    with pytest.raises(ValueError, match="a text is a str, not int: 3"):
        model.encode_texts([3])


READERS = ("pixels", "stage", "clip", "siglip", "vilt", "blip")


@pytest.mark.parametrize("name", READERS)
def test_encode_captions_and_pictures(name, folders, tmp_path):
    model = load_model(folders / name)
    assert not model.model.training
    write_picture(tmp_path / "dog.png")
    picture = Image.open(tmp_path / "dog.png")
    texts = model.encode(["a dog in the snow", "a red circle"])
    images = model.encode([tmp_path / "dog.png", picture])
    assert len(texts) == len(images) == 2
    torch.testing.assert_close(images.tokens[0], images.tokens[1], rtol=0, atol=0)
    assert not torch.equal(texts.tokens[0], texts.tokens[1])
    assert not images.tokens.requires_grad


@pytest.mark.parametrize("name", READERS)
def test_score_is_the_grid_of_what_was_encoded(name, folders, tmp_path):
    model = load_model(str(folders / name))
    write_picture(tmp_path / "dog.png")
    captions = ["a dog", "the snow in a red circle", "a"]
    scores = model.score(tmp_path / "dog.png", captions)
    assert scores.shape == (3,)
    assert torch.equal(model.score(str(tmp_path / "dog.png"), captions), scores)
    alone = torch.stack([model.score(tmp_path / "dog.png", [c])[0] for c in captions])
    torch.testing.assert_close(scores, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", READERS)
def test_bare_items_score_as_in_a_corpus(name, folders):
    model = load_model(folders / name)
    member = model.embed(SCENES)
    inside = model.model.score_matrix(
        member.images.rows(slice(0, 2)), member.texts.rows(slice(0, 3))
    )
    bare = torch.stack(
        [model.score(SCENES.pictures.open(row), SCENES.texts[:3]) for row in range(2)]
    )
    torch.testing.assert_close(inside.detach(), bare, rtol=1e-4, atol=1e-4)


@pytest.mark.papers
def test_two_openings_are_equal_and_digests_tell_models_apart(folders):
    digests = {load_model(folders / "regions").digest()}
    for name in READERS:
        one, two = (load_model(folders / name) for _ in range(2))
        assert one.digest() == two.digest()
        assert one.spec == two.spec
        assert torch.equal(one.encode(["a dog"]).tokens, two.encode(["a dog"]).tokens)
        digests.add(one.digest())
    assert len(digests) == 6  # a stage is the model inside it


def tokens(folder, captions, **how):
    import transformers

    read = transformers.AutoTokenizer.from_pretrained(folder)(captions, return_tensors="pt", **how)
    return {name: value for name, value in read.items() if name != "token_type_ids"}


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_dual_encoders_against_transformers(name, folders):
    """The same numbers as the library's own forward pass."""
    import transformers

    model = load_model(folders / name)
    body = transformers.AutoModel.from_pretrained(folders / name).eval()
    picture = SCENES.pictures.open(0).resize((16, 16))
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None] / 255 * 2 - 1
    captions = ["a dog", "a big blue square and the snow"]
    if name == "clip":
        read = tokens(folders / name, captions, padding=True)
    else:  # which masks nothing
        read = tokens(folders / name, captions, padding="max_length", max_length=12)
        read = {"input_ids": read["input_ids"]}
    with torch.inference_mode():
        out = body(**read, pixel_values=pixels)
    wanted = (out.image_embeds @ out.text_embeds.T)[0]
    torch.testing.assert_close(model.score(picture, captions), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["vilt", "blip"])
def test_joint_encoders_against_transformers(name, folders):
    """A picture that is no square, as the library's own processor and model see it."""
    import transformers

    folder = folders / name
    classes = {"vilt": "ViltForImageAndTextRetrieval", "blip": "BlipForImageTextRetrieval"}
    body = getattr(transformers, classes[name]).from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    picture = SCENES.pictures.open(0).resize((50, 30))
    captions = ["a dog", "a big blue square and the snow"]
    pixels = processor([picture, picture], return_tensors="pt")
    with torch.inference_mode():
        out = body(**tokens(folder, captions, padding=True), **pixels)
    if name == "vilt":
        assert pixels.pixel_values.shape[2:] == (16, 24)
        wanted = out.logits[:, 0]
    else:
        wanted = out.itm_score[:, 1] - out.itm_score[:, 0]
    scores = load_model(folder).score(picture, captions)
    torch.testing.assert_close(scores, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["vilt", "blip"])
def test_an_opened_fusion_host_is_saved_as_a_folder_of_its_own(name, folders, tmp_path):
    model = load_model(folders / name)
    assert model.processor is not None
    save_model(tmp_path / "own", spec=model.spec, model=model.model, processor=model.processor)
    again = load_model(tmp_path / "own")
    assert again.processor.image_processor == model.processor.image_processor
    picture, captions = SCENES.pictures.open(1).resize((20, 40)), ["a dog", "a red circle"]
    assert torch.equal(again.score(picture, captions), model.score(picture, captions))
    assert again.digest() == model.digest()


def test_ready_made_vectors(tmp_path):
    images, texts = random_array(3, 4), random_array(6, 4, seed=1)
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "texts.npy", texts)
    dataset, model = read_embeddings(tmp_path), load_model(VECTORS)
    member = model.embed(dataset)
    scores = member.model.score_matrix(member.images, member.texts)
    images /= np.linalg.norm(images, axis=1, keepdims=True)
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    np.testing.assert_allclose(scores.numpy(), images @ texts.T, rtol=1e-5)
    assert evaluate_protocol([member], dataset).i2t.queries == 3
    with pytest.raises(ValueError, match="ready-made vectors have no encoder"):
        model.encode(["a dog"])


def test_what_is_no_model_or_has_nothing_to_encode(folders, tmp_path):
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"model\.bin"):
        load_model(tmp_path / "model.bin")
    with pytest.raises(ValueError, match="nobody/nothing cannot be loaded as a Hugging Face model"):
        load_model("nobody/nothing")
    with pytest.raises(ValueError, match="scenes has no vectors of images to compare"):
        load_model(VECTORS).embed(SCENES)
    with pytest.raises(ValueError, match="small holds no captions to rank"):
        load_model(folders / "regions").embed(small_corpus((0, 0)))


@pytest.mark.slow
@pytest.mark.papers
def test_a_fresh_process_opens_them_in_one_line(folders, tmp_path):
    write_picture(tmp_path / "dog.png")
    places = [str(folders / name) for name in ("pixels", "clip", "vilt", "blip")]
    line = (
        "from pathlib import Path; from counterfoil import load_model; "
        f"print(*(load_model(f).score(Path('dog.png'), ['a dog']).item() for f in {places}))"
    )
    out = subprocess.run(
        [sys.executable, "-c", line],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    here = [load_model(place).score(tmp_path / "dog.png", ["a dog"]).item() for place in places]
    assert [float(score) for score in out.split()] == pytest.approx(here, abs=1e-6)
