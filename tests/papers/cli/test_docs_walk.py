"""Every command of the documentation, page by page, in a folder with 160 photos.

Photos are Flickr8k's where `COUNTERFOIL_DATA` is set, else rendered. Public models are tiny random
ones in folders of the same names. Commands run as written, but recipes get `--smoke`, of five
steps, trainings that do not say their epochs one, samples are of ten, and rendered scenes are 160.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

import docs_walk_cases
from counterfoil.cli import main
from counterfoil.recipes import catalogue

ROOT = Path(__file__).parents[3]
GUIDES = (
    "README.md",
    "docs/fine-tune.md",
    "docs/search.md",
    "docs/negatives.md",
    "docs/data.md",
    "docs/embedders.md",
    "docs/explain.md",
    "docs/extending.md",
    "docs/generated.md",
    "docs/quickstart.md",
    "docs/recipes.md",
    "skills/counterfoil/SKILL.md",
)
STUDIES = (
    "docs/analyses.md",
    "docs/foils.md",
    "docs/protocols.md",
    "docs/papers/aoq.md",
    "docs/papers/compared.md",
    "docs/papers/ndgl.md",
    "docs/papers/tags.md",
    "docs/results/false-negatives.md",
    "docs/results/search.md",
    "docs/ten-million.md",
)
PAGES = GUIDES + STUDIES
# beginnings of commands that are not run here, and why
ELSEWHERE = {
    "make": "the tests themselves",
    "counterfoil data check photos.csv --image-column": "tests/data/test_annotations.py",
    # a model of random weights finds nothing, and has no probabilities
    'counterfoil search my-index/ "a dog in the snow" --min-prob': "tests/search/test_calibrate.py",
    # an encoder with random weights takes all captions for alike
    "counterfoil mine runs/vsepp/online --data flickr8k/:features=flickr8k_regions/ --output "
    "lists-meanings/": "tests/negatives/test_filters.py",
    "pip": "installs",
    "python -m pytest": "the tests themselves",
    "python -m benchmarks": "hours; tests/benchmarks runs them small",
    "torchrun": "tests/distributed",
    "counterfoil evaluate open_clip:": "tests/models/test_open_clip.py",
    "counterfoil train contrastive --model open_clip:": "tests/models/test_open_clip.py",
    "counterfoil train contrastive --model timm:": "timm and its weights",
    "counterfoil train contrastive --model openai/clip-vit-base-patch32 --data mine.jsonl": "foils "
    "of one's own; tests/training/test_foils.py",
    "counterfoil evaluate openai/clip-vit-base-patch32 --data coco/": "all of COCO",
    "counterfoil features trainval_": "tests/papers/cli/test_features.py",
    "counterfoil features img_db/": "tests/papers/cli/test_features.py",
    "counterfoil train scan-t2i --data dataset_coco.json": "tests/papers/cli/test_features.py",
    "counterfoil index runs/mine my-photos/ --output my-index/ --backend": "a server",
    "counterfoil index my-embedder/ my-photos/ --output my-index/ --backend milvus": "a server",
    "bash standalone_embed.sh": "a server",
    "counterfoil serve my-index/ --explainer": "tests/serve/test_app.py",
    "counterfoil serve flickr8k-index/ --rerank": "tests/serve/test_service.py",
    "counterfoil evaluate runs/vsepp/online --data flickr8k/ --truth judged": "people's answers; "
    "tests/evaluation/test_truth.py",
    "counterfoil negatives filter lists/": "people's answers; tests/cli/test_guarantee.py",
    "counterfoil evaluate runs/tags/tags --first": "tests/papers/cli/test_verbs.py",
    "counterfoil run tags": "tests/papers/pipelines/test_run.py",
    "counterfoil papers convert uniter": "tests/papers/models/test_uniter_names.py",
    "counterfoil plan tags --like flickr30k --set hard.start": "converted weights",
    "counterfoil papers convert lightningdot": "tests/papers/models/test_lightningdot.py",
    "counterfoil run online --model lightningdot": "converted weights",
    "counterfoil run cascade --model lightningdot": "converted weights",
    "counterfoil papers convert ernievil": "tests/papers/models/test_ernievil.py",
    "counterfoil run online --model ernievil": "converted weights",
    "counterfoil papers convert cgmn": "tests/papers/models/test_conversion.py",
    "counterfoil evaluate models/cgmn": "converted weights",
    "counterfoil papers write tags runs/tags/uniter-flickr30k": "tests/papers/cli/test_features.py",
    "counterfoil papers analyse curves": "tests/papers/cli/test_analyse_runs.py",
    "counterfoil papers analyse true-rate --crowd": "tests/papers/cli/test_analyse_sheet.py",
    "counterfoil papers analyse true-rate tags/": "people's answers; see --crowd",
}
# trainings of models or data of full size: only their plan is made
PLANNED = ("tags-dc/vilt", "tags/vilt", "flickr8k_precomp")
SIZES = {"images", "dev", "test"}


def commands(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def recipe_file(page: str) -> str | None:
    """The page's example of a recipe in a file."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return next((block for block in blocks if "\nrecipe = " in block), None)


def elsewhere(line: str) -> bool:
    """True for the commands of `ELSEWHERE` and for recipes of whole published data sets."""
    whole = re.match(r"counterfoil run (patches|.* --like (flickr8k|flickr30k|coco)\b)", line)
    return whole is not None or any(line.startswith(begin) for begin in ELSEWHERE)


def outputs(lines: list[str]) -> set[str]:
    """What the page makes itself; `index --output` without a model changes what is there."""
    making = [line for line in lines if not line.startswith("counterfoil index --output")]
    named = {place for line in making for place in re.findall(r"--output (\S+)", line)}
    features = {shlex.split(line)[3] for line in lines if line.startswith("counterfoil features")}
    return {place.rstrip("/") for place in named | features}


def fewer_scenes(word: str) -> str:
    """The same word; a name of rendered scenes says that there are 160."""
    kind, _, options = word.partition(":")
    if kind != "scenes":
        return word
    kept = [one for one in options.split(",") if "=" in one and one.split("=")[0] not in SIZES]
    return f"scenes:{','.join(['images=160', *kept])}"


def small(words: list[str]) -> list[str]:
    """The words of a command so that it takes seconds."""
    words = [fewer_scenes(word) for word in words]
    if words[0] == "run":
        data = [] if "--data" in words else ["--data", "scenes:images=160,features=regions"]
        words += data + ["--smoke"] * ("--smoke" not in words)
    if "--count" in words:  # of a sample of pictures
        words[words.index("--count") + 1] = "10"
    if words[0] == "train":
        planned = any(word.startswith(PLANNED) for word in words)
        said = any("epochs" in word for word in words)
        words += ["--plan"] if planned else [] if said else ["--epochs", "1"]
    return words


def serve(words: list[str], picture: Path) -> None:
    """Start the server, open its page, search with a picture, stop it."""
    command = [sys.executable, "-m", "counterfoil.cli", *words, "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        try:
            assert running.stdout is not None
            printed = ""
            while not (address := re.search(r"http://127\.0\.0\.1:[1-9]\d*", printed)):
                line = running.stdout.readline()
                assert line, printed
                printed += line
            form = (
                b'--x\r\nContent-Disposition: form-data; name="picture"; filename="new.jpg"\r\n'
                b"Content-Type: image/jpeg\r\n\r\n" + picture.read_bytes() + b"\r\n--x--\r\n"
            )
            kind = {"Content-Type": "multipart/form-data; boundary=x"}
            with urlopen(Request(f"{address[0]}/search", form, kind), timeout=300) as answer:
                assert json.loads(answer.read())["results"]
            with urlopen(address[0], timeout=300) as page:
                assert "<html" in page.read().decode()
        finally:
            running.terminate()


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Iterator[Path]:
    """The folder that every page starts with."""
    folder = tmp_path_factory.mktemp("docs") / "world"
    folder.mkdir()
    docs_walk_cases.write_all(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "SMOKE_STEPS", 5)
        with chdir(folder):
            for made, line in docs_walk_cases.MADE.items():
                assert main(small(shlex.split(line))) == 0, line
                assert Path(made).exists(), line
        yield folder


def start(world: Path, page: Path, own: set[str]) -> None:
    """Link the world into the folder of a page, but for what the page makes itself."""
    (page / "runs").mkdir(parents=True)
    for entry in (*world.iterdir(), *(world / "runs").iterdir()):
        name = entry.relative_to(world)
        if str(name) == "my-photos":  # commands write beside the photos
            shutil.copytree(entry, page / name, copy_function=os.link)
        elif str(name) != "runs" and str(name) not in own:
            (page / name).symlink_to(entry)


# Pages take minutes, and `--dist loadscope` gives each class to a worker as a whole.


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
class TestGuides:
    @pytest.mark.parametrize("page", GUIDES, ids=lambda page: Path(page).stem)
    def test_every_command_works(self, page, world, tmp_path, monkeypatch, capsys):
        check_page(page, world, tmp_path / "here", monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
class TestStudies:
    @pytest.mark.parametrize("page", STUDIES, ids=lambda page: Path(page).stem)
    def test_every_command_works(self, page, world, tmp_path, monkeypatch, capsys):
        check_page(page, world, tmp_path / "here", monkeypatch, capsys)


def check_page(page: str, world: Path, folder: Path, monkeypatch, capsys) -> None:
    """Run the page's commands in a folder of their own."""
    pytest.importorskip("fastapi")
    lines = [line for line in commands(page) if not elsewhere(line)]
    start(world, folder, outputs(lines))
    if (recipe := recipe_file(page)) is not None:
        (folder / "mine.py").write_text(recipe)
    monkeypatch.chdir(folder)
    for line in docs_walk_cases.BEFORE.get(page, ()):
        assert main(shlex.split(line)) == 0, line
    failed = []
    for line in (part for line in lines for part in line.split(" && ")):
        words = shlex.split(line)[1:]
        if words[0] == "serve":
            serve(words, folder / "beach.jpg")
            continue
        code, shown = main(small(words)), capsys.readouterr()
        if code:
            failed.append(f"{line}\n    {code}: {shown.err.strip().splitlines()[-1]}")
    assert not failed, "\n".join(failed)


def test_exclusions_are_those_of_the_pages():
    lines = [line for page in PAGES for line in commands(page)]
    assert len(lines) > 100
    for begin in ELSEWHERE:
        assert any(line.startswith(begin) for line in lines), begin
