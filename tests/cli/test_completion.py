"""Shells complete commands and options, quickly, and without what a run needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from processor import run_until_quick
from ptymesh.cli.completion import ASKED

#: Where the `ptymesh` of this environment is.
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def answer(shell: str, line: str) -> list[str]:
    """What `ptymesh` offers as the last word of a line, as each shell asks it."""
    words = line.split(" ")
    asked = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    environment = {**os.environ, **asked, ASKED: f"complete_{shell}"}
    done = subprocess.run(
        [sys.executable, "-m", "ptymesh"], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_commands_and_options() -> None:
    assert sorted(answer("bash", "ptymesh res")) == ["resolution", "resume"]
    assert "--layout" in answer("bash", "ptymesh run recipe.yaml --")
    assert answer("bash", "ptymesh view result.h5 --format p") == ["png", "pdf"]
    assert any(line.startswith("resume\tGo on with a run") for line in answer("fish", "ptymesh res"))
    assert any('"resume":"Go on with a run' in line for line in answer("zsh", "ptymesh res"))


def test_nothing_heavy_is_loaded() -> None:
    code = (
        "import sys; sys.argv = ['ptymesh']\n"
        "from ptymesh.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit as left:\n    print('status', left.code)\n"
        # typer itself loads pydantic
        "print('heavy', sorted({'torch', 'numpy', 'scipy', 'h5py', 'matplotlib'} & set(sys.modules)))"
    )
    environment = {**os.environ, ASKED: "complete_bash", "COMP_WORDS": "ptymesh run --", "COMP_CWORD": "2"}
    printed, seconds = run_until_quick(code, 0.5, environment)
    assert "--ranks" in printed and "status 0" in printed and "heavy []" in printed
    assert seconds < 0.5, f"completion took {seconds:.2f} s of a processor"


SESSIONS = {
    "bash": 'eval "$(ptymesh completion bash)"; COMP_WORDS=(ptymesh comp); COMP_CWORD=1; '
    '_ptymesh_completion ptymesh; printf "%s\\n" "${COMPREPLY[@]}"',
    "zsh": "autoload -Uz compinit; compinit -D -u; "
    'eval "$(ptymesh completion zsh)"; print -l "${_comps[ptymesh]}"; '
    '_arguments() { print -r -- "$@" }; words=(ptymesh comp); CURRENT=2; _ptymesh_completion',
    "fish": "ptymesh completion fish | source; complete -C 'ptymesh comp'",
}


@pytest.mark.parametrize("shell", SESSIONS)
def test_in_a_shell(shell: str, tmp_path: Path) -> None:
    """As a user's shell does it, with its own completion."""
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    environment = {**os.environ, "PATH": PATH, "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path)}
    done = subprocess.run([shell, "-c", SESSIONS[shell]], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "compare" in done.stdout and "completion" in done.stdout and "resume" not in done.stdout
