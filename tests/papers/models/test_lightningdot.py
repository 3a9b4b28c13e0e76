"""LightningDOT: authors' checkpoints of any sizes, and what is refused."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from counterfoil.core.config import config_from_dict
from counterfoil.core.types import ModalityBatch
from counterfoil.model import load_model
from counterfoil.models.checkpoints import Checkpoint
from counterfoil.papers.cli.convert import convert as convert_command
from counterfoil.papers.models.convert import convert_checkpoint
from counterfoil.papers.models.lightningdot import (
    KINDS,
    POSITION,
    TEXT_KINDS,
    VEIL,
    LightningDOT,
    lightningdot_from_checkpoint,
)
from papers.recipes.test_convert import bert
from papers_matcher_cases import _lightningdot

FEATURES, VECTOR = 6, 5
SIDES = {
    "img": (2, 128, 10, 12, 9),
    "txt": (1, 64, 7, 13, 8),
}  # layers, width, inner, words, places


def layer(before: str, width: int, inner: int) -> dict[str, tuple[int, ...]]:
    linear = {
        **{f"attention.self.{part}": (width, width) for part in ("query", "key", "value")},
        "attention.output.dense": (width, width),
        "intermediate.dense": (inner, width),
        "output.dense": (width, inner),
    }
    norms = {f"{name}.LayerNorm": (width,) for name in ("attention.output", "output")}
    shapes = {f"{before}{name}.weight": shape for name, shape in (linear | norms).items()}
    return shapes | {f"{before}{name}.bias": shape[:1] for name, shape in (linear | norms).items()}


def authors() -> dict[str, Tensor]:
    """A fine-tuned checkpoint whose numbers all differ."""
    shapes: dict[str, tuple[int, ...]] = {}
    for side, (layers, width, inner, words, places) in SIDES.items():
        inside = f"{side}_model.bert."
        embeddings = {"word": words, "position": places, "token_type": 2}
        for name, rows in embeddings.items():
            shapes[f"{inside}embeddings.{name}_embeddings.weight"] = (rows, width)
        for n in range(layers):
            shapes |= layer(f"{inside}encoder.layer.{n}.", width, inner)
        wide = 2 * width
        linear = {
            f"{inside}pooler.dense": (width, width),
            f"{side}_model.encode_proj.0": (wide, width),
            f"{side}_model.encode_proj.2": (wide,),
            f"{side}_model.encode_proj.3": (VECTOR, wide),
            f"{inside}embeddings.LayerNorm": (width,),
        }
        if side == "img":
            before = f"{inside}img_embeddings."
            shapes[f"{before}mask_embedding.weight"] = (2, FEATURES)
            linear |= {
                f"{before}img_linear": (width, FEATURES),
                f"{before}pos_linear": (width, 7),
                **{
                    f"{before}{name}": (width,)
                    for name in ("img_layer_norm", "pos_layer_norm", "LayerNorm")
                },
            }
        for name, shape in linear.items():
            shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    rng = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}


def saved(path: Path) -> Path:
    """As the authors save it after an epoch."""
    torch.save({"model_dict": authors(), "optimizer_dict": {}, "offset": 3, "epoch": 1}, path)
    return path


def test_every_size_is_read_off_the_tensors(tmp_path):
    found = convert_checkpoint(saved(tmp_path / "flickr-ft.pt"), "lightningdot")
    model = found.build()
    assert isinstance(model, LightningDOT)
    image, text = model.image, model.text
    assert (len(image.body.layers), len(text.body.layers)) == (2, 1)
    assert (image.embed.width, text.embed.width) == (128, 64)
    assert (image.body.layers[0].heads, text.body.layers[0].heads) == (2, 1)
    assert (image.body.layers[0].wide.out_features, text.body.layers[0].wide.out_features) == (
        10,
        7,
    )
    assert text.embed.position_embeddings.num_embeddings == 8
    assert image.width == text.width == VECTOR
    assert config_from_dict(found.model.to_dict()) == found.model
    unused = ("pooler", "mask_embedding", "position_embeddings", "token_type")
    count = sum(v.numel() for n, v in authors().items() if not any(part in n for part in unused))
    # of positions and kinds: all places and one kind of texts, one place and two kinds of images
    assert sum(p.numel() for p in model.parameters()) == count + 9 * 64 + 3 * 128


def test_names_of_other_versions_are_one_model():
    state = authors()
    older = {
        "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma"): value
        for name, value in state.items()
    }
    models = [lightningdot_from_checkpoint(Checkpoint(one)).build() for one in (state, older)]
    for name, value in models[0].state_dict().items():
        assert torch.equal(models[1].state_dict()[name], value), name


def test_without_a_projection_the_first_state_is_the_vector():
    state = {n: v for n, v in authors().items() if "encode_proj" not in n}
    with pytest.raises(ValueError, match="image tower gives 128 numbers per vector and the text"):
        lightningdot_from_checkpoint(Checkpoint(state)).build()


def test_one_projection_of_two_is_refused():
    state = {n: v for n, v in authors().items() if not n.startswith("txt_model.encode_proj")}
    with pytest.raises(ValueError, match=r"has no 'text\.project\.0\.weight'.*it is incomplete"):
        lightningdot_from_checkpoint(Checkpoint(state))


@pytest.mark.parametrize("kind", [dict, Namespace])
def test_options_beside_the_weights_are_read(kind, tmp_path):
    given = {"model_dict": authors(), "opt": kind(heads=4), "optimizer_dict": {}}
    torch.save(given, tmp_path / "flickr-ft.pt")
    found = convert_checkpoint(tmp_path / "flickr-ft.pt", "lightningdot")
    assert found.options == {"heads": 4}
    assert found.build().image.body.layers[0].heads == 4
    torch.save(given | {"opt": 4}, tmp_path / "flickr-ft.pt")
    with pytest.raises(ValueError, match="has a int as its options, which cannot be read"):
        convert_checkpoint(tmp_path / "flickr-ft.pt", "lightningdot")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": "x"}, "heads='x' among its options, where a whole number"),
        ({"first": 1.5}, "first=1.5 among its options, where a whole number"),
        ({"mask": [3]}, r"mask=\[3\] among its options, where a whole number"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        lightningdot_from_checkpoint(Checkpoint(authors(), options))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (VEIL, torch.zeros(1, FEATURES), r"has the shape \(1, 6\), and a table of at least 2 rows"),
        (KINDS, torch.zeros(1, 128), r"has the shape \(1, 128\), and a table of at least 2 rows"),
        (TEXT_KINDS, torch.zeros(0, 64), r"has the shape \(0, 64\), and a table of at least 1 row"),
        (POSITION, torch.tensor(1.0), r"has the shape \(\), and a table"),
        ("img_model.bert.img_embeddings.img_linear.weight", torch.zeros(()), "of another shape"),
        ("txt_model.bert.embeddings.word_embeddings.weight", torch.zeros(3), "of another shape"),
        (
            "txt_model.bert.encoder.layer.0.intermediate.dense.weight",
            None,
            r"has no 'text\.body\.layers\.0\.wide\.weight'",
        ),
        (7, torch.zeros(3), "not the state dicts"),
    ],
)
def test_other_tensors_are_refused(name, value, message, tmp_path):
    state = {n: v for n, v in (authors() | {name: value}).items() if v is not None}
    torch.save({"model_dict": state}, tmp_path / "flickr-ft.pt")
    with pytest.raises(ValueError, match=message):
        convert_checkpoint(tmp_path / "flickr-ft.pt", "lightningdot")


def test_special_tokens_are_the_tokenizer_s(tmp_path, capsys):
    folder, checkpoint = bert(tmp_path / "bert"), saved(tmp_path / "coco-ft.pt")
    convert_command("lightningdot", checkpoint, folder, tmp_path / "out")
    opened = load_model(tmp_path / "out")
    pieces = opened.processor.tokenizer.tokens
    assert pieces([opened.model.image.embed.first]) == ["[CLS]"]
    assert pieces([opened.model.text.embed.mask_word]) == ["[MASK]"]
    shown = capsys.readouterr().err
    assert "does not say how many attention heads it has (heads); 2 and 1 are taken" in shown


def test_the_command_writes_a_folder_that_scores(tmp_path):
    folder = bert(tmp_path / "bert")
    out = tmp_path / "out"
    convert_command("lightningdot", saved(tmp_path / "coco-ft.pt"), folder, out)
    opened = load_model(out)
    texts = opened.processor.process_texts(["a dog in snow", "dogs"])
    boxes = torch.tensor([[[0.0, 0.0, 0.5, 0.5], [0.2, 0.1, 0.9, 1.0]]])
    images = ModalityBatch(
        torch.zeros(1).long(), torch.rand(1, 2, 6), torch.ones(1, 2).bool(), boxes
    )
    encoded = opened.model.encode_images(images), opened.model.encode_texts(texts)
    assert opened.model.score_matrix(*encoded).shape == (1, 2)
    assert opened.model.score_name == "inner product"


def test_hidden_words_and_regions_need_their_heads():
    model = _lightningdot().build()
    texts = ModalityBatch(torch.arange(1), torch.tensor([[1, 4]]), torch.ones(1, 2).bool())
    boxes = torch.rand(1, 3, 4)
    images = ModalityBatch(torch.arange(1), torch.rand(1, 3, 6), torch.ones(1, 3).bool(), boxes)
    with pytest.raises(ValueError, match="no head 'fill'"):
        model.filled(images, texts, texts.mask)
    with pytest.raises(ValueError, match="no head 'regress'"):
        model.regressed(images, texts, images.mask)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fusion": "concat"}, "fusion='concat' is not known; use one of none, add, multiply"),
        ({"outputs": ("rank",)}, "outputs='rank' is not known; use one of fill, regress, classify"),
    ],
)
def test_unknown_words_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        _lightningdot(**options).build()


def test_a_first_token_must_be_in_the_vocabulary():
    spec = _lightningdot()
    image = spec.arguments["image"]
    outside = image.replace(embed=image.arguments["embed"].replace(first=20))
    with pytest.raises(ValueError, match="first=20 is not an id of a vocabulary of 20"):
        spec.replace(image=outside).build()
