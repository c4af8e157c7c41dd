"""How a recipe scales: the same run, the same global batches, on several numbers of ranks, several times each.

Every run is a launch of its own. Trials go round robin over the numbers of ranks, so that a machine that slows down
slows all of them. Threads per rank are the same everywhere; otherwise one rank would have the cores of many.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ptymesh.errors import BadInput, PtymeshError
from ptymesh.files import replacing, writing
from ptymesh.io.results import Result
from ptymesh.launcher.launch import cores, launch

#: Relative difference of the final objects up to which they agree, by precision of the run.
AGREE = {"single": 1e-3, "mixed": 1e-3, "double": 1e-9}


@dataclass(frozen=True)
class Trial:
    """One run.

    epoch_s: seconds of each epoch; waited_s: of each rank, in collectives, waiting for slower ranks included;
    peak_bytes: of each rank; loss: of each epoch; difference: of the object from that of the first run, relative.
    """

    ranks: int
    epoch_s: list[float]
    waited_s: list[float]
    peak_bytes: list[int]
    loss: list[float]
    difference: float

    @property
    def seconds(self) -> float:
        """Of an epoch, on average; the first one, which makes workspaces and compiles, counts only if it is alone."""
        return float(np.mean(self.epoch_s[1:] or self.epoch_s))


@dataclass(frozen=True)
class Row:
    """What several trials on `ranks` ranks say; speed-up and efficiency are against the smallest number of ranks."""

    ranks: int
    seconds: float
    deviation: float
    speed_up: float
    efficiency: float
    communication: float
    peak_bytes: int
    difference: float


def scale(
    recipe: Path,
    counts: Sequence[int],
    trials: int,
    folder: Path,
    *,
    settings: Sequence[str] = (),
    device: str = "auto",
    threads: int | None = None,
    environment: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Runs the recipe `trials` times on each number of ranks; what came out, as JSON can hold it.

    Args:
        recipe: path of the recipe; settings: KEY=VALUE as for `ptymesh run --set`.
        counts: numbers of ranks, the first one is compared with; folder: for the runs, which are removed again.
        threads: per rank; default: this machine's cores over the largest count.
        environment: of the ranks, besides; tell: is told what is going on.

    Raises BadInput for counts or trials that cannot be, PtymeshError where a run fails.
    """
    if not counts or min(counts) < 1 or list(counts) != sorted(set(counts)):
        raise BadInput(f"--ranks is {','.join(map(str, counts))}; give rising numbers of ranks such as 1,2,4.")
    if trials < 1:
        raise BadInput(f"--trials is {trials}; give 1 or more.")
    if threads is not None and threads < 1:
        raise BadInput(f"--threads is {threads}; give 1 or more.")
    threads = threads or max(1, cores() // max(counts))
    done: list[Trial] = []
    first: Result | None = None
    for trial in range(trials):
        for ranks in counts:
            tell(f"trial {trial + 1} of {trials}, {ranks} rank{'s' * (ranks > 1)}")
            result = _run(recipe, ranks, folder / "run", settings, device, threads, environment)
            first = first or result
            done.append(_trial(result, ranks, first))
    assert first is not None
    tolerance = AGREE[str(first.attrs["precision"])]
    rows = summarise(done)
    return {
        "recipe": first.recipe,
        "device": first.attrs["device"],
        "precision": first.attrs["precision"],
        "threads_per_rank": threads,
        "cores": cores(),
        "trials_per_count": trials,
        "rows": [row.__dict__ for row in rows],
        "trials": [{**trial.__dict__, "seconds": trial.seconds} for trial in done],
        "agree": all(trial.difference <= tolerance for trial in done),
        "tolerance": tolerance,
    }


def _run(
    recipe: Path,
    ranks: int,
    out: Path,
    settings: Sequence[str],
    device: str,
    threads: int,
    environment: Mapping[str, str] | None,
) -> Result:
    """One run, without figures and checkpoints; its folder is gone afterwards, unless it failed."""
    given = [*settings, "output.figures=false", "output.tiff=false", "output.checkpoint_every=1000000000"]
    arguments = ["run", str(recipe), "--device", device, "--out", str(out), "--force"]
    arguments += [part for setting in given for part in ("--set", setting)]
    quiet = out.with_name("ranks")
    status = launch(
        arguments, ranks, threads_per_rank=threads, log_dir=quiet, environment=environment or {}, terminal=False
    )
    if status:
        said = (quiet / "rank0.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise PtymeshError(
            f"The run on {ranks} ranks failed with status {status} ({' '.join(said)}); its logs are in {quiet}."
        )
    result = Result.load(out / "result.h5")
    shutil.rmtree(out)
    shutil.rmtree(quiet, ignore_errors=True)
    return result


def _trial(result: Result, ranks: int, first: Result) -> Trial:
    difference = np.linalg.norm(result.object - first.object) / np.linalg.norm(first.object)
    attributes = result.attrs
    return Trial(
        ranks,
        [float(s) for s in result.history["seconds"]],
        [float(s) for s in np.atleast_1d(attributes["rank_waited_s"])],
        [int(b) for b in np.atleast_1d(attributes["rank_peak_bytes"])],
        [float(loss) for loss in result.history["loss"]],
        float(difference),
    )


def summarise(trials: Sequence[Trial]) -> list[Row]:
    """A row for each number of ranks, in rising order."""
    rows: list[Row] = []
    for ranks in sorted({trial.ranks for trial in trials}):
        own = [trial for trial in trials if trial.ranks == ranks]
        seconds = np.array([trial.seconds for trial in own])
        mean = float(seconds.mean())
        base = rows[0] if rows else None
        speed_up = base.seconds / mean if base else 1.0
        rows.append(
            Row(
                ranks,
                mean,
                float(seconds.std(ddof=1)) if len(own) > 1 else 0.0,
                speed_up,
                speed_up * (base.ranks if base else ranks) / ranks,
                float(np.mean([np.mean(trial.waited_s) / sum(trial.epoch_s) for trial in own])),
                max(max(trial.peak_bytes) for trial in own),
                max(trial.difference for trial in own),
            )
        )
    return rows


def table(found: Mapping[str, Any]) -> list[str]:
    """The rows, to be read."""
    lines = ["ranks  s/epoch   +-       speed-up  efficiency  in collectives  peak/rank  object differs"]
    for row in found["rows"]:
        lines.append(
            f"{row['ranks']:5d}  {row['seconds']:8.4f}  {row['deviation']:7.4f}  {row['speed_up']:7.2f}  "
            f"{row['efficiency']:9.0%}  {row['communication']:13.0%}  {row['peak_bytes'] / 2**20:6.0f} MiB  "
            f"{row['difference']:.1e}"
        )
    verdict = "agree" if found["agree"] else "DO NOT AGREE"
    threads = found["threads_per_rank"]
    lines.append(
        f"Final objects {verdict} to {found['tolerance']:.0e} ({found['precision']} precision); "
        f"{threads} thread{'s' * (threads > 1)} per rank, {found['cores']} cores, device {found['device']}."
    )
    if found["device"] == "cpu" and max(row["ranks"] for row in found["rows"]) * threads > found["cores"]:
        lines.append("There are fewer cores than ranks: they take turns, and no speed-up can be seen.")
    return lines


def save(found: Mapping[str, Any], folder: Path) -> tuple[Path, Path]:
    """Writes scaling.json and scaling.png into the folder."""
    from ptymesh.plot import save_figure, scaling_figure

    numbers, picture = folder / "scaling.json", folder / "scaling.png"
    with writing(numbers):
        folder.mkdir(parents=True, exist_ok=True)
    with replacing(numbers) as temporary:
        temporary.write_text(json.dumps(found, indent=1), encoding="utf-8")
    save_figure(scaling_figure(found["rows"], found["trials"], _title(found)), picture)
    return numbers, picture


def _title(found: Mapping[str, Any]) -> str:
    threads = found["threads_per_rank"]
    return f"{found['device']}, {threads} thread{'s' * (threads > 1)} per rank, {found['trials_per_count']} trials"
