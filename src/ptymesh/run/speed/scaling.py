"""Measure how a recipe scales: the same run with the same global batches on several numbers of ranks, several times.

Every run is a launch of its own. Trials go round robin over all of them, so that a machine that slows down slows all.
Threads per rank are the same everywhere; otherwise one rank would have the cores of many. Beside them are measured

threads   one rank with the threads of all of them: the same cores, and nothing to be sent or done twice
weak      as many views for each rank, and in each batch, as on the most ranks: of the middle of the scan, so that the
          object shrinks with it

What R ranks lose of R times the speed of one: their time, R s, is that which one needs, and

repeated      more than that which all of them compute: what each does again
messages      the time in collectives of the rank that waits least
imbalance     waiting for the rank that owns most views of a batch, as far as its share says
waiting       the rest of it: ranks that are slower than others for other reasons
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ptymesh.errors import BadInput, PtymeshError
from ptymesh.files import replacing, writing
from ptymesh.io.results import Result
from ptymesh.launcher.rank_processes import cores, launch

#: What of the final results is compared, bit by bit.
COMPARED = ("object", "probe", "positions_px", "weights", "opr", "background")
#: Kinds of rows, in their order.
RANKS, THREADS, WEAK = "ranks", "threads", "weak"
KINDS = (RANKS, THREADS, WEAK)
#: Names of what is lost, and what is said of it.
LOSSES = {
    "repeated": "work that every rank does again",
    "messages": "messages",
    "imbalance": "unequal shares of a batch",
    "waiting": "waiting for slower ranks",
}


@dataclass(frozen=True)
class Way:
    """One way to run the recipe.

    Attributes:
        kind: RANKS, THREADS or WEAK.
        ranks: number of them.
        threads: of each rank.
        share: of the views and of each batch, below 1 on weak ways.
    """

    kind: str
    ranks: int
    threads: int
    share: float = 1.0

    @property
    def name(self) -> str:
        """Name of the way, for messages."""
        name = f"{self.ranks} rank{'s' * (self.ranks > 1)}"
        if self.kind == THREADS:
            return f"{name} of {self.threads} threads"
        return name if self.share == 1 else f"{name}, {self.share:.0%} of the views"


@dataclass(frozen=True)
class Trial:
    """One run.

    Attributes:
        ranks: number of ranks.
        epoch_s: seconds of each epoch.
        waited_s: seconds of each rank in collectives, waiting for slower ranks included.
        peak_bytes: of each rank.
        loss: of each epoch.
        difference: of the object from that of the first run with the same views, relative.
        kind, threads, share: of its way.
        balance: share of the speed of equal shares of a batch that its owners leave (batches.balance).
        same: True if its result has the bits of the first one.
    """

    ranks: int
    epoch_s: list[float]
    waited_s: list[float]
    peak_bytes: list[int]
    loss: list[float]
    difference: float
    kind: str = RANKS
    threads: int = 1
    share: float = 1.0
    balance: float = 1.0
    same: bool = True

    @property
    def seconds(self) -> float:
        """Mean seconds of an epoch; the first one, which makes workspaces and compiles, counts only if it is alone."""
        return float(np.mean(self.epoch_s[1:] or self.epoch_s))

    @property
    def waited(self) -> np.ndarray:
        """Fraction of the time of each rank that it spends in collectives, (R,)."""
        return np.asarray(self.waited_s) / sum(self.epoch_s)


@dataclass(frozen=True)
class Row:
    """Summary of several trials of one way.

    Attributes:
        ranks: number of ranks.
        seconds, deviation: of an epoch, over the trials.
        speed_up, efficiency: against the smallest number of ranks; of weak rows, against the smallest share.
        communication: fraction of the time in collectives.
        peak_bytes: of the fullest rank.
        difference: largest relative difference of the object.
        kind, threads, share: of the way.
        lost: fractions of the ranks' time by the names of LOSSES, which with the efficiency make 1; empty but for rows
            of the kind RANKS after the first.
    """

    ranks: int
    seconds: float
    deviation: float
    speed_up: float
    efficiency: float
    communication: float
    peak_bytes: int
    difference: float
    kind: str = RANKS
    threads: int = 1
    share: float = 1.0
    lost: dict[str, float] = field(default_factory=dict)


def ways(counts: Sequence[int], threads: int, also: Sequence[str]) -> list[Way]:
    """Return all ways to run, in turns; on the most ranks the weak way is the strong one, which is not repeated.

    Args:
        counts: numbers of ranks, rising.
        threads: of each rank.
        also: THREADS, WEAK or both.
    """
    ways_to_run = [Way(RANKS, ranks, threads) for ranks in counts]
    if THREADS in also:
        ways_to_run += [Way(THREADS, 1, threads * ranks) for ranks in counts if ranks > 1]
    if WEAK in also:
        ways_to_run += [Way(WEAK, ranks, threads, ranks / counts[-1]) for ranks in counts[:-1]]
    return ways_to_run


@dataclass(frozen=True)
class RepeatedRun:
    """A run that is repeated on several numbers of ranks.

    Attributes:
        recipe: path of the recipe.
        settings: KEY=VALUE as for `ptymesh run --set`.
        device: auto, cpu, cuda ...
        environment: added to that of the ranks.
        views: of the data set, for weak ways.
        batches: of each stage, for weak ways.
    """

    recipe: Path
    settings: Sequence[str] = ()
    device: str = "auto"
    environment: Mapping[str, str] = field(default_factory=dict)
    views: int = 0
    batches: Sequence[int | None] = ()


def scale(
    run: RepeatedRun,
    counts: Sequence[int],
    trials: int,
    folder: Path,
    *,
    threads: int | None = None,
    also: Sequence[str] = (),
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, object]:
    """Run a recipe `trials` times on each number of ranks, and return the numbers as JSON can hold them.

    Args:
        run: what is repeated.
        counts: numbers of ranks; the first one is compared with.
        trials: runs of each way.
        folder: of the runs, which are removed again.
        threads: of each rank; by default this machine's cores over the largest count.
        also: THREADS, WEAK or both.
        tell: called with a line before each run.

    Raises:
        BadInput: Counts or trials cannot be.
        PtymeshError: A run fails.
    """
    if not counts or min(counts) < 1 or list(counts) != sorted(set(counts)):
        raise BadInput(f"--ranks is {','.join(map(str, counts))}; give rising numbers of ranks such as 1,2,4.")
    if trials < 1:
        raise BadInput(f"--trials is {trials}; give 1 or more.")
    if threads is not None and threads < 1:
        raise BadInput(f"--threads is {threads}; give 1 or more.")
    threads = threads or max(1, cores() // max(counts))
    trials_done: list[Trial] = []
    firsts: dict[float, Result] = {}
    for trial in range(trials):
        for way in ways(counts, threads, also):
            tell(f"trial {trial + 1} of {trials}, {way.name}")
            result = _result(run, way, folder / "run")
            trials_done.append(_trial(result, way, firsts.setdefault(way.share, result)))
    first = firsts[1.0]
    rows = summarise(trials_done)
    return {
        "recipe": first.recipe,
        "device": first.attrs["device"],
        "precision": first.attrs["precision"],
        "threads_per_rank": threads,
        "cores": cores(),
        "trials_per_count": trials,
        "rows": [row.__dict__ for row in rows],
        "trials": [{**trial.__dict__, "seconds": trial.seconds} for trial in trials_done],
        "same_bits": all(trial.same for trial in trials_done),
    }


def _smaller(share: float, views: int, batches: Sequence[int | None]) -> list[str]:
    """Return settings for this share of the views, and of each batch."""
    if share == 1:
        return []
    settings = [f"data.views.central={max(1, round(share * views))}"]
    sizes = [(stage, size) for stage, size in enumerate(batches) if size is not None]
    return settings + [f"stages.{stage}.batch={max(1, round(share * size))}" for stage, size in sizes]


def _result(run: RepeatedRun, way: Way, out: Path) -> Result:
    """Return the result of one run without figures and checkpoints; its folder is removed, unless it failed."""
    settings = [*run.settings, *_smaller(way.share, run.views, run.batches)]
    settings += ["output.figures=false", "output.tiff=false", "output.checkpoint_every=1000000000"]
    arguments = ["run", str(run.recipe), "--device", run.device, "--out", str(out), "--force"]
    arguments += [part for setting in settings for part in ("--set", setting)]
    quiet = out.with_name("ranks")
    status = launch(
        arguments, way.ranks, threads_per_rank=way.threads, log_dir=quiet, environment=run.environment, terminal=False
    )
    if status:
        last_line = (quiet / "rank0.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise PtymeshError(
            f"The run on {way.ranks} ranks failed with status {status} ({' '.join(last_line)}); "
            f"its logs are in {quiet}."
        )
    result = Result.load(out / "result.h5")
    shutil.rmtree(out)
    shutil.rmtree(quiet, ignore_errors=True)
    return result


def _trial(result: Result, way: Way, first: Result) -> Trial:
    difference = np.linalg.norm(result.object - first.object) / np.linalg.norm(first.object)
    attributes = result.attrs
    return Trial(
        way.ranks,
        [float(s) for s in result.history["seconds"]],
        [float(s) for s in np.atleast_1d(attributes["rank_waited_s"])],
        [int(b) for b in np.atleast_1d(attributes["rank_peak_bytes"])],
        [float(loss) for loss in result.history["loss"]],
        float(difference),
        way.kind,
        way.threads,
        way.share,
        float(np.mean(attributes.get("balance", 1.0))),
        same_bits(result, first),
    )


def same_bits(result: Result, other: Result) -> bool:
    """Return True if two results have the same bits; NaN equals NaN."""
    pairs = [(getattr(result, name), getattr(other, name)) for name in COMPARED]
    return all(a is b is None or (a is not None and b is not None and a.tobytes() == b.tobytes()) for a, b in pairs)


def summarise(trials: Sequence[Trial]) -> list[Row]:
    """Return a row for each way, by kind and then by the number of ranks, or of threads."""
    rows: list[Row] = []
    keys = {(KINDS.index(t.kind), t.ranks, t.threads) for t in trials}
    strong = max(trial.ranks for trial in trials)
    weak = any(trial.kind == WEAK for trial in trials)
    for kind, ranks, threads in sorted(keys):
        alike = [t for t in trials if (KINDS.index(t.kind), t.ranks, t.threads) == (kind, ranks, threads)]
        rows.append(_row(alike, rows))
    if weak:  # on the most ranks, the strong run is the weak one
        alike = [trial for trial in trials if trial.kind == RANKS and trial.ranks == strong]
        rows.append(_row(alike, rows, WEAK))
    return rows


def _row(trials_of_row: Sequence[Trial], earlier: Sequence[Row], kind: str = "") -> Row:
    """Return the row of the trials of one way, compared with the earlier rows."""
    one, seconds = trials_of_row[0], np.array([trial.seconds for trial in trials_of_row])
    kind, mean = kind or one.kind, float(seconds.mean())
    compared = RANKS if kind == THREADS else kind
    base = next((row for row in earlier if row.kind == compared), None)
    speed_up = base.seconds / mean if base else 1.0
    if kind == WEAK:
        efficiency = speed_up
    else:
        more = one.ranks * one.threads / (base.ranks * base.threads) if base else 1.0
        efficiency = speed_up / more
    return Row(
        one.ranks,
        mean,
        float(seconds.std(ddof=1)) if len(trials_of_row) > 1 else 0.0,
        speed_up,
        efficiency,
        float(np.mean([trial.waited.mean() for trial in trials_of_row])),
        max(max(trial.peak_bytes) for trial in trials_of_row),
        max(trial.difference for trial in trials_of_row),
        kind,
        one.threads,
        one.share,
        _lost(trials_of_row, efficiency) if kind == RANKS and base else {},
    )


def _lost(trials: Sequence[Trial], efficiency: float) -> dict[str, float]:
    """Return the lost fractions of the ranks' time, see Row."""
    messages = float(np.mean([trial.waited.min() for trial in trials]))
    waiting = float(np.mean([trial.waited.mean() for trial in trials])) - messages
    uneven = float(np.mean([1 / trial.balance - 1 for trial in trials])) * efficiency
    imbalance = min(waiting, uneven)
    shares = {"messages": messages, "imbalance": imbalance, "waiting": waiting - imbalance}
    return {"repeated": 1 - efficiency - messages - waiting, **shares}


def table(measured: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table of the rows, for the terminal."""
    lines = ["ranks  threads  s/epoch   +-       speed-up  efficiency  in collectives  peak/rank  object differs"]
    kind = RANKS
    for row in measured["rows"]:
        if row["kind"] != kind:
            kind = row["kind"]
            lines.append(_HEADINGS[kind])
        lines.append(
            f"{row['ranks']:5d}  {row['threads']:7d}  {row['seconds']:8.4f}  {row['deviation']:7.4f}  "
            f"{row['speed_up']:7.2f}  {row['efficiency']:9.0%}  {row['communication']:13.0%}  "
            f"{row['peak_bytes'] / 2**20:6.0f} MiB  {row['difference']:.1e}"
        )
    lines += [*_losses(measured["rows"]), *_compare_with_threads(measured["rows"])]
    verdict = "have" if measured["same_bits"] else "DO NOT HAVE"
    threads = measured["threads_per_rank"]
    lines.append(
        f"Final results {verdict} the same bits ({measured['precision']} precision); "
        f"{threads} thread{'s' * (threads > 1)} per rank, {measured['cores']} cores, device {measured['device']}."
    )
    if measured["device"] == "cpu" and max(row["ranks"] for row in measured["rows"]) * threads > measured["cores"]:
        lines.append("There are fewer cores than ranks: they take turns, and no speed-up can be seen.")
    return lines


_HEADINGS = {
    THREADS: "one rank with as many threads:",
    WEAK: "as many views for each rank (efficiency: the time of the fewest over that of these):",
}


def _losses(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence on what is lost, for each number of ranks."""
    lines = []
    for row in rows:
        lost = {name: share for name, share in row["lost"].items() if share > 0.005}
        if row["kind"] == RANKS and lost:
            shares = ", ".join(
                f"{LOSSES[name]} {share:.0%}" for name, share in sorted(lost.items(), key=_largest_first)
            )
            lines.append(f"{row['ranks']} ranks lose {shares} of their time.")
    return lines


def _largest_first(item: tuple[str, float]) -> float:
    return -item[1]


def _compare_with_threads(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence that compares ranks with as many threads of one, for each number of ranks."""
    threads = {row["threads"]: row for row in rows if row["kind"] == THREADS}
    lines = []
    for row in rows:
        other = threads.get(row["ranks"] * row["threads"])
        if row["kind"] == RANKS and row["ranks"] > 1 and other:
            speed = other["seconds"] / row["seconds"]
            lines.append(f"{row['ranks']} ranks have {speed:.2f} of the speed of one with {other['threads']} threads.")
    return lines


def save(measured: Mapping[str, Any], folder: Path) -> tuple[Path, Path]:
    """Write scaling.json and scaling.png into the folder."""
    from ptymesh.plot import save_figure, scaling_figure

    numbers, picture = folder / "scaling.json", folder / "scaling.png"
    with writing(numbers):
        folder.mkdir(parents=True, exist_ok=True)
    with replacing(numbers) as temporary:
        temporary.write_text(json.dumps(measured, indent=1), encoding="utf-8")
    save_figure(scaling_figure(measured["rows"], measured["trials"], _title(measured)), picture)
    return numbers, picture


def _title(measured: Mapping[str, Any]) -> str:
    threads, trials = measured["threads_per_rank"], measured["trials_per_count"]
    return f"{measured['device']}, {threads} thread{'s' * (threads > 1)} per rank, {trials} trial{'s' * (trials > 1)}"
