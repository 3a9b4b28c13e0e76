"""Mistakes of newcomers: folders, commands and calls, and the sentence that each gets.

Pictures are rendered scenes.
"""

import io
import json
import pkgutil
import re
import shlex
import shutil
import signal
import socket
import sys
import tarfile
from functools import cache
from pathlib import Path
from string import Template

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import counterfoil as cf
import recipes_cases
from counterfoil.data.readers import load_dataset
from page_cases import drop, search, until
from serve_cases import running

NAMES = [f"p{number}.png" for number in range(12)]
FINE = "This data set can be trained on."


@cache
def scene(row):
    return load_dataset("scenes:images=12").pictures.open(row % 12)


def pictures(folder, names=NAMES):
    for row, name in enumerate(names):
        (folder / name).parent.mkdir(exist_ok=True)
        scene(row).save(folder / name)


def table(folder, head="image,caption", names=NAMES, *, encoding="utf-8", captions=None):
    """Pictures and a table of captions, separated as its head is."""
    if not any(folder.iterdir()):
        pictures(folder)
    separator = next(mark for mark in ",;\t" if mark in head)
    captions = captions or [f"a dog {row}" for row in range(len(names))]
    lines = [head, *(separator.join(pair) for pair in zip(names, captions))]
    (folder / "captions.csv").write_text("\n".join(lines), encoding=encoding)


def image_folder(folder):
    pictures(folder)
    lines = [json.dumps({"file_name": name, "text": "a dog"}) for name in NAMES]
    (folder / "metadata.jsonl").write_text("\n".join(lines))


def shard(folder):
    pictures(folder)
    with tarfile.open(folder / "00000.tar", "w") as tar:
        for row, name in enumerate(NAMES):
            tar.add(folder / name, f"{row:05}.png")
            (folder / name).unlink()
            entry = tarfile.TarInfo(f"{row:05}.txt")
            entry.size = len(b"a dog")
            tar.addfile(entry, io.BytesIO(b"a dog"))


def parquet(folder):
    pictures(folder)
    rows = [{"bytes": (folder / name).read_bytes(), "path": name} for name in NAMES]
    for name in NAMES:
        (folder / name).unlink()
    pd.DataFrame({"image": rows, "caption": ["a dog"] * len(rows)}).to_parquet(
        folder / "train.parquet"
    )


def saved(folder):
    """As `save_to_disk` of datasets writes it."""
    import datasets

    rows = {"image": [scene(row) for row in range(12)], "caption": ["a dog"] * 12}
    features = datasets.Features({"image": datasets.Image(), "caption": datasets.Value("string")})
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(folder)


def img2dataset(folder):
    pictures(folder)
    for name in NAMES:
        (folder / name).with_suffix(".txt").write_text("a dog")
        (folder / name).with_suffix(".json").write_text('{"caption": "a dog", "url": "x"}')


def subfolder(folder):
    pictures(folder, [f"images/{name}" for name in NAMES])
    table(folder)


MODES = {
    "RGBA": "png", "CMYK": "jpg", "P": "gif", "L": "png", "LA": "png", "1": "png", "RGB": "webp",
    "YCbCr": "tiff", "HSV": "bmp", "I;16": "png",
}  # fmt: skip


def modes(folder):
    names = [f"q{row}.{ending}" for row, ending in enumerate(MODES.values())]
    for row, (mode, name) in enumerate(zip(MODES, names)):
        if mode == "I;16":
            picture = Image.fromarray(np.array(scene(row).convert("L")).astype(np.uint16) * 256)
        else:
            picture = scene(row).convert("RGB" if mode == "HSV" else mode)
        picture.save(folder / name)
    table(folder, names=names)


def exif(folder, block=None):
    """Pictures with an EXIF block: a rotation, or this one."""
    names = [name.replace("png", "jpg") for name in NAMES]
    for row, name in enumerate(names):
        turned = scene(row).getexif()
        turned[0x112] = 6
        scene(row).save(folder / name, exif=turned if block is None else block)
    table(folder, names=names)


def huge(folder):
    """A JPEG of 196 megapixels."""
    Image.new("L", (14_000, 14_000), 200).save(folder / "huge.jpg", quality=10)
    pictures(folder)
    table(folder, names=[*NAMES, "huge.jpg"])


def split_folders(folder):
    for split in ("train", "val", "test"):
        pictures(folder, [f"{split}/{name}" for name in NAMES[:4]])
        for name in NAMES[:4]:
            (folder / split / name).with_suffix(".txt").write_text("a dog")


def broken(folder):
    table(folder)
    whole = (folder / NAMES[0]).read_bytes()
    (folder / NAMES[3]).write_bytes(b"not a picture")
    (folder / NAMES[4]).write_bytes(whole[: len(whole) // 2])
    (folder / NAMES[5]).write_bytes(b"")


def phone(folder):
    table(folder, names=[*NAMES, "z.heic"])
    (folder / "z.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(5000))


def two_tables(folder):
    table(folder)
    (folder / "captions.jsonl").write_text('{"image": "p0.png", "caption": "x"}\n')


def no_header(folder):
    pictures(folder)
    (folder / "captions.csv").write_text("p0,a dog\np1,a dog\n")


def truncated(folder):
    pictures(folder)
    (folder / "captions.jsonl").write_text('{"image": "p0.png", "caption": "a d')


def one_photo(folder):
    pictures(folder, NAMES[:1])
    table(folder, names=NAMES[:1])


SPLITS = "train │ 4 │ 4 │ 0 │"
READ = {
    "filename and text": (lambda folder: table(folder, "filename,text"), ()),
    "file_name": (lambda folder: table(folder, "file_name,caption"), ()),
    "filepath and title": (lambda folder: table(folder, "filepath,title"), ()),
    "semicolons": (lambda folder: table(folder, "image;caption"), ()),
    "tabs": (lambda folder: table(folder, "image\tcaption"), ()),
    "byte order mark": (lambda folder: table(folder, encoding="utf-8-sig"), ()),
    "cp1252": (
        lambda folder: table(folder, encoding="cp1252", captions=["ein Hündchen"] * 12),
        ("is not UTF-8 and was read as cp1252; save it as UTF-8 if letters look wrong",),
    ),
    "lists in cells": (
        lambda folder: table(folder, "image,captions", captions=['"[""a dog"", ""a cat""]"'] * 12),
        ("captions per image 2 (12 images)", "2 captions in more than one split"),
    ),
    "imagefolder": (image_folder, ()),
    "save_to_disk": (saved, ()),
    "webdataset": (shard, ()),
    "files of img2dataset": (img2dataset, ("captions per image 1 (12 images)",)),
    "parquet": (parquet, ()),
    "pictures in a subfolder": (subfolder, ()),
    "folders of splits": (split_folders, (SPLITS, SPLITS.replace("train", "dev"))),
    "a column of splits": (
        lambda folder: table(
            folder,
            "image,caption,split",
            captions=[f"a dog,{('train', 'val', 'valid')[row % 3]}" for row in range(12)],
        ),
        (SPLITS, "dev │ 8 │ 8 │ 0 │", "there is no test split"),
    ),
    "absolute paths": (lambda folder: table(folder, names=[str(folder / n) for n in NAMES]), ()),
    "twelve photos": (
        table,
        ("with fewer than 100, differences between models are mostly chance",),
    ),
    "an empty caption": (
        lambda folder: table(folder, captions=["a dog", "", *["a dog"] * 10]),
        ("rows without a caption", "1 image without a caption"),
    ),
    "letters of other alphabets": (
        lambda folder: (
            pictures(folder, [f"été 雪 {name}" for name in NAMES]),
            table(folder, names=[f"été 雪 {name}" for name in NAMES], captions=["雪 ö"] * 12),
        ),
        (),
    ),
    "modes of pictures": (modes, ()),
    "rotated by EXIF": (exif, ()),
    "a broken EXIF block": (lambda folder: exif(folder, b"Exif\0\0MM\0*\xff\xff\xff\xff"), ()),
}
REFUSED = {
    "missing pictures": (
        lambda folder: (
            pictures(folder),
            table(folder, names=[*NAMES, "ghost.png", "ghost2.png"]),
        ),
        ("2 pictures cannot be read", "ghost.png does not exist", "ghost2.png does not exist"),
    ),
    "one photo": (
        one_photo,
        ("one image cannot be learned from; a second one is needed as its negative",),
    ),
    "broken pictures": (
        broken,
        ("3 pictures cannot be read", ":unreadable=skip", NAMES[3], NAMES[4], NAMES[5]),
    ),
    "phone pictures": (phone, ('pip install "counterfoil[phone]", or convert it to JPEG',)),
    "two tables": (
        two_tables,
        ("holds captions.csv and captions.jsonl; give the path of the one",),
    ),
    "no header": (
        no_header,
        (
            "among its headings 'p0', 'a dog' is none for the images",
            "write a first line with one of",
        ),
    ),
    "truncated JSON": (truncated, ("line 1 is not JSON",)),
    "empty folder": (lambda folder: folder.mkdir(exist_ok=True), ("is no data set",)),
    "addresses": (
        lambda folder: table(folder, names=[f"https://example.com/{name}" for name in NAMES]),
        ("pictures are not fetched, download them first, for example with img2dataset",),
    ),
}


def answer(folder, capsys, code):
    capsys.readouterr()
    assert recipes_cases.run("data", "check", folder) == code
    shown = capsys.readouterr()
    return " ".join((shown.out + shown.err).split())


@pytest.mark.parametrize("case", READ)
def test_read(case, tmp_path, capsys):
    write, fragments = READ[case]
    folder = tmp_path / "photos"
    folder.mkdir()
    write(folder)
    said = answer(folder, capsys, 0)
    for fragment in ("This data set can be trained on.", *fragments):
        assert fragment in said


@pytest.mark.parametrize("case", REFUSED)
def test_answered_in_words(case, tmp_path, capsys):
    write, fragments = REFUSED[case]
    folder = tmp_path / "photos"
    folder.mkdir()
    write(folder)
    said = answer(folder, capsys, 2)
    for fragment in fragments:
        assert fragment in said


@pytest.mark.slow
def test_a_jpeg_of_196_megapixels_is_scaled_while_it_is_decoded(tmp_path, capsys):
    huge(tmp_path)
    assert "This data set can be trained on." in answer(tmp_path, capsys, 0)


def test_pictures_alone_are_indexed_and_audited(models, tmp_path, printed):
    folder = tmp_path / "photos"
    folder.mkdir()
    pictures(folder)
    assert "12 images and 0 captions" in printed(
        "index", models / "pixels", folder, "--output", tmp_path / "i"
    )
    assert "audit.html" in printed("audit", folder, "--output", tmp_path / "a")


# Commands: the line, its exit code, and parts of what it says.

SCENES = "--data scenes:images=36"
TYPO = "openai/clip-vit-bas-patch32"
UNKNOWN_MODEL = f"{TYPO} cannot be loaded as a Hugging Face model"
COMMANDS = {
    "evaluate $run/online": (2, "no data set is given; add --data with a folder, a file"),
    "search $run/online dog": (2, "no data set is given; add --data with a folder, a file"),
    "mine $run/online --output lists": (2, "no data set is given; add --data"),
    "train vsepp": (2, "no data set is given; add --data"),
    f"search $pixels dog {SCENES} --output found.html": (2, "found.html exists and is left alone"),
    f"train vsepp {SCENES} --negatives $run/lists --plan": (0, "select ← online, adaptive"),
    "plan aoq --set adaptive.mined.negatives=./lists": (0, "Mined(negatives='./lists'"),
    f"evaluate $run {SCENES}": (
        2,
        "run is a folder of several models; name one of them: $run/adaptive, $run/online",
    ),
    f"evaluate $run/onlin {SCENES}": (
        2,
        "onlin does not exist; did you mean $run/online? models in $run: ",
    ),
    "evaluate here/is/none --data $photos": (2, "here/is/none does not exist; give the folder"),
    "plan aoq/mobilenet": (2, "`counterfoil train aoq/mobilenet --data DATA --plan` shows them"),
    "plan contrastive": (2, "`counterfoil train contrastive --model MODEL --data DATA --plan`"),
    "run $run": (2, "run' is not a recipe; `counterfoil plan` lists them, and a file ends in .py"),
    f"run aoq {SCENES} --output $run --smoke": (
        2,
        "run/online was made with other settings: online.model.image.width is 16 there and",
    ),
    f"train vsepp {SCENES} --epochs 3 --lr 0.5 --batch-size 9 --device cpu --plan": (
        0,
        "epochs=3",
    ),
    "plan aoq --set tuned.lr=1": (2, "'tuned' is not a stage of aoq/vsepp-scenes"),
    "plan aoq --set online.lr=1": (2, "did you mean 'rate'?"),
    f"evaluate {TYPO} {SCENES}": (2, UNKNOWN_MODEL),
    f"search {TYPO} dog {SCENES}": (2, UNKNOWN_MODEL),
    f"train aoq --model {TYPO} {SCENES}": (2, UNKNOWN_MODEL),
    f"train gpo --tower {TYPO} {SCENES}": (2, UNKNOWN_MODEL),
    f"train aoq --model timm:resnet18+bert {SCENES}": (
        2,
        'needs timm: pip install "counterfoil[vision]"',
    ),
    "serve index --port $port": (
        2,
        "port $port of 127.0.0.1 cannot be listened at (Address already in use); name another",
    ),
    "index $clip $photos --output index": (2, "index exists and holds an index; --add adds to it"),
    "index $clip $photos --output index --add": (
        2,
        "index/model, and $clip is another model or was trained on since",
    ),
    f"mine $pixels {SCENES} --output $run/lists": (2, "lists exists and is left alone; name a new"),
    f"evaluate $pixels {SCENES} --split tset": (2, "did you mean 'test'?"),
    f"evaluate $pixels {SCENES} --split valid": (0, "scenes dev"),
    f"evaluate $pixels $clip {SCENES}": (0, "RSum"),
    f"report saved.json {SCENES}": (0, "saved.json/comparison.html"),
    "cache": (0, "pixels"),
}


@pytest.fixture(scope="module")
def desk(models, tmp_path_factory):
    """A working folder with photos, an index, a saved evaluation and a page; a port in use."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "photos").mkdir()
    table(folder / "photos")
    (folder / "found.html").write_text("x")
    pixels = models / "pixels"
    made = recipes_cases.run("index", pixels, folder / "photos", "--output", folder / "index")
    saved = ("--data", "scenes:images=36", "--output", folder / "saved.json")
    assert made == recipes_cases.run("evaluate", pixels, *saved) == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        names = {name: models / name for name in ("run", "pixels", "clip")}
        yield folder, names | {"photos": folder / "photos", "port": taken.getsockname()[1]}


@pytest.mark.parametrize("line", COMMANDS)
def test_commands(line, desk, monkeypatch, capsys):
    folder, names = desk
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, "timm", None)
    code, wanted = COMMANDS[line]
    capsys.readouterr()
    assert recipes_cases.run(*shlex.split(Template(line).substitute(names))) == code
    shown = capsys.readouterr()
    said = " ".join(shown.err.split() if code else shown.out.split())
    assert Template(wanted).substitute(names) in said
    assert not code or len(shown.err.splitlines()) <= 2, shown.err


# Python: a call, and what it returns or says.

PICTURE = np.zeros((8, 8, 3))
CALLS = {
    "a caption, not its letters": (lambda m, p: m.encode("dog").tokens.shape, (1, 1, 8)),
    "one vector of a caption": (lambda m, p: m.encode_texts("dog").shape, (1, 8)),
    "a path as a string": (lambda m, p: m.encode_images(str(p)).shape, (1, 8)),
    "a path and a caption": (lambda m, p: m.similarity(str(p), "dog").shape, (1, 1)),
    "one score": (lambda m, p: m.score(str(p), "dog").shape, (1,)),
    "an array": (lambda m, p: m.encode_images(PICTURE.astype(np.uint8)).shape, (1, 8)),
    "an array of floats": (
        lambda m, p: m.encode_images(PICTURE),
        r"shape \(8, 8, 3\) and type float64 is no image; give \(height, width, 3\) of uint8",
    ),
    "a picture as a text": (lambda m, p: m.encode_texts(p), "a text is a str, not .*Path"),
    "a text as a picture": (lambda m, p: m.encode_images("a dog"), "a dog does not exist; an im"),
    "nothing": (lambda m, p: m.encode([]), "nothing was given; give captions"),
    "words of an explanation": (
        lambda m, p: [word.text for word in cf.explain(m, p, "a dog in the snow").words],
        ["a", "dog", "in", "the", "snow"],
    ),
    "a model's text": (lambda m, p: len(repr(m).splitlines()), 4),
    "a loss of plain scores": (
        lambda m, p: cf.losses.HardestTripletLoss()(torch.randn(4, 4)).shape,
        (),
    ),
    "a loss that lacks negatives": (
        lambda m, p: cf.losses.AdaptiveQuintuplet()(torch.randn(4, 4)),
        "AdaptiveQuintuplet needs hard_text=, hard_image=, cross=, companion=",
    ),
    "a short name": (lambda m, p: cf.mine, "no attribute 'mine'; did you mean 'mine_hard_neg"),
    "the name of a data set": (
        lambda m, p: cf.evaluate(m, "photos/"),
        r"'photos/' is a name; write data = cf.load_dataset\('photos/'\), then data",
    ),
    "no data set": (lambda m, p: cf.load_dataset("phots"), "phots does not exist; give "),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls(case, models, tmp_path):
    scene(0).save(tmp_path / "p.png")
    call, wanted = CALLS[case]
    model = cf.load_model(models / "pixels")
    if isinstance(wanted, str):
        with pytest.raises((ValueError, TypeError, AttributeError), match=wanted):
            call(model, Path(tmp_path / "p.png"))
    else:
        assert call(model, Path(tmp_path / "p.png")) == wanted


# Ctrl-C: the line, the function at whose call it comes, its exit code, and how to go on.

AGAIN = "counterfoil: interrupted; nothing is left half-written, run the command again"
RESUMED = (
    "counterfoil: interrupted; run the command again with --resume, which keeps what is finished"
)
MINE = "counterfoil.pipelines.stages.mine"
DECIDE = "counterfoil.training.stopping.StopMonitor.decide"
INTERRUPTED = {
    "index $pixels $photos --output new": ("counterfoil.search.index.encode_images", 130, AGAIN),
    "index $pixels $more --output index --add": (
        "counterfoil.search.index.encode_images",
        130,
        AGAIN,
    ),
    "serve index --port 0": ("counterfoil.serve.service.index_stamp", 130, AGAIN),
    "search index dog": ("counterfoil.search.index.parse_query", 130, AGAIN),
    f"mine $pixels {SCENES} --output mined": (f"{MINE}.load_model", 130, RESUMED),
    f"train vsepp {SCENES} --output trained --epochs 1": (
        DECIDE,
        3,
        "stopped, interrupted after 1 steps; add --resume to continue",
    ),
}


@pytest.fixture
def interruptible():
    """Python's handler of Ctrl-C, which a shell takes from commands in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("line", INTERRUPTED)
def test_interrupted(line, models, desk, tmp_path, monkeypatch, capfd):
    """One line says how to go on, nothing is lost, and the same line then does its work."""
    photos = desk[1]["photos"]
    shutil.copytree(desk[0] / "index", tmp_path / "index")
    (tmp_path / "more").mkdir()
    for name in NAMES[:3]:
        shutil.copy(photos / name, tmp_path / "more" / f"more-{name}")
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    target, code, wanted = INTERRUPTED[line]
    names = {"pixels": models / "pixels", "photos": photos, "more": tmp_path / "more"}
    words = shlex.split(Template(line).substitute(names))
    with monkeypatch.context() as patch:
        original = pkgutil.resolve_name(target.replace(".StopMonitor", ":StopMonitor"))

        def interrupt(*arguments, **options):
            patch.undo()
            signal.raise_signal(signal.SIGINT)
            return original(*arguments, **options)

        patch.setattr(target, interrupt)
        capfd.readouterr()
        assert recipes_cases.run(*words) == code
    told = capfd.readouterr().err.strip().splitlines()
    assert wanted in told[-1]
    assert len([line for line in told if "nterrupted" in line]) == 1
    if code == 130:
        assert contents(tmp_path) == before
    if "serve" not in line:
        assert recipes_cases.run(*words, *(["--resume"] if code == 3 else [])) == 0


def test_names_of_files_are_not_broken_in_a_narrow_terminal(desk, monkeypatch, capsys):
    folder, _ = desk
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "60")
    capsys.readouterr()
    assert recipes_cases.run("search", "index", "a dog in the snow", "--top", "3") == 0
    shown = capsys.readouterr().out
    assert all(len(line.rstrip()) <= 60 for line in shown.splitlines())
    assert len(re.findall(r"photos/p\d+\.png", shown)) == 3


# The served page: what is done, and what is then said and seen.


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_page_answers_mistakes(desk, browser, monkeypatch):
    monkeypatch.chdir(desk[0])
    said = "document.querySelector('#wrong').textContent"
    page = browser.new_page()
    with running(desk[0] / "index", "--key", "secret") as (where, _):
        page.goto(where)
        until(page, f"{said} === 'This server asks for an API key; type it above and search.'")
        page.fill("#key", "wrong")
        page.press("#key", "Enter")
        until(page, f"{said}.includes('This API key is wrong')")
    page.close()
    page = browser.new_page()
    with running(desk[0] / "index") as (where, _):
        page.goto(where)
        until(page, "document.querySelector('#explains').textContent !== ''")
        first = page.locator("main").inner_text().splitlines()[:8]
        assert not [line for line in first if "head" in line]  # heads that the model lacks
        drop(page, "phone.heic", "image/heic", b"\0\0\0\x18ftypheic" + bytes(5000))
        until(page, f"{said} !== ''")
        assert not page.locator("#given").is_visible()  # no broken card with live buttons
        search(page, "a dog")
        assert all("…" not in name for name in page.locator("#found .name").all_inner_texts())
    page.fill("#text", "a cat")
    page.press("#text", "Enter")
    until(page, f"{said} === 'The server cannot be reached. Is it running?'")
    page.close()
