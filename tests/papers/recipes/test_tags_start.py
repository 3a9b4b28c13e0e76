"""TAGS from pre-trained weights: the authors' checkpoint is converted and trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from counterfoil.core.config import from_stage
from counterfoil.negatives.online import TopScoringMiner
from counterfoil.papers.models.uniter import UNITER
from counterfoil.papers.tags.generation import TagsGenerator
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import Recipe, Train, stage_digests
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.pipelines.stages.fitting import build_for_training
from counterfoil.pipelines.state import RunContext
from counterfoil.recipes.catalogue import all_recipes, find_recipe
from recipes_cases import pixel_model, run
from uniter_cases import authors_state

DATA = "scenes:images=16,features=regions"
SIZES = {"layers": 1, "width": 64, "heads": 1, "inner": 16}
TINY = [f"*.model.{key}={value}" for key, value in SIZES.items()]
GENERATOR = [f"*.tagsgenerator.{key}=2" for key in ("masks", "refills")]
SMALL = [*TINY, "*.batch=4", "*.accumulate=1", "*.steps=2"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def bert(folder: Path) -> int:
    """A tokenizer of the words of the data, as BERT's are saved; returns its size."""
    texts = DataSource(DATA).open().texts
    words = sorted({word.strip(".,").lower() for text in texts for word in text.split()})
    vocabulary = {word: row for row, word in enumerate([*SPECIAL, *words, ".", ","])}
    model = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    model.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    transformers.BertTokenizerFast(tokenizer_object=model).save_pretrained(folder)
    transformers.BertConfig(vocab_size=len(vocabulary)).save_pretrained(folder)
    return len(vocabulary)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A UNITER of random weights, saved by the authors' names and converted."""
    here = tmp_path_factory.mktemp("uniter")
    features = DataSource(DATA).open().features
    assert features is not None
    torch.manual_seed(1)
    outputs = ("match", "fill", "regress", "classify")
    model = UNITER(
        **SIZES,
        vocabulary=bert(here / "bert"),
        features=features.width,
        classes=4,
        mask=SPECIAL.index("[MASK]"),
        outputs=outputs,
    )
    torch.save(authors_state(model.state_dict()), here / "uniter-base.pt")
    assert (
        run("papers", "convert", "uniter", here / "uniter-base.pt", here / "bert", here / "base")
        == 0
    )
    return here / "base"


def recipe(way: str, *settings: str) -> Recipe:
    found = apply_overrides(find_recipe("tags", way=way), [*settings, *SMALL, *GENERATOR])
    offers = [s.name for s in found.stages if isinstance(s, Train) and s.source(TopScoringMiner)]
    less = [
        f"{one}.topscoringminer.candidates.{key}=6" for one in offers for key in ("texts", "images")
    ]
    return apply_overrides(found, less)


def training(found: Recipe, name: str) -> Train:
    stage = found.stage(name)
    assert isinstance(stage, Train)
    return stage


def names(found: Recipe) -> list[str]:
    return [stage.name for stage in found.stages]


def test_the_walk_trains_from_the_converted_weights(converted: Path, tmp_path: Path) -> None:
    walk = recipe("tags", f"hard.start={converted}", f"tags.start={converted}")
    assert names(walk)[:2] == ["hard", "tags"]  # nothing reads a pre-training
    stage = training(walk, "tags")
    context = RunContext(walk, DataSource(DATA).open(), tmp_path, {})
    first = build_for_training(context, stage).model.state_dict()
    before = load_file(converted / "model.safetensors")
    assert len(first) > 20
    for key, value in first.items():
        assert torch.equal(value.cpu(), before[key]), key
    whole = replace(walk, stages=walk.stages[1:2])
    assert run_pipeline(whole, DataSource(DATA), tmp_path)
    after = load_file(tmp_path / "tags" / "model" / "model.safetensors")
    assert any(not torch.equal(after[key], before[key]) for key in after)
    tokenizer = tmp_path / "tags" / "model" / "pieces"
    assert sorted(p.name for p in tokenizer.iterdir()) == sorted(
        p.name for p in (converted / "pieces").iterdir()
    )


def test_the_second_step_begins_with_a_model_of_the_first() -> None:
    """Neither the pre-training nor the first step is done again."""
    found = find_recipe("tags-dc", like="flickr30k")
    assert names(found) == [
        *("pretrained", "tags", "tags-dc", "test-tags", "test-tags-dc", "report")
    ]
    assert names(apply_overrides(found, ["tags-dc.start=./m"])) == ["tags-dc", "test-tags-dc"]
    first = apply_overrides(found, ["tags.start=./m"])
    assert names(first) == names(found)[1:]
    both = apply_overrides(found, ["tags.start=./m", "tags-dc.start=./n"])
    assert names(both) == ["tags-dc", "test-tags-dc"]


def test_a_row_of_a_comparison_stays() -> None:
    static = recipe("static", "static.start=./m")
    assert {"pretrained", "tags", "test-tags", "report"} < set(names(static))


def test_a_filler_by_folder_generates(converted: Path, tmp_path: Path) -> None:
    settings = [f"{name}.start={converted}" for name in ("tags", "static")]
    static = recipe("static", *settings, f"static.tagsgenerator.filler={converted}")
    assert "pretrained" not in names(static)
    one = replace(static, stages=tuple(s for s in static.stages if s.name == "static"))
    assert run_pipeline(one, DataSource(DATA), tmp_path)
    assert (tmp_path / "static" / "model" / "model.json").is_file()


def test_other_weights_are_another_stage_and_another_folder_is_not(
    converted: Path, tmp_path: Path
) -> None:
    copy, other = tmp_path / "copy", tmp_path / "other"
    for folder in (copy, other):
        folder.mkdir()
        for file in converted.iterdir():
            if file.is_file():
                (folder / file.name).write_bytes(file.read_bytes())
            else:
                (folder / file.name).mkdir()
                for inner in file.iterdir():
                    (folder / file.name / inner.name).write_bytes(inner.read_bytes())
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    for key in ("tags.start", "static.tagsgenerator.filler"):
        one, same, changed = (
            stage_digests(recipe("static", f"{key}={folder}"), "d")[key.partition(".")[0]]
            for folder in (converted, copy, other)
        )
        assert one == same != changed


def test_the_plan_names_the_folder(converted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", "tags", "--like", "flickr30k", "--set", "tags.start=./uniter-base") == 0
    printed = capsys.readouterr().out
    assert "start: ./uniter-base" in printed
    assert "start: pretrained" in printed  # of "hard"


def test_an_unknown_name_is_refused_with_both_possibilities() -> None:
    wanted = (
        r"'tags' reads 'uniter', which no earlier stage writes; name an earlier stage "
        r"\(aligned, pretrained, hard\), or a model folder, as in './uniter', or a hub name"
    )
    with pytest.raises(ValueError, match=wanted):
        recipe("tags", "tags.start=uniter")
    with pytest.raises(ValueError, match=r"'uniter' is not a stage of this recipe.* ./uniter"):
        recipe("tags", "tags.tagsgenerator.filler=uniter")


@pytest.mark.parametrize("key", ["tags.start", "static.tagsgenerator.filler"])
def test_a_model_that_does_not_fit_is_refused_before_anything_is_done(
    key: str, converted: Path, tmp_path: Path
) -> None:
    gone = recipe("static", f"{key}=./gone")
    with pytest.raises(
        ValueError,
        match=r"'./gone', which is neither a stage of tags.* nor a mod|gone cannot be loaded",
    ):
        run_pipeline(gone, DataSource(DATA), tmp_path / "run")
    pixel_model(tmp_path / "vsepp")
    another = recipe("static", f"{key}={tmp_path / 'vsepp'}")
    wanted = r"which is another model|does not read words"
    with pytest.raises(ValueError, match=wanted):
        run_pipeline(another, DataSource(DATA), tmp_path / "run")
    assert not (tmp_path / "run").exists() or not any((tmp_path / "run").iterdir())


def test_the_tuned_static_writer_learns_words_and_ranks_nothing_generated(tmp_path: Path) -> None:
    found = find_recipe("tags", like="flickr30k", way="static-tuned")
    static, writer, tags = (training(found, name) for name in ("static", "writer", "tags"))
    assert (static.start, writer.start) == ("pretrained", "pretrained")
    assert static.source(TagsGenerator).arguments["filler"] == from_stage("writer")
    assert (static.objective, static.plan) == (tags.objective, tags.plan)
    terms = tags.objective.arguments["terms"]
    assert writer.objective.arguments["terms"] == {k: terms[k] for k in terms if k != "written"}
    small = recipe("static-tuned", "*.epochs=1")
    small = replace(small, stages=tuple(s for s in small.stages if s.kind in ("train", "pretrain")))
    assert run_pipeline(small, DataSource(DATA), tmp_path)
    assert (tmp_path / "static" / "model" / "model.json").is_file()


def test_coco_is_measured_on_a_sample_of_dev_while_training() -> None:
    for dataset, sample in (("coco", 1000), ("flickr30k", 0)):
        for found in all_recipes(model="uniter", like=dataset):
            for stage in found.stages:
                if isinstance(stage, Train):
                    assert stage.plan.dev_images == sample, found.name
