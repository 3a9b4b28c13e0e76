from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from counterfoil.core.config import Config, config, from_data
from counterfoil.data.processor import FeatureProcessor, Processor
from counterfoil.data.tokenizers import SPECIAL, WordTokenizer
from counterfoil.papers.models.uniter import UNITER
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import stage_digests
from counterfoil.pipelines.run import DataSource
from counterfoil.pipelines.stages.fitting import build_for_training
from counterfoil.pipelines.stages.train import check_word_vectors
from counterfoil.pipelines.state import RunContext
from counterfoil.recipes.catalogue import find_recipe
from counterfoil.saved import save_model
from recipes_cases import SMALL, run

LENS = Processor(FeatureProcessor(6), WordTokenizer([*SPECIAL, "a", "dog"]))
VECTORS = ["a 1 2 3 4 5 6 7 8", "red 8 7 6 5 4 3 2 1", "house 0 0 0 0 0 0 0 0"]


@pytest.fixture
def vectors(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("\n".join(VECTORS))
    return path


def begin(*settings: str, change=None):
    recipe = apply_overrides(find_recipe("online"), [*SMALL[1::2], *settings])
    stage = recipe.stages[0]
    stage = change(stage) if change else stage
    dataset = DataSource("scenes:images=30").open()
    vectors = Path(stage.word_vectors) if stage.word_vectors else None
    return stage, build_for_training(RunContext(recipe, dataset, None, {}), stage, vectors)


def test_words_begin_with_their_vectors_and_the_others_at_random(vectors):
    stage, model = begin("online.model.text.word_width=8", f"online.word_vectors={vectors}")
    check_word_vectors(stage)
    weight, words = model.model.text.embed.weight, model.processor.tokenizer.words
    assert weight[words.index("red")].tolist() == [8, 7, 6, 5, 4, 3, 2, 1]
    rest = [row for row, word in enumerate(words) if word not in ("a", "red")]
    assert weight[rest].std().item() == pytest.approx(1, abs=0.1)
    assert "glove" not in str(model.spec.to_dict())
    again = begin("online.model.text.word_width=8", f"online.word_vectors={vectors}")[1]
    assert torch.equal(again.model.text.embed.weight, weight)


def test_a_run_without_word_vectors_keeps_its_digest(vectors):
    recipe = find_recipe("online")
    given = apply_overrides(recipe, [f"online.word_vectors={vectors}"])
    assert stage_digests(given, "d")["online"] != stage_digests(recipe, "d")["online"]
    same = replace(recipe.stages[0], word_vectors=None)
    assert stage_digests(replace(recipe, stages=(same, *recipe.stages[1:])), "d") == stage_digests(
        recipe, "d"
    )


def test_vectors_of_another_width_are_refused(vectors):
    with pytest.raises(ValueError, match=r"word vectors of 8 numbers do not fit .* of 5"):
        begin("online.model.text.word_width=5", f"online.word_vectors={vectors}")


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"word_vectors": "absent.txt"}, r"absent.txt is no file; set online.word_vectors to"),
        ({"start": "before"}, r"'online' starts from 'before' and keeps its word embeddings; set"),
        ({"processor": "bert"}, r"'online' reads texts with 'bert' and has no vocabulary of words"),
    ],
)
def test_word_vectors_that_nothing_would_read(vectors, changes, sentence):
    stage = replace(find_recipe("online").stages[0], word_vectors=str(vectors))
    if "processor" in changes:
        changes = {"processor": replace(stage.processor, texts=changes["processor"])}
    with pytest.raises(ValueError, match=sentence):
        check_word_vectors(replace(stage, **changes))


def test_a_missing_file_is_refused_before_anything_is_done(tmp_path, capsys):
    words = ("online", "--data", "scenes:images=30", "--set", "online.word_vectors=gone.txt")
    assert run("run", *words, "--output", tmp_path / "run") == 2
    assert "gone.txt is no file" in " ".join(capsys.readouterr().err.split())


def test_pretrained_weights_are_loaded_to_begin_and_not_to_open():
    def change(stage):
        bidirectional = stage.model.arguments["text"].replace(bidirectional=from_data("pretrained"))
        return replace(stage, model=stage.model.replace(text=bidirectional))

    _, model = begin(change=change)
    assert model.model.text.rnn.bidirectional
    assert model.spec.arguments["text"].arguments["bidirectional"] is False


def uniter(*outputs: str) -> Config:
    sizes = {"layers": 1, "width": 8, "heads": 2, "inner": 8, "vocabulary": 30}
    return config(UNITER, features=6, outputs=outputs, **sizes)


def test_a_model_begins_from_one_with_other_heads(tmp_path):
    before = uniter("match", "fill").build()
    save_model(tmp_path / "before", spec=uniter("match", "fill"), model=before, processor=LENS)
    recipe = find_recipe("online")
    stage = replace(recipe.stages[0], start="before", model=uniter("rank", "doubt"))
    context = RunContext(recipe, DataSource("scenes:images=30").open(), tmp_path, {})
    after = build_for_training(context, stage).model
    assert torch.equal(after.says.rank.weight, before.says.match.weight[1:])
    assert torch.equal(after.says.doubt.weight, before.says.match.weight)
    assert torch.equal(after.body.layers[0].enter.weight, before.body.layers[0].enter.weight)
    deeper = replace(stage, model=uniter("rank").replace(layers=2))
    with pytest.raises(ValueError, match=r"starts from 'before', which is another model: .*layers"):
        build_for_training(context, deeper)
