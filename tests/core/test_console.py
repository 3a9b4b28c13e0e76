import subprocess
import sys

from counterfoil.core.console import info, output, progress, warn

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
