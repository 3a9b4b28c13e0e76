"""Anybody's module: two encoders or a score of pairs, with functions that prepare its inputs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import counterfoil as cf
from counterfoil.core import registry
from counterfoil.data.features import FeatureArray
from counterfoil.data.processor import FeatureProcessor, Processor
from counterfoil.data.readers import load_dataset
from counterfoil.losses.base import weighted_sum
from counterfoil.search.index import search_dataset

LENGTH = 30
READER = Processor(FeatureProcessor(3), None)


def preprocess(picture):
    values = np.asarray(picture.resize((8, 8)), dtype=np.float32) / 255
    return torch.from_numpy(values).permute(2, 0, 1)


def tokenize(captions):
    rows = [[sum(map(ord, word)) % 99 + 1 for word in caption.split()] for caption in captions]
    return [(row + [0] * LENGTH)[:LENGTH] for row in rows]


class TwoEncoders(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.picture, self.words = nn.Linear(192, width), nn.Embedding(100, width)

    def encode_image(self, pixels):
        return self.picture(pixels.flatten(1))

    def encode_text(self, ids):
        return self.words(ids).mean(1)


class WithScore(TwoEncoders):
    def score(self, images, texts):
        return -(images - texts).square().sum(-1)


class PairScorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = TwoEncoders()
        self.last = nn.Linear(16, 1)

    def forward(self, image, text):
        assert image.shape[1:] == (3, 8, 8)
        assert text.dtype == torch.long
        both = self.parts.encode_image(image) * self.parts.encode_text(text)
        return self.last(both).squeeze(1)


def own(module, **more):
    return cf.Model(module, preprocess=preprocess, tokenize=tokenize, **more)


@pytest.fixture(scope="module")
def data():
    return load_dataset("scenes:images=40")


@pytest.mark.parametrize("make", [TwoEncoders, WithScore, PairScorer])
def test_any_module_is_evaluated_mined_trained_and_opened(make, data, tmp_path):
    torch.manual_seed(0)
    model = own(make(), name="mine-v1")
    assert cf.evaluate(model, data["test"]).rsum > 0
    images, captions = [data.pictures.open(0), data.pictures.open(1)], list(data.texts[:3])
    pixels, ids = torch.stack(list(map(preprocess, images))), torch.tensor(tokenize(captions))
    with torch.no_grad():
        if make is PairScorer:
            rows = [model.model.module(p.expand(3, 3, 8, 8), ids) for p in pixels]
        else:
            module = model.model.module
            left, right = module.encode_image(pixels), module.encode_text(ids)
            score = getattr(module, "score", lambda x, y: torch.cosine_similarity(x, y, -1))
            rows = [score(row.expand(3, -1), right) for row in left]
    expected = torch.stack(rows).numpy()
    np.testing.assert_allclose(model.similarity(images, captions), expected, rtol=1e-4, atol=1e-5)
    lists = cf.mine_hard_negatives(model, data["train"], texts_per_image=3, images_per_text=2)
    tuned = cf.Trainer(
        model,
        loss=cf.losses.AdaptiveQuintuplet(),
        train=data["train"],
        dev=data["dev"],
        sources=[cf.Mined(lists)],
        output=tmp_path / "run",
        epochs=2,
        batch_size=8,
    ).train()
    assert not np.allclose(tuned.similarity(images, captions), expected)
    again = cf.load_model(tmp_path / "run", into=own(make(), name="mine-v1"))
    np.testing.assert_array_equal(
        again.similarity(images, captions), tuned.similarity(images, captions)
    )
    assert again.identity() == tuned.identity()
    picture = tmp_path / "a.png"
    images[0].save(picture)
    words = cf.explain(again, picture, captions[0]).words
    assert [word.text for word in words if word.text.isalnum()]
    assert len(search_dataset(again, captions[0], data["test"], 2)) == 2


def test_an_index_of_a_named_model_opens_with_it_and_a_nameless_one_has_none(data, tmp_path):
    torch.manual_seed(0)
    module, test = TwoEncoders(), data["test"]
    index = cf.build_index(own(module, name="mine-v1"), test, tmp_path / "index")
    hits = index.search(test.texts[0], top_k=3)
    again = cf.open_index(tmp_path / "index", model=own(module, name="mine-v1"))
    assert [hit.id for hit in again.search(test.texts[0], top_k=3)] == [hit.id for hit in hits]
    with pytest.raises(ValueError, match="another model or was trained on since"):
        cf.open_index(tmp_path / "index", model=own(module, name="mine-v2"))
    with pytest.raises(ValueError, match=r'give one, cf\.Model\(…, name="mine-v1"\)'):
        cf.build_index(own(module), test, tmp_path / "none")
    assert own(module).identity() != own(module).identity()
    with pytest.raises(ValueError, match=r"does not compare .* by inner product"):
        cf.build_index(own(WithScore(), name="a"), test, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_functions_of_another_name_are_refused(data, tmp_path):
    own(TwoEncoders(), name="mine-v1").save_pretrained(tmp_path / "saved")
    with pytest.raises(ValueError, match="no folder holds; build the model"):
        cf.load_model(tmp_path / "saved", into=TwoEncoders())
    with pytest.raises(ValueError, match="those that are given are named 'mine-v2'"):
        cf.load_model(tmp_path / "saved", into=own(TwoEncoders(), name="mine-v2"))
    with pytest.raises(ValueError, match=r"does not fit the .*test_own:TwoEncoders"):
        cf.load_model(tmp_path / "saved", into=own(TwoEncoders(8), name="mine-v1"))
    assert not any(b"preprocess" in p.read_bytes() for p in tmp_path.glob("saved/*.json"))


def test_masks_go_to_those_who_take_them(data):
    class Masked(TwoEncoders):
        def encode_text(self, ids, attention_mask):
            masked = self.words(ids) * attention_mask.unsqueeze(-1)
            return masked.sum(1) / attention_mask.sum(1, keepdim=True)

    def pieces(captions):  # as a tokenizer of transformers, padded to the longest
        rows = [row[: row.index(0)] if 0 in row else row for row in tokenize(captions)]
        longest = max(map(len, rows))
        return {
            "input_ids": [[*row, *[0] * (longest - len(row))] for row in rows],
            "attention_mask": torch.tensor([[i < len(r) for i in range(longest)] for r in rows]),
        }

    model = cf.Model(Masked(), preprocess=preprocess, tokenize=pieces)
    together = model.encode_texts(data.texts[:20])
    apart = np.concatenate([model.encode_texts(text) for text in data.texts[:20]])
    np.testing.assert_allclose(together, apart, rtol=1e-5, atol=1e-6)
    unmasked = cf.Model(TwoEncoders(), preprocess=preprocess, tokenize=pieces)
    with pytest.raises(ValueError, match="takes no mask, so that a score would depend"):
        unmasked.encode_texts(data.texts[:20])


def test_features_of_the_data_need_no_function(data):
    class OnVectors(nn.Module):
        def encode_image(self, vectors):
            assert vectors.ndim == 2
            return vectors

        encode_text = encode_image

    vectors = torch.randn(len(data) + len(data.texts), 4)
    images = FeatureArray.of(vectors[: len(data), None].numpy())
    texts = FeatureArray.of(vectors[len(data) :, None].numpy())
    stored = replace(data, features=images, text_features=texts)
    expected = cf.evaluate(cf.load_model("vectors"), stored["test"])
    assert cf.evaluate(cf.Model(OnVectors()), stored["test"]).metrics == expected.metrics


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: cf.Model("openai/clip"), "opened by cf.load_model"),
        (lambda: cf.Model(nn.Linear(2, 2)), "add the two encoders"),
        (
            lambda: own(TwoEncoders(), processor=Processor(FeatureProcessor(3), None)),
            "leave one of them out",
        ),
        (lambda: cf.Model(TwoEncoders(), preprocess=3), "preprocess is 3; give a function"),
        (lambda: cf.load_model(TwoEncoders()), r"becomes a model as cf\.Model\(module"),
        (
            lambda: cf.Model(TwoEncoders(), tokenize=lambda x: None).encode(["a"]),
            "tokenize returned nothing for a list of 1 captions",
        ),
        (
            lambda: cf.Model(TwoEncoders(), tokenize=lambda x: torch.ones(1, 3)).encode(["a", "b"]),
            "ids of 1 captions for a list of 2",
        ),
        (
            lambda: cf.Model(TwoEncoders(), preprocess=str).encode(picture()),
            "preprocess returned a str for a picture",
        ),
        (lambda: cf.Model(TwoEncoders(), tokenize=tokenize).encode(picture()), "preprocess=…"),
        (lambda: own(Wrong()).encode(picture()), "Wrong.encode_image returned a tuple"),
        (lambda: own(OneEncoder()), "has encode_image and no encode_text"),
    ],
)
def test_wrong_parts_get_a_sentence(given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        given()


class OneEncoder(nn.Module):
    encode_image = TwoEncoders.encode_image


class Wrong(TwoEncoders):
    def encode_image(self, pixels):
        return pixels, pixels


def picture():
    return Image.new("RGB", (4, 4))


@pytest.fixture
def factory():
    @registry.register.model("own_encoders")
    def encoders(*, width: int = 16) -> cf.Model:
        return own(TwoEncoders(width), name="mine-v1")

    yield encoders
    del registry._added["model", "own_encoders"]


def test_a_registered_factory_opens_its_folders(factory, data, tmp_path):
    first = cf.load_model("own_encoders").encode_texts(["a"])
    np.testing.assert_array_equal(cf.load_model("own_encoders").encode_texts(["a"]), first)
    model = cf.load_model(cf.config(factory, width=8))
    output = tmp_path / "run"
    tuned = cf.Trainer(
        model, loss=cf.losses.InfoNCELoss(), train=data["train"], output=output, epochs=1
    ).train()
    again = cf.load_model(output)
    assert again.encode_texts(["a"]).shape == (1, 8)
    np.testing.assert_array_equal(again.encode_texts(["a"]), tuned.encode_texts(["a"]))
    assert "own_encoders" in (output / "model" / "model.json").read_text()
    with pytest.raises(ValueError, match=r"cannot be called: .*unexpected keyword"):
        cf.load_model(cf.Config(factory, {"wide": 8}))
    del registry._added["model", "own_encoders"]
    with pytest.raises(ValueError, match="calls 'own_encoders' of the package"):
        cf.load_model(output)
    registry.register.model("own_encoders")(factory)


def test_a_recipe_trains_what_a_factory_builds(factory, data, tmp_path):
    stage = cf.Train(
        name="trained",
        model=cf.config(factory, width=8),
        objective=weighted_sum(contrast=cf.lazy(cf.losses.InfoNCELoss)),
        plan=cf.TrainConfig(epochs=1, batch=8),
    )
    recipe = cf.Recipe(name="own", stages=(stage, cf.Evaluate(name="test", using=("trained",))))
    run = cf.run(recipe, data="scenes:images=40", output=tmp_path / "run")
    assert run.evaluations["test"].rsum > 0
    assert cf.load_model(tmp_path / "run" / "trained").encode_texts("a").shape == (1, 8)


@pytest.mark.slow
def test_the_command_line_imports_a_module(tmp_path):
    source = Path(__file__).read_text("utf-8")
    begin, end = source.index("def preprocess"), source.index("class WithScore")
    head = "LENGTH = 30\nimport numpy as np\nimport torch\nfrom torch import nn\n"
    tail = (
        "@register.model('mine')\n"
        "def mine(*, width: int = 16) -> cf.Model:\n"
        "    return cf.Model(TwoEncoders(width), preprocess=preprocess, tokenize=tokenize, "
        "name='mine-v1')\n"
    )
    imports = "import counterfoil as cf\nfrom counterfoil.core.registry import register\n"
    (tmp_path / "mymodule.py").write_text(head + imports + source[begin:end] + tail)

    def run(*words, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "counterfoil.cli", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    data = ("--data", "scenes:images=40")
    train = ("train", "contrastive", "--model", "mine", *data, "--epochs", "1", "--output", "run")
    run("--import", "mymodule", *train)
    assert "cosine" in run("evaluate", "run/tuned", *data, "--import", "mymodule")
    assert "--import MODULE" in run("evaluate", "run/tuned", *data, code=2)
    assert "--import nowhere failed" in run("--import", "nowhere", "evaluate", "mine", code=2)
