"""Captions and names that a terminal would obey, through the verbs that show them."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import sys
import termios
from pathlib import Path

import pytest

import recipes_cases
from corpus_cases import write_picture
from terminal_cases import written_to

HOSTILE = "a dog\x1b[2J \x1b]0;title\x07 \x9b2J \u202e\x7f [red]"
OBEYED = re.compile("[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # of Rich


@pytest.fixture(scope="module")
def folder(tmp_path_factory, models):
    """photos/ with hostile captions, columns, splits and names, and an index of them."""
    root = tmp_path_factory.mktemp("hostile")
    lines = []
    for number in range(4):
        name = f"{number}\x1b[2J\x9b[red].png"
        write_picture(root / "photos" / name, number)
        line = {"file_name": name, "text": f"{HOSTILE} {number}", "split": "test\x1b[2J"}
        lines.append(json.dumps({**line, "place\x1b[2J": f"here\x9b{number}"}))
    lines.append(json.dumps({"file_name": "lost\x1b[2J.png", "text": "a", "split": "test"}))
    (root / "photos" / "metadata.jsonl").write_text("\n".join(lines[:4]))
    made = ("index", models / "pixels", root / "photos", "--output", root / "index")
    assert recipes_cases.run(*made) == 0
    (root / "lost").mkdir()
    (root / "lost" / "metadata.jsonl").write_text(lines[4])
    return root


def verbs(root, models):
    data, where = ("--data", root / "photos"), ("--where", "place\x1b[2J=here\x9b1")
    return {
        "check": ("data", "check", root / "photos"),
        "unreadable": ("data", "check", root / "lost"),
        "search": ("search", root / "index", HOSTILE, *where),
        "json": ("search", root / "index", HOSTILE, "--json"),
        "captions": ("search", root / "index", HOSTILE, "--find", "captions"),
        "nothing": ("search", root / "index", "a", "--where", "place\x1b[2J=\x9b"),
        "evaluate": ("evaluate", models / "pixels", *data, "--split", "test\x1b[2J"),
        "no such split": ("evaluate", models / "pixels", *data, "--split", HOSTILE),
        "no such folder": ("data", "check", root / HOSTILE),
        "no such option": ("search", f"--{HOSTILE}"),
        "no such verb": (HOSTILE,),
    }


@pytest.mark.papers
@pytest.mark.parametrize("verb", verbs(Path(), Path()))
def test_verbs_on_a_terminal(verb, folder, models, monkeypatch):
    ours, theirs = pty.openpty()
    modes = termios.tcgetattr(theirs)
    modes[1] &= ~termios.OPOST  # a line ends in \\n alone
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    with os.fdopen(theirs, "w", encoding="utf-8", newline="\n") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        recipes_cases.run(*verbs(folder, models)[verb])
    shown = written_to(ours)
    shown = COLOURS.sub("", shown)
    shown = re.sub(r"^[\s\S]*\x1b\[\?25h|\r?\x1b\[1A\x1b\[2K", "", shown)  # bars, which are gone
    assert not OBEYED.search(shown), ascii(shown)
    assert "\x1b" not in shown, ascii(shown)
    assert r"\x1b[2J" in shown or r"\u001b[2J" in shown


def test_json_means_the_same(folder, models, capsys):
    assert recipes_cases.run("search", folder / "index", HOSTILE, "--json") == 0
    shown = capsys.readouterr().out
    assert not OBEYED.search(shown)
    found = json.loads(shown)
    assert found["query"] == HOSTILE
    captions = [caption for hit in found["results"] for caption in hit["captions"]]
    assert sorted(captions) == [f"{HOSTILE} {number}" for number in range(4)]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("words", [["--help"], ["explain", "--help"], "captions", "search", "json"])
def test_other_encodings(words, encoding, folder, models, monkeypatch):
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding=encoding, write_through=True)
    monkeypatch.setattr(sys, "stdout", stream)
    if isinstance(words, str):
        words = verbs(folder, models)[words]
    assert recipes_cases.run(*words) == 0
    assert written.getvalue().decode(encoding)
