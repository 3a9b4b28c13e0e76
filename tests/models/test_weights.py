from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from counterfoil.models.bfan import BFAN
from counterfoil.models.checkpoints import read_checkpoint
from counterfoil.models.convert import convert_checkpoint
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.models.scan import NAMES as SCAN_NAMES
from counterfoil.models.scan import SCAN
from counterfoil.models.vsepp import NAMES as VSEPP_NAMES
from counterfoil.models.vsepp import VSEPP
from counterfoil.models.vsrn import NAMES, VSRN, Captioner, convert_vsrn


def authors(bidirectional: bool) -> list[dict[str, torch.Tensor]]:
    """Two state dicts under the authors' names."""
    torch.manual_seed(0)
    image = Regions(features=6, width=4).state_dict()
    text = GRU(words=9, word_width=3, width=4, bidirectional=bidirectional).state_dict()
    return [dict(image), dict(text)]


def saved(path: Path, model: object, **more: object) -> Path:
    torch.save({"epoch": 3, "model": model, "best_rsum": 400.5, "Eiters": 7, **more}, path)
    return path


def test_scan_with_its_options(tmp_path):
    options = argparse.Namespace(
        cross_attn="i2t", agg_func="Mean", lambda_softmax=4, lambda_lse=20, no_imgnorm=True
    )
    model = authors(bidirectional=True)
    found = convert_checkpoint(saved(tmp_path / "best.pth.tar", model, opt=options), "scan")
    built = found.build()
    assert isinstance(built, SCAN)
    assert (built.attention.direction, built.aggregate, built.lambda_lse) == ("i2t", "Mean", 20.0)
    assert built.normalise == (False, True)
    assert torch.equal(built.image.fc.weight, model[0]["fc.weight"])
    for name, value in model[1].items():
        assert torch.equal(built.text.state_dict()[name], value)
    assert found.model.to_dict()["text"]["bidirectional"] is True


@pytest.mark.parametrize("options,focus", [({}, "equal"), ({"focal_type": "prob"}, "prob")])
def test_bfan_with_and_without_options(tmp_path, options, focus):
    model = authors(bidirectional=True)
    path = saved(tmp_path / "a.pth.tar", model, opt=argparse.Namespace(**options))
    built = convert_checkpoint(path, "bfan").build()
    assert isinstance(built, BFAN)
    assert {(head.focus, head.sharpness) for head in built.heads} == {(focus, 20.0)}
    assert torch.equal(built.image.fc.weight, model[0]["fc.weight"])
    assert torch.equal(built.text.rnn.weight_hh_l0, model[1]["rnn.weight_hh_l0"])


def test_bfan_with_an_unknown_focus_is_refused(tmp_path):
    opt = argparse.Namespace(focal_type="half")
    path = saved(tmp_path / "a.pth.tar", authors(bidirectional=True), opt=opt)
    with pytest.raises(ValueError, match="focus='half' is not known; use one of equal, prob"):
        convert_checkpoint(path, "bfan").build()


def test_vsepp_without_options(tmp_path):
    found = convert_checkpoint(
        saved(tmp_path / "best.pth.tar", authors(bidirectional=False)), "vsepp"
    )
    built = found.build()
    assert isinstance(built, VSEPP)
    assert (built.measure, built.absolute, built.pools[1]) == ("cosine", False, "last")
    assert not built.text.rnn.bidirectional
    assert not built.training


def test_old_files_are_read(tmp_path):
    path = tmp_path / "old.pth.tar"
    torch.save(
        {"model": authors(bidirectional=False), "opt": argparse.Namespace(measure="order")},
        path,
        _use_new_zipfile_serialization=False,
    )
    assert convert_checkpoint(path, "vsepp").build().measure == "order"


def test_two_layers_and_one_direction(tmp_path):
    model = authors(bidirectional=False)
    model[1] = dict(GRU(words=9, word_width=3, width=4, layers=2).state_dict())
    built = convert_checkpoint(saved(tmp_path / "a.pth.tar", model), "scan").build()
    assert (built.text.rnn.num_layers, built.text.rnn.bidirectional) == (2, True)


def test_safetensors(tmp_path):
    image, text = authors(bidirectional=True)
    flat = {f"img_enc.{k}": v for k, v in image.items()}
    flat |= {f"txt_enc.{k}": v for k, v in text.items()}
    save_file(flat, tmp_path / "a.safetensors")
    assert (
        convert_checkpoint(tmp_path / "a.safetensors", "scan").build().attention.direction == "t2i"
    )


@pytest.mark.parametrize("whole", [True, False])
def test_weight_normalisation_is_written_out(whole):
    image, text = authors(bidirectional=True)
    weight = image.pop("fc.weight")
    length = weight.norm() if whole else weight.norm(dim=1, keepdim=True)
    flat = {"img_enc.fc.weight_g": length, "img_enc.fc.weight_v": 3 * weight}
    flat |= {"img_enc.fc.bias": image["fc.bias"]}
    flat |= {f"txt_enc.{k}": v for k, v in text.items()}
    torch.testing.assert_close(SCAN_NAMES.renamed(flat)["image.fc.weight"], weight)


def test_a_fine_tuned_network_is_refused():
    with pytest.raises(ValueError, match="trained on pixels: extract features"):
        VSEPP_NAMES.renamed({"img_enc.cnn.0.weight": torch.zeros(1)})


def test_another_systems_tensors_are_refused():
    with pytest.raises(ValueError, match=r"'img_enc.Rs_GCN_1.g.weight' is no tensor of a SCAN"):
        SCAN_NAMES.renamed({"img_enc.Rs_GCN_1.g.weight": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"has no 'image\.fc\.weight'"):
        SCAN_NAMES.renamed({"txt_enc.embed.weight": torch.zeros(1)})


def vsrn_authors(*, f30k: bool = True) -> tuple[VSRN, list[dict[str, torch.Tensor]]]:
    """A model, and its three state dicts under the authors' names and in their shapes."""
    torch.manual_seed(0)
    model = VSRN(
        image=Regions(features=6, width=4),
        text=GRU(words=9, word_width=3, width=4, bidirectional=False),
        captioner=Captioner(words=9, width=4, hidden=5, word_width=3),
        region_norm="channel",
        normalise_regions=not f30k,
        batch_norm=f30k,
    )
    for tensor in model.state_dict().values():
        tensor.copy_(torch.rand(tensor.shape))
    parts: list[dict[str, torch.Tensor]] = [{}, {}, {}]
    theirs = {ours: name for name, ours in NAMES.prefixes.items()}
    for name, value in model.state_dict().items():
        ours = max((prefix for prefix in theirs if name.startswith(prefix)), key=len)
        full = theirs[ours] + name.removeprefix(ours)
        full += "_l0" if name.startswith("captioner.writer.") else ""
        side, _, rest = full.partition(".")
        conv = name.startswith("relations.") and value.dim() == 2
        place = ("img_enc", "txt_enc", "caption_model").index(side)
        parts[place][rest] = value.unsqueeze(-1) if conv else value
    return model.eval(), parts


@pytest.mark.parametrize("f30k", [True, False])
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_vsrn(tmp_path, f30k, told, named):
    model, parts = vsrn_authors(f30k=f30k)
    options = {"opt": argparse.Namespace(data_name="f30k_precomp" if f30k else "coco_precomp")}
    path = saved(tmp_path / "a.pth.tar", parts if told else parts[:2], **(options if named else {}))
    built = convert_checkpoint(path, "vsrn").build()
    assert isinstance(built, VSRN)
    assert (built.captioner is not None) is told
    assert (built.norm is not None) is f30k is not built.normalise_regions
    for name, value in built.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


def test_a_norm_that_coco_does_not_use_is_left_out(tmp_path):
    _, parts = vsrn_authors(f30k=True)
    options = argparse.Namespace(data_name="coco_precomp")
    built = convert_checkpoint(saved(tmp_path / "a.pth.tar", parts, opt=options), "vsrn").build()
    assert built.norm is None


def test_tensors_of_no_vsrn_are_refused():
    with pytest.raises(ValueError, match=r"'img_enc.cnn.0' is no tensor of a VSRN checkpoint"):
        convert_vsrn({"img_enc.cnn.0": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"has no 'image\.fc\.weight'"):
        convert_vsrn({"txt_enc.embed.weight": torch.zeros(1)})


@pytest.mark.parametrize(
    "lost,message",
    [
        ("Rs_GCN_2.theta.weight", r'Missing key.*"relations\.1\.theta\.weight".*whole checkpoint'),
        ("encoder.vid2hid.weight", r"has no 'captioner\.fc\.weight'"),
        ("decoder.embedding.weight", r"has no 'captioner\.embed\.weight'"),
    ],
)
def test_a_vsrn_with_a_tensor_missing_is_refused(tmp_path, lost, message):
    _, parts = vsrn_authors()
    assert sum(part.pop(lost, None) is not None for part in parts) == 1
    path = saved(tmp_path / "a.pth.tar", parts)
    with pytest.raises(ValueError, match=message):
        convert_checkpoint(path, "vsrn").build()


class Trap:
    def __reduce__(self):
        return (Path.touch, (Path("sprung"),))


def test_nothing_in_a_file_is_ever_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = saved(tmp_path / "a.pth.tar", authors(bidirectional=True), opt=Trap())
    with pytest.raises(ValueError, match="cannot be read without running code from it"):
        read_checkpoint(path)
    assert not (tmp_path / "sprung").exists()


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match="does not exist; give an authors' checkpoint"):
        read_checkpoint(tmp_path / "none.pth.tar")
    for name in ("a.pth.tar", "a.safetensors"):
        (tmp_path / name).write_bytes(b"not a checkpoint")
        with pytest.raises(ValueError, match=name):
            read_checkpoint(tmp_path / name)
    torch.save([1, 2, 3], tmp_path / "b.pth.tar")
    with pytest.raises(ValueError, match="holds a list, not the state dicts"):
        read_checkpoint(tmp_path / "b.pth.tar")


def test_an_unknown_system_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'scan'"):
        convert_checkpoint(Path("a"), "scam")
