"""Folders of photos as newcomers bring them, and what `data check` answers to each."""

import io
import json
import tarfile

import pandas as pd
import pytest

import recipes_cases
from corpus_cases import write_picture

NAMES = [f"p{number}.png" for number in range(12)]
FINE = "This data set can be trained on."


def pictures(folder, names=NAMES):
    for row, name in enumerate(names):
        write_picture(folder / name, row)


def table(folder, head="image,caption", names=NAMES, *, encoding="utf-8", caption="a dog"):
    """Pictures and a table of captions, separated as its head is."""
    pictures(folder)
    separator = next(mark for mark in ",;\t" if mark in head)
    lines = [head, *(f"{name}{separator}{caption} {row}" for row, name in enumerate(names))]
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
    (folder / "captions.csv").write_text("p0.png,a dog\np1.png,a dog\n")


def truncated(folder):
    pictures(folder)
    (folder / "captions.jsonl").write_text('{"image": "p0.png", "caption": "a d')


def one_photo(folder):
    write_picture(folder / "p0.jpg")
    (folder / "captions.csv").write_text("image,caption\np0.jpg,a dog 0\n")


READ = {
    "filename and text": lambda folder: table(folder, "filename,text"),
    "file_name": lambda folder: table(folder, "file_name,caption"),
    "filepath and title": lambda folder: table(folder, "filepath,title"),
    "semicolons": lambda folder: table(folder, "image;caption"),
    "tabs": lambda folder: table(folder, "image\tcaption"),
    "byte order mark": lambda folder: table(folder, encoding="utf-8-sig"),
    "cp1252": lambda folder: table(folder, encoding="cp1252", caption="ein Hündchen"),
    "imagefolder": image_folder,
    "webdataset": shard,
    "parquet": parquet,
    "folders of splits": split_folders,
    "absolute paths": lambda folder: table(folder, names=[str(folder / n) for n in NAMES]),
}
REFUSED = {
    "missing pictures": (
        lambda folder: table(folder, names=[*NAMES, "ghost.png", "ghost2.png"]),
        ("2 pictures cannot be read", "ghost.png does not exist", "ghost2.png does not exist"),
    ),
    "no captions": (pictures, ("12 images without a caption", "no train split to learn from")),
    "one photo": (one_photo, ("the train split has one image",)),
    "broken pictures": (broken, ("3 pictures cannot be read", "--skip-unreadable")),
    "phone pictures": (phone, ("counterfoil[phone]",)),
    "two tables": (two_tables, ("holds captions.jsonl and captions.csv",)),
    "no header": (no_header, ("it needs the names of the columns", "file_name")),
    "truncated JSON": (truncated, ("line 1 is not JSON",)),
    "empty folder": (lambda folder: folder.mkdir(exist_ok=True), ("is no data set",)),
    "addresses": (
        lambda folder: table(folder, names=[f"https://example.com/{name}" for name in NAMES]),
        ("pictures are not fetched", "img2dataset"),
    ),
}


def answer(folder, capsys, code):
    capsys.readouterr()
    assert recipes_cases.run("data", "check", folder) == code
    shown = capsys.readouterr()
    return " ".join((shown.out + shown.err).split())


@pytest.mark.parametrize("case", READ)
def test_read(case, tmp_path, capsys):
    folder = tmp_path / "photos"
    folder.mkdir()
    READ[case](folder)
    assert FINE in answer(folder, capsys, 0)


@pytest.mark.parametrize("case", REFUSED)
def test_answered_in_words(case, tmp_path, capsys):
    write, fragments = REFUSED[case]
    folder = tmp_path / "photos"
    folder.mkdir()
    write(folder)
    said = answer(folder, capsys, 2)
    for fragment in fragments:
        assert fragment in said
