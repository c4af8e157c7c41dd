"""A case is tried: the command in a fork, and afterwards, in the same fork, whether what it made is sound."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fuzz import judge, sandbox
from fuzz.cases import Case
from fuzz.judge import Violation
from fuzz.sandbox import Ended, Limits


def warm_up(sources: Path) -> None:
    """Does in this process, once, what cases will do, so that forks find it done: imports, tables, fonts."""
    before = Path.cwd()
    os.chdir(sources)
    shutil.copytree("stopped", "again")
    try:
        for line in (
            "inspect recipe.yaml --json",
            "resume again --device cpu",
            "run recipe.yaml --out warm --device cpu",
            "convert recipe.yaml warm.cxi",
            "compare result.h5 other.h5 --json",
            "view result.h5 --out warm",
        ):
            with _quiet(), contextlib.suppress(SystemExit):
                ptymesh(line.split())
    finally:
        os.chdir(before)
    gc.collect()
    gc.freeze()  # forks then leave these objects' memory alone, instead of each having a copy of it


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def ptymesh(arguments: list[str]) -> None:
    """`ptymesh ARGUMENTS`; raises SystemExit unless all went well."""
    from ptymesh.cli.main import main

    sys.argv = ["ptymesh", *arguments]
    try:
        main()
    except SystemExit as left:
        if left.code not in (0, None):
            raise


def attempt(
    case: Case,
    limits: Limits | None = None,
    command: Callable[[list[str]], None] = ptymesh,
    environment: dict[str, str] | None = None,
) -> tuple[Ended, list[Violation]]:
    """Tries a case whose folder is as `cases` left it: how it ended, and what was wrong with that."""
    limits = limits or Limits()
    said = case.folder / "said"
    before = sandbox.state(case.folder)

    def work() -> str:
        os.environ.update(
            TMPDIR=str(case.folder / "tmp"),
            PTYMESH_CACHE=str(case.folder / "cache"),
            HOME=str(case.folder / "home"),
            PTYMESH_DATA=str(case.folder / "home"),
            PTYMESH_KERNELS="auto" if case.compiled else "torch",
            **(environment or {}),
        )
        import tempfile

        tempfile.tempdir = None
        command(case.arguments)
        return soundness(case)

    ended = sandbox.attempt(work, case.place, said, limits, lambda: _getting_on(case))
    after = {name: what for name, what in sandbox.state(case.folder).items() if not name.startswith("said")}
    taken = sandbox.size(case.folder)
    return ended, judge.violations(ended, before, after, case.asked, limits, taken)


def _getting_on(case: Case) -> bool:
    """Whether a run has done an epoch already: it has much to do, and does it."""
    metrics = case.place / "out" / "metrics.jsonl"
    return case.command in ("run", "resume") and metrics.is_file() and metrics.stat().st_size > 0


def soundness(case: Case) -> str:
    """What is wrong with what a command left that ended with status 0; empty where nothing is."""
    out = case.place / "out"
    sys.stdout.flush()
    printed = sandbox._text(case.folder / "said" / "out")
    if case.command in ("run", "resume"):
        return _result(out / "result.h5", case)
    if case.command == "convert":
        return _measurement(out / "made.cxi")
    if case.command == "view":
        missing = [line for line in printed.splitlines() if not Path(line).is_file() or not Path(line).stat().st_size]
        return f"no figure {missing}" if missing or not printed else ""
    if not printed.strip():
        return f"{case.command} said nothing"
    if "--json" in case.arguments:
        return _json(printed)
    return ""


def _result(path: Path, case: Case) -> str:
    from ptymesh.io.results import Result

    if not path.is_file():
        return "there is no result"
    result = Result.load(path)
    for name in ("object", "probe", "positions_px", "positions_m", "nominal_px", "background", "weights", "opr"):
        array = getattr(result, name)
        if array is not None and not np.isfinite(array).all():
            return f"{name} of the result is not finite"
    for name, column in result.history.items():
        if name in ("loss", "residual") and not np.isfinite(column).all():
            return f"{name} in the history is not finite"
    if case.drawn:
        ptymesh(["view", str(path), "--out", str(case.place / "out" / "figures")])
    return ""


def _measurement(path: Path) -> str:
    from ptymesh.io import load_measurement
    from ptymesh.io.options import DataOptions

    scan = load_measurement(DataOptions(path=path))
    patterns = np.asarray(scan.patterns.read(np.arange(scan.views)))
    if patterns.shape != (scan.views, *scan.window):
        return f"patterns of the converted file are {patterns.shape}"
    return "" if np.isfinite(scan.positions).all() else "positions of the converted file are not finite"


def _json(text: str) -> str:
    try:
        tree = json.loads(text)
    except ValueError as error:
        return f"what was printed is no JSON: {error}"
    bad = [name for name, value in _leaves(tree) if isinstance(value, float) and not math.isfinite(value)]
    return f"printed as JSON, not finite: {', '.join(bad[:6])}" if bad else ""


def _leaves(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from _leaves(value, f"{name}.{key}" if name else str(key))
    if not isinstance(tree, dict | list):
        yield name, tree
