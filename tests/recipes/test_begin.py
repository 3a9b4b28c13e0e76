from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from counterfoil.corpus.lens import FeatureEye, Lens
from counterfoil.corpus.words import SPECIAL, Words
from counterfoil.models.uniter import UNITER
from counterfoil.recipes import catalogue
from counterfoil.recipes.begin import begun, check_word_vectors
from counterfoil.recipes.context import Context
from counterfoil.recipes.recipe import digests
from counterfoil.recipes.run import Source
from counterfoil.recipes.settings import apply
from counterfoil.spec import Spec, late, of
from counterfoil.train.saved import save_model
from recipes_cases import SMALL, run

LENS = Lens(FeatureEye(6), Words([*SPECIAL, "a", "dog"]))
VECTORS = ["a 1 2 3 4 5 6 7 8", "red 8 7 6 5 4 3 2 1", "house 0 0 0 0 0 0 0 0"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def vectors(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("\n".join(VECTORS))
    return path


def begin(*settings: str, change=None):
    recipe = apply(catalogue.find("vsepp-scenes"), [*SMALL[1::2], *settings])
    stage = recipe.stages[0]
    stage = change(stage) if change else stage
    corpus = Source("scenes:images=30").open()
    return stage, begun(Context(recipe, corpus, None, {}), stage)


def test_words_begin_with_their_vectors_and_the_others_at_random(vectors):
    stage, model = begin("online.model.text.word_width=8", f"online.word_vectors={vectors}")
    check_word_vectors(stage)
    weight, words = model.matcher.text.embed.weight, model.lens.tokenizer.words
    assert weight[words.index("red")].tolist() == [8, 7, 6, 5, 4, 3, 2, 1]
    rest = [row for row, word in enumerate(words) if word not in ("a", "red")]
    assert weight[rest].std().item() == pytest.approx(1, abs=0.1)
    assert "glove" not in str(model.spec.plain())
    again = begin("online.model.text.word_width=8", f"online.word_vectors={vectors}")[1]
    assert torch.equal(again.matcher.text.embed.weight, weight)


def test_a_run_without_word_vectors_keeps_its_digest(vectors):
    recipe = catalogue.find("vsepp-scenes")
    given = apply(recipe, [f"online.word_vectors={vectors}"])
    assert digests(given, "d")["online"] != digests(recipe, "d")["online"]
    same = replace(recipe.stages[0], word_vectors=None)
    assert digests(replace(recipe, stages=(same, *recipe.stages[1:])), "d") == digests(recipe, "d")


def test_vectors_of_another_width_are_refused(vectors):
    with pytest.raises(ValueError, match=r"word vectors of 8 numbers do not fit .* of 5"):
        begin("online.model.text.word_width=5", f"online.word_vectors={vectors}")


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"word_vectors": "absent.txt"}, r"absent.txt is no file; set online.word_vectors to"),
        ({"start": "before"}, r"'online' starts from 'before' and keeps its word embeddings; set"),
        ({"lens": "bert"}, r"'online' reads texts with 'bert' and has no vocabulary of words"),
    ],
)
def test_word_vectors_that_nothing_would_read(vectors, changes, sentence):
    stage = replace(catalogue.find("vsepp-scenes").stages[0], word_vectors=str(vectors))
    if "lens" in changes:
        changes = {"lens": replace(stage.lens, texts=changes["lens"])}
    with pytest.raises(ValueError, match=sentence):
        check_word_vectors(replace(stage, **changes))


def test_a_missing_file_is_refused_before_anything_is_done(tmp_path, capsys):
    words = ("vsepp-scenes", "--data", "scenes:images=30", "--set", "online.word_vectors=gone.txt")
    assert run("run", *words, "--folder", tmp_path / "run") == 2
    assert "gone.txt is no file" in " ".join(capsys.readouterr().err.split())


def test_pretrained_weights_are_loaded_to_begin_and_not_to_open():
    def change(stage):
        bidirectional = stage.model.arguments["text"].but(bidirectional=late("pretrained"))
        return replace(stage, model=stage.model.but(text=bidirectional))

    _, model = begin(change=change)
    assert model.matcher.text.rnn.bidirectional
    assert model.spec.arguments["text"].arguments["bidirectional"] is False


def uniter(*outputs: str) -> Spec:
    sizes = {"layers": 1, "width": 8, "heads": 2, "inner": 8, "vocabulary": 30}
    return of(UNITER, features=6, outputs=outputs, **sizes)


def test_a_model_begins_from_one_with_other_heads(tmp_path):
    before = uniter("match", "fill").build()
    save_model(tmp_path / "before", spec=uniter("match", "fill"), matcher=before, lens=LENS)
    recipe = catalogue.find("vsepp-scenes")
    stage = replace(recipe.stages[0], start="before", model=uniter("rank", "doubt"))
    context = Context(recipe, Source("scenes:images=30").open(), tmp_path, {})
    after = begun(context, stage).matcher
    assert torch.equal(after.says.rank.weight, before.says.match.weight[1:])
    assert torch.equal(after.says.doubt.weight, before.says.match.weight)
    assert torch.equal(after.body.layers[0].enter.weight, before.body.layers[0].enter.weight)
    deeper = replace(stage, model=uniter("rank").but(layers=2))
    with pytest.raises(ValueError, match=r"starts from 'before', which is another model: .*layers"):
        begun(context, deeper)
