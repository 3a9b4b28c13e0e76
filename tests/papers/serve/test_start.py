from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

import explain_cases
import recipes_cases
from counterfoil.cli import main
from counterfoil.pipelines.run import DataSource
from counterfoil.serve.app import application
from counterfoil.serve.run import serve
from counterfoil.serve.service import SearchService
from counterfoil.serve.settings import ServerSettings
from serve_cases import indexed

FREE = ServerSettings(port=0)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = indexed(tmp_path_factory.mktemp("start"), 5)
    recipes_cases.feature_model(root / "regions")
    explain_cases.saved(root / "explainer")
    return root


@pytest.fixture
def ran(monkeypatch) -> list[ServerSettings]:
    """Settings of the servers, which do not run."""
    found: list[ServerSettings] = []
    monkeypatch.setattr("counterfoil.serve.run.run", lambda _, allowed, __: found.append(allowed))
    return found


@pytest.fixture
def served_by(monkeypatch) -> list[SearchService]:
    """The search services of the servers."""
    found: list[SearchService] = []

    def noted(library, settings):
        found.append(library)
        return application(library, settings)

    monkeypatch.setattr("counterfoil.serve.app.application", noted)
    return found


def test_an_index_knows_its_model(root, ran, capsys):
    assert main(["serve", str(root / "index"), "--port", "0", "--seconds", "5"]) == 0
    assert ran == [ServerSettings(port=0, seconds=5)]
    told = " ".join(capsys.readouterr().out.split())
    assert "5 images and 1 captions" in told
    assert "captions: the scores of this model were never compared" in told
    assert "can search" not in told


def test_a_model_may_be_named(root, ran):
    assert main(["serve", str(root / "model"), str(root / "index"), "--port", "0"]) == 0
    assert len(ran) == 1


def test_the_key_may_come_from_the_environment(root, ran, monkeypatch, capsys):
    monkeypatch.setenv("COUNTERFOIL_KEY", "secret")
    assert main(["serve", str(root / "index"), "--port", "0", "--host", "0.0.0.0"]) == 0
    assert ran[0].key == "secret"
    told = capsys.readouterr().out
    assert "secret" not in told
    assert "can search" not in told


def test_the_key_may_come_from_a_file(root, ran, tmp_path, capsys):
    (tmp_path / "key").write_text("open sesame\n")
    words = ["serve", str(root / "index"), "--port", "0", "--key-file"]
    assert main([*words, str(tmp_path / "key")]) == 0
    assert ran[0].key == "open sesame"
    assert main([*words, str(tmp_path / "key"), "--key", "a"]) == 2
    assert "give one" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "none")]) == 2
    assert "cannot be read as an API key" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["variable", "file", "option"])
def test_an_empty_key_is_refused(root, ran, tmp_path, monkeypatch, capsys, place):
    """Otherwise a server that was to ask for a key serves anybody."""
    (tmp_path / "key").write_text("\n")
    words = {"file": ["--key-file", str(tmp_path / "key")], "option": ["--key", ""]}
    if place == "variable":
        monkeypatch.setenv("COUNTERFOIL_KEY", "")
    assert main(["serve", str(root / "index"), "--port", "0", *words.get(place, ())]) == 2
    assert "the API key is empty" in " ".join(capsys.readouterr().err.split())
    assert not ran


def test_public_server_without_a_key_warns(root, ran, capsys):
    serve(root / "index", settings=ServerSettings(host="0.0.0.0", port=0))
    assert "anyone who reaches 0.0.0.0 can search" in " ".join(capsys.readouterr().out.split())


def test_another_model_puts_results_in_order(root, ran, served_by, capsys):
    other = str(root / "model")
    words = ("--rerank", other, "--depth", "4", "--explainer", other, "--port", "0")
    assert main(["serve", str(root / "index"), *words]) == 0
    assert "model puts the first 4 results in order" in " ".join(capsys.readouterr().out.split())
    (library,) = served_by
    assert library.reranker.depth == 4
    assert library.explainer.model is library.reranker.model.model  # opened once


@pytest.mark.parametrize(
    "more, said",
    [
        ({"model": "regions"}, "is another model or was trained on since"),
        ({"model": "nowhere"}, "nowhere"),
        ({"explainer": "explainer"}, "reads stored features of images; name the data"),
        ({"explainer": "photos"}, "holds no model"),
        ({"rerank": "explainer"}, "reads stored features of images; name the data"),
        ({"rerank": "nowhere"}, "nowhere"),
    ],
)
def test_models_that_do_not_fit_are_refused(root, ran, more, said):
    given = {key: str(root / name) for key, name in more.items()}
    with pytest.raises(ValueError, match=said):
        serve(root / "index", settings=FREE, **given)
    assert not ran


def test_data_of_other_images_are_refused(root, ran):
    with pytest.raises(ValueError, match=r"none of the images of .* is in scenes"):
        serve(root / "index", settings=FREE, source=DataSource("scenes:images=36"))


def test_sigterm_while_models_are_opened_ends_well(root, ran, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(
        "counterfoil.serve.run.open_reranker", lambda *_: signal.raise_signal(signal.SIGTERM)
    )
    with pytest.raises(SystemExit) as ended:
        serve(root / "index", settings=FREE)
    assert ended.value.code == 0
    assert signal.getsignal(signal.SIGTERM) is before
    assert not ran


def test_missing_library_is_named(root, ran, monkeypatch):
    monkeypatch.setitem(sys.modules, "python_multipart", None)
    with pytest.raises(
        ValueError,
        match=r'serving needs python_multipart; install it: pip install "counterfoil\[web\]"',
    ):
        serve(root / "index", settings=FREE)
