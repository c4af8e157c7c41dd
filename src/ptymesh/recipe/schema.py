"""The recipe: one YAML file that says all that a run depends on.

    data:      {path: scan.cxi}
    seed: 0
    precision: single
    object:    {slices: 1}
    probe:     {modes: 3}
    positions: {subpixel: fourier}
    stages:
      - {engine: rpie, epochs: 50, batch: 64}
    output:    {dir: out}

Paths of data are relative to the recipe, paths given on the command line, `output.dir` and `scratch` to the working
folder.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from copy import deepcopy
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ByteSize,
    Field,
    PositiveFloat,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ptymesh.distributed.child import launched
from ptymesh.distributed.rank_info import world
from ptymesh.engines import ENGINES, REFUSED, Engine
from ptymesh.engines.base import Count
from ptymesh.engines.remarks import naming_stage
from ptymesh.errors import BadInput
from ptymesh.io.arrays import names_file
from ptymesh.io.options import DataOptions, FrozenOptions, PositionOptions, Step
from ptymesh.models import OPTICS, Piece, named
from ptymesh.options import FilePath
from ptymesh.paths import SAMPLE, usable
from ptymesh.physics.object_models import TRANSMISSION
from ptymesh.recipe.starts import ObjectOptions, ProbeOptions
from ptymesh.recipe.writers import WRITERS
from ptymesh.recipe.yaml_text import DEEPEST, parsed, text_of
from ptymesh.sentences import quote, shown_key, unknown_key, unknown_word
from ptymesh.types import Precision

#: A recipe, or a group of it, before it is checked: keys and values as YAML has them.
RawGroup = dict[str, Any]

#: Stages of a recipe that names none: rPIE is fast at first, large steps of Adam pass by poor minima, and shorter and
#: shorter ones then end in the middle of the region that those have covered (docs/reference/engines.md, "The default").
DEFAULT_STAGES: list[RawGroup] = [
    {"engine": "rpie", "epochs": 5, "batch": 32},
    {"engine": "adam", "epochs": 20, "batch": 32},
]

#: Constraints of the default stages through several slices: at this weight neighbours are drawn towards each other by
#: less than an interface is blurred (docs/reference/constraints.md).
DEPTH_PRIOR: RawGroup = {"depth_smoothness": {"weight": 0.3}}
#: What the default stages refine where the lens of a microscope is told: it and the scan's rotation are never exact.
LENS_MODELS: RawGroup = {
    "scan_geometry": {"terms": ["rotation"]},
    "aberrations": {"terms": ["C10", "C12"], "residue": True},
}
#: Rotation through several slices without free amplitudes, which would take up a turn: it follows the patterns.
THICK_ROTATION: RawGroup = {"scan_geometry": {"terms": ["rotation"], "follow": "patterns", "lr": 1.0}}
#: Default stage where a lens is told, by Adam alone: an object that rPIE makes with a wrong defocus holds it fast.
LENS_STAGE: RawGroup = {
    **DEFAULT_STAGES[-1],
    "epochs": sum(stage["epochs"] for stage in DEFAULT_STAGES),
    "models": LENS_MODELS,
}

#: Value of `stages` that asks to find them.
AUTO = "auto"
#: Value of `stages` that stands for DEFAULT_STAGES.
DEFAULT = "default"
#: Writer of YAML: libyaml's, where PyYAML has it, writes the same text in a tenth of the time.
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

#: Most stages of a recipe: with every default written out, so many can still be read back (yaml_text.MOST_VALUES).
MOST_STAGES = 200

#: Most scans of a recipe: with every default written out, so many can still be read back.
MOST_SCANS = 100

#: Keys that hold a path, or an array reference that begins with one.
_PATHS = (
    *(f"data.{name}" for name in ("path", "further", "follow", "mask", "dark", "flat", "gain")),
    *(f"data.{name}" for name in ("background", "efficiency", "intensity")),
    "data.views.mask",
    "object.initial",
    "probe.start.path",
)


class OutputOptions(FrozenOptions):
    """Recipe key `output`: what is written, and where.

    Fields:
        dir: folder for result.h5, checkpoint/, log.txt, metrics.jsonl and figures.
        checkpoint_every: epochs between checkpoints; checkpoint_minutes: also when so many have passed.
        figures: draw PNG figures at the end. writers: names of those that write further files then, such as tiff.
        tiff: short for tiff among the writers.
    """

    dir: FilePath = Path("out")
    checkpoint_every: Count = 10
    checkpoint_minutes: PositiveFloat = 10.0
    figures: bool = True
    tiff: bool = False
    writers: tuple[str, ...] = ()

    @field_validator("writers")
    @classmethod
    def _check_writers(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for index, name in enumerate(names):
            WRITERS[name]  # raises
            if name in names[:index]:
                raise ValueError(f"{name!r} is named twice; name each writer once")
        return names

    @property
    def all_writers(self) -> tuple[str, ...]:
        """Names of all that are to write, each once."""
        return ("tiff", *self.writers) if self.tiff and "tiff" not in self.writers else self.writers


class AutoOptions(FrozenOptions):
    """Recipe key `auto`, of a recipe whose stages are to be found: `stages: auto` (ptymesh.auto).

    Fields:
        sweeps: what finding them may cost, in passes of one probe mode over all views; None: automatic.
    """

    sweeps: int | None = Field(None, ge=1, le=10**6)


class ScanOptions(FrozenOptions):
    """One of the recipe's `scans`.

    Fields:
        data: its file, as the recipe's `data` of a single scan.
        shift_px: displacement (y, x) of its positions in the common frame, in object pixels.
    """

    data: DataOptions
    shift_px: Step = (0.0, 0.0)


class Recipe(FrozenOptions):
    """Everything that a run depends on, checked. `stages` holds engines; the other fields are groups of options.

    scans: several scans of one object, instead of `data`, which is then the first one's.

    auto: how stages are found, where the recipe says `stages: auto`; `stages` are then the default ones until that is
    done, and nothing but `ptymesh.auto` runs such a recipe.

    fingerprint: how much of the patterns a checkpoint remembers, to tell whether it is resumed with the same data.
    layout: whether ranks hold the whole object or tiles of it (Reconstruction).
    optics: pieces of the model between probe and counts, with unknowns of their own, in their order.
    memory_budget, scratch: what each rank's patterns may take, and where what does not fit is staged (storage).
    """

    data: DataOptions
    seed: int = Field(0, ge=0, lt=2**63)
    precision: Precision = "single"
    fingerprint: Literal["sample", "all"] = "sample"
    hold_out: float = Field(0.0, ge=0, lt=0.5)
    layout: Literal["auto", "replicated", "tiled"] = "auto"
    memory_budget: ByteSize | None = Field(None, gt=0)
    scratch: FilePath | None = None
    object: ObjectOptions = ObjectOptions()
    probe: ProbeOptions = ProbeOptions()
    positions: PositionOptions = PositionOptions()
    scans: tuple[ScanOptions, ...] = Field((), max_length=MOST_SCANS)
    optics: dict[str, SerializeAsAny[Piece]] = Field(default_factory=dict)
    auto: AutoOptions | None = None
    stages: list[Engine] = Field(default=DEFAULT, validate_default=True)
    output: OutputOptions = OutputOptions()

    @model_validator(mode="before")
    @classmethod
    def _retired(cls, values: Any) -> Any:
        """Leave `deterministic` out, which recipes of version 0.1 may hold and every run is now."""
        if isinstance(values, dict) and isinstance(values.get("deterministic"), bool):
            values = {name: value for name, value in values.items() if name != "deterministic"}
            if not launched() and world().rank == 0:
                notice = "deterministic is no option any more: every run ends with the same bits; leave it out"
                print(f"ptymesh: {notice}.", file=sys.stderr, flush=True)
        return values

    @model_validator(mode="before")
    @classmethod
    def _data_of_first(cls, values: Any) -> Any:
        """Return the values with `data` of the first of the scans, where there are scans."""
        if not isinstance(values, dict) or values.get("scans") in (None, [], ()):
            return values
        if "data" in values:
            raise BadInput("The recipe has both data and scans; give data for a single scan, scans for several.")
        scans = values["scans"]
        example = "a list of groups, such as [{data: {path: a.cxi}}, {data: {path: b.cxi}, shift_px: [0, 40]}]"
        if not isinstance(scans, list | tuple) or not isinstance(scans[0], dict | ScanOptions):
            raise BadInput(f"scans is {quote(scans)}; give {example}.")
        if len(scans) == 1:
            raise BadInput("scans holds a single scan; give two or more, or data instead.")
        first = scans[0]
        first_data = first.data if isinstance(first, ScanOptions) else first.get("data")
        if first_data is None:
            raise BadInput(f"scans.0.data is missing; give {example}.")
        return {**values, "data": first_data}

    @model_validator(mode="after")
    def _scans_fit(self) -> Recipe:
        for index, one in enumerate(self.scans):
            same = [place for place, other in enumerate(self.scans[:index]) if other.data == one.data]
            if same:
                raise BadInput(
                    f"scans.{index}.data is that of scans.{same[0]}, which would count its views twice; name another "
                    "file, or remove one of them."
                )
        if self.scans and self.auto is not None:
            raise BadInput("stages is auto, which looks for the stages of a single scan; name the stages for scans.")
        return self

    @model_validator(mode="after")
    def _efficiency_is_used(self) -> Recipe:
        every = [one.data for one in self.scans] or [self.data]
        if "detector_efficiency" not in self.optics and any(data.efficiency is not None for data in every):
            raise BadInput(
                "data.efficiency is of the model's piece of that name; add optics: {detector_efficiency: true}, or "
                "remove it."
            )
        return self

    @field_validator("optics", mode="before")
    @classmethod
    def _operators(cls, value: object) -> object:
        return named(value, OPTICS, "optics")

    @model_validator(mode="before")
    @classmethod
    def _to_be_found(cls, values: Any) -> Any:
        """Return the values, where `stages: auto` is a recipe with the group `auto`, `stages: default` one without."""
        if not isinstance(values, dict):
            return values
        if values.get("stages") == DEFAULT:
            values = {name: value for name, value in values.items() if name != "stages"}
        if isinstance(stages := values.get("stages"), str):
            if stages != AUTO:
                choices = f"a list, such as [{{engine: rpie}}], {DEFAULT} or {AUTO}"
                raise BadInput(f"stages is {quote(stages)}; give {choices}.")
            options = values.get("auto")
            rest = {name: value for name, value in values.items() if name != "stages"}
            return {**rest, "auto": {} if options is None else options}
        if isinstance(values.get("auto"), dict):
            raise BadInput(f"auto says how stages are found; set stages to {AUTO}, or remove auto.")
        return values

    @field_validator("stages", mode="before")
    @classmethod
    def _engines(cls, stages: Any, info: ValidationInfo) -> Any:
        if stages == DEFAULT:  # object and probe are missing where they have been refused
            obj, probe = (info.data.get(name) for name in ("object", "probe"))
            stages = default_stages(obj or ObjectOptions(), probe or ProbeOptions())
        if not isinstance(stages, list):
            return stages
        if not stages:
            raise BadInput("stages is an empty list; give at least one, such as {engine: rpie, epochs: 50, batch: 64}.")
        if len(stages) > MOST_STAGES:
            raise BadInput(f"stages has {len(stages)} items; give at most {MOST_STAGES}.")
        return [
            stage if isinstance(stage, Engine) else engine_of(f"stages.{index}", stage)
            for index, stage in enumerate(stages)
        ]

    @classmethod
    def from_yaml(cls, text: str, overrides: Sequence[str] = ()) -> Recipe:
        """Return the recipe that `to_yaml` wrote, with `key.path=VALUE` overrides. Raises BadInput."""
        raw = _parse_mapping(text, "The recipe")
        for override in overrides:
            _apply_override(raw, override)
        return cls.parse(raw)

    def to_yaml(self) -> str:
        """Return YAML that reproduces the run: every key, defaults too, so that later defaults do not change it."""
        return yaml.dump(self.as_values(), Dumper=DUMPER, sort_keys=False, allow_unicode=True)

    def as_values(self) -> RawGroup:
        """Return every key with its value, defaults too, as plain numbers, text, lists and dicts."""
        groups = self.model_dump(mode="json", exclude={"stages"})
        stages = [{"engine": stage.name, **stage.model_dump(mode="json")} for stage in self.stages]
        stages_value: object = stages if self.auto is None else AUTO
        left_out = "data" if self.scans else "scans"  # the one that the other stands for
        names = [name for name in type(self).model_fields if name != left_out]
        return {name: stages_value if name == "stages" else groups[name] for name in names}

    @property
    def reconstruction_options(self) -> dict[str, Any]:
        """Return the options that `Reconstruction` takes under the same names."""
        names = ("object", "probe", "optics", "precision", "seed", "memory_budget")
        return {"subpixel": self.positions.subpixel, **{name: getattr(self, name) for name in names}}

    def with_output(self, folder: Path) -> Recipe:
        """Return the same recipe, writing to `folder`."""
        return self.model_copy(update={"output": self.output.model_copy(update={"dir": folder})})


def load_recipe(path: Path, overrides: Sequence[str] = (), out: Path | None = None) -> Recipe:
    """Read a recipe, apply `key.path=VALUE` overrides in order, and check it.

    Args:
        path: of the YAML file.
        overrides: `key.path=VALUE`, VALUE as YAML.
        out: output folder instead of the recipe's.

    Raises:
        BadInput: in one sentence that names key, value and remedy.
    """
    recipe = Recipe.parse(raw_recipe(path, overrides))
    return recipe if out is None else recipe.with_output(out)


def raw_recipe(path: Path, overrides: Sequence[str] = ()) -> dict[str, object]:
    """Return a recipe as plain dicts and lists with absolute paths, not yet checked. Raises BadInput."""
    try:
        raw = read_mapping(path, "recipe", Recipe)
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{path} is not a recipe; if it is a data set, write a recipe (a YAML file) with data: {{path: {path}}}."
        ) from error
    anchor(raw, path.parent)
    return apply_overrides(raw, overrides)


def apply_overrides(raw: RawGroup, overrides: Sequence[str]) -> dict[str, Any]:
    """Return a recipe's plain dicts with `key.path=VALUE` settings; their paths are relative to the working folder."""
    for override in overrides:
        _apply_override(raw, override)
    anchor(raw, Path())
    return {key: value for key, value in raw.items() if value is not None}


def read_mapping(path: Path, kind: str, model: type[BaseModel]) -> dict[str, object]:
    """Return the keys in a YAML file.

    Args:
        path: of the file.
        kind: the file in a message, such as `recipe`.
        model: whose keys the file should hold, for the message where it holds none.

    Raises:
        BadInput: the file is not there, or holds no keys.
        UnicodeDecodeError: the file holds no text.
    """
    return _parse_mapping(text_of(path, kind), f"The {kind} {path}", model)


def default_stages(obj: ObjectOptions, probe: ProbeOptions) -> list[RawGroup]:
    """Return the stages of a recipe that names none.

    Several slices get a prior along the beam. A lens whose aberrations are told is refined, with the rotation of the
    scan, which follows the patterns of several slices of an object that has no amplitudes of its own.

    Args:
        obj: the object of the recipe.
        probe: the probe of the recipe.
    """
    has_aberrations = probe.scans == "shared" and any(probe.start.parameters().get("aberrations", {}).values())
    stages = deepcopy([LENS_STAGE] if has_aberrations else DEFAULT_STAGES)
    if obj.slices > 1:
        stages = [{**stage, "constraints": deepcopy(DEPTH_PRIOR)} for stage in stages]
    if obj.slices > 1 and has_aberrations and obj.kind != TRANSMISSION:
        stages = [{**stage, "models": {**stage["models"], **deepcopy(THICK_ROTATION)}} for stage in stages]
    return stages


def engine_of(path: str, stage: object) -> Engine:
    """Return the engine that a stage of a recipe asks for; `path` is its key. Raises BadInput."""
    if isinstance(stage, type) and issubclass(stage, Engine):
        example = f"{stage.__name__}(epochs=50)"
        raise BadInput(f"{path} is the class {stage.__name__} itself; give an engine made of it, such as {example}.")
    if not isinstance(stage, dict):
        raise BadInput(f"{path} is {quote(stage)}; it should be a group of keys, such as {{engine: rpie, epochs: 50}}.")
    options = {key: value for key, value in stage.items() if key != "engine"}
    name = stage.get("engine")
    misspelt = get_close_matches("engine", map(str, options), n=1, cutoff=0.7)
    if name is None and misspelt:
        raise BadInput(unknown_key(f"{path}.{misspelt[0]}", ["engine"]))
    if name is None:
        raise BadInput(f"{path}.engine is missing; it should be one of {', '.join(ENGINES.names())}.")
    if isinstance(name, str) and name in REFUSED:
        raise BadInput(f"{path}.engine is {name!r}, which is no engine here: {REFUSED[name]}.")
    engine = ENGINES.find(name) if isinstance(name, str) else None
    if engine is None:
        raise BadInput(unknown_word(f"{path}.engine", name, ENGINES.names()))
    with naming_stage(path):
        return engine.parse(options, path)


def _parse_mapping(text: str, subject: str, model: type[BaseModel] = Recipe) -> dict[str, object]:
    raw = parsed(text, subject)
    if not isinstance(raw, dict):
        problem = "is empty" if raw is None else f"holds {quote(raw)}"
        needed = [name for name, field in model.model_fields.items() if field.is_required()]
        least = "data: {path: FILE}" if model is Recipe else " and ".join(f"{name}: ..." for name in needed)
        raise BadInput(f"{subject} {problem}; it should hold keys with their values, at least {least}.")
    return raw


def anchor(raw: RawGroup, folder: Path) -> None:
    """Make relative paths of a recipe's plain dicts absolute, from `folder`, in place."""
    for key in _PATHS:
        *groups, name = key.split(".")
        options: Any = raw
        for group in groups:
            options = options.get(group) if isinstance(options, dict) else None
        value = options.get(name) if isinstance(options, dict) else None
        if isinstance(value, str):
            options[name] = _absolute(value, folder, key)
        elif isinstance(value, list):
            options[name] = [_absolute(one, folder, key) if isinstance(one, str) else one for one in value]
    _anchor_keys(raw, folder)
    scans = raw.get("scans")
    for scan in scans if isinstance(scans, list) else ():
        if isinstance(scan, dict):
            anchor({"data": scan.get("data")}, folder)


def _anchor_keys(raw: dict[str, object], folder: Path) -> None:
    """Make absolute what in `data.keys` is no dataset's name but a file that lies in `folder`, in place."""
    data = raw.get("data")
    keys = data.get("keys") if isinstance(data, dict) else None
    if not isinstance(keys, dict):
        return
    for name, value in keys.items():
        if isinstance(value, str) and not value.startswith("/"):
            keys[name] = names_file(str(folder.absolute() / value), folder) or value


def _absolute(value: str, folder: Path, key: str) -> str:
    if _is_name(value):
        return value
    return str((folder / (usable(value, key) if value.startswith("~") else value)).absolute())


def _is_name(value: str) -> bool:
    """Return True if a value that could be a path is none."""
    return value in ("", "ones") or value.startswith(SAMPLE)


def _apply_override(raw: dict[str, object], override: str) -> None:
    """Apply one `a.b.0.c=VALUE`."""
    key, equals, text = override.partition("=")
    if not equals or not all(key.strip().split(".")):
        raise BadInput(f"--set {quote(override)} is not KEY=VALUE; write for example --set stages.0.epochs=5.")
    put(raw, key.strip(), parsed(text, f"The value of --set {quote(override)}"), "--set")


def put(raw: RawGroup, key: str, value: Any, origin: str) -> None:
    """Set `a.b.0.c` in a recipe's plain dicts and lists; groups on the way are made, a list may grow by one.

    Args:
        raw: the recipe, changed in place.
        key: where to set it, as `a.b.0.c`.
        value: plain Python.
        origin: where the key was given, for messages.

    Raises:
        BadInput: the key goes through what is no group or list.
    """
    parts = key.split(".")
    if len(parts) > DEEPEST:
        raise BadInput(
            f"{origin} {quote(key)} has {len(parts)} keys within each other; no key of a recipe lies so deep."
        )
    if parts[0] == "stages" and raw.get("stages") in (None, DEFAULT):
        raw["stages"] = _default_stages_of(raw)
    if key.startswith("positions.affine.") and isinstance(raw.setdefault("positions", {}), dict):
        raw["positions"].setdefault("affine", [[1.0, 0.0], [0.0, 1.0]])
    node: Any = raw
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        if isinstance(node, dict):
            if last:
                node[part] = value
            elif node.get(part) is None or isinstance(node[part], bool):
                node[part] = {}
            node = node[part]
        elif isinstance(node, list):
            node = _list_item(node, part, f"{origin} {'.'.join(parts[:depth])}", value, last)
        else:
            parent_key = ".".join(parts[:depth])
            if parent_key == "stages" and node == AUTO:
                raise BadInput(
                    f"{origin} {key} is of a stage, and stages is auto: they are yet to be found; give them all, "
                    "such as "
                    f"--set 'stages=[{{engine: rpie, epochs: 50}}]'."
                )
            raise BadInput(f"{origin} {key} goes into {parent_key}, which is {quote(node)}, not a group of keys.")


def _default_stages_of(raw: RawGroup) -> list[RawGroup]:
    """Return the default stages for the object and the probe of a recipe's plain dicts, as far as these are sound."""
    try:
        obj = ObjectOptions.model_validate(raw.get("object") or {})
        probe = ProbeOptions.model_validate(raw.get("probe") or {})
    except (ValueError, BadInput):  # said when the recipe is checked
        return deepcopy(DEFAULT_STAGES)
    return default_stages(obj, probe)


def _list_item(items: list[object], part: str, above: str, value: object, last: bool) -> object:
    if not part.isdecimal() or len(part) > 9 or int(part) > len(items):
        list_key = above.rpartition(" ")[2]
        choices = f"0 to {len(items) - 1} are there" if len(items) > 1 else "0 is there" if items else "it is empty"
        raise BadInput(
            f"{above}.{shown_key(part)} is no item of {list_key}: {choices}, and {list_key}.{len(items)} adds one."
        )
    index = int(part)
    if index == len(items):
        items.append({})
    if last:
        items[index] = value
    return items[index]
