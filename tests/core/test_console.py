import io
import logging
import os
import pty
import subprocess
import sys

import pytest
from rich.table import Table
from rich.text import Text

from counterfoil.core.console import (
    PrintableFormatter,
    console,
    failure,
    info,
    output,
    printable,
    progress,
    warn,
)
from terminal_cases import written_to

# what a terminal obeys, and how it is printed
OBEYED = {
    "\x1b[2J": r"\x1b[2J",  # clears the screen
    "\x1b]0;title\x07": r"\x1b]0;title\x07",
    "\x1b]8;;http://a.example\x1b\\": r"\x1b]8;;http://a.example\x1b" + "\\",
    "\x9b2J": r"\x9b2J",
    "\x9d0;title\x9c": r"\x9d0;title\x9c",
    "\x00": r"\x00",
    "\x08": r"\x08",
    "\r": r"\r",
    "\x0e": r"\x0e",
    "\x7f": r"\x7f",
    "\x85": r"\x85",
    "\u202e": r"\u202e",
    "\u2066": r"\u2066",
    "\udcff": r"\udcff",  # a byte of a name that is not UTF-8
}
PLAIN = "[red]a[/red] b :smile: 犬 🐕 é \u200f\u05d0"

LIGHT = """
import sys
from counterfoil.core import console
assert not {"rich", "torch"} & set(sys.modules)
console.output("[bold]a[/] b")
assert "torch" not in sys.modules
"""


def test_messages_go_to_standard_error_and_results_to_standard_output(capsys):
    info("[1] of 2")
    warn("[loss] is flat")
    output("[red]12[/]")
    shown = capsys.readouterr()
    assert shown.err == "[1] of 2\nwarning: [loss] is flat\n"
    assert shown.out == "[red]12[/]\n"


def test_other_processes_are_silent(monkeypatch, capsys):
    monkeypatch.setattr("counterfoil.core.distributed.rank", lambda: 1)
    info("a")
    output("b")
    with progress("c", 2) as advance:
        advance(2)
    assert capsys.readouterr() == ("", "")


def test_nothing_heavy_is_imported_to_print():
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert done.stdout == "[bold]a[/] b\n"


@pytest.mark.parametrize("obeyed", OBEYED)
def test_nothing_that_a_terminal_obeys_is_printed(obeyed, capsys):
    shown = OBEYED[obeyed]
    assert printable(f"{PLAIN}\t{obeyed}\n") == f"{PLAIN}\t{shown}\n"
    for line in (info, warn, output, failure):
        line(f"a{obeyed}b")
    both = capsys.readouterr()
    assert both.out == f"a{shown}b\n"
    assert both.err == f"a{shown}b\nwarning: a{shown}b\na{shown}b\n"
    table = Table(f"head{obeyed}", title=f"title{obeyed}", caption=f"note{obeyed}")
    table.add_row(Text("cell").append(obeyed))
    table.add_row(f"[red]{obeyed}")
    console().print(table)
    assert not set(capsys.readouterr().out) & set(obeyed) - set(shown)


def test_markup_of_others_is_text(capsys):
    table = Table("[bold]head", title="[red]title")
    table.add_row("[link=http://a.example]cell[/link] :smile:")
    console().print(table)
    shown = capsys.readouterr().out
    for part in ("[bold]head", "[red]title", "[link=http://a.example]cell[/link] :smile:"):
        assert part in shown


def test_a_bar_on_a_terminal(monkeypatch):
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with progress("[red]\x1b[2J\x9b2J\x07", 2) as advance:
            advance(2)
    shown = written_to(ours)
    assert r"[red]\x1b[2J\x9b2J" in shown
    assert not {"\x07", "\x9b"} & set(shown)
    assert "\x1b[2J" not in shown


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_what_an_encoding_lacks_is_written_out(encoding, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    output(PLAIN)
    table = Table(PLAIN)
    table.add_row(Text("−犬"))
    console().print(table)
    sys.stdout.flush()
    shown = written.getvalue().decode(encoding)
    assert ("犬" if encoding == "utf-8" else r"\u72ac") in shown


def test_a_log_is_printable():
    record = logging.LogRecord("a", logging.ERROR, "", 0, "%s failed", ("\x1b[2J\x9b",), None)
    assert PrintableFormatter().format(record) == r"\x1b[2J\x9b failed"
