"""The command line as a whole: quick, light, one sentence per error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import typer

from processor import run_until_quick
from ptymesh import __version__
from ptymesh.cli import main as module
from ptymesh.errors import BadInput, Diverged, Interrupted, PtymeshError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """The command line in this process: status, standard output, standard error."""
    monkeypatch.delenv(module.DEBUG, raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ptymesh", *arguments])
        with pytest.raises(SystemExit) as left:
            module.main()
        out, err = capfd.readouterr()
        return int(left.value.code or 0), out, err

    return call


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    """Makes the command line have one command, `fail`, which raises."""

    def install(error: Exception) -> None:
        app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
        app.callback()(module.options)

        @app.command("fail")
        def fail() -> None:
            raise error

        monkeypatch.setattr(module, "app", app)

    return install


def test_help_is_quick_and_loads_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; sys.argv = ['ptymesh', '--help']\n"
        "from ptymesh.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit as left:\n    print('status', left.code)\n"
        "print('heavy', sorted({'torch', 'numpy', 'scipy', 'h5py', 'pydantic', 'matplotlib'} & set(sys.modules)))"
    )
    printed, seconds = run_until_quick(code, 0.5)
    assert "heavy []" in printed and "status 0" in printed
    assert seconds < 0.5, f"ptymesh --help took {seconds:.2f} s of a processor"
    for command in module.COMMANDS:
        assert f"\n  {command} " in printed


def test_importing_ptymesh_loads_nothing_heavy() -> None:
    code = "import sys, ptymesh; print(sorted({'torch', 'numpy', 'pydantic', 'typer'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_every_command_has_help(run: Run) -> None:
    for command in module.COMMANDS:
        status, out, err = run(command, "--help")
        assert (status, err) == (0, "") and out.startswith(f"Usage: ptymesh {command}")


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"ptymesh {__version__}\n", "")


def test_python_m_ptymesh() -> None:
    done = subprocess.run([sys.executable, "-m", "ptymesh", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"ptymesh {__version__}\n", "")


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["run"], ["run", "a.yaml", "--rnaks", "2"], ["demo", "--ranks", "x"]]
)
def test_usage_errors(run: Run, arguments: list[str]) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "") and "Usage: ptymesh" in err and "Error: " in err and "\x1b" not in err


@pytest.mark.parametrize(
    ("error", "status"), [(BadInput("x"), 2), (Diverged("x"), 3), (Interrupted("x"), 75), (PtymeshError("x"), 1)]
)
def test_known_errors_are_one_sentence(run: Run, failing: Any, error: Exception, status: int) -> None:
    failing(error)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert run("fail") == (status, "", "ptymesh: x\n")
        assert (signal.getsignal(signal.SIGTERM) is signal.SIG_IGN) == (status == 75), "asked twice, it leaves with 75"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_unexpected_errors_are_short(run: Run, failing: Any) -> None:
    failing(ValueError("two\nlines"))
    status, out, err = run("fail")
    assert (status, out) == (1, "")
    assert err == "ptymesh: unexpected ValueError: two lines. Run it again with --debug for the traceback.\n"
    noted = KeyError("k")
    noted.add_note("The traceback is in out/log.txt.")
    failing(noted)
    assert run("fail")[2] == "ptymesh: unexpected KeyError: 'k'. The traceback is in out/log.txt.\n"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't allocate memory: 9 bytes")])
def test_memory_that_runs_out_is_said(run: Run, failing: Any, error: Exception) -> None:
    failing(error)
    status, out, err = run("fail")
    assert (status, out) == (1, "") and "unexpected" not in err
    assert err.startswith(f"ptymesh: memory ran out ({error}); free some or take a larger machine")


@pytest.mark.parametrize("arguments", [["--debug", "fail"], ["fail", "--debug"]])
def test_debug_shows_the_traceback_wherever_it_stands(run: Run, failing: Any, arguments: list[str]) -> None:
    failing(BadInput("the sentence"))
    status, _, err = run(*arguments)
    assert status == 2 and "Traceback (most recent call last)" in err and err.endswith("ptymesh: the sentence\n")
    assert os.environ.pop(module.DEBUG) == "1", "ranks that are started show theirs too"
