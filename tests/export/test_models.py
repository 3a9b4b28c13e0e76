from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from PIL import Image

import recipes_cases
from corpus_cases import random_array
from counterfoil.core.config import config
from counterfoil.export.models import FOLDERS, export_model
from counterfoil.model import Model, load_model

CAPTIONS = ["a dog", "a big blue square in the snow", "a dog in the snow and " * 9]


def picture(width: int = 16, height: int = 16) -> Image.Image:
    noise = (abs(random_array(height, width, 3, seed=1)) * 80).clip(0, 255).astype("uint8")
    return Image.fromarray(noise)


PICTURES = [picture(), picture(40, 30), picture(9, 50)]


@pytest.fixture(params=["clip", "siglip"])
def trained(request, tmp_path) -> Model:
    """A dual encoder that is no longer what it began as."""
    model = load_model(recipes_cases.clip_like(tmp_path / "began", request.param))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return model


def unit(vectors: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(vectors, dim=-1)


def vectors(model: Model, items) -> torch.Tensor:
    return model.encode(items).tokens[:, 0]


def write(model: Model, to: str, folder):
    export_model(model.model, model.processor, to, folder, name="mine")
    return folder


def as_transformers(folder, side: str, items) -> torch.Tensor:
    import transformers

    body = transformers.AutoModel.from_pretrained(folder).eval()
    if side == "image":
        see = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
        with torch.inference_mode():
            return unit(body.get_image_features(**see(items, return_tensors="pt")).pooler_output)
    read = transformers.AutoTokenizer.from_pretrained(folder)
    full = "max_length" if body.config.model_type == "siglip" else True
    asked = read(items, padding=full, truncation=True, return_tensors="pt")
    asked.pop("token_type_ids", None)
    with torch.inference_mode():
        return unit(body.get_text_features(**asked).pooler_output)


def test_transformers_gives_equal_vectors(trained, tmp_path):
    folder = write(trained, "hf", tmp_path / "out")
    for side, items in (("text", CAPTIONS), ("image", PICTURES)):
        found = as_transformers(folder, side, items)
        torch.testing.assert_close(found, vectors(trained, items), rtol=0, atol=1e-6)


@pytest.mark.parametrize("frame", ["", "shortest-floor bicubic", "shortest-floor bilinear 20"])
def test_pictures_that_are_cropped(trained, frame, tmp_path):
    """As transformers; of a model that crops before it resizes, square ones are equal."""
    images = replace(trained.processor.image_processor, crop=True, frame=frame)
    cropped = replace(trained, processor=replace(trained.processor, image_processor=images))
    folder = write(cropped, "hf", tmp_path / "out")
    pictures = PICTURES if frame else [picture(), picture(40, 40)]
    found = as_transformers(folder, "image", pictures)
    torch.testing.assert_close(found, vectors(cropped, pictures), rtol=0, atol=1e-6)
    again = load_model(folder).processor.image_processor
    assert again == replace(images, frame=frame or "shortest-floor bicubic")


def test_clip_by_its_own_class(tmp_path):
    import transformers

    model = load_model(recipes_cases.clip_like(tmp_path / "began"))
    folder = write(model, "hf", tmp_path / "out")
    body = transformers.CLIPModel.from_pretrained(folder)
    wanted = model.model.state_dict()
    assert all(torch.equal(wanted[f"body.{k}"], v) for k, v in body.state_dict().items())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_sentence_transformers_gives_equal_vectors(trained, tmp_path):
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer

    folder = write(trained, "sentence-transformers", tmp_path / "out")
    model = SentenceTransformer(str(folder), device="cpu")
    for items in (CAPTIONS, CAPTIONS[:1], PICTURES):
        found = model.encode(items, convert_to_tensor=True)
        torch.testing.assert_close(found, vectors(trained, items), rtol=0, atol=1e-6)
    scores = model.similarity(model.encode(CAPTIONS[:1]), model.encode(PICTURES))[0]
    wanted = torch.stack([trained.score(item, CAPTIONS[:1])[0] for item in PICTURES])
    torch.testing.assert_close(scores, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("to", FOLDERS)
def test_what_was_written_opens_as_the_same_model(to, trained, tmp_path):
    again = load_model(write(trained, to, tmp_path / "out"))
    assert again.digest() == trained.digest()
    assert again.processor.image_processor == trained.processor.image_processor
    for items in (CAPTIONS, PICTURES):
        assert torch.equal(vectors(again, items), vectors(trained, items))


def test_adapters_are_added_to_the_weights(tmp_path):
    pytest.importorskip("peft")
    from counterfoil.models.clip import DualEncoder

    plain = load_model(recipes_cases.clip_like(tmp_path / "began"))
    spec = config(DualEncoder, name=str(tmp_path / "began"), lora=2)
    model = replace(plain, model=spec.build().eval(), spec=spec)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape))
    before = vectors(model, CAPTIONS)
    found = as_transformers(write(model, "hf", tmp_path / "out"), "text", CAPTIONS)
    torch.testing.assert_close(found, before, rtol=0, atol=1e-5)
    assert model.model.lora == 2
    assert torch.equal(vectors(model, CAPTIONS), before)
    assert not torch.allclose(vectors(plain, CAPTIONS), before, atol=1e-3)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (recipes_cases.pixel_model, "VSEPP"),
        (recipes_cases.feature_model, "VSEPP"),
        (recipes_cases.vilt_like, "ViLT"),
        (lambda folder: recipes_cases.clip_like(folder, "siglip2"), "siglip2"),
    ],
)
def test_models_that_no_such_folder_holds(make, kind, tmp_path):
    model = load_model(make(tmp_path / "model"))
    with pytest.raises(ValueError, match=f"mine is a {kind}; of models"):
        write(model, "hf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_lens_of_another_kind_is_refused(trained, tmp_path):
    other = recipes_cases.pixel_model(tmp_path / "words")
    with pytest.raises(ValueError, match="mine does not preprocess images and captions as"):
        write(replace(trained, processor=load_model(other).processor), "hf", tmp_path / "out")


def test_nothing_is_left_of_an_export_that_failed(trained, tmp_path, monkeypatch):
    def fail(*args: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("counterfoil.export.models.write_json", fail)
    with pytest.raises(OSError, match="full"):
        write(trained, "hf", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["began"]
