"""Common parts of `run`, `resume` and `demo`: checks before any rank starts, start of ranks, end of a run."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ptymesh import stopping
from ptymesh.cli.launching import LaunchOptions, environment_of
from ptymesh.distributed.rank_info import world

if TYPE_CHECKING:
    from ptymesh.distributed.world import World
    from ptymesh.recipe.schema import Recipe
    from ptymesh.run.session import RunOutcome

#: Bytes of a result in tiles up to which figures are drawn at the end of the run, from the file.
DRAWN = 64 << 20
#: Files and folders that a run writes into its folder.
FILES = (
    "result.h5",
    "preview.h5",
    "pyramid.h5",
    "log.txt",
    "metrics.jsonl",
    "status.json",
    "control",
    "started.yaml",
    "started.yaml.new",
    "recipe.yaml",
)
FOLDERS = ("checkpoint", "ranks")
#: Verdicts for which --strict exits with status 4.
BAD = ("poor", "failed")
#: Figures that a run draws into its folder, by suffix.
FIGURES = {
    ".png": [
        "overview",
        "object",
        "slices",
        "sections",
        "spectrum",
        "probe",
        "pupil",
        "coverage",
        "positions",
        "history",
        "patterns",
        "mean_pattern",
        "comparison",
    ],
    ".tiff": ["object_amplitude", "object_phase", "probe_amplitude", "probe_phase"],
}


@contextmanager
def holding_output_folder(out: Path) -> Iterator[None]:
    """Hold the lock of the output folder within this context, after `check_folder`.

    If another launcher has started the ranks, the folder is locked later, by the first rank once all have joined.

    Raises:
        BadInput: another run has the folder.
    """
    from ptymesh.run_folder.lock import hold_folder

    if world().size > 1:
        yield
        return
    with hold_folder(out):
        yield


def check_folder(out: Path, remedy: str = "choose another one with --out") -> None:
    """Raise BadInput if `out` cannot be a folder that is written to.

    Args:
        out: the folder, which need not exist.
        remedy: end of the message.
    """
    from ptymesh.errors import BadInput
    from ptymesh.paths import usable

    usable(out, "The output folder")
    first = next((folder for folder in (out, *out.absolute().parents) if os.path.lexists(folder)), out)
    if not first.is_dir() or not os.access(first, os.W_OK):
        raise BadInput(f"{first} is not a folder that can be written to; {remedy}.")


def refuse_to_overwrite(out: Path, *, force: bool, recipe: str | None = None) -> None:
    """Raise BadInput if `out` holds a run already, unless forced.

    A job that is restarted, by its scheduler or with the same recipe, may find its own log and metrics without a
    checkpoint; these are not refused.

    Args:
        out: output folder.
        force: True to replace the earlier run.
        recipe: of the new run, as YAML.
    """
    from ptymesh.errors import BadInput
    from ptymesh.io.checkpoint import store as checkpoint
    from ptymesh.run_folder import start_record

    _refuse_odd_files(out)
    if force:
        return
    if (out / "result.h5").exists():
        raise BadInput(
            f"{out / 'result.h5'} exists; choose another folder with --out, or replace what is there with --force."
        )
    if checkpoint.exists(out / "checkpoint"):
        raise BadInput(
            f"{out} holds the checkpoint of an unfinished run; go on with `ptymesh resume {out}`, "
            f"choose another folder with --out, or start anew with --force."
        )
    pending = start_record.pending_recipe(out)
    if _requeued() or (pending is not None and pending == recipe):
        return
    for name in ("log.txt", "metrics.jsonl"):
        if (out / name).exists():
            if pending is not None:
                raise BadInput(
                    f"{out} holds a run that was stopped before its first checkpoint; start it anew with "
                    f"`ptymesh resume {out}`, choose another folder with --out, or replace it with --force."
                )
            raise BadInput(
                f"{out / name} is of an earlier run; choose another folder with --out, or replace it with --force."
            )


def _refuse_odd_files(out: Path) -> None:
    """Raise BadInput if the name of a file or folder to be written belongs to something of another type."""
    from ptymesh.errors import BadInput
    from ptymesh.files import target_of

    for path in sorted(out.iterdir()) if out.is_dir() else ():
        if path.name in FILES or path.stem in FIGURES.get(path.suffix, ()):
            target_of(path)
        elif path.name == "checkpoint" and path.is_symlink():
            raise BadInput(f"{path} is a link, and what it leads to is left alone; remove it, or choose another --out.")
        elif path.name in FOLDERS and not path.is_dir():
            raise BadInput(f"{out} holds a file named {path.name}; move it away, or choose another folder with --out.")


def _requeued() -> bool:
    """Return True if Slurm has restarted this job."""
    return os.environ.get("SLURM_RESTART_COUNT", "0") not in ("", "0")


def restarted() -> bool:
    """Return True if this rank was restarted after a failure, by our launcher or by torchrun (--max-restarts)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0) > 0


@dataclass
class StageFinder:
    """Search for stages that a recipe leaves open.

    Attributes:
        time_s: seconds for the search and the run; None: no limit.
        reasons: reasons for the values of a recipe, by key.
    """

    time_s: float | None = None
    reasons: dict[str, list[str]] = field(default_factory=dict)

    def decide(self, recipe: Recipe, world: World, stop: Callable[[], bool]) -> Recipe:
        """Find stages and return the recipe with them, which is written into the output folder. Collective.

        Args:
            recipe: without stages.
            world: the ranks.
            stop: returns True if the search should stop.
        """
        from ptymesh.auto.deciding import decide

        return decide(recipe, world, stop, time_s=self.time_s, reasons=self.reasons, say=typer.echo).recipe


def execute(
    recipe: Recipe,
    arguments: Sequence[str],
    how: LaunchOptions,
    *,
    resume: bool,
    other_data: bool = False,
    finder: StageFinder | None = None,
    strict: bool = False,
) -> None:
    """Run the recipe in this process, or start ranks of `ptymesh ARGUMENTS`, which call this function in turn.

    Args:
        recipe: to run.
        arguments: of the command line of each rank.
        how: options for starting ranks.
        resume: True to continue from the checkpoint.
        other_data: True to continue even with data other than the checkpoint's.
        finder: search for stages that the recipe leaves open.
        strict: True to raise Poor if the verdict is poor or failed.

    Raises:
        typer.Exit: the ranks' status is not 0.
        BadInput: options contradict each other, before any rank starts.
        Poor: the verdict is poor or failed, and `strict` is True.
    """
    from ptymesh.errors import BadInput
    from ptymesh.recipe.scans import load_scan

    out, place = recipe.output.dir, world()
    if place.size > 1:
        if how.ranks is not None and how.ranks != place.size:
            raise BadInput(f"--ranks is {how.ranks} inside a world of {place.size} ranks; leave --ranks out.")
        if how.max_restarts:
            raise BadInput(
                "--max-restarts is for who starts the ranks; give it to torchrun (as --max-restarts) instead."
            )
    else:
        how.check()
    with _set_stop_message(recipe, resume):
        if place.size > 1 or how.ranks is None or how.ranks == 1:
            with environment_of(how.environment):
                outcome = _run_in_this_process(recipe, how.device, resume, other_data, finder or StageFinder())
            if place.size == 1 and (out / "ranks").is_dir():  # left by an earlier run on several ranks
                from ptymesh.launcher.rank_processes import tidy

                tidy(out / "ranks", 1)
            if strict:
                _insist_on_good(outcome.result.attrs, outcome.path)
            return
        load_scan(recipe)
        gc.enable()  # this process waits for its ranks
        if status := start_ranks(arguments, how, out):
            from ptymesh.run_folder.status import end_silent

            end_silent(out, f"The ranks have ended with status {status}; see log.txt and ranks/.")
            raise typer.Exit(status)
        if strict:
            from ptymesh.io.results import read_attributes

            _insist_on_good(read_attributes(out / "result.h5"), out / "result.h5")


def start_ranks(arguments: Sequence[str], how: LaunchOptions, out: Path) -> int:
    """Run `ptymesh ARGUMENTS` on several ranks of this machine, which share the lock of a folder; return their status.

    Args:
        arguments: of the command line of each rank.
        how: their number, and how they are started.
        out: output folder.

    Raises:
        BadInput: another run has the folder.
    """
    from ptymesh.launcher.rank_processes import launch
    from ptymesh.run_folder.lock import TOKEN, hold_folder

    assert how.ranks is not None
    with hold_folder(out) as lease:
        return launch(
            arguments,
            how.ranks,
            log_dir=out / "ranks",
            max_restarts=how.max_restarts,
            environment={**how.environment, TOKEN: lease.token},
            bind=how.bind,
        )


def _insist_on_good(attributes: Mapping[str, object], path: Path) -> None:
    """Raise Poor if the verdict is poor or failed; of several ranks, only the first prints the reason."""
    from ptymesh.errors import Poor

    state = attributes.get("verdict")
    if state not in BAD:
        return
    if world().rank:
        raise typer.Exit(Poor.exit_status)
    raise Poor(f"The result {path} is {state}, and --strict was given: {attributes.get('verdict_sentence')}.")


@contextmanager
def _set_stop_message(recipe: Recipe, resume: bool) -> Iterator[None]:
    """Set, within this context, the sentence that tells how to resume or restart the run after a signal."""
    from ptymesh.distributed.child import launched
    from ptymesh.run_folder.start_record import STARTED, recording_start

    out = recipe.output.dir
    with ExitStack() as stack:
        with stopping.undisturbed():  # no signal between writing the recipe and setting the sentence about it
            if not resume and world().rank == 0 and not launched():
                stack.enter_context(recording_start(out, recipe.to_yaml()))
            sentence = f"Stopped before the first batch was done; `ptymesh resume {out}` starts anew."
            if resume:
                sentence = (
                    f"Stopped before anything new was done; `ptymesh resume {out}` goes on from the last checkpoint."
                )
            elif launched() and not (out / STARTED).exists():  # started by a command other than run and resume
                sentence = stopping.BEFORE
            since = f"Stopped; `ptymesh resume {out}` goes on from the last checkpoint, if there is one."
            stopping.at_once(sentence, since=since)
        yield


def _run_in_this_process(
    recipe: Recipe, device: str, resume: bool, other_data: bool, finder: StageFinder
) -> RunOutcome:
    """Run the recipe in this process, with log, figures and callbacks."""
    from ptymesh.errors import Interrupted

    with _traceback_in(recipe.output.dir / "log.txt"), ExitStack() as lease:
        from ptymesh.run.session import StageChoice, run_recipe
        from ptymesh.run_folder.callbacks import make_watchers

        watching = make_watchers()
        with ExitStack() as stack:

            def finish() -> None:
                for callback in watching:
                    callback.finish("interrupted")

            stack.enter_context(stopping.tidying(finish))
            for callback in watching:
                stack.callback(callback.close)
            try:
                outcome = run_recipe(
                    recipe,
                    device=device,
                    resume=resume,
                    other_data=other_data,
                    callbacks=watching,
                    lease=lease,
                    stages=StageChoice(finder.decide, finder.time_s),
                )
            except BaseException as stopped:
                for callback in watching if world().rank == 0 else ():
                    callback.fail(stopped)
                if type(stopped) is not Interrupted:
                    raise
                goes_on = f"Stopped after a checkpoint; `ptymesh resume {recipe.output.dir}` goes on."
                raise Interrupted(goes_on) from stopped
        if world().rank == 0:
            _conclude(outcome.recipe, outcome)
        return outcome


def _conclude(recipe: Recipe, outcome: RunOutcome) -> None:
    """Say what came of it, and draw; the last line is the verdict."""
    attributes = outcome.result.attrs
    final, floor = attributes["final_residual"], attributes.get("noise_floor")
    noise = f" (noise floor {floor:.4g} to {attributes['noise_level']:.4g})" if floor else ""
    typer.echo(f"Final residual {final:.6f}{noise}, R {attributes['final_r']:.4f}: {outcome.path}")
    if recipe.hold_out:
        typer.echo(f"It is of {attributes['residual_views']}.")
    for name, numbers in outcome.result.parameters.items():
        if any(name in stage.models or name in stage.constraints for stage in recipe.stages):
            typer.echo(f"{name}: {', '.join(f'{term} {number:.6g}' for term, number in numbers.items())}")
    if "bytes_per_batch" in attributes:
        from ptymesh.files import size

        sent, count = size(attributes["bytes_per_batch"]), attributes["messages_per_batch"]
        typer.echo(f"Per batch, the busiest rank handed over {sent} in {count:.1f} messages.")
    _diagnose(outcome)
    _write_products(recipe, outcome)
    state, sentence = attributes["verdict"], attributes["verdict_sentence"]
    if state in BAD:
        typer.echo(f"ptymesh: do not believe this picture: the verdict is {state}.", err=True)
    typer.echo(f"Verdict: {state}: {sentence}.")


def _write_products(recipe: Recipe, outcome: RunOutcome) -> None:
    """Draw and write what the recipe asks for, or say what would; no failure of that is one of the run."""
    figures, writers = recipe.output.figures, recipe.output.all_writers
    view = " ".join([f"ptymesh view {outcome.path}", *(f"--write {name}" for name in writers)])
    if not (figures or writers):
        return
    if _is_too_large(outcome):
        typer.echo(f"`{view}` {_doing(writers)} the whole object, which no rank has held.")
        return
    from ptymesh.run_folder.figures import write_products

    # what is written is safe, and figures can be drawn again
    stopping.at_once(f"Stopped before all figures were drawn; `{view}` draws them.", 0)
    files = write_products(outcome.path, figures=figures, writers=writers, patterns=outcome.patterns)
    if files:
        typer.echo(f"{'Figures' if figures else 'Files'}: {' '.join(map(str, files))}")


def _is_too_large(outcome: RunOutcome) -> bool:
    """Return True for an object in tiles that is too large for the memory of one process."""
    return outcome.result.attrs["layout"] == "tiled" and outcome.path.stat().st_size > DRAWN


def _doing(writers: Sequence[str]) -> str:
    return "draws and writes" if writers else "draws"


def _diagnose(outcome: RunOutcome) -> None:
    """Print how the iteration ended and, for a result that is not good, the likely cause.

    The cause is added to the result file. A failure of the diagnosis does not fail the run.
    """
    from ptymesh.cli.diagnose import data_of
    from ptymesh.diagnosis.report import last_words
    from ptymesh.io.results import Result, add_attributes

    try:
        if _is_too_large(outcome):
            typer.echo(f"`ptymesh diagnose {outcome.path}` looks at the whole object, which no rank has held.")
            return
        result = outcome.result
        if result.attrs["ranks"] > 1:  # this rank holds a part of the object
            result = Result.load(outcome.path)
        lines, cause = last_words(result, outcome.path, lambda: data_of(result))
        if cause is not None:
            add_attributes(outcome.path, {"first_cause": cause})
    except Exception as error:
        print(f"ptymesh: the result could not be diagnosed ({type(error).__name__}: {error}).", file=sys.stderr)
        return
    for line in lines:
        typer.echo(line)


@contextmanager
def _traceback_in(log: Path) -> Iterator[None]:
    """Write the traceback of an unexpected error within this context to the log, and add a note that says so.

    An error that only says that another rank has gone is replaced by that rank's failure.
    """
    from ptymesh.distributed.child import launched
    from ptymesh.distributed.program import account_for
    from ptymesh.errors import Interrupted, PtymeshError

    try:
        yield
    except KeyboardInterrupt as error:  # the second Ctrl-C
        sentence = f"Stopped at once; `ptymesh resume {log.parent}` goes on from the last checkpoint, if there is one."
        stopped = Interrupted(sentence)
        account_for(stopped)
        raise stopped from error
    except PtymeshError as error:
        account_for(error)
        raise
    except Exception as error:
        import traceback
        from datetime import datetime

        sentence = f"The traceback is in {log}."
        lost = account_for(error)
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a", encoding="utf-8") as file:
                now = datetime.now().astimezone().isoformat(timespec="seconds")
                file.write(f"{now}  rank {world().rank} failed\n{traceback.format_exc()}")
        except OSError as full:
            sentence = (
                f"The traceback could not be written to {log} ({full.strerror}); run again with --debug to see it."
            )
        if lost:
            if launched() and lost.is_posted:  # the launcher prints it once for all ranks
                raise typer.Exit(PtymeshError.exit_status) from error
            raise PtymeshError(lost.sentence) from error
        error.add_note(sentence)
        raise
