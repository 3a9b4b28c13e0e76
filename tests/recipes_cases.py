"""Small models, runs and data sets for the tests of recipes and of the command line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import hub_cases
from counterfoil.cli import main
from counterfoil.core.config import Config, config, from_data, lazy
from counterfoil.data.processor import FeatureProcessor, PixelProcessor, Processor
from counterfoil.data.tokenizers import SPECIAL, WordTokenizer
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.towers import GRU, PatchTower, Regions
from counterfoil.models.vsepp import VSEPP
from counterfoil.pipelines.pipeline import Recipe
from counterfoil.pipelines.stages import compare
from counterfoil.recipes import catalogue
from counterfoil.recipes.catalogue import find_recipe, recipe_arguments, recipe_function
from counterfoil.saved import save_model

CLIP_MEAN = {"image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28]}
WORDS = [*SPECIAL, "a", "dog", "in", "the", "snow", "red", "circle", "of", "picture"]
SMALL = ("--set", "*.model.image.width=16", "--set", "*.model.text.width=16", "--set", "*.batch=16")
FEW_CHANNELS = ("--set", "*.model.image.channels=4")  # of the convolutions over pixels
SMALL_LISTS = ("--set", "lists.texts=20", "--set", "lists.images=5")
SMALL_DRAW = (
    "--set",
    "adaptive.mined.sampling.texts=20",
    "--set",
    "adaptive.mined.sampling.images=5",
)
SMALL_AOQ = (*SMALL, *FEW_CHANNELS, *SMALL_LISTS, *SMALL_DRAW)
FILES = ("online", "lists", "adaptive", "test-online", "test-adaptive", "report")


def run(*words: object) -> int:
    """The command line in this process."""
    return main([str(word) for word in words])


def recipe_of(line: str) -> Recipe:
    """The recipe of what follows ``counterfoil run``, as in "aoq --model scan-t2i"."""
    name, *words = line.split()
    flags = {a.option for a in recipe_arguments(recipe_function(name)) if a.kind is bool}
    given: dict[str, object] = {}
    while words:
        option = words.pop(0)
        given[option.removeprefix("--")] = True if option in flags else words.pop(0)
    return find_recipe(name, **given)


def recipe_words(line: str) -> str:
    """The recipe of a command line, with its own options."""
    _, _, name, *words = shlex.split(line, comments=True)
    known = {a.option: a.kind is not bool for a in recipe_arguments(recipe_function(name))}
    kept = [name]
    for option, following in pairwise([*words, ""]):
        if option in known:
            kept += [option, following] if known[option] else [option]
    return " ".join(kept)


def aoq(folder: Path, data: str = "scenes:images=36", *more: object, host: str = "vsepp") -> int:
    """The smoke run of both rounds, small."""
    recipe = ("aoq", "--model", host, "--data", data)
    return run("run", *recipe, "--output", folder, "--smoke", *SMALL_AOQ, *more)


def pixel_model(folder: Path) -> Path:
    """A model of pixels and words with random weights."""
    torch.manual_seed(0)
    text = lazy(GRU, words=len(WORDS), width=8, word_width=4)
    spec = config(VSEPP, image=lazy(PatchTower, size=16, patch=8, width=8, channels=4), text=text)
    save_model(
        folder,
        spec=spec,
        model=spec.build(),
        processor=Processor(PixelProcessor(16), WordTokenizer(WORDS)),
    )
    return folder


def feature_model(folder: Path, features: int = 4) -> Path:
    """A model of features and words with random weights."""
    torch.manual_seed(0)
    text = lazy(GRU, words=len(WORDS), width=8, word_width=4)
    spec = config(VSEPP, image=lazy(Regions, features=features, width=8), text=text)
    processor = Processor(FeatureProcessor(features), WordTokenizer(WORDS))
    save_model(folder, spec=spec, model=spec.build(), processor=processor)
    return folder


def clip_like(folder: Path, kind: str = "clip") -> Path:
    """A tiny CLIP or SigLIP with its tokenizer and its picture format."""
    getattr(hub_cases, kind)(folder)
    ids = {"<pad>": 1, "<unk>": 0, "<s>": 38, "</s>": 39}
    words = ["a", "dog", "in", "the", "snow", "red", "circle", "and", "square", "blue", "big"]
    ids |= {word: 2 + place for place, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 38), ("</s>", 39)]
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>" if kind == "clip" else "<pad>",
    )
    fast.save_pretrained(folder)
    kind = "CLIPImageProcessor"
    size = {"height": 16, "width": 16}
    hub_cases.processor(folder, size=size, image_processor_type=kind, do_center_crop=False)
    return folder


def _bert_pieces(folder: Path) -> int:
    """A tiny BERT tokenizer, which hides words; how many ids it has."""
    words = ["a", "dog", "in", "the", "snow", "red", "circle", "and", "square", "blue", "big"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    ids = {word: place for place, word in enumerate([*special, *words])}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = zip(("pad", "unk", "cls", "sep", "mask"), special)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{f"{name}_token": word for name, word in names}
    )
    fast.save_pretrained(folder)
    return len(ids)


def vilt_like(folder: Path, kind: str = "MaskedLM") -> Path:
    """A tiny ViLT with its tokenizer and its picture format."""
    hub_cases.vilt(folder, kind, _bert_pieces(folder))
    half, size = [0.5, 0.5, 0.5], {"shortest_edge": 16}
    plain = {"size": size, "size_divisor": 8, "image_mean": half, "image_std": half}
    hub_cases.processor(folder, image_processor_type="ViltImageProcessor", **plain)
    return folder


def blip_like(folder: Path) -> Path:
    """A tiny BLIP that matches images and texts, with its tokenizer and its picture format."""
    hub_cases.blip(folder, _bert_pieces(folder))
    size = {"height": 16, "width": 16}
    hub_cases.processor(folder, image_processor_type="BlipImageProcessor", size=size, **CLIP_MEAN)
    return folder


galleries = compare._galleries


@pytest.fixture(autouse=True, scope="module")  # a folder without __init__ is no package to pytest
def no_figures() -> Iterator[None]:
    """Smoke runs of few steps, whose reports, which take longer, are without figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "SMOKE_STEPS", 6)
        patch.setattr(catalogue, "SMOKE_WARMUP", 2)
        patch.setattr(compare, "learning_curves", lambda curves: ())
        patch.setattr(compare, "hardness_at", lambda folder, scorer: ())
        patch.setattr(compare, "_galleries", lambda context, stage, evaluations: ())
        yield


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own for every test, outside of the folder that tests look into."""
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path_factory.mktemp("cache")))


def uniter(*outputs: str, **sizes: int) -> Config[RetrievalModel]:
    """A tiny UNITER of the regions and words of a data set."""
    from counterfoil.papers.models.uniter import UNITER

    return config(
        UNITER,
        **{"layers": 1, "width": 16, "heads": 2, "inner": 16, **sizes},
        vocabulary=from_data("words"),
        features=from_data("features"),
        mask=from_data("mask"),
        outputs=outputs,
    )


VSEPP_OF_REGIONS = config(
    VSEPP,
    image=lazy(Regions, features=from_data("features"), width=8),
    text=lazy(GRU, words=from_data("words"), width=8, word_width=4, word_drop=0.2),
)


def numbers(folder: Path) -> dict[str, object]:
    """What a run measured, by stage."""
    return {
        stage: json.loads((folder / stage / "evaluation.json").read_text())
        for stage in ("test-online", "test-adaptive")
    }


def results(folder: Path) -> dict[str, object]:
    """What a run measured, and the weights it measured."""
    weights = {s: (folder / s / "model" / "model.safetensors").read_bytes() for s in FILES[0:3:2]}
    return {**numbers(folder), **weights}


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Every file's bytes, and every folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }
