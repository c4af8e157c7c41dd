"""Runs that are started to be looked at while they go on."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked
from ptymesh.watch.runs import RunFolder


def summary(folder: Path) -> dict[str, Any]:
    return RunFolder(folder, folder.parent).summary()


def summary_of_preview(folder: Path) -> object:
    return RunFolder(folder, folder.parent).shapes().get("file")


def wait_for(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it has not come"
        time.sleep(0.05)


def start(
    folder: Path, epochs: int = 100_000, *words: str, stage: str = "rpie", output: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    write(checked(views=25, window=32, seed=3), folder / "scan.cxi")
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        f"data: {{path: {folder / 'scan.cxi'}}}\nstages: [{{engine: {stage}, epochs: {epochs}, batch: 8}}]\n"
        "output: {figures: false}\n"
    )
    command = [sys.executable, "-P", "-m", "ptymesh", "run", str(recipe), "--out", str(folder / "out"), *words]
    return subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE)


def end(run: subprocess.Popen[bytes]) -> None:
    if run.poll() is None:
        run.kill()
    run.communicate()
