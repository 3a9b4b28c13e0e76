"""Authors' checkpoints of every system: all tensors come back, and others are refused."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import hub_cases
from counterfoil.core.config import Config, config, config_from_dict, lazy
from counterfoil.models import vsepp
from counterfoil.models.base import RetrievalModel
from counterfoil.models.checkpoints import PREFIXES, Checkpoint, TensorNames, read_checkpoint
from counterfoil.models.layers.pretrained import BertTextTower
from counterfoil.models.layers.towers import GRU, MLPRegions, Regions
from counterfoil.papers.models import (
    bfan,
    cgmn,
    chan,
    dive,
    esa,
    gpo,
    hrem,
    naaf,
    scan,
    sgraf,
    user,
    vsrn,
    xdim,
)
from counterfoil.papers.models.convert import SYSTEMS, convert_checkpoint, find_augmentation
from counterfoil.papers.models.sgraf import SGRAF
from counterfoil.papers.models.uniter import UNITER
from counterfoil.papers.models.user import EnhancedRegions
from uniter_cases import authors_state

FEATURES, WIDTH, WORDS, ROUNDS = 6, 8, 9, 2
State = dict[str, Tensor]
MODULES = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        bfan,
        cgmn,
        chan,
        dive,
        esa,
        gpo,
        hrem,
        naaf,
        scan,
        sgraf,
        user,
        vsepp,
        vsrn,
        xdim,
    )
}


def regions() -> Regions:
    return Regions(features=FEATURES, width=WIDTH)


def mlp(**options: object) -> MLPRegions:
    return MLPRegions(features=FEATURES, width=WIDTH, inner=3, **options)


def gru(**options: object) -> GRU:
    return GRU(words=WORDS, word_width=3, width=WIDTH, **options)


def bert(folder: str, times: int = 1) -> BertTextTower:
    return BertTextTower(name=folder, width=times * WIDTH, pretrained=False)


def vsrn_model(*, f30k: bool = True, captions: bool = True) -> vsrn.VSRN:
    return vsrn.VSRN(
        image=regions(),
        text=gru(bidirectional=False),
        captioner=vsrn.Captioner(words=WORDS, width=WIDTH, hidden=5, word_width=3)
        if captions
        else None,
        region_norm="channel",
        normalise_regions=not f30k,
        batch_norm=f30k,
    )


def sgraf_model(module: str) -> SGRAF:
    return SGRAF(image=regions(), text=gru(), module=module, regions=5, similarity_width=3)


def dive_model(text: dive.PartsTower, **options: int) -> dive.DivE:
    image = dive.PooledParts(tower=mlp(stacked=True, dropout=0.1))
    sizes = {"slots": 3, "heads": 4, "head_width": 5, "rounds": ROUNDS, **options}
    return dive.DivE(image=image, text=text, released_padding=True, **sizes)


MODELS: dict[str, Callable[[str], RetrievalModel]] = {  # each from the folder of a BERT
    "vsepp": lambda _: vsepp.VSEPP(image=regions(), text=gru(bidirectional=False)),
    "scan": lambda _: scan.SCAN(image=regions(), text=gru()),
    "scan-layers": lambda _: scan.SCAN(image=regions(), text=gru(layers=2)),
    "bfan": lambda _: bfan.BFAN(image=regions(), text=gru()),
    "naaf": lambda _: naaf.NAAF(image=regions(), text=gru()),
    "vsrn-f30k": lambda _: vsrn_model(),
    "vsrn-coco": lambda _: vsrn_model(f30k=False, captions=False),
    "cgmn": lambda _: cgmn.CGMN(image=regions(), text=gru()),
    "cgmn-overlap": lambda _: cgmn.CGMN(
        image=regions(), text=gru(), layers=3, overlap=1, readers=(2, 3)
    ),
    "gpo": lambda _: gpo.GPO(image=mlp(), text=gru(), positions=7, hidden=5),
    "gpo-grid-bert": lambda folder: gpo.GPO(image=regions(), text=bert(folder)),
    "esa": lambda _: esa.ESA(image=mlp(), text=gru()),
    **{
        f"chan-{block}": lambda _, block=block: chan.CHAN(image=regions(), text=gru(), block=block)
        for block in ("basic", "selfattention", "transformer")
    },
    "sgraf-sgr": lambda _: sgraf_model("SGR"),
    "sgraf-saf": lambda _: sgraf_model("SAF"),
    "xdim": lambda folder: xdim.XDim(image=mlp(), text=bert(folder)),
    "hrem": lambda folder: hrem.HREM(image=mlp(), text=bert(folder), heads=2),
    "user": lambda _: gpo.GPO(
        image=EnhancedRegions(tower=mlp(), features=FEATURES, regions=5), text=gru()
    ),
    "dive": lambda _: dive_model(dive.WordsAndStates(gru=gru())),
    "dive-bert": lambda folder: dive_model(dive.PooledParts(tower=bert(folder))),
}


TRAINED_WITH = {"hrem": {"nhead": 2}}  # options without which tensors do not fit


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return hub_cases.bert(tmp_path_factory.mktemp("hub") / "bert")


def system_of(name: str) -> str:
    return name.partition("-")[0]


def names_of(name: str) -> TensorNames:
    return MODULES[system_of(name)].NAMES


def model(name: str, folder: str) -> RetrievalModel:
    torch.manual_seed(0)
    made = MODELS[name](folder)
    for tensor in made.state_dict().values():
        tensor.copy_(torch.rand(tensor.shape))
    return made.eval()


def authors(name: str, made: RetrievalModel) -> State:
    """Its tensors under the authors' names and in their shapes, with what they save in vain."""
    names = names_of(name)
    theirs = {ours: prefix for prefix, ours in names.prefixes.items()}
    state = {f"{unused}rest": torch.zeros(1) for unused in names.unused}
    for ours, value in made.state_dict().items():
        prefix = max((p for p in theirs if ours.startswith(p)), key=len, default=None)
        if prefix is None:  # NAAF's thresholds are options
            continue
        full = theirs[prefix] + ours.removeprefix(prefix)
        if ours.startswith("captioner.writer."):
            full += "_l0"
        if (
            ours.startswith(("relations.", "overlaps.", "words.")) and value.dim() == 2
        ):  # a convolution
            value = value.unsqueeze(-1)
        for n in range(ROUNDS if ".layers.0." in full and name.startswith("dive") else 1):
            state[full.replace(dive.LAYERS + "0.", f"{dive.LAYERS}{n}.")] = value
    return state


def saved(state: State, path: Path, **more: object) -> Path:
    """A file of state dicts, as trained on several devices."""
    sides: dict[str, State] = {prefix: {} for prefix in PREFIXES}
    for name, value in state.items():
        side = next(prefix for prefix in PREFIXES if name.startswith(prefix))
        sides[side][f"module.{name.removeprefix(side)}"] = value
    torch.save({"epoch": 3, "model": [s for s in sides.values() if s], **more}, path)
    return path


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_finds_its_place(name, folder, tmp_path):
    made = model(name, folder)
    opt = argparse.Namespace(**TRAINED_WITH.get(name, {}))
    path = saved(authors(name, made), tmp_path / "best.pth.tar", opt=opt)
    if name.startswith("dive"):  # they save one state dict
        torch.save({"model": authors(name, made)}, path)
    given = {"bert": folder} if "bert" in name or name in ("xdim", "hrem") else {}
    found = convert_checkpoint(path, system_of(name), **given)
    built = found.build()
    assert type(built) is type(made)
    assert not built.training
    assert built.state_dict().keys() == made.state_dict().keys()
    for ours, value in made.state_dict().items():
        if ours not in ("thresholds", "mined"):
            assert torch.equal(built.state_dict()[ours], value), ours
    assert config_from_dict(found.model.to_dict()) == found.model


@pytest.mark.parametrize(
    "name", [n for n in MODELS if system_of(n) not in ("vsrn", "cgmn", "dive")]
)
def test_options_are_arguments(name, folder, tmp_path):
    made = model(name, folder)
    options = {"no_imgnorm": True, "no_txtnorm": False, **TRAINED_WITH.get(name, {})}
    opt = argparse.Namespace(**options)
    path = saved(authors(name, made), tmp_path / "best.pth.tar", opt=opt)
    given = {"bert": folder} if "bert" in name or name in ("xdim", "hrem") else {}
    if "normalise_images" in inspect.signature(type(made)).parameters:
        built = convert_checkpoint(path, system_of(name), **given).build()
        assert built.normalise == (False, True)
        return
    message = f"no_imgnorm=True, and {type(made).__name__} has it with no_imgnorm=False alone"
    with pytest.raises(ValueError, match=message):
        convert_checkpoint(path, system_of(name), **given)


@pytest.mark.parametrize("system", sorted(set(SYSTEMS) & set(MODULES)))
def test_tensors_of_something_else_are_refused(system):
    names = MODULES[system].NAMES
    for given, reason in (
        (["img_enc.nothing.w"], "'img_enc.nothing.w' is no tensor of .* checkpoint on features$"),
        (["img_enc.cnn.0.weight"], "trained on pixels: extract features"),
        ([], f"checkpoint has no '{names.needed[0]}'; is it another"),
    ):
        with pytest.raises(ValueError, match=reason):
            names.renamed(dict.fromkeys(given, torch.zeros(1)))


@pytest.mark.parametrize("name", MODELS)
def test_a_tensor_that_is_missing_is_named(name, folder):
    names = names_of(name)
    if name.startswith("dive"):
        return  # its rounds are joined before
    state = authors(name, model(name, folder))
    for lost in names.needed:
        less = {theirs: v for theirs, v in state.items() if names.ours(theirs) != lost}
        if len(less) < len(state):
            with pytest.raises(ValueError, match=rf"checkpoint has no '{lost}'"):
                names.renamed(less)


@pytest.mark.parametrize(
    ("name", "options", "value", "expected"),
    [
        ("scan", {}, lambda m: (m.attention.direction, m.aggregate), ("t2i", "LogSumExp")),
        ("scan", {"cross_attn": "i2t"}, lambda m: (m.attention.sharpness, m.lambda_lse), (4, 5)),
        ("scan", {"agg_func": "Mean", "lambda_lse": 20}, lambda m: m.aggregate, "Mean"),
        ("bfan", {"focal_type": "prob"}, lambda m: {h.focus for h in m.heads}, {"prob"}),
        (
            "vsepp",
            {"measure": "order", "use_abs": True},
            lambda m: (m.measure, m.absolute),
            ("order", True),
        ),
        (
            "naaf",
            {"lambda_softmax": 15, "alpha": 1.5},
            lambda m: (m.lambda_softmax, m.alpha),
            (15.0, 1.5),
        ),
        ("naaf", {"thres": 0.5, "thres_safe": 0.25}, lambda m: m.thresholds.tolist(), [0.5, 0.25]),
        ("vsrn-f30k", {"data_name": "coco_precomp"}, lambda m: m.norm, None),
        ("vsrn-f30k", {"data_name": "f30k_precomp"}, lambda m: m.normalise_regions, False),
        ("vsrn-f30k", {"data_name": None}, lambda m: m.normalise_regions, False),
        ("cgmn-overlap", {"if_IOU": None}, lambda m: len(m.overlaps), 1),
        ("cgmn-overlap", {"if_IOU": False}, lambda m: len(m.overlaps), 0),
        ("cgmn", {"if_IOU": None}, lambda m: len(m.overlaps), 0),
        (
            "scan",
            {"cross_attn": "i2t", "lambda_softmax": None},
            lambda m: m.attention.sharpness,
            4,
        ),
        ("vsrn-f30k", {"max_len": 7}, lambda m: m.captioner.longest, 7),
        ("vsrn-f30k", {"input_dropout_p": 0.3}, lambda m: m.captioner.dropout.p, 0.3),
        ("esa", {"hardnum": 3}, lambda m: m.copies, 3),
        ("user", {"attention_lamda": 4}, lambda m: m.image.sharpness, 4.0),
        ("chan-basic", {}, lambda m: (m.coding.direction, m.pooling, m.beta), ("t2i", "LSE", 0.1)),
        (
            "chan-basic",
            {"coding_type": "THACoding", "pooling_type": "SoftmaxPooling", "belta": 0.3},
            lambda m: (m.coding.direction, m.pooling, m.beta, m.score_scale),
            ("i2t", "Softmax", 0.3, 1.0),
        ),
        ("chan-selfattention", {}, lambda m: m.block.sees, "regions"),
        ("chan-transformer", {}, lambda m: m.block.sees, "batch"),
        ("hrem", {"nhead": 4}, lambda m: m.image_pool.layer.self_attn.num_heads, 4),
        ("hrem", {"residual_weight": 0.7}, lambda m: m.image_pool.residual, 0.7),
        (
            "dive",
            {"dropout": 0.2, "temperature": 8, "txt_pooling": "rnn"},
            lambda m: (m.alpha, m.image_slots.dropout.p, m.text.dropout.p, m.image_slots.rounds),
            (8.0, 0.2, 0.2, ROUNDS),
        ),
        (
            "dive",
            {"loss": "max", "eval_similarity": "max", "img_res_pool": "avg", "rnn_no_dropout": 1},
            lambda m: (m.similarity, m.image.kind, m.text.gru.dropout.p),
            ("max", "mean", 0.0),
        ),
        (
            "dive",
            {"mmd_weight": 0.02, "unif_weight": 0.03, "unif_residual": False},
            lambda m: (m.mmd_weight, m.diversity_weight, m.diversity_of),
            (0.02, 0.03, "elements"),
        ),
        ("dive", {}, lambda m: (m.image_slots.positions, m.text_slots.positions), ("none", "sine")),
        ("dive-bert", {"txt_pooling": "cls"}, lambda m: m.text.kind, "first"),
        ("dive-bert", {"txt_pooling": "max"}, lambda m: m.text.kind, "max"),
    ],
)
def test_options_of_a_system(name, options, value, expected, folder):
    options = {**TRAINED_WITH.get(name, {}), **options}
    checkpoint = Checkpoint(authors(name, model(name, folder)), options)
    given = {"bert": folder} if name in ("hrem", "dive-bert") else {}
    assert value(SYSTEMS[system_of(name)](checkpoint, **given).build()) == expected


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vsrn-f30k", {"use_abs": True}),
        ("vsrn-coco", {"measure": "order"}),
        ("vsrn-f30k", {"no_imgnorm": True}),
        ("naaf", {"no_txtnorm": True}),
        ("sgraf-sgr", {"no_txtnorm": True}),
        ("dive", {"txt_pooling": "max"}),
        ("dive-bert", {"txt_pooling": "rnn"}),
        ("dive", {"loss": "max", "eval_similarity": "chamfer"}),
        ("dive", {"spm_txt_pos_enc_type": "none"}),
        ("dive", {"spm_activation": "relu"}),
        ("dive", {"denominator": 1.0}),
        ("dive", {"img_res_first_pool": True}),
    ],
)
def test_an_option_that_makes_another_model_is_refused(name, options, folder):
    checkpoint = Checkpoint(authors(name, model(name, folder)), options)
    given = {"bert": folder} if "bert" in name else {}
    option, value = list(options.items())[-1]
    with pytest.raises(ValueError, match=rf"{option}={value!r}, and .* another model, so it is"):
        SYSTEMS[system_of(name)](checkpoint, **given)
    usual = {option: {"use_abs": False, "measure": "cosine", "denominator": 2}.get(option)}
    SYSTEMS[system_of(name)](Checkpoint(checkpoint.state, usual), **given).build()


def test_thresholds_that_are_not_there_are_missed(folder, capsys):
    """NAAF's authors keep them among the options, and without them it scores otherwise."""
    state = authors("naaf", model("naaf", folder))
    SYSTEMS["naaf"](Checkpoint(state, {"thres": 0.1, "thres_safe": 0.2}))
    assert not capsys.readouterr().err
    for options, missing, thresholds in (
        ({}, "no thres and no thres_safe", [0.0, 0.0]),
        ({"thres": 0.5, "thres_safe": None}, "no thres_safe", [0.5, 0.0]),
        ({"thres_safe": 0.25}, "no thres", [0.0, 0.25]),
    ):
        found = SYSTEMS["naaf"](Checkpoint(state, options))
        assert found.state["thresholds"].tolist() == thresholds
        assert f"has {missing} among its options" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("bfan", "lambda_softmax", [1]),
        ("bfan", "focal_type", ["prob"]),
        ("naaf", "alpha", "much"),
        ("naaf", "thres", [0.5]),
        ("vsrn-f30k", "data_name", 30),
        ("vsrn-f30k", "max_len", float("inf")),
        ("dive", "img_1x1_dropout", {}),
        ("dive", "dropout", [0.1]),
    ],
)
def test_an_option_of_another_kind_is_named(name, option, value, folder):
    checkpoint = Checkpoint(authors(name, model(name, folder)), {option: value})
    said = re.escape(f"{option}={value!r} among its options, where ")
    with pytest.raises(ValueError, match=said):
        SYSTEMS[system_of(name)](checkpoint)


def test_what_training_drops_is_a_number():
    with pytest.raises(ValueError, match=r"caption_drop_prob=\[1\] .* a number such as 0.2"):
        find_augmentation("dive", {"caption_drop_prob": [1]})
    assert find_augmentation("dive", {"caption_drop_prob": None}).words == 0.2


@pytest.mark.parametrize(
    ("name", "lost", "ours"),
    [
        ("cgmn", "txt_enc.rnn.weight_hh", "text.rnn.weight_hh_l0"),
        ("naaf", "img_enc.fc.weight", "image.fc.weight"),
    ],
)
def test_a_tower_without_its_size_is_refused(name, lost, ours, folder):
    state = authors(name, model(name, folder))
    less = {theirs: value for theirs, value in state.items() if not theirs.startswith(lost)}
    assert len(less) < len(state)
    with pytest.raises(ValueError, match=f"has no '{ours}'; is it whole"):
        SYSTEMS[name](Checkpoint(less))


def test_an_unknown_option_is_refused(folder):
    checkpoint = Checkpoint(authors("bfan", model("bfan", folder)), {"focal_type": "half"})
    with pytest.raises(ValueError, match="focus='half' is not known; use one of equal, prob"):
        SYSTEMS["bfan"](checkpoint).build()


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ("img_enc.Rs_GCN_2.theta.weight", r'Missing key.*"relations\.1\.theta\.weight".*whole'),
        ("caption_model.encoder.vid2hid.weight", r"has no 'captioner\.fc\.weight'"),
        ("caption_model.decoder.embedding.weight", r"has no 'captioner\.embed\.weight'"),
    ],
)
def test_a_vsrn_with_a_tensor_missing_is_refused(lost, message, folder):
    state = authors("vsrn-f30k", model("vsrn-f30k", folder))
    del state[lost]
    with pytest.raises(ValueError, match=message):
        SYSTEMS["vsrn"](Checkpoint(state)).build()


def test_two_layers_of_a_dive_become_one(folder):
    """BERT's part vectors and the vector of the whole."""
    made = dive_model(dive.PooledParts(tower=bert(folder, 2), apart=True))
    state = authors("dive", made)
    for kind in ("weight", "bias"):
        halves = state[f"txt_enc.linear.{kind}"].chunk(2)
        state |= {f"txt_enc.linear{n}.{kind}": half for n, half in zip(("", "2"), halves)}
    built = dive.dive_from_checkpoint(Checkpoint(state), bert=folder).build()
    assert built.text.apart
    torch.testing.assert_close(built.state_dict(), made.state_dict(), rtol=0, atol=0)


def test_rounds_with_layers_of_their_own_are_refused(folder):
    state = authors("dive", model("dive", folder))
    name = next(name for name in state if ".layers.1." in name)
    state[name] = state[name] + 1
    with pytest.raises(ValueError, match="differs from that of the first round"):
        dive.convert_dive(state)


@pytest.mark.parametrize("whole", [True, False])
def test_weight_normalisation_is_written_out(whole, folder):
    state = authors("scan", model("scan", folder))
    weight = state.pop("img_enc.fc.weight")
    length = weight.norm() if whole else weight.norm(dim=1, keepdim=True)
    state |= {"img_enc.fc.weight_g": length, "img_enc.fc.weight_v": 3 * weight}
    torch.testing.assert_close(scan.NAMES.renamed(state)["image.fc.weight"], weight)


def test_files_of_other_forms(folder, tmp_path):
    state = authors("scan", model("scan", folder))
    save_file(state, tmp_path / "a.safetensors")
    convert_checkpoint(tmp_path / "a.safetensors", "scan").build()
    sides = [
        {n.partition(".")[2]: v for n, v in state.items() if n.startswith(p)} for p in PREFIXES[:2]
    ]
    torch.save({"model": sides}, tmp_path / "old.pth.tar", _use_new_zipfile_serialization=False)
    convert_checkpoint(tmp_path / "old.pth.tar", "scan").build()


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_numbers_of_other_widths_are_single_precision_here(kind, folder, tmp_path):
    state = authors("cgmn-overlap", model("cgmn-overlap", folder))
    other = {n: v.to(kind) if v.is_floating_point() else v for n, v in state.items()}
    trained = {"optimizer": {"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{}]}}
    path = saved(other, tmp_path / "best.pth.tar", **trained)
    built = convert_checkpoint(path, "cgmn").build()
    for name, value in cgmn.convert_cgmn(other).items():
        found = built.state_dict()[name]
        assert not value.is_floating_point() or found.dtype == torch.float32
        assert torch.equal(found, value.to(found.dtype)), name


@pytest.mark.parametrize("old", [True, False])
def test_numbers_of_numpy_and_options_in_a_dict(old, folder, tmp_path):
    made = authors("scan", model("scan", folder))
    sides = [
        {n.partition(".")[2]: v for n, v in made.items() if n.startswith(p)} for p in PREFIXES[:2]
    ]
    saved = {
        "model": sides,
        "best_rsum": np.float64(400.5),
        "Eiters": np.int64(7),
        "opt": {"cross_attn": "i2t", "lambda_softmax": np.float32(4.5), "max_violation": np.True_},
    }
    path = tmp_path / "best.pth.tar"
    torch.save(saved, path, _use_new_zipfile_serialization=not old)
    built = convert_checkpoint(path, "scan").build()
    assert (built.attention.direction, built.attention.sharpness) == ("i2t", 4.5)


class Trap:
    def __reduce__(self):
        return (Path.touch, (Path("sprung"),))


def test_nothing_in_a_file_is_ever_run(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = saved(authors("scan", model("scan", folder)), tmp_path / "a.pth.tar", opt=Trap())
    with pytest.raises(
        ValueError, match=r"running code from it: it holds .*beside tensors"
    ) as told:
        read_checkpoint(path)
    assert len(str(told.value).splitlines()) == 1
    assert str(told.value).isprintable()
    assert not (tmp_path / "sprung").exists()


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match="does not exist; give an authors' checkpoint"):
        read_checkpoint(tmp_path / "none.pth.tar")
    for name in ("a.pth.tar", "a.safetensors"):
        (tmp_path / name).write_bytes(b"not a checkpoint")
        with pytest.raises(ValueError, match=name):
            read_checkpoint(tmp_path / name)
    (tmp_path / "hps.json").write_text("{}")
    with pytest.raises(ValueError, match=r"hps\.json holds options and no weights; give the check"):
        read_checkpoint(tmp_path / "hps.json")
    torch.save({"step": 5, "optimizer": {"state": {}}}, tmp_path / "train_state_5.pt")
    with pytest.raises(ValueError, match="holds the state of an optimiser and no weights"):
        read_checkpoint(tmp_path / "train_state_5.pt")
    torch.save({"model": {}, "opt": [1]}, tmp_path / "c.pth.tar")
    with pytest.raises(ValueError, match="has a list as its options"):
        read_checkpoint(tmp_path / "c.pth.tar")
    torch.save([1, 2, 3], tmp_path / "b.pth.tar")
    with pytest.raises(ValueError, match="holds a list, not the state dicts"):
        read_checkpoint(tmp_path / "b.pth.tar")
    with pytest.raises(ValueError, match="did you mean 'scan'"):
        convert_checkpoint(Path("a"), "scam")


# Sizes and options that differ from every default, so that nothing is taken for granted.

TEXT = lazy(GRU, words=11, word_width=5, width=12, layers=2, bidirectional=False)
TWO_WAY = lazy(GRU, words=11, word_width=5, width=12, layers=2)
IMAGE = lazy(Regions, features=7, width=12)
MLP = lazy(MLPRegions, features=7, width=12, inner=5)
NEITHER = {"normalise_images": False, "normalise_texts": False}
OPTION_OF = {"no_imgnorm": True, "no_txtnorm": True}
TRAINING = {"dropout", "word_drop", "drop_ends", "region_drop", "released_padding", "init"}
# what the authors' programs have as constants, or train with
FIXED: dict[object, set[str]] = {
    GRU: TRAINING,
    Regions: TRAINING,
    MLPRegions: TRAINING | {"stacked"},
    vsepp.VSEPP: {"image_pool", "text_pool"},
    naaf.NAAF: {"intra_lambda"},
    vsrn.VSRN: {"layers", "caption_weight", "bn_passes"},
    cgmn.CGMN: {"relation", "least_overlap", "released_padding"},
    gpo.GPO: {"temperature"},
    esa.ESA: {"region_drop"},
    chan.CHAN: {"heads"},
    SGRAF: {"lambda_softmax", "dropout", "module"},
    hrem.HREM: {"graph"},
    EnhancedRegions: {"dropout"},
    dive.DivE: {"heads"},
    dive.PooledParts: {"apart"},
    BertTextTower: {"trained", "pretrained", "dropout", "word_drop", "mask", "config"},
    UNITER: {"dropout", "score", "spread"},
}
OTHERWISE: dict[str, tuple[Config[RetrievalModel], dict[str, object]]] = {
    "vsepp": (
        config(vsepp.VSEPP, image=IMAGE, text=TEXT, measure="order", absolute=True, **NEITHER),
        {"measure": "order", "use_abs": True, **OPTION_OF},
    ),
    "scan": (
        config(
            scan.SCAN,
            image=IMAGE,
            text=TEXT,
            direction="i2t",
            raw_norm="softmax",
            aggregate="Mean",
            lambda_softmax=3.5,
            lambda_lse=2.5,
            **NEITHER,
        ),
        {
            "cross_attn": "i2t",
            "raw_feature_norm": "softmax",
            "agg_func": "Mean",
            "lambda_softmax": 3.5,
            "lambda_lse": 2.5,
            **OPTION_OF,
        },
    ),
    "bfan": (
        config(bfan.BFAN, image=IMAGE, text=TEXT, focus="prob", lambda_softmax=11.0, **NEITHER),
        {"focal_type": "prob", "lambda_softmax": 11.0, **OPTION_OF},
    ),
    "naaf": (
        config(naaf.NAAF, image=IMAGE, text=TEXT, lambda_softmax=11.0, alpha=1.5),
        {"lambda_softmax": 11.0, "alpha": 1.5, "thres": 0.5, "thres_safe": 0.25},
    ),
    "vsrn": (
        config(
            vsrn.VSRN,
            image=IMAGE,
            text=TEXT,
            captioner=lazy(
                vsrn.Captioner,
                words=11,
                width=12,
                hidden=5,
                word_width=3,
                dropout=0.35,
                longest=9,
            ),
            region_norm="channel",
            normalise_regions=False,
            batch_norm=True,
        ),
        {"data_name": "f30k_precomp", "max_len": 9, "input_dropout_p": 0.35},
    ),
    "cgmn": (
        config(cgmn.CGMN, image=IMAGE, text=TEXT, layers=3, overlap=1, readers=(2, 3)),
        {"if_IOU": True},
    ),
    "gpo": (
        config(gpo.GPO, image=MLP, text=TEXT, positions=6, hidden=5, **NEITHER),
        OPTION_OF,
    ),
    "esa": (
        config(esa.ESA, image=MLP, text=TEXT, copies=3, **NEITHER),
        {"hardnum": 3, **OPTION_OF},
    ),
    "chan": (
        config(
            chan.CHAN,
            image=lazy(Regions, features=7, width=16),
            text=lazy(GRU, words=11, word_width=5, width=16, layers=2, bidirectional=False),
            block="transformer",
            coding="VSA",
            pooling="Max",
            alpha=0.2,
            beta=0.3,
            sees="batch",
            **NEITHER,
        ),
        {
            "coding_type": "VSACoding",
            "pooling_type": "MaxPooling",
            "alpha": 0.2,
            "belta": 0.3,
            **OPTION_OF,
        },
    ),
    "sgraf": (
        config(SGRAF, image=IMAGE, text=TEXT, regions=5, similarity_width=3, steps=5),
        {"sgr_step": 5},
    ),
    "xdim": (config(xdim.XDim, image=MLP, text=lazy(BertTextTower, name="", width=12)), {}),
    "hrem": (
        config(
            hrem.HREM,
            image=MLP,
            text=lazy(BertTextTower, name="", width=12),
            heads=3,
            dropout=0.25,
            residual=0.65,
        ),
        {"nhead": 3, "dropout": 0.25, "residual_weight": 0.65},
    ),
    "user": (
        config(
            gpo.GPO,
            image=lazy(EnhancedRegions, tower=MLP, features=7, regions=5, sharpness=3.0),
            text=TEXT,
            positions=6,
            hidden=5,
            **NEITHER,
        ),
        {"attention_lamda": 3, **OPTION_OF},
    ),
    "dive": (
        config(
            dive.DivE,
            image=lazy(
                dive.PooledParts, tower=MLP.replace(stacked=True, dropout=0.15), pool="mean"
            ),
            text=lazy(dive.WordsAndStates, gru=TWO_WAY.replace(layers=1, dropout=0.2), dropout=0.2),
            slots=3,
            head_width=5,
            rounds=ROUNDS,
            inner=3,
            dropout=0.2,
            similarity="max",
            alpha=8.0,
            mmd_weight=0.02,
            diversity_weight=0.03,
            diversity_of="elements",
            released_padding=True,
        ),
        {
            "img_1x1_dropout": 0.15,
            "img_res_pool": "avg",
            "txt_pooling": "rnn",
            "dropout": 0.2,
            "loss": "max",
            "eval_similarity": "max",
            "temperature": 8,
            "mmd_weight": 0.02,
            "unif_weight": 0.03,
            "unif_residual": False,
        },
    ),
    "uniter": (
        config(
            UNITER,
            layers=2,
            width=24,
            heads=3,
            inner=20,
            vocabulary=40,
            positions=9,
            features=7,
            classes=5,
            mask=6,
            outputs=("rank", "match", "fill", "doubt", "correct", "regress", "classify"),
        ),
        {"heads": 3, "mask": 6},
    ),
}


def whole(spec: Config[object]) -> dict[str, object]:
    """The arguments of a call with the defaults of those that are not given."""
    known = inspect.signature(spec.make).parameters
    return {
        name: whole(value) if isinstance(value, Config) else value
        for name, parameter in known.items()
        for value in [spec.arguments.get(name, parameter.default)]
        if name != "name"  # that of BERT's folder
    }


def like_defaults(spec: Config[object]) -> set[str]:
    """Arguments of a call that are the defaults, but for those that are fixed."""
    known = inspect.signature(spec.make).parameters
    inside = {
        f"{name}.{argument}"
        for name, value in spec.arguments.items()
        if isinstance(value, Config)
        for argument in like_defaults(value)
    }
    return inside | {
        name
        for name, parameter in known.items()
        if spec.arguments.get(name, parameter.default) == parameter.default
        and name not in FIXED.get(spec.make, set())
    }


@pytest.mark.parametrize("system", OTHERWISE)
def test_sizes_and_options_are_read_whatever_they_are(system, folder):
    spec, options = OTHERWISE[system]
    allowed = {"sgraf": set(), "vsrn": set(), "dive": {"text.gru.layers", "text.gru.bidirectional"}}
    assert like_defaults(spec) <= allowed.get(system, set())
    bert = "BertTextTower" in repr(spec)
    if bert:
        text = spec.arguments["text"].replace(name=folder, pretrained=False)
        spec = spec.replace(text=text)
    made = spec.build()
    for tensor in made.state_dict().values():
        tensor.copy_(torch.rand(tensor.shape))
    given = authors_state(made.state_dict()) if system == "uniter" else authors(system, made)
    found = SYSTEMS[system](Checkpoint(given, options), **({"bert": folder} if bert else {}))
    theirs, ours = whole(found.model), whole(spec)
    assert {**theirs, "outputs": set(theirs.get("outputs", ()))} == {
        **ours,
        "outputs": set(ours.get("outputs", ())),
    }
    for name, value in found.build().state_dict().items():
        if name not in ("thresholds", "mined"):
            assert torch.equal(value, made.state_dict()[name]), name


@pytest.mark.parametrize("steps", [1, 2, 5, 12])
def test_any_number_of_steps_of_reasoning(steps, folder):
    made = SGRAF(image=regions(), text=gru(), regions=5, similarity_width=3, steps=steps)
    state = authors("sgraf-sgr", made)
    assert SYSTEMS["sgraf"](Checkpoint(state)).model.arguments["steps"] == steps
    lost = {n: v for n, v in state.items() if f"SGR_module.{steps - 1}.graph_key" not in n}
    with pytest.raises(ValueError, match=r"do not fit|has no 'reasoning"):
        SYSTEMS["sgraf"](Checkpoint(lost)).build()
