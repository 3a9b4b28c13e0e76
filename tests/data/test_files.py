"""Walking folders of pictures, and matching the names of tables; see rows W2, W3 and W8."""

import os
import socket
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus_cases import write_picture
from counterfoil.data import files
from counterfoil.data.files import FolderFiles, find_pictures, list_files, printable

NFC, NFD = unicodedata.normalize("NFC", "café"), unicodedata.normalize("NFD", "café")


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return folder


def reasons(listing):
    return {left.reason: list(left.names) for left in listing.left_out}


def test_any_depth_in_order_of_names(tmp_path):
    names = ["2021/05/17/c.jpg", "2021/b.jpg", "2021-a.jpg", "a.jpg", "holiday.jpg/d.PNG"]
    touch(tmp_path, *names, "🐕.webp", "with\nline.jpg", " blank .jpg", f"{NFD}.jpg")
    listing = list_files(tmp_path)
    names += ["🐕.webp", "with\nline.jpg", " blank .jpg", f"{NFD}.jpg"]
    assert listing.names == sorted(names, key=lambda name: name.split("/"))
    assert listing.pictures == [tmp_path / name for name in listing.names]
    assert listing.left_out == ()


@pytest.mark.parametrize(
    "name",
    [
        ".thumbnails/a.jpg", ".Trash-1000/files/gone.jpg", ".Trashes/501/gone.jpg", ".git/x.png",
        "@eaDir/a.jpg/SYNOPHOTO_THUMB_M.jpg", "#recycle/old.jpg", "$RECYCLE.BIN/S-1/old.jpg",
        "lost+found/1.jpg", "__MACOSX/a.jpg", "._a.jpg", ".a.jpg.swp.jpg", ".stfolder/x.jpg",
        "2021/.thumbnails/a.jpg", "2021/@eaDir/a.jpg", "System Volume Information/x.jpg",
    ],
)  # fmt: skip
def test_hidden_thumbnails_and_trash_are_counted(tmp_path, name):
    listing = list_files(touch(tmp_path, "a.jpg", "2021/b.jpg", name))
    assert listing.names == ["2021/b.jpg", "a.jpg"]
    assert reasons(listing) == {files.HIDDEN: [name]}


def test_what_programs_keep_is_no_note(tmp_path):
    listing = list_files(touch(tmp_path, "a.jpg", ".DS_Store", "Thumbs.db", "desktop.ini"))
    assert listing.names == ["a.jpg"]
    assert listing.left_out == ()


def test_links_are_followed_once(tmp_path):
    inside, outside = touch(tmp_path / "in", "a.jpg", "sub/b.jpg"), tmp_path / "out"
    touch(outside, "c.jpg", "deep/d.jpg")
    links = {
        "loop": ".", "up": "..", "sub/top": "../..", "twin": "sub", "a2.jpg": "a.jpg",
        "out1": outside, "out2": outside, "deeper": outside / "deep", "c.jpg": outside / "c.jpg",
        "gone.jpg": "nowhere.jpg", "self": "self", "one": "two", "two": "one", "root": "/",
    }  # fmt: skip
    for name, target in links.items():
        (inside / name).symlink_to(target)
    listing = list_files(inside)
    assert {path.resolve() for path in listing.files} == {
        (inside / "a.jpg").resolve(),
        (inside / "sub" / "b.jpg").resolve(),
        (outside / "c.jpg").resolve(),
        (outside / "deep" / "d.jpg").resolve(),
    }
    assert len(listing.files) == 4
    found = reasons(listing)
    assert sorted(found[files.BROKEN]) == ["gone.jpg", "one", "self", "two"]
    assert sorted(found[files.AROUND]) == ["root", "sub/top", "up"]
    assert {"loop", "twin", "a2.jpg", "c.jpg", "out2"} <= {*found[files.LINKS]}
    (tmp_path / "link").symlink_to(inside)
    assert len(list_files(tmp_path / "link").files) == 4


def test_a_link_into_a_hidden_store_is_a_picture(tmp_path):
    """As git-annex, DVC and the cache of Hugging Face keep them."""
    touch(tmp_path, ".git/annex/objects/1", ".git/annex/objects/2", ".same.jpg")
    for name, target in {"a.jpg": "objects/1", "b.jpg": "objects/2", "c.jpg": "objects/1"}.items():
        (tmp_path / name).symlink_to(f".git/annex/{target}")
    (tmp_path / "d.jpg").symlink_to(".same.jpg")
    listing = list_files(tmp_path)
    assert listing.names == ["a.jpg", "b.jpg", "d.jpg"]
    assert reasons(listing)[files.LINKS] == ["c.jpg"]


def test_what_is_no_file_and_what_has_no_name(tmp_path):
    touch(tmp_path, "a.jpg", "raw.CR2", "drawing.svg")
    os.mkfifo(tmp_path / "pipe.jpg")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "s.jpg"))
    (tmp_path / "tty.jpg").symlink_to("/dev/null")
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jpg"))
    odd.write_bytes(b"x")
    touch(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")), "b.jpg")
    listing = list_files(tmp_path)
    assert listing.names == ["a.jpg"]
    found = reasons(listing)
    assert sorted(found[files.SPECIAL]) == ["pipe.jpg", "s.jpg", "tty.jpg"]
    assert sorted(found[files.UNREAD]) == ["drawing.svg", "raw.CR2"]
    assert [printable(name) for name in found[files.NOT_UTF8]] == [r"caf\xe9.jpg", r"\xff/b.jpg"]


def test_closed_folders(tmp_path, monkeypatch):
    touch(tmp_path, "a.jpg", "closed/b.jpg")
    scandir = os.scandir

    def refuse(place):
        if Path(place) == tmp_path / "closed":
            raise PermissionError(13, "Permission denied")
        return scandir(place)

    monkeypatch.setattr(os, "scandir", refuse)
    assert reasons(list_files(tmp_path)) == {files.CLOSED: ["closed/"]}
    with pytest.raises(ValueError, match="closed cannot be opened: Permission denied"):
        list_files(tmp_path / "closed")
    with pytest.raises(ValueError, match=r"a\.jpg is not a folder"):
        list_files(tmp_path / "a.jpg")


@pytest.mark.parametrize(
    "name, content",
    [
        ("manifest.json", '{"artifact": "mined negatives"}'),
        ("model.json", '{"provenance": {}}'),
        ("features.json", '{"artifact": "features"}'),
    ],
)
def test_our_own_folders_are_skipped_and_counted(tmp_path, name, content):
    touch(tmp_path, "a.jpg", "my-index/images/b.png", "mine/c.jpg")
    (tmp_path / "my-index" / name).write_text(content)
    (tmp_path / "mine" / name).write_text('{"of": "another program"}')
    listing = list_files(tmp_path)
    assert [path.name for path in listing.pictures] == ["a.jpg", "c.jpg"]
    assert reasons(listing) == {files.OURS: ["my-index/"]}
    # the folder that is asked for is not taken away
    assert [path.name for path in list_files(tmp_path / "my-index").pictures] == ["b.png"]


def test_many_files_are_listed_and_found_in_seconds(tmp_path):
    listing = FolderFiles(tmp_path, [f"{n % 50}/IMG_{n}.JPG" for n in range(20_000)])
    began = time.process_time()
    names = [f"{n % 50}\\img_{n}.jpeg" for n in range(20_000)]
    assert len(set(find_pictures(names, listing, where="x"))) == 20_000
    assert time.process_time() - began < 5


# names of tables

PLACES = {
    "a.jpg": "a.jpg",
    "./a.jpg": "a.jpg",
    "A.JPG": "a.jpg",
    "a.jpeg": "a.jpg",
    "a": "a.jpg",
    " a.jpg ": "a.jpg",
    "images/b.JPG": "Images/b.JPG",
    "b.jpg": "Images/b.JPG",
    "/images/b.jpg": "Images/b.JPG",
    r"images\b.jpg": "Images/b.JPG",
    "data/Images/b.jpg": "Images/b.JPG",
    f"{NFC}.jpg": f"{NFD}.jpg",
    f"{NFD.upper()}.JPG": f"{NFD}.jpg",
    "caf%C3%A9.jpg": f"{NFD}.jpg",
    "my%20dog.jpg": "my dog.jpg",
    "100%.jpg": "100%.jpg",
    "2021/05/c.png": "2021/05/c.png",
    "c.png": "2021/05/c.png",
    r"C:\Users\me\Photos\2021\05\c.png": "2021/05/c.png",
    "c.jpg": None,
    "missing.jpg": None,
    "x" * 300 + ".jpg": None,
    "null\0.jpg": None,
    "": None,
    ".hidden.jpg": ".hidden.jpg",
}


@pytest.mark.parametrize("name", PLACES)
def test_names_of_other_systems(tmp_path, name):
    touch(tmp_path, *filter(None, PLACES.values()))
    (path,) = find_pictures([name], list_files(tmp_path), where="captions.csv")
    if PLACES[name] is None:
        assert path == tmp_path / name
    else:
        assert path == tmp_path / PLACES[name]


@pytest.mark.parametrize("form, other", [(NFC, NFD), (NFD, NFC)])
def test_accents_of_both_forms(tmp_path, form, other):
    touch(tmp_path, f"{form}/{form}.jpg")
    name = f"{other}/{other}.jpg"
    found = find_pictures([name], list_files(tmp_path), where="captions.csv")
    assert found == [tmp_path / form / f"{form}.jpg"]


def test_the_nearest_fits_first(tmp_path):
    touch(tmp_path, "a.jpg", "A.jpg", "images/a.jpg", "old/a.jpg", "images/b.jpg", "old/b.jpg")
    listing = list_files(tmp_path)
    names = ["a.jpg", "A.jpg", "images/a.jpg", "old/a.jpg"]
    assert find_pictures(names, listing, where="x") == [tmp_path / name for name in names]
    # in a folder as "images" before another
    assert find_pictures(["b.jpg"], listing, where="x") == [tmp_path / "images/b.jpg"]


def test_a_missing_picture_is_not_taken_from_elsewhere(tmp_path):
    """Where others stand where the table says, one of the same name is of another time."""
    touch(tmp_path, "1.jpg", "2.jpg", "backup/3.jpg")
    found = find_pictures(["1.jpg", "2.jpg", "3.jpg"], list_files(tmp_path), where="x")
    assert found[2] == tmp_path / "3.jpg"


@pytest.mark.parametrize(
    "there, names, words",
    [
        (["x/1.jpg", "y/1.jpg"], ["1.jpg"], r"'1\.jpg' fits x/1\.jpg and y/1\.jpg"),
        (["1.jpg", "1.png"], ["1"], r"'1' fits 1\.jpg and 1\.png"),
        (["a.jpg"], ["a.jpg", "A.jpg"], r"'a\.jpg' and 'A\.jpg' both fit .*a\.jpg"),
        (["a.jpg"], ["x/a.jpg", "y/a.jpg"], "'x/a.jpg' and 'y/a.jpg' both fit"),
    ],
)
def test_names_that_are_not_clear_are_refused(tmp_path, there, names, words):
    with pytest.raises(ValueError, match=words) as refused:
        find_pictures(names, list_files(touch(tmp_path, *there)), where="captions.csv")
    assert str(refused.value).startswith("captions.csv: ")


letters = st.sampled_from(["a", "B", "é", "ß", "日", " ", "-", ".", "_", "1", "%"])
part = st.text(letters, min_size=1, max_size=6).map(lambda text: f"x{text}x")
paths = st.lists(st.lists(part, min_size=1, max_size=3).map("/".join), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(paths, st.sampled_from(["NFC", "NFD"]), st.sampled_from(["/", "\\"]), st.booleans())
def test_every_name_of_another_system_finds_its_own_picture(names, form, slash, upper):
    """Whatever the spelling, each name finds its file, or two that differ in case are refused."""
    folded = {unicodedata.normalize("NFC", name).casefold(): f"{name}.jpg" for name in names}
    there = list(folded.values())
    written = [unicodedata.normalize(form, name).replace("/", slash) for name in there]
    written = [name.upper() if upper else name for name in written]
    if len({name.casefold() for name in written}) < len(written):
        return  # upper case makes two of "ß" and "ss"
    listing = FolderFiles(Path("nowhere"), there)
    found = find_pictures(written, listing, where="x")
    assert found == [Path("nowhere") / name for name in there]


def test_pictures_are_written_where_the_walk_finds_them(tmp_path):
    write_picture(tmp_path / "1" / "2" / "3" / "4.jpg")
    assert list_files(tmp_path).unlisted([]) == {"1/2/3/4.jpg": tmp_path / "1/2/3/4.jpg"}


def test_shards_and_tables_at_any_depth_where_most_files_are_such(tmp_path):
    touch(tmp_path, "data/train-0.TAR", "data/test/0.tar", "preview.png", ".cache/old.tar", "b.tgz")
    found = [tmp_path / "b.tgz", tmp_path / "data/test/0.tar", tmp_path / "data/train-0.TAR"]
    assert files.mostly(tmp_path, ".tar", ".tgz") == found
    assert files.mostly(found[0], ".tgz") == found[:1]
    assert files.mostly(found[0], ".tar") == []
    touch(tmp_path, "1.jpg", "2.jpg", "3.jpg")
    assert files.mostly(tmp_path, ".tar", ".tgz") == []
