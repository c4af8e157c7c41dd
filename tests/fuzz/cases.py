"""A case: which input is made unsound, how, and with which command it is then used.

The folder of a case:

    in/      the working folder, with the inputs; `out`, what the command was asked to write
    tmp/ cache/ home/    in place of the machine's own
    said/    what was printed
"""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fuzz import archives, groups, originals, raw, signing, trees
from fuzz.arrays import Dice

#: Names in `in/` that commands are asked for; `convert`, `--figure` and the rest write into out.
ASKED = ("in/out", "in/out/*")
#: One case in so many is drawn as well (a second each), and one run in so many uses the compiled kernels.
DRAWN, COMPILED = 12, 30
DEVICE = ["--device", "cpu"]


@dataclass
class Case:
    """format: what was changed; command: who reads it; words: how; arguments: of ptymesh; drawn: `view` opens what a
    run has made; compiled: with numba's kernels instead of torch's passes; asked: names that may be written."""

    format: str
    command: str
    folder: Path
    words: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    drawn: bool = False
    compiled: bool = False
    asked: tuple[str, ...] = ASKED

    @property
    def place(self) -> Path:
        """The working folder."""
        return self.folder / "in"


def new(format_: str, command: str, folder: Path) -> Case:
    """A case whose folders are there, with nothing in them."""
    for name in ("in", "tmp", "cache", "home"):
        (folder / name).mkdir(parents=True)
    return Case(format_, command, folder)


def draw(dice: Dice, folder: Path, sources: Path) -> Case:
    """Any case. folder: does not exist yet; sources: what `originals` has made."""
    kind = dice.choice(KINDS)
    return kind(dice, folder, sources)


def take(case: Case, sources: Path, *names: str) -> None:
    """Copies of originals into the working folder."""
    for name in names:
        source, target = sources / name, case.place / name
        shutil.copytree(source, target) if source.is_dir() else shutil.copyfile(source, target)


def damage(path: Path, dice: Dice, structure: Callable[[Path, Dice], str], times: int) -> list[str]:
    """Changes of structure, of bytes, or both; seldom something else in the file's place."""
    if dice.random() < 0.03:
        return [raw.no_file(path, dice)]
    words = []
    bytes_too = dice.random()
    if bytes_too < 0.75:
        words += [_structured(path, dice, structure) for _ in range(times)]
    if bytes_too > 0.65:
        for _ in range(dice.choice((1, 1, 1, 3))):
            changed, more = raw.damage(path.read_bytes(), dice)
            path.write_bytes(changed)
            words.append(more)
    return words


def _structured(path: Path, dice: Dice, structure: Callable[[Path, Dice], str]) -> str:
    """A file that was changed before may no longer be open to another change of its structure."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return structure(path, dice)
        except Exception as error:  # of h5py, numpy, zipfile, tifffile: what was done before is what is tried
            return f"and no further ({type(error).__name__})"


STRUCTURE: dict[str, Callable[[Path, Dice], str]] = {".cxi": groups.mutate, ".h5": groups.mutate}
STRUCTURE |= {".npz": archives.npz, ".bz2": archives.packed}


def npy(path: Path, dice: Dice) -> str:
    """Changes an npy in place."""
    changed, words = archives.npy(path.read_bytes(), dice)
    path.write_bytes(changed)
    return words


def tiff(path: Path, dice: Dice) -> str:
    """Changes a TIFF in place."""
    import numpy as np
    import tifffile

    from fuzz import arrays

    logging.getLogger("tifffile").setLevel(logging.CRITICAL)
    array, words = arrays.changed(np.asarray(tifffile.imread(path)), dice)
    try:
        tifffile.imwrite(path, np.atleast_1d(array))
    except (ValueError, TypeError, KeyError) as error:
        return f"{words}, which tifffile refuses ({type(error).__name__})"
    return words


STRUCTURE |= {".npy": npy, ".tif": tiff}


def once_or_more(dice: Dice) -> int:
    """Mostly one change: several hide each other."""
    return dice.choice((1, 1, 1, 1, 2, 3))


def write_recipe(case: Case, recipe: dict[str, Any], name: str = "recipe.yaml") -> str:
    """The recipe's file."""
    (case.place / name).write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    return name


def command_line(case: Case, dice: Dice, recipe: dict[str, Any], settings: list[str] | None = None) -> None:
    """The case's arguments: its command upon a recipe."""
    name = write_recipe(case, recipe) if recipe else "recipe.yaml"
    given = [part for setting in settings or () for part in ("--set", setting)]
    if case.command == "run":
        case.arguments = ["run", name, "--out", "out", *DEVICE, *given]
        case.drawn = dice.randrange(DRAWN) == 0
        case.compiled = dice.randrange(COMPILED) == 0
    elif case.command == "inspect":
        case.arguments = ["inspect", name, *given, *dice.choice(([], ["--json"], ["--json"]))]
        if dice.randrange(DRAWN) == 0:
            case.arguments += ["--figure", "out/inspect.png"]
            (case.place / "out").mkdir()
    else:
        case.arguments = ["convert", name, "out/made.cxi", *given]


def of_data(dice: Dice, folder: Path, sources: Path) -> Case:
    """A data set, through a recipe or by itself."""
    format_ = dice.choice((*originals.DATA, "cxi", "cxi-others", "hdf5"))
    case = new(format_, dice.choice(("inspect", "inspect", "run", "run", "convert")), folder)
    name = originals.DATA[format_][0]
    take(case, sources, name)
    case.words = damage(case.place / name, dice, STRUCTURE[Path(name).suffix], once_or_more(dice))
    recipe = originals.recipe(format_, dice.randrange(len(originals.STAGES)))
    if dice.random() < 0.15:
        recipe["data"]["invalid"] = dice.choice(("missing", "zero"))
    command_line(case, dice, recipe)
    if case.command != "run" and format_ in ("cxi", "cxi-others") and dice.random() < 0.3:
        case.arguments[1] = name
    return case


def of_arrays(dice: Dice, folder: Path, sources: Path) -> Case:
    """An array that an option names."""
    option = dice.choice(("mask", "dark", "flat", "gain", "background", "intensity", "object", "probe"))
    case = new(f"array-{option}", dice.choice(("inspect", "run", "run", "convert")), folder)
    recipe = originals.recipe("cxi", dice.randrange(2))
    if option in ("object", "probe"):
        case.command, reference = "run", f"{option}.npy"
        recipe[option] = (
            {"initial": reference} if option == "object" else {"start": {"kind": "array", "path": reference}}
        )
    else:
        reference = originals.ARRAYS[option]
        recipe["data"][option] = reference
    file = reference.partition(":")[0]
    take(case, sources, "own.cxi", file)
    case.words = damage(case.place / file, dice, STRUCTURE[Path(file).suffix], once_or_more(dice))
    command_line(case, dice, recipe)
    return case


def of_recipe(dice: Dice, folder: Path, sources: Path) -> Case:
    """A recipe's tree, its text, or settings beside it."""
    how = dice.choice(("recipe", "recipe", "recipe-text", "settings"))
    case = new(how, dice.choice(("run", "run", "run", "inspect", "convert")), folder)
    take(case, sources, "own.cxi", "mask.npy", "result.h5", "arrays.h5")
    stage = dice.randrange(len(originals.STAGES))
    recipe = originals.rich_recipe(stage) if dice.random() < 0.7 else originals.recipe("cxi", stage)
    settings: list[str] = []
    if how == "recipe":
        for _ in range(once_or_more(dice)):
            recipe, words = trees.change(recipe, dice)
            case.words.append(words)
        if not isinstance(recipe, dict) or not recipe:
            (case.place / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
            recipe = {}
    elif how == "settings":
        keys = [".".join(map(str, path)) for path in trees.paths(recipe)] + MORE_KEYS
        settings = [trees.setting(keys, dice) for _ in range(once_or_more(dice))]
        case.words = [repr(setting)[:100] for setting in settings]
    else:
        content, words = trees.text(recipe, dice)
        (case.place / "recipe.yaml").write_bytes(content)
        case.words, recipe = [words], {}
    command_line(case, dice, recipe, settings)
    return case


#: Keys that no recipe here has, for --set.
MORE_KEYS = [
    *("data.centre", "data.saturation", "data.dark", "data.gain", "data.energy_eV", "data.wavelength_m", "data.dc"),
    *("data.distance_m", "data.detector_pixel_m", "data.object_pixel_m", "data.propagation", "data.focus_distance_m"),
    *("data.radiation", "data.flip_y", "data.views.central", "data.mask", "data.keys", "data.keys.patterns"),
    *("positions.unit", "positions.raster", "positions.raster.step_m", "positions.raster.shape", "object.tilt_rad"),
    *("object.initial", "object.result_positions", "probe.opr_modes", "probe.start", "probe.start.path", "stages.0"),
    *("stages", "stages.1", "stages.0.engine", "stages.0.coarsen", "stages.0.fidelity", "stages.0.order"),
    *("stages.0.positions", "stages.0.probe", "stages.0.object", "stages.0.lr", "stages.0.scheduler", "deterministic"),
    *("stages.0.unknowns.background", "stages.0.loss", "stages.0.parametrisation", "output.tiff", "memory_budget"),
]


def of_checkpoint(dice: Dice, folder: Path, sources: Path) -> Case:
    """The folder of a run that was stopped, then resumed."""
    part = dice.choice(("manifest", "manifest", "shard", "shard", "shard", "folder"))
    case = new(f"checkpoint-{part}", "resume", folder)
    take(case, sources, "stopped")
    (case.place / "stopped").rename(case.place / "out")
    kept = case.place / "out" / "checkpoint"
    manifest = dice.choice(signing.manifests(kept))
    shards = sorted(kept.glob("*/*.h5"))
    if part == "manifest":
        case.words = _manifest(manifest, dice)
    elif part == "shard":
        shard = dice.choice(shards)
        case.words = damage(shard, dice, groups.mutate, once_or_more(dice))
        if shard.is_file() and shard.stat().st_size < 1 << 30 and dice.random() < 0.6:
            case.words.append(signing.shard(kept, shard))
    else:
        victim = dice.choice([manifest, *shards, shards[0].parent, kept])
        if victim.is_file() and dice.random() < 0.5:
            case.words = [f"{victim.name} {raw.no_file(victim, dice)}"]
        else:
            shutil.move(victim, dice.choice((victim.with_name("moved"), case.place / "out" / "000099")))
            case.words = [f"{victim.name} moved away"]
    case.arguments = ["resume", dice.choice(("out", "out", "out/checkpoint")), *DEVICE]
    case.drawn = dice.randrange(DRAWN) == 0
    return case


def _manifest(path: Path, dice: Dice) -> list[str]:
    content = path.read_bytes()
    if dice.random() < 0.2:
        content, words = raw.damage(content, dice)
        path.write_bytes(content)
        return [words]
    tree = json.loads(content)
    if "meta" in tree and dice.random() < 0.4:
        inner, words = trees.change(yaml.safe_load(tree["meta"]["recipe"]), dice)
        tree["meta"]["recipe"] = yaml.safe_dump(inner, sort_keys=False)
        words = f"recipe: {words}"
    else:
        tree, words = trees.change(tree, dice)
    if dice.random() < 0.7:
        signing.manifest(path, tree)
    else:
        path.write_text(json.dumps(tree), encoding="utf-8")
    return [f"{path.parent.name}: {words}"]


def signed(path: Path, dice: Dice) -> str:
    """Changes a result, and makes its digests agree."""
    return f"{groups.mutate(path, dice)}, {signing.result(path)}"


def of_result(dice: Dice, folder: Path, sources: Path) -> Case:
    """A result that is viewed, compared, or started from."""
    command = dice.choice(("view", "compare", "compare", "compare", "run"))
    case = new("result", command, folder)
    take(case, sources, "result.h5")
    case.words = damage(
        case.place / "result.h5", dice, signed if dice.random() < 0.6 else groups.mutate, once_or_more(dice)
    )
    if command == "view":
        case.arguments = ["view", "result.h5", "--out", "out", *dice.choice(([], ["--tiff"]))]
    elif command == "compare":
        pair = ["result.h5", str(sources / "other.h5")]
        case.arguments = ["compare", *(pair if dice.random() < 0.7 else pair[::-1]), "--json"]
    else:
        take(case, sources, "own.cxi")
        recipe = originals.recipe("cxi", dice.randrange(3))
        which = dice.choice(("object", "probe", "both"))
        if which != "probe":
            recipe["object"] = {"initial": "result.h5", "result_positions": dice.random() < 0.5}
        if which != "object":
            recipe["probe"] = {"start": {"kind": "result", "path": "result.h5"}}
        command_line(case, dice, recipe)
    return case


def of_view(dice: Dice, folder: Path, sources: Path) -> Case:
    """A sound result whose data set is not what it was."""
    case = new("result-data", "view", folder)
    take(case, sources, "result.h5", "own.cxi")
    case.words = damage(case.place / "own.cxi", dice, groups.mutate, once_or_more(dice))
    import h5py

    with h5py.File(case.place / "result.h5", "r+") as file:
        text = file["recipe"].asstr()[()].replace(str(sources / "own.cxi"), str(case.place / "own.cxi"))
        del file["recipe"]
        file["recipe"] = text
    case.arguments = ["view", "result.h5", "--out", "out"]
    return case


#: What is drawn, as often as it stands here.
KINDS: tuple[Callable[[Dice, Path, Path], Case], ...] = (
    *(of_data,) * 8,
    *(of_arrays,) * 3,
    *(of_recipe,) * 4,
    *(of_checkpoint,) * 4,
    *(of_result,) * 4,
    of_view,
)
