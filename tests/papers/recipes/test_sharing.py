from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

import hub_cases
import recipes_cases
import vision_cases
from corpus_cases import write_picture
from counterfoil import model as model_module
from counterfoil.card import model_card
from counterfoil.core.config import config, lazy
from counterfoil.data.processor import PixelProcessor, Processor
from counterfoil.data.readers import load_dataset
from counterfoil.data.tokenizers import WordPieceTokenizer
from counterfoil.model import Model, load_model
from counterfoil.models.clip import DualEncoder
from counterfoil.models.frozen import FrozenWithAdapters
from counterfoil.models.layers.pretrained import BertTextTower
from counterfoil.models.layers.towers import PatchTower
from counterfoil.models.open_clip import OpenClipModel
from counterfoil.models.vsepp import VSEPP
from counterfoil.recipes import clip
from counterfoil.saved import SavedModelCard, read_card
from recipes_cases import run


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run with a model that its test stage has measured."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert recipes_cases.aoq(folder) == 0
    return folder


@pytest.mark.parametrize("kind", ["clip", "siglip", "vilt", "blip"])
def test_a_pretrained_model_opens_where_its_folder_is_gone(kind, tmp_path):
    source = tmp_path / "source"
    if kind == "vilt":
        recipes_cases.vilt_like(source, "ImageAndTextRetrieval")
    elif kind == "blip":
        recipes_cases.blip_like(source)
    else:
        recipes_cases.clip_like(source, kind)
    model = Model.from_pretrained(source)
    model.save_pretrained(tmp_path / "saved")
    source.rename(tmp_path / "elsewhere")
    again = Model.from_pretrained(tmp_path / "saved")
    assert again.digest() == model.digest()
    write_picture(tmp_path / "dog.png")
    for items in (["a dog in the snow"], [tmp_path / "dog.png"]):
        wanted, found = model.encode(items).tokens, again.encode(items).tokens
        torch.testing.assert_close(found, wanted)
    assert str(tmp_path) not in (tmp_path / "saved" / "model.json").read_text()


def test_towers_inside_take_their_configuration_along(tmp_path):
    hub_cases.bert(tmp_path / "bert")
    recipes_cases.clip_like(tmp_path / "clip")
    towers = config(
        VSEPP,
        image=lazy(PatchTower, size=16, patch=8, width=8, channels=4),
        text=lazy(BertTextTower, name=str(tmp_path / "bert"), width=8),
    )
    head = config(
        FrozenWithAdapters, body=lazy(DualEncoder, name=str(tmp_path / "clip")), width=8, hidden=4
    )
    processor = Processor(
        PixelProcessor(16), WordPieceTokenizer(str(tmp_path / "clip"), longest=12)
    )
    models = {}
    for name, spec in (("towers", towers), ("head", head)):
        models[name] = Model(spec.build().eval(), processor, name, spec)
        models[name].save_pretrained(tmp_path / f"{name}-saved")
    for gone in ("bert", "clip"):
        (tmp_path / gone).rename(tmp_path / f"{gone}-gone")
    for name, model in models.items():
        again = load_model(tmp_path / f"{name}-saved")
        assert again.digest() == model.digest()
        found, wanted = again.encode(["a dog"]).tokens, model.encode(["a dog"]).tokens
        torch.testing.assert_close(found, wanted)


def test_the_card_tells_results_with_protocol_and_where_from(finished, tmp_path):
    from huggingface_hub import ModelCard

    model = Model.from_pretrained(finished / "online")
    model.save_pretrained(tmp_path / "mine")
    text = (tmp_path / "mine" / "README.md").read_text()
    measured = json.loads((finished / "test-online" / "evaluation.json").read_text())
    assert measured["protocol"] in text
    cells = [f"{measured[side][f'r{k}']:.1f}" for side in ("i2t", "t2i") for k in (1, 5, 10)]
    assert f"| scenes | test | {' | '.join(cells)} | {measured['rsum']:.1f} |" in text
    for line in ("recipe: aoq/vsepp-scenes", "stage: online", "seed: 0", "## Limits", "## Licence"):
        assert line in text
    assert "test-adaptive" not in text
    assert text.count("Protocol:") == 1
    assert read_card(tmp_path / "mine").provenance == model.card.provenance
    head = ModelCard.load(tmp_path / "mine" / "README.md").data  # as the hub reads it
    assert head.library_name == "counterfoil"
    assert head.tags == ["image-text-retrieval", "VSEPP"]
    values = {result.metric_type: result.metric_value for result in head.eval_results}
    assert values == {f"{s}_r{k}": measured[s][f"r{k}"] for s in ("i2t", "t2i") for k in (1, 5, 10)}
    assert {result.dataset_split for result in head.eval_results} == {"test"}


def test_evaluations_go_along_and_others_are_added(finished, tmp_path, capsys):
    out = tmp_path / "dev.json"
    data = ("--data", "scenes:images=36", "--split", "dev")
    assert run("evaluate", finished / "online", *data, "--json", out) == 0
    Model.from_pretrained(finished / "online").save_pretrained(tmp_path / "one")
    Model.from_pretrained(tmp_path / "one").save_pretrained(tmp_path / "two", evaluations=[out])
    kept = json.loads((tmp_path / "two" / "evaluations.json").read_text())
    assert [found["setting"]["split"] for found in kept] == ["test", "dev"]
    assert (tmp_path / "two" / "README.md").read_text().count("Protocol:") == 2
    for content in (3, {}, [3]):
        (tmp_path / "two" / "evaluations.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=r"evaluations\.json holds no"):
            Model.from_pretrained(tmp_path / "two").save_pretrained(tmp_path / "three")


def card_of(spec) -> str:
    card, processor = SavedModelCard(model=spec), Processor(PixelProcessor(16), None)
    return model_card(card, processor, [], "me/mine")


def test_a_name_on_the_hub_is_the_base_and_a_folder_is_not():
    spec = config(DualEncoder, name="openai/clip-vit-base-patch32", pretrained=False, config="{}")
    text = card_of(spec)
    assert "None were measured" in text
    assert "Model.from_pretrained('me/mine')" in text
    for pretrained in (spec, config(FrozenWithAdapters, body=spec, width=8)):
        assert 'base_model: "openai/clip-vit-base-patch32"' in card_of(pretrained)
    assert "base_model" not in card_of(spec.replace(name="mine"))


@pytest.mark.parametrize(
    "name, base",
    [
        ("open_clip:hf-hub:timm/ViT-B-16-SigLIP", "timm/ViT-B-16-SigLIP"),
        ("open_clip:ViT-T-8/laion_s1", "laion/tiny"),
        ("ViT-T-8/laion_s1", "laion/tiny"),
        ("open_clip:ViT-T-8/other", None),
        ("open_clip:ViT-T-8", None),
        ("models/my-open-clip", None),
    ],
)
def test_models_of_open_clip_have_the_base_that_their_weights_are_from(
    name, base, tmp_path, monkeypatch
):
    library = vision_cases.open_clip(tmp_path)
    tags = {("ViT-T-8", "laion_s1"): {"hf_hub": "laion/tiny/"}}
    library.get_pretrained_cfg = lambda model, tag: tags.get((model, tag), {})
    monkeypatch.setitem(sys.modules, "open_clip", library)
    plain = config(OpenClipModel, name=name, pretrained=False, config="{}")
    for spec in (plain, config(FrozenWithAdapters, body=plain, width=8)):
        text = card_of(spec)
        assert (f'base_model: "{base}"' in text) == (base is not None)
        assert ("base_model" in text) == (base is not None)
        assert (f"began from: {base}" in text) == (base is not None)


@pytest.mark.parametrize("there", ["a file", "a folder"])
def test_what_is_there_is_left_alone(there, finished, tmp_path):
    place = tmp_path / "mine"
    if there == "a file":
        place.write_text("notes")
    else:
        place.mkdir()
        (place / "notes").write_text("notes")
    with pytest.raises(ValueError, match="exists and is left alone"):
        Model.from_pretrained(finished / "online").save_pretrained(place)
    assert "notes" in (place if place.is_file() else place / "notes").read_text()


def test_nothing_is_left_of_a_saving_that_failed(finished, tmp_path):
    (tmp_path / "no.json").write_text("{}")
    with pytest.raises(ValueError, match="holds no evaluation; give a file"):
        Model.from_pretrained(finished / "online").save_pretrained(
            tmp_path / "mine", evaluations=[tmp_path / "no.json"]
        )
    with pytest.raises(ValueError, match="ready-made vectors are no model"):
        load_model("vectors").save_pretrained(tmp_path / "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["no.json"]


@pytest.fixture
def fake(tmp_path, monkeypatch) -> hub_cases.FakeHub:
    return hub_cases.fake_hub(tmp_path / "hub", monkeypatch)


def test_pushed_and_opened_by_name(fake, finished):
    model = Model.from_pretrained(finished / "online")
    assert model.push_to_hub("me/mine", message="first") == "https://hub.test/me/mine"
    assert fake.calls == [("me/mine", True), "first"]
    again = Model.from_pretrained("me/mine")
    assert again.digest() == model.digest()
    assert Model.from_pretrained("me/mine", revision="main").digest() == model.digest()
    text = (fake.root / "me/mine/README.md").read_text()
    assert "Model.from_pretrained('me/mine')" in text
    assert "Protocol:" in text


def test_revisions_of_what_nobody_pushed_are_refused(fake, finished):
    Model.from_pretrained(finished / "online").push_to_hub("me/mine")
    with pytest.raises(ValueError, match="me/mine at revision 'v9' is no model"):
        Model.from_pretrained("me/mine", revision="v9")
    with pytest.raises(ValueError, match="at revision 'v1' is no model"):
        Model.from_pretrained("nobody/nothing", revision="v1")


def test_a_hub_that_does_not_take_it_is_one_sentence(fake, finished, monkeypatch):
    def refuse(*args: object, **more: object) -> None:
        raise OSError("401 Client Error.\nUnauthorized")

    monkeypatch.setattr(fake, "create_repo", refuse)
    with pytest.raises(ValueError, match=r"me/mine cannot be pushed .*401 Client Error; give USER"):
        Model.from_pretrained(finished / "online").push_to_hub("me/mine")


def test_where_nobody_can_be_asked_one_sentence_says_so(monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def nobody(*args: object, **more: object) -> None:
        raise LocalEntryNotFoundError("no net")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", nobody)
    with pytest.raises(ValueError, match="no folder here, and the hub cannot be reached"):
        model_module.download_model("nobody/nothing")
    assert model_module.download_model("bert-base-uncased") is None
    assert model_module.download_model("runs/deep/down") is None


def test_a_model_of_another_library_that_was_opened_before_is_not_asked_for(monkeypatch):
    import huggingface_hub

    def nobody(*args: object, **more: object) -> None:
        raise AssertionError

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", nobody)
    known = {"openai/clip": "/cache/config.json", "me/mine": huggingface_hub._CACHED_NO_EXIST}
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, _: known[name])
    assert model_module.download_model("openai/clip") is None
    with pytest.raises(AssertionError):  # it is known to be none of another library
        model_module.download_model("me/mine")


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_folders_of_sentence_transformers_are_hosts(kind, tmp_path):
    inner = recipes_cases.clip_like(tmp_path / "st" / "0_CLIPModel", kind)
    modules = [{"path": "0_CLIPModel", "type": "sentence_transformers.models.CLIPModel"}]
    place = tmp_path / "st" / "modules.json"
    place.write_text(json.dumps(modules))
    found, wanted = load_model(tmp_path / "st"), load_model(inner)
    picture = Image.new("RGB", (20, 16), "red")
    for items in (["a dog"], [picture]):
        assert torch.equal(found.encode(items).tokens, wanted.encode(items).tokens)
    dense = {"path": "1_Dense", "type": "sentence_transformers.models.Dense"}
    place.write_text(json.dumps([*modules, dense]))  # the library reads it, and misses the module
    with pytest.raises(ValueError, match="cannot be loaded as a SentenceTransformer"):
        load_model(tmp_path / "st")
    place.write_text(json.dumps([{**modules[0], "path": "../elsewhere"}]))
    with pytest.raises(ValueError, match=r"outside of .*refused"):
        load_model(tmp_path / "st")
    place.write_text("{}")
    with pytest.raises(ValueError, match="is damaged"):
        load_model(tmp_path / "st")


def test_folders_of_sentence_transformers_are_trained_further(tmp_path):
    inner = recipes_cases.clip_like(tmp_path / "st" / "0_CLIPModel")
    modules = [{"path": "0_CLIPModel", "type": "sentence_transformers.models.CLIPModel"}]
    (tmp_path / "st" / "modules.json").write_text(json.dumps(modules))
    scenes = load_dataset("scenes:images=36")
    more = {"way": "full", "written": None, "teachers": ()}
    whole = clip.train_recipe("contrastive", scenes, model=str(tmp_path / "st"), **more)
    assert whole == clip.train_recipe("contrastive", scenes, model=str(inner), **more)


def test_the_folder_of_a_whole_sentence_transformer_is_a_host(tmp_path):
    """Newer ones lie in the folder itself."""
    inner = recipes_cases.clip_like(tmp_path / "st")
    modules = [{"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}]
    (inner / "modules.json").write_text(json.dumps(modules))
    assert len(load_model(inner).encode(["a dog"])) == 1


def test_the_card_tells_data_losses_negatives_settings_and_versions(finished, tmp_path):
    Model.from_pretrained(finished / "adaptive").save_pretrained(tmp_path / "mine")
    text = (tmp_path / "mine" / "README.md").read_text()
    data = load_dataset("scenes:images=36")
    train, dev = data.split("train"), data.split("dev")
    for name, split in (("train", train), ("dev", dev)):
        assert f"| {name} | {len(split)} | {len(split.texts)} |" in text
    assert text.index("| train |") < text.index("| dev |")
    assert "| quintuplet | SwitchAfter(SumTripletLoss(AdaptiveQuintuplet)) | 1 |" in text
    assert "[arXiv:2003.03669](https://arxiv.org/abs/2003.03669)" in text
    assert "  eprint = {2003.03669}," in text
    mined = json.loads((finished / "lists" / "manifest.json").read_text())
    assert f"| texts of an image, at most | {mined['texts_per_image']} |" in text
    assert f"| fingerprint of their data | `{train.fingerprint}` |" in text
    assert "| mined with | `VSEPP(" in text
    steps = read_card(finished / "adaptive" / "model").provenance["training"]["steps"]
    assert f"{steps} optimiser steps. Settings that are not the default:\n\n- batch: `16`" in text
    assert f"- torch: {torch.__version__}" in text
    assert text.index("<details>") < text.index("- precision: `fp32`")
    assert "precision" not in text[: text.index("<details>")]
    Model.from_pretrained(finished / "online").save_pretrained(tmp_path / "online")
    text = (tmp_path / "online" / "README.md").read_text()
    assert "### Hyperparameters" in text
    assert "### Hard negatives" not in text  # an online training has no lists
