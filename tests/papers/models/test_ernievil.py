"""ERNIE-ViL: parameters of any sizes in Paddle's files, and what is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from torch import Tensor

from counterfoil.core.types import ModalityBatch
from counterfoil.model import load_model
from counterfoil.models.checkpoints import Checkpoint
from counterfoil.papers.cli.convert import convert as convert_command
from counterfoil.papers.models.convert import convert_checkpoint
from counterfoil.papers.models.ernievil import ErnieViL, ernievil_from_checkpoint
from counterfoil.papers.models.paddle import read_parameter
from papers.recipes.test_convert import bert
from papers_matcher_cases import _ernievil

FEATURES, WORDS, PLACES = 6, 13, 9
TEXT, IMAGE, SHARED = (12, 20), (15, 7), 8  # width and width of the perceptron
HUGE = b"\x08\0\0\0" + b"\x08\x05" + b"\x10\x80\x80\x80\x80\x08"  # of one size, 2^31
OPTIONS = {
    "num_attention_heads": 3,
    "v_num_attention_heads": 5,
    "co_num_attention_heads": 2,
    "t_biattention_id": [1, 3, 4],
    "v_biattention_id": [0, 2, 2],
}


def linear(name: str, into: int, out: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.w_0": (into, out), f"{name}.b_0": (out,)}


def norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}_{kind}": (width,) for kind in ("scale", "bias")}


def layer(before: str, own: tuple[int, int], other: int, shared: int) -> dict[str, tuple[int, ...]]:
    width, inner = own
    shapes = linear(f"{before}multi_head_att_query_fc", width, shared)
    for part in ("key", "value"):
        shapes |= linear(f"{before}multi_head_att_{part}_fc", other, shared)
    shapes |= linear(f"{before}multi_head_att_output_fc", shared, width)
    shapes |= norm(f"{before}post_att_layer_norm", width)
    shapes |= linear(f"{before}ffn_fc_0", width, inner) | linear(f"{before}ffn_fc_1", inner, width)
    return shapes | norm(f"{before}post_ffn_layer_norm", width)


def parameters(match: bool = True) -> dict[str, Tensor]:
    """Parameters whose numbers all differ."""
    text, image = TEXT[0], IMAGE[0]
    shapes = {"word_embedding": (WORDS, text), "pos_embedding": (PLACES, text)}
    shapes |= {"sent_embedding": (4, text)} | norm("pre_encoder_layer_norm", text)
    shapes |= linear("image_emb", FEATURES, image) | linear("image_loc", 5, image)
    shapes |= norm("vl_pre_encoder_layer_norm", image)
    for n in range(5):
        shapes |= layer(f"encoder_layer_{n}_", TEXT, text, text)
    for n in range(3):
        shapes |= layer(f"encoder_vlayer_{n}_", IMAGE, image, image)
        shapes |= layer(f"encoder_colayer_{n}_", TEXT, image, SHARED)
        shapes |= layer(f"encoder_colayer_{n}_vl_", IMAGE, text, SHARED)
    shapes |= linear("pooled_fc_text", text, SHARED) | linear("pooled_fc_image", image, SHARED)
    shapes |= linear("match_fc", SHARED, 1) if match else {}
    rng = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}


def written(value: Tensor, path: Path) -> None:
    """A parameter as Paddle 1 saves it."""

    def varint(number: int) -> bytes:
        return (
            bytes([number]) if number < 128 else bytes([number % 128 + 128]) + varint(number >> 7)
        )

    about = b"\x08" + varint(5) + b"".join(b"\x10" + varint(size) for size in value.shape)
    head = struct.pack("<IQIi", 0, 0, 0, len(about))
    path.write_bytes(head + about + value.numpy().astype("<f4").tobytes())


def saved(folder: Path, *, match: bool = True) -> Path:
    folder.mkdir()
    for name, value in parameters(match).items():
        written(value, folder / name)
    return folder


def test_every_size_is_read_off_the_files(tmp_path):
    files = saved(tmp_path / "params")
    (files / "learning_rate_0").write_bytes(b"of the optimiser")
    (files / "ernie_vil.json").write_text(json.dumps(OPTIONS))
    found = convert_checkpoint(files, "ernievil")
    model = found.build()
    assert isinstance(model, ErnieViL)
    assert model.meets == ((1, 0), (3, 2), (4, 2))
    lengths = [len(part) for part in (model.text_layers, model.image_layers, model.co_layers)]
    assert lengths == [5, 3, 3]
    heads = (model.text_layers[0], model.image_layers[0], model.co_layers[0].text)
    assert [one.heads for one in heads] == [3, 5, 2]
    assert model.text.position_embeddings.num_embeddings == PLACES
    theirs = parameters()
    count = sum(value.numel() for value in theirs.values())
    assert sum(p.numel() for p in model.parameters()) == count - 3 * TEXT[0]  # of other sentences
    query = theirs["encoder_colayer_1_vl_multi_head_att_query_fc.w_0"]
    assert torch.equal(model.co_layers[1].image.query.weight, query.T)


def test_options_may_lie_beside_the_folder_and_must_fit(tmp_path):
    files = saved(tmp_path / "params")
    beside = tmp_path / "options.json"
    beside.write_text(json.dumps(OPTIONS | {"t_biattention_id": [1, 3]}))
    with pytest.raises(ValueError, match=r"t_biattention_id=\[1, 3\] does not fit the 3 co-att"):
        convert_checkpoint(files, "ernievil")
    beside.write_text(json.dumps(OPTIONS))
    assert convert_checkpoint(files, "ernievil").options == OPTIONS
    (tmp_path / "more.json").write_text(json.dumps(OPTIONS))
    with pytest.raises(ValueError, match=r"more\.json and options\.json both have options"):
        convert_checkpoint(files, "ernievil")


def test_other_json_beside_the_folder_is_passed_over(tmp_path):
    files = saved(tmp_path / "params")
    (tmp_path / "lines.json").write_text('{"a": 1}\n{"a": 2}\n')
    (tmp_path / "captions.json").write_text("[]")
    (tmp_path / "large.json").write_text(json.dumps(OPTIONS | {"more": "x" * (1 << 20)}))
    (tmp_path / "options.json").write_text(json.dumps(OPTIONS))
    assert convert_checkpoint(files, "ernievil").options == OPTIONS
    (files / "ernie_vil.json").write_text("{")
    with pytest.raises(ValueError, match=r"ernie_vil\.json cannot be read as options of a model"):
        convert_checkpoint(files, "ernievil")


def test_half_a_match_is_refused_and_none_is_said(capsys):
    for name in ("match_fc.w_0", "match_fc.b_0"):
        state = {n: v for n, v in parameters().items() if n != name}
        with pytest.raises(ValueError, match=f"has no '{name}'; give the whole folder"):
            ernievil_from_checkpoint(Checkpoint(state, OPTIONS))
    ernievil_from_checkpoint(Checkpoint(parameters(), OPTIONS))
    assert "warning" not in capsys.readouterr().err
    ernievil_from_checkpoint(Checkpoint(parameters(match=False), OPTIONS)).build()
    assert "its scores mean nothing until it is fine-tuned" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_act": "relu"}, "hidden_act='relu', and ErnieViL has gelu alone"),
        (
            {"num_attention_heads": "x"},
            "num_attention_heads='x' among its options, where a whole n",
        ),
        (
            {"v_num_attention_heads": 5.5},
            "v_num_attention_heads=5.5 among its options, where a whole",
        ),
        ({"co_num_attention_heads": [2]}, r"co_num_attention_heads=\[2\] among its options"),
        ({"co_num_attention_heads": 0}, "co_num_attention_heads=0 does not divide a width of 8"),
        ({"v_num_attention_heads": None}, "put the JSON file with 'v_num_attention_heads'"),
        ({"mask": {}}, r"mask=\{\} among its options, where a whole number"),
        ({"t_biattention_id": 3}, "t_biattention_id=3 is no list of whole numbers"),
        ({"v_biattention_id": ["0", "2", "2"]}, "v_biattention_id=.* is no list of whole numbers"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ernievil_from_checkpoint(Checkpoint(parameters(), OPTIONS | options))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sent_embedding": torch.zeros(0, 12)}, r"'sent_embedding' has the shape \(0, 12\)"),
        ({"sent_embedding": torch.tensor(1.0)}, r"'sent_embedding' has the shape \(\)"),
        ({"word_embedding": torch.zeros(3)}, r"'word_embedding' has the shape \(3,\)"),
        ({"image_emb.w_0": torch.zeros(3)}, r"'image_emb\.w_0' has the shape \(3,\), and a mat"),
        ({"encoder_layer_0_ffn_fc_0.w_0": None}, r"has no 'text_layers\.0\.wide\.weight'"),
        ({"encoder_vlayer_0_ffn_fc_0.w_0": None}, r"has no 'image_layers\.0\.wide\.weight'"),
    ],
)
def test_other_tensors_are_refused(change, message):
    state = {n: v for n, v in (parameters() | change).items() if v is not None}
    with pytest.raises(ValueError, match=message):
        ernievil_from_checkpoint(Checkpoint(state, OPTIONS))


def test_the_command_writes_a_folder_that_scores(tmp_path):
    files, folder = saved(tmp_path / "params", match=False), bert(tmp_path / "bert")
    (files / "ernie_vil.json").write_text(json.dumps(OPTIONS))
    convert_command("ernievil", files, folder, tmp_path / "out")
    opened = load_model(tmp_path / "out")
    texts = opened.processor.process_texts(["a dog in snow", "dogs"])
    boxes = torch.tensor([[[0.0, 0.0, 0.5, 0.5], [0.2, 0.1, 0.9, 1.0]]])
    items = ModalityBatch(
        torch.zeros(1).long(), torch.rand(1, 2, 6), torch.ones(1, 2).bool(), boxes
    )
    encoded = opened.model.encode_images(items), opened.model.encode_texts(texts)
    assert opened.model.score_matrix(*encoded).shape == (1, 2)
    assert opened.processor.tokenizer.tokens([opened.model.text.mask_word]) == ["[MASK]"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:-4], "23 numbers for the shape"),
        (lambda data: b"\x01" + data[1:], "its beginning is another"),
        (lambda data: data[:9], "requires a buffer"),
        (lambda data: data.replace(b"\x10\x04", b"\x10\x00", 1), "it has a size of 0"),
        (lambda data: data[:16] + HUGE + data[26:], "it has a size of 2147483648"),
        (lambda data: data.replace(b"\x08\x05", b"\x08\x09"), "its numbers are of type 9"),
    ],
)
def test_damaged_files_are_refused(change, reason, tmp_path):
    path = tmp_path / "image_emb.w_0"
    written(torch.rand(4, 6), path)
    assert read_parameter(path).shape == (4, 6)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=r"is not a parameter as Paddle 1 saves it") as error:
        read_parameter(path)
    assert reason in str(error.value)


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"this ERNIE-ViL checkpoint has no 'text\.word_embeddings"
    ):
        convert_checkpoint(tmp_path, "ernievil")


@pytest.mark.parametrize("meets", [(), ((1, 0), (0, 1)), ((-1, 0),)])
def test_co_attentions_are_in_order(meets):
    with pytest.raises(ValueError, match="is no order of co-attentions"):
        _ernievil(meets=meets).build()


def test_only_corners_of_boxes_are_read():
    """UNITER's databases have widths and heights behind them."""
    model = _ernievil(meets=((0, 0),)).build().eval()
    ids, mask = torch.arange(2), torch.ones(2, 3).bool()
    values, boxes = torch.rand(2, 3, FEATURES), torch.rand(2, 3, 6)
    whole, corners = (
        model.encode_images(ModalityBatch(ids, values, mask, some)).tokens
        for some in (boxes, boxes[..., :4])
    )
    assert torch.equal(whole, corners)
