"""What must hold of a small run that was disturbed, whatever disturbed it, and of the run that goes on from there."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from programs import PATIENCE_S, Ended, Programs

from ptymesh.distributed.tiles import Rect
from ptymesh.errors import BadInput
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.io.results import Result
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked

#: What a disturbed run may end with.
STATUSES = (0, 1, 2, 3, 75)
#: Seconds that the first run of all may take, which compiles the kernels.
COMPILING_S = 600.0
#: Stays in the folder for temporary files, for the next process that compiles.
LOCK = re.compile(r"ptymesh-kernels-.*\.lock")


@dataclass
class Scene:
    """A small problem, and what an undisturbed run of it leaves, by number of ranks."""

    folder: Path
    recipe: str
    results: dict[int, Result] = field(default_factory=dict)
    saved: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    listings: dict[int, Counter[str]] = field(default_factory=dict)

    def fresh(self) -> Path:
        """A new folder with data and recipe."""
        folder = Path(tempfile.mkdtemp(prefix="try-", dir=self.folder))
        for name in ("scan.cxi", "recipe.yaml"):
            (folder / name).symlink_to(self.folder / name)
        return folder

    def learn(self, programs: Programs, ranks: int) -> None:
        """Run it undisturbed; once."""
        if ranks not in self.results:
            folder = self.fresh()
            ended = run(programs, folder, ranks, "run", "recipe.yaml", seconds=COMPILING_S)
            assert (ended.status, ended.left) == (0, []), ended
            self.results[ranks] = Result.load(folder / "out" / "result.h5")
            self.saved[ranks] = arrays_of(folder / "out" / "checkpoint")
            self.listings[ranks] = listing(folder)
            shutil.rmtree(folder)


def scene(folder: Path, recipe: str, views: int = 10, window: int = 16) -> Scene:
    """Data and a recipe in a folder."""
    write(checked(kind="xray", views=views, window=window, seed=3), folder / "scan.cxi")
    (folder / "recipe.yaml").write_text(recipe)
    return Scene(folder, recipe)


def command(ranks: int, *arguments: str) -> list[str]:
    """Of ptymesh on so many ranks."""
    return ["-m", "ptymesh", *arguments, "--device", "cpu", *(["--ranks", str(ranks)] if ranks > 1 else [])]


def spares(ranks: int) -> int:
    """Processes that a program starts."""
    return ranks if ranks > 1 else 0


def run(programs: Programs, folder: Path, ranks: int, *arguments: str, seconds: float = PATIENCE_S) -> Ended:
    """A program without a fault."""
    programs.start(command(ranks, *arguments), folder, spares=spares(ranks))
    return programs.wait(seconds)


def listing(folder: Path) -> Counter[str]:
    """Names below a folder, with the digits of generations and process ids left out."""
    return Counter(re.sub(r"\d+", "#", str(path.relative_to(folder))) for path in folder.rglob("*"))


def judge_end(ended: Ended, *, names: tuple[str, ...] = (), statuses: tuple[int, ...] = STATUSES) -> list[str]:
    """What is wrong with how a disturbed program ended; names: one of which its sentence holds, where it failed."""
    wrong = [f"left running: {', '.join(ended.left)}"] if ended.left and ended.status is not None else []
    if ended.status is None:
        return ["hung"]
    if ended.status not in statuses:
        wrong.append(f"status {ended.status}")
    for sign in ("Traceback (most recent call last)", "unexpected", "Exception ignored", "Fatal Python error"):
        if sign in ended.err:
            wrong.append(f"said “{sign}”")
    said = [line for line in ended.err.splitlines() if line.startswith("ptymesh: ")]
    if ended.status > 0:
        if not said:
            wrong.append("no sentence")
        elif names and not any(name in ended.err for name in names):
            wrong.append("the sentence does not say what failed")
    return wrong


def arrays_of(folder: Path) -> dict[str, np.ndarray]:
    """All arrays of a checkpoint but for times. Raises BadInput where it is damaged."""
    saved = checkpoint.load(folder)
    whole = Rect(0, 0, *saved.meta["run"]["extent"])
    arrays = {**saved.shared, **saved.per_view, **{name: saved.tiles.part(name, whole) for name in saved.tiles}}
    return {name: array for name, array in arrays.items() if name != "history/seconds"}


def judge_checkpoint(out: Path, scene: Scene, ranks: int) -> list[str]:
    """What is wrong with the checkpoint, where there is one: all of it is read, and the last one has known bits."""
    folder = out / "checkpoint"
    if not checkpoint.exists(folder):
        return []
    try:
        arrays = arrays_of(folder)
    except BadInput as error:
        return [f"the checkpoint is damaged: {error}"]
    odd = [name for name, array in arrays.items() if array.dtype.kind in "fc" and not np.isfinite(array).all()]
    odd = [name for name in odd if name != "history/held_out"]  # where nothing was held out
    wrong = [f"not finite in the checkpoint: {', '.join(odd)}"] if odd else []
    expected = scene.saved[ranks]
    if len(arrays["history/epoch"]) == len(expected["history/epoch"]):
        differ = [name for name in expected if not np.array_equal(arrays.get(name), expected[name], equal_nan=True)]
        wrong += [f"other bits in the checkpoint: {', '.join(differ)}"] if differ else []
    return wrong


def heard(folder: Path) -> list[str]:
    """The end of what other ranks than the first have said."""
    return [path.read_text(errors="replace")[-6000:] for path in sorted((folder / "out" / "ranks").glob("*.txt"))]


def lines(path: Path) -> int:
    """Return how many epochs are in metrics that may not be there; their last row is the verdict."""
    return sum('"epoch"' in line for line in path.read_text().splitlines()) if path.exists() else 0


def judge_result(folder: Path, scene: Scene, ranks: int, exact: bool = True, drawn: bool = True) -> list[str]:
    """Whether the finished run is as an undisturbed one: bits of the result, names of files.

    exact: how many files there are of a name as well, and that ranks have said nothing. A checkpoint has shards of the
    ranks that saved it. Never is there anything of ranks of an earlier run on more. drawn: figures must be there.
    """
    try:
        found, expected = Result.load(folder / "out" / "result.h5"), scene.results[ranks]
    except BadInput as error:
        return [f"no result: {error}"]
    wrong = [
        f"other bits in {name}"
        for name in ("object", "probe", "positions_px")
        if not np.array_equal(getattr(found, name), getattr(expected, name))
    ]
    wrong += [
        f"another history of {name}"
        for name in ("epoch", "stage", "loss", "residual")
        if not np.array_equal(found.history[name], expected.history[name])
    ]
    if (count := lines(folder / "out" / "metrics.jsonl")) != len(expected.history["epoch"]):
        wrong.append(f"{count} lines in metrics.jsonl")
    now, then = listing(folder), scene.listings[ranks]
    others = {name for name in now if not name.startswith("out/ranks")} - set(then)
    if more := now - then if exact else Counter(others):
        wrong.append(f"left behind: {', '.join(sorted(more.elements()))}")
    heard = {path.name for path in (folder / "out" / "ranks").glob("*")}
    if beyond := heard - {f"rank{rank}.txt" for rank in range(1, ranks)}:
        wrong.append(f"left behind of other ranks: {', '.join(sorted(beyond))}")
    if less := {name for name in set(then) - set(now) if drawn or not name.endswith(".png")}:
        wrong.append(f"missing: {', '.join(sorted(less))}")
    return wrong


def judge_litter(programs: Programs) -> list[str]:
    """What lies outside of the output folder; it is removed."""
    litter = [name for name in programs.litter() if not LOCK.fullmatch(name)]
    for path in programs.temporary.iterdir():
        if path.name in litter:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return [f"left behind outside: {', '.join(litter)}"] if litter else []


def go_on(programs: Programs, folder: Path, scene: Scene, ranks: int, exact: bool = True) -> tuple[str, list[str]]:
    """After a disturbed run: how it went on (resume, or anew), and what was wrong with that. exact: as judge_result."""
    how, ended = "resumed", run(programs, folder, ranks, "resume", "out")
    if ended.status == 2 and not checkpoint.exists(folder / "out" / "checkpoint"):
        how, ended = "anew", run(programs, folder, ranks, "run", "recipe.yaml", "--force")
    wrong = judge_end(ended, statuses=(0,))
    if ended.status:
        wrong.append(f"it ends with: {ended.err[-600:]}")
        return how, [f"then: {fault}" for fault in wrong]
    wrong += judge_result(folder, scene, ranks, exact)
    return how, [f"then: {fault}" for fault in wrong + judge_litter(programs)]
