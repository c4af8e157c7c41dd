"""State of a run: the estimate, the engines' memories, the counters. A checkpoint must hold all of it.

N       all views
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.tiles import Rect
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.io.results import Result
from ptymesh.measurement import Measurement
from ptymesh.physics.detector.pieces import binning_of
from ptymesh.physics.object_modes import mean_object
from ptymesh.problem import Problem
from ptymesh.recipe.schema import Recipe
from ptymesh.run import memory
from ptymesh.run.checkpoint_counters import Counters, counters_of
from ptymesh.run.position_check import PositionCheck
from ptymesh.run.unknown_changes import COLUMNS, change_column
from ptymesh.unknowns import BUILT_IN, OTHERS, of_scope
from ptymesh.verdict.term_trial import TermCheck

#: Columns of the history, one entry per epoch.
HISTORY = ("epoch", "stage", "loss", "residual", "seconds", "held_out", "rate", *COLUMNS)

#: Arrays of the estimate in a checkpoint, by how they are held; anchors and nominal positions are no unknowns.
_SHARED = (*of_scope("shared"), "anchors", "nominal")
_PER_VIEW = of_scope("view")
#: Name of the tiles of an object's values.
_VALUES = "object_values"
#: The same in checkpoints of versions that knew no other objects with values.
_POTENTIAL = "potential"
Arrays = dict[str, np.ndarray]


@dataclass
class RunState:
    """A run between two batches.

    Attributes:
        estimate: as it is now.
        stage, epoch, batch: stages done, epochs done of this stage, batches done of this epoch.
        start: (N, 2) positions at the start of the running epoch.
        before: the unknowns at the start of the running epoch, thinned out (unknown_changes.py), for checkpoints within
            it.
        engines: by stage, what its engine remembers.
        per_view: of the running stage (its number), what its engine remembers of this rank's views.
        history: one list per column of HISTORY, and of the model's operators' unknowns, over all stages.
        epoch_seconds: time spent in the running epoch so far.
        position_check: outcome of the judgement of refined positions, None before there was one.
        term_checks: outcomes of the judgements of terms of geometry and lens.
    """

    estimate: Estimate
    stage: int = 0
    epoch: int = 0
    batch: int = 0
    start: Tensor = None  # type: ignore[assignment]  # where the estimate is, unless told otherwise
    engines: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    history: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in HISTORY})
    epoch_seconds: float = 0.0
    per_view: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    before: dict[str, Tensor] = field(default_factory=dict)
    position_check: PositionCheck | None = None
    term_checks: list[TermCheck] = field(default_factory=list)

    @property
    def refused_positions(self) -> bool:
        """True if positions are not refined any more, as that does not help."""
        return self.position_check is not None and self.position_check.is_refused

    def __post_init__(self) -> None:
        if self.start is None:
            self.start = self.estimate.positions.clone()
        for name in self.estimate.others:
            self.history.setdefault(change_column(name), [math.nan] * self.done_epochs)

    @property
    def done_epochs(self) -> int:
        """Epochs done over all stages."""
        return len(self.history["epoch"])

    def save(self, directory: Path, problem: Problem, meta: dict[str, object]) -> None:
        """Write a checkpoint into `directory`. Collective.

        Args:
            directory: of the checkpoint.
            problem: that is solved, for owners and parts of the object.
            meta: what else the manifest says.
        """
        estimate, local_views = self.estimate, problem.layout.own
        tile = problem.layout.tile(estimate)
        shared, per_view, tiles = memory.retry_out_of_memory(problem, lambda: self._arrays_by_owner(problem, tile))
        counters = {
            "stage": self.stage,
            "epoch": self.epoch,
            "batch": self.batch,
            "epoch_seconds": self.epoch_seconds,
            "origin": list(estimate.origin),
            "extent": list(estimate.extent),
            "layout": problem.layout.name,
            "window": list(problem.window),
            "parts": [list(part) for part in problem.layout.parts if problem.layout.name == "tiled"],
            "slice_spacing_m": estimate.slice_spacing_m,
            "tilt_rad": list(estimate.tilt_rad),
            "parameters": estimate.parameters,
            "initial_parameters": estimate.initial_parameters,
        }
        if estimate.object_values is not None:
            counters |= {"object_kind": estimate.object_kind, "absorption": estimate.absorption}
        if self.position_check is not None:
            counters["position_check"] = asdict(self.position_check)
        if self.term_checks:
            counters["term_checks"] = [asdict(check) for check in self.term_checks]
        arrays = checkpoint.RankArrays(shared, local_views, per_view, tiles, tile.corner)
        checkpoint.save(directory, problem.world, arrays, {**meta, "run": counters})

    def _arrays_by_owner(self, problem: Problem, tile: Rect) -> tuple[Arrays, Arrays, Arrays]:
        """Return what ranks share, what this one has of its views, and of the object, by name."""
        estimate, local_views = self.estimate, problem.layout.own
        shared = {name: _to_numpy(getattr(estimate, name)) for name in _SHARED}
        in_tile = (slice(None), *tile.inside(estimate.corner))
        tiles = {"object": _to_numpy(estimate.object[in_tile])}
        if estimate.object_values is not None:
            tiles[_VALUES] = _to_numpy(estimate.object_values[in_tile])
        for stage, tensors in self.engines.items():
            for name, tensor in tensors.items():
                if problem.fields.is_of_object(tensor, estimate):
                    tiles[f"engine/{stage}/{name}"] = _to_numpy(tensor[in_tile])
                else:
                    shared[f"engine/{stage}/{name}"] = _to_numpy(tensor)
        shared |= {f"history/{name}": np.asarray(column) for name, column in self.history.items()}
        if self.batch:
            shared |= {f"before/{name}": _to_numpy(tensor) for name, tensor in self.before.items()}
        per_view = {name: _to_numpy(getattr(estimate, name))[local_views] for name in _PER_VIEW}
        for one in problem.model.unknowns:
            if one.scope == "tiled":
                tiles[OTHERS + one.name] = _to_numpy(estimate[one.name][in_tile])
            elif one.scope == "view":
                per_view[OTHERS + one.name] = _to_numpy(estimate[one.name])[local_views]
            else:
                shared[OTHERS + one.name] = _to_numpy(estimate[one.name])
        per_view |= {
            "start": _to_numpy(self.start)[local_views],
            "seen": _to_numpy(problem.evaluator.view_metrics.values),
        }
        for stage, tensors in self.per_view.items():
            per_view |= {f"engine/{stage}/{name}": _to_numpy(rows) for name, rows in tensors.items()}
        return shared, per_view, tiles

    @classmethod
    def load(cls, saved: checkpoint.Checkpoint, problem: Problem) -> RunState:
        """Return the state that `save` wrote, on any number of ranks. Raises BadInput where the data set is another."""
        device, run = problem.device, counters_of(saved.meta)
        _check_arrays(saved, run, problem)
        arrays = {name: torch.as_tensor(saved.shared[name], device=device) for name in _SHARED}
        arrays |= {name: torch.as_tensor(saved.per_view[name], device=device) for name in _PER_VIEW}
        part = problem.layout.place(run.extent, run.origin, saved.shared["anchors"])
        same = (run.layout, saved.ranks, run.window) == (
            problem.layout.name,
            problem.world.size,
            tuple(problem.window),  # not those of a coarse stage, which has a layout of its own
        )
        if run.parts and same:
            part = problem.layout.hold(run.rectangles)  # the same shapes, the same bits
        of_object = {name: torch.as_tensor(saved.tiles.part(name, part), device=device) for name in saved.tiles}
        older = of_object.pop(_POTENTIAL, None)  # of a version in which a potential was the only kind with values
        _check_tiled(of_object, problem)
        by_scope = {"view": saved.per_view, "shared": saved.shared, "tiled": of_object}
        unknowns = {
            one.name: torch.as_tensor(by_scope[one.scope][OTHERS + one.name], device=device)
            for one in problem.model.unknowns
        }
        estimate = Estimate(
            of_object.pop("object"),
            **arrays,
            others=unknowns,
            slice_spacing_m=run.slice_spacing_m,
            tilt_rad=run.tilt_rad,
            parameters=run.parameters,
            initial_parameters=run.initial_parameters,
            moving=False,
            origin=run.origin,
            corner=part.corner,
            extent=run.extent,
            probe_count=problem.probe_count,
            object_kind=run.object_kind if older is None else _POTENTIAL,
            object_values=of_object.pop(_VALUES, older),
            absorption=run.absorption or 0.0,
            object_modes=problem.model.object_modes,
            scan_index=None if problem.scan_index is None else torch.from_numpy(problem.scan_index).to(device),
        )
        if estimate.has_own_backgrounds:
            problem.split_by_scan()
        local_views = problem.layout.own
        problem.evaluator.view_metrics.values.copy_(torch.as_tensor(saved.per_view.rows("seen", local_views)))
        of_views = {key: saved.per_view.rows(key, local_views) for key in saved.per_view if key.startswith("engine/")}
        return cls(
            estimate,
            run.stage,
            run.epoch,
            run.batch,
            torch.as_tensor(saved.per_view["start"], device=device),
            _read_memories({**saved.shared, **of_object}, device),
            _read_history(saved, [change_column(name) for name in unknowns]),
            run.epoch_seconds,
            _read_memories(of_views, device),
            _read_epoch_start(saved),
            run.position_check,
            list(run.term_checks),
        )


def read_estimate(saved: checkpoint.Checkpoint, recipe: Recipe, scan: Measurement) -> Result:
    """Return what a checkpoint holds of object, probe and all else that explains patterns, without residuals.

    Nothing of the scan's patterns is read, unlike `RunState.load`, which needs a problem.

    Args:
        saved: whose arrays are taken; of the object all tiles.
        recipe: of the run.
        scan: of the run.

    Raises:
        BadInput: arrays are missing, or do not fit each other or the scan.
    """
    run, pixel = counters_of(saved.meta), scan.geometry.object_pixel_m
    window = scan.geometry.binned(1 / binning_of(recipe.optics.values())).shape
    if run.window != window or saved.shared["probe"].shape[-2:] != window:
        raise BadInput("The checkpoint is of a coarse stage, whose patterns are binned; wait for the next stage.")
    probes = saved.shared["probe"].reshape(scan.scans if recipe.probe.scans == "own" else 1, -1, *window)
    arrays = {**saved.shared, **{name: saved.per_view[name] for name in saved.per_view}}
    in_scan, full = scan.scan_coordinates(arrays["positions"]), Rect(0, 0, *run.extent)
    arrays |= {name: saved.tiles.part(name, full) for name in saved.tiles if name.startswith(OTHERS)}
    planes, modes = saved.tiles.part("object", full), None
    if recipe.object.modes > 1:
        if len(planes) != recipe.object.modes * recipe.object.slices:
            raise BadInput(f"The checkpoint's object has {len(planes)} planes, other than its recipe; start anew.")
        modes = planes.reshape(recipe.object.modes, -1, *planes.shape[1:])
    return Result(
        object=planes if modes is None else mean_object(modes),
        object_modes=modes,
        probe=probes[0],
        positions_px=arrays["positions"],
        pixel_size_m=pixel,
        positions_m=None if pixel is None else (in_scan - np.array(run.origin)) * np.array(pixel),
        slice_spacing_m=run.slice_spacing_m,
        tilt_rad=run.tilt_rad,
        recipe=recipe.to_yaml(),
        attrs={"subpixel": recipe.positions.subpixel, "data_fingerprint": scan.fingerprint},
        background=arrays["background"] if arrays["background"].any() else None,
        weights=arrays["weights"],
        opr=arrays["opr"] if len(arrays["opr"]) else None,
        parameters=run.parameters,
        unknowns={name.removeprefix(OTHERS): arrays[name] for name in arrays if name.startswith(OTHERS)},
        scan_index=scan.scan_index,
        scan_probes=probes if len(probes) > 1 else None,
    )


def _check_arrays(saved: checkpoint.Checkpoint, run: Counters, problem: Problem) -> None:
    """Raise BadInput where the arrays of a checkpoint are of another data set, or do not fit each other."""
    per_view = {"positions": "positions", "weights": "weights", "start": "start", "seen": "seen"}
    per_view |= {OTHERS + one.name: one.name for one in problem.model.unknowns if one.scope == "view"}
    declared = {OTHERS + one.name for one in problem.model.unknowns if one.scope == "shared"}
    tiled = {OTHERS + one.name for one in problem.model.tiled}
    columns = (f"history/{name}" for name in HISTORY if name not in ("rate", *COLUMNS))
    missing = {*_SHARED, *declared, *columns} - saved.shared.keys()
    missing |= {name for name in per_view if name not in saved.per_view} | {"object", *tiled} - {*saved.tiles}
    if missing:
        raise BadInput(f"The checkpoint holds no {', no '.join(sorted(missing))}; copy the whole folder again.")
    groups = saved.shared, saved.per_view, saved.tiles
    unknowns = {name for group in groups for name in group if name.startswith(OTHERS)}
    if odd := unknowns - declared - tiled - per_view.keys():
        names = ", ".join(sorted(name.removeprefix(OTHERS) for name in odd))
        raise BadInput(f"The checkpoint holds {names}, which no optics of the recipe have; add them, or start anew.")
    views = saved.per_view.views
    if views != problem.views:
        raise BadInput(
            f"The checkpoint is of a scan with {views} views, this data set has {problem.views}; "
            "check data.path and data.views."
        )
    if run.parts and len(run.parts) != saved.ranks:
        raise BadInput(
            f"The checkpoint of {saved.ranks} ranks names parts of {len(run.parts)}; copy the whole folder again."
        )
    window = saved.shared["probe"].shape[1:]  # in a coarse stage, smaller than the data's
    coarser = {full_side / max(1, part) for full_side, part in zip(problem.window, (*window, 0, 0), strict=False)}
    if len(window) != 2 or len(coarser) != 1 or not coarser.pop().is_integer():
        raise BadInput(
            f"The checkpoint is of windows of {window}, this data set has {tuple(problem.window)}; "
            "check data.path and how its patterns are prepared."
        )
    height, width = window
    detector = [n // problem.model.binning for n in window]
    shared = saved.shared
    if len(shared["probe"]) % problem.probe_count:
        raise BadInput(
            f"The checkpoint has {len(shared['probe'])} probe modes, which {problem.probe_count} scans cannot share "
            "equally; go on with the recipe of the run (probe.scans)."
        )
    opr = len(shared["opr"])
    own_backgrounds = (problem.scans,) if problem.scans > 1 and shared["background"].ndim == 3 else ()
    shapes = {
        "probe": (*shared["probe"].shape[:1], height, width),
        "opr": (opr, height, width),
        "background": (*own_backgrounds, *detector),
        "anchors": (views, 2),
        "nominal": (views, 2),
        **{name: shared["history/epoch"].shape[:1] for name in shared if name.startswith("history/")},
    }
    rows = {
        "positions": (views, 2),
        "start": (views, 2),
        "weights": (views, 1 + opr),
        "seen": problem.evaluator.view_metrics.values.shape,
    }
    sizes = {"N": views, "M": len(shared["probe"]), "h": height, "w": width, "K": opr, "1+K": 1 + opr}
    sizes |= {"S": problem.scans, "v": detector[0], "u": detector[1]}
    sizes |= problem.model.axes((height, width))
    for one in (one for one in problem.model.unknowns if one.scope != "tiled"):
        (rows if one.scope == "view" else shapes)[OTHERS + one.name] = one.shape(sizes)
    shape_pairs = {name: (shared[name].shape, shapes[name]) for name in shapes}
    shape_pairs |= {name: ((views, *saved.per_view.shape(name)), (views, *rows[name][1:])) for name in rows}
    for name, (shape, expected) in shape_pairs.items():
        if shape != expected:
            raise BadInput(
                f"The checkpoint's {name} has shape {shape} where {expected} should be; copy the folder again."
            )
    _check_numbers(saved, run, problem, (height, width))
    _check_anchors(shared["anchors"], run, (height, width))


def _check_numbers(saved: checkpoint.Checkpoint, run: Counters, problem: Problem, window: tuple[int, int]) -> None:
    """Raise BadInput where a number is none that a run can have come to; windows may lie beyond the object's edge."""
    most = {one.name: one.largest for one in BUILT_IN if one.scope != "tiled" and one.name != "positions"}
    most |= {OTHERS + one.name: one.largest for one in problem.model.unknowns if one.scope != "tiled"}
    most |= dict.fromkeys(("nominal", "positions", "start"), max(run.extent) + max(window))
    least = {OTHERS + one.name: one.least for one in problem.model.unknowns if one.least is not None}
    for name, limit in most.items():
        array = saved.shared[name] if name in saved.shared else saved.per_view[name]
        if not (np.abs(array) <= limit).all() or (name in least and (array < least[name]).any()):  # True on NaN too
            raise BadInput(f"The checkpoint's {name} holds numbers that cannot be; copy the folder again.")


def _check_tiled(of_object: Mapping[str, Tensor], problem: Problem) -> None:
    """Raise BadInput where a tiled unknown has other planes than it is declared with, or numbers that cannot be.

    Args:
        of_object: this rank's parts of what lies on the object's pixels, by name.
        problem: that is solved.
    """
    slices, height, width = of_object["object"].shape
    sizes = {"L": slices, "H": height, "W": width} | problem.model.axes(problem.window)
    for one in problem.model.tiled:
        array, expected_shape = of_object[OTHERS + one.name], one.shape(sizes)
        if tuple(array.shape) != expected_shape:
            raise BadInput(
                f"The checkpoint's {one.name} has shape {tuple(array.shape)} where {expected_shape} should be."
            )
        least = -math.inf if one.least is None else one.least
        if not bool((array.abs() <= one.largest).all()) or not (one.complex or bool((array >= least).all())):
            raise BadInput(f"The checkpoint's {one.name} holds numbers that cannot be; copy the folder again.")


def _check_anchors(anchors: np.ndarray, run: Counters, window: tuple[int, int]) -> None:
    """Raise BadInput where windows leave the object, as kernels read and write it at these places unchecked."""
    highest = np.array(run.extent) - np.array(window)
    if anchors.dtype != np.int64 or (anchors < 0).any() or (anchors > highest).any():
        raise BadInput("The checkpoint's windows lie outside of its object; copy the whole folder again.")


def _read_memories(arrays: Mapping[str, object], device: torch.device) -> dict[int, dict[str, Tensor]]:
    """Return what engines remember, by stage, from arrays engine/STAGE/NAME; other names are passed over."""
    memories: dict[int, dict[str, Tensor]] = {}
    for key, array in arrays.items():
        if key.startswith("engine/"):
            _, stage, name = (*key.split("/", 2), "", "")[:3]
            if not (stage.isascii() and stage.isdecimal()) or len(stage) > 9 or not name:
                raise BadInput(f"The checkpoint holds {key}, which no engine has remembered; copy the folder again.")
            memories.setdefault(int(stage), {})[name] = torch.as_tensor(array, device=device)
    return memories


def _read_history(saved: checkpoint.Checkpoint, more: Sequence[str]) -> dict[str, list[float]]:
    """Return the columns of the history; those that older versions did not have hold NaN."""
    unknown = np.full(len(saved.shared["history/epoch"]), np.nan)
    return {name: saved.shared.get(f"history/{name}", unknown).tolist() for name in (*HISTORY, *more)}


def _read_epoch_start(saved: checkpoint.Checkpoint) -> dict[str, Tensor]:
    """Return the unknowns as they were when the epoch began within which the checkpoint was written."""
    arrays = {key.partition("/")[2]: array for key, array in saved.shared.items() if key.startswith("before/")}
    for name, array in arrays.items():
        if array.dtype.kind not in "fc" or array.ndim > 2:
            raise BadInput(f"The checkpoint's before/{name} is {array.dtype} {array.shape}; copy the folder again.")
    return {name: torch.as_tensor(array) for name, array in arrays.items()}


def _to_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()
