"""Writes docs/reference/recipe.md from the models of a recipe and docs/meanings.yaml: python docs/generate.py

It also writes docs/reference/formats.md and docs/reference/exchange.md, whose tables have a row for each reader of data
and each format of results, from docs/formats.yaml.

Types, limits and defaults come from the models; what a key means stands in meanings.yaml, under the model that
declares it; a field with a description needs none. A key without a meaning, or a meaning without a key, is an error.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ptymesh.engines import CONSTRAINTS, ENGINES, Constraint, Engine
from ptymesh.engines.base import OnOff, Schedule
from ptymesh.engines.constraints import Prior, ordered
from ptymesh.io.exchange.convert import FORMATS as RESULT_FORMATS
from ptymesh.io.exchange.result_format import PARTS
from ptymesh.io.load import READERS
from ptymesh.models import MODELS, OPTICS, DetectorPiece, Parametrisation, Piece, ShiftOperator, WaveOperator
from ptymesh.options import Options
from ptymesh.recipe.schema import Recipe
from ptymesh.recipe.starts import PROBE_STARTS, ProbeStart

PAGE = Path(__file__).parent / "reference" / "recipe.md"
FORMATS = PAGE.with_name("formats.md")
EXCHANGE = PAGE.with_name("exchange.md")
MEANINGS: dict[str, dict[str, str]] = yaml.safe_load(
    Path(__file__).with_name("meanings.yaml").read_text(encoding="utf-8")
)
ROWS: dict[str, dict[str, dict[str, str]]] = yaml.safe_load(
    Path(__file__).with_name("formats.yaml").read_text(encoding="utf-8")
)
HEAD = """\
# The recipe

<!-- Written by docs/generate.py. Change docs/meanings.yaml or the code, not this page. -->

A recipe is a YAML file that says all that a reconstruction depends on. Only `data.path` must be there. A key that
ptymesh does not know is refused, with the nearest one that it does know. `ptymesh run RECIPE --set KEY=VALUE` replaces
any key, named as on this page: `--set data.crop=64`, `--set stages.0.epochs=5` (stages count from 0),
`--set "stages=[{engine: rpie, epochs: 5}]"`.

Paths of data are relative to the recipe; paths given with `--set`, `output.dir` and `scratch` to the working folder.
The end of a key says its unit: metres (`_m`), radians (`_rad`), degrees (`_deg`) or electronvolts (`_eV`). A number may
also have another one of the same kind, `energy_eV: 80 keV`, `step_m: 0.4 A`, `semiangle_rad: 21.4 mrad`
([units](data.md#units)). A pair is `[y, x]`, and one number stands for both.
"""
FORMATS_HEAD = """\
# Formats

<!-- Written by docs/generate.py. Change docs/formats.yaml or docs/formats_tail.txt, not this page. -->

A file's format is found by its content, not by its name. Patterns are read a few at a time, and each rank reads its
own views alone. What a file says is taken in the unit that it says; what it does not say is asked for in one sentence,
which names the key. `ptymesh inspect FILE` shows all that was understood.
"""
#: What follows the table of formats: commands, clauses, and the tests that hold them.
FORMATS_TAIL = Path(__file__).with_name("formats_tail.txt").read_text(encoding="utf-8")
EXCHANGE_HEAD = """\
# Exchange of results

<!-- Written by docs/generate.py. Change docs/formats.yaml or docs/generate.py, not this page. -->

[`ptymesh convert`](../how-to/exchange.md) writes a result in these formats, and reads it back where they hold object,
probe and positions; a file to be read is recognised by its content. Axes are named in the order that numpy has.
"""
EXCHANGE_TAIL = """\
A position is of the window of a view; the optical axis of a window of (h, w) pixels lies on pixel (h//2, w//2).
The complex convention is that of all these programs: the far field is the forward Fourier transform of the exit wave
(numpy's `fft2`), so that no format needs a conjugate. Rows run down, y with them. Squares of the probe are counts.
"""
STAGES = """\
## stages

A list. Each stage inherits the estimate of the one before. Where a type says *on/off*, `true` means with the defaults
and `false` not at all. Besides `engine`, every stage has:
"""
SCHEDULES = """\
### Schedules

Position refinement and each constraint have their own, in epochs of the stage:
"""
PRIORS = """\
Further constraints of object, probe and other unknowns, each under its name, on/off, with a [schedule](#schedules),
applied after the epochs of it: `constraints: {depth_smoothness: {weight: 1, start: 5}}`. They come in the order of this
page, in between those of `probe` and `object` as is said of each. [Which is which elsewhere](constraints.md). All but
the gauge `depth_recentring` have:
"""
NUMBERS = """\
A few numbers that make up the probe, or the positions of all views, and follow each batch of any engine that is ticked
for them in [engines](engines.md). Each stands under its name, on/off, with a [schedule](#schedules), and:
"""
OPERATORS = """\
Pieces of the forward model, on the way from the probe to the counts, in their order, each under its name, on/off. What
they declare stays where it starts unless a stage of an elementwise optimiser has it among its `unknowns` (`unknowns:
{object: true, probe: true, NAME: true}`); lbfgs moves it always. epie, rpie, mpie and lsqml move what stands in
theirs (`unknowns: {NAME: true}`), beside object and probe. Engines that cannot move it
refuse, unless another stage does, or it is known from the scan, or the recipe says where it starts: `optics: {PIECE:
{start: {NAME: 0.1}}}`, one number for all views and elements. Results hold it as `/unknowns/NAME`. A piece that takes
the object's part leaves object and probe as they are.
"""
STAGE, MORE = "stages.N.", ". The same for "
WORDS = {int: "whole number", float: "number", bool: "`true` or `false`", str: "text", Path: "path", NoneType: "none"}
WORDS[ByteSize] = "size, such as `500MB` or `4GB`"
SIGNS = {Gt: ("> ", "gt"), Ge: (">= ", "ge"), Lt: ("< ", "lt"), Le: ("<= ", "le")}


class Page:
    """The page as it grows; a model that stands at several places is described at the first."""

    def __init__(self) -> None:
        self.parts = [HEAD]
        #: Where in `parts` a model's first sentence is; nowhere for Schedule, which has a section of its own.
        self.places: dict[type[BaseModel], int | None] = {Schedule: None}
        self.used: set[tuple[str, str]] = set()

    def text(self) -> str:
        """The whole page. Raises LookupError for a key without a meaning, or a meaning without a key."""
        self.table(Recipe, "")
        for name, field in Recipe.model_fields.items():
            if name == "optics":
                self.operators(name)
            elif name != "stages":
                self.groups(field, name)
        self.parts.append(STAGES)
        self.table(Engine, STAGE)
        self.parts.append(SCHEDULES)
        self.table(Schedule, "")
        for name, field in Engine.model_fields.items():
            if name == "constraints":
                self.constraints(STAGE + name)
            elif name == "models":
                self.parametrisations(STAGE + name)
            else:
                self.groups(field, STAGE + name)
        self.engines()
        unread = {(model, key) for model, keys in MEANINGS.items() for key in keys} - self.used
        if unread:
            raise LookupError(f"docs/meanings.yaml explains what is not there: {sorted(unread)}")
        return "\n".join(self.parts)

    def engines(self) -> None:
        """A section for each engine, after one for what several have in common."""
        shown: set[type[Options]] = {Options, Engine}
        for name, engine in ENGINES.items():
            for base in reversed(engine.__mro__):
                if issubclass(base, Options) and base not in shown and base is not engine:
                    if base.__annotations__ and base not in ENGINES.values():
                        names = [other for other, derived in ENGINES.items() if issubclass(derived, base)]
                        self.parts.append(f"### engines {', '.join(names)}\n\nIn common:\n")
                        self.own(base, engine)
                    shown.add(base)
            self.parts.append(f"### engine: {name}\n\n{summary(engine)}\n")
            parents = [other for other, base in ENGINES.items() if issubclass(engine, base) and base is not engine]
            if parents:
                self.parts.append(f"The keys of {' and '.join(parents)}, and:\n")
            self.own(engine, engine)
            shown.add(engine)

    def parametrisations(self, path: str) -> None:
        """A section for each parametrisation that there is."""
        self.places[Parametrisation] = None
        self.parts.append(f"### {path}\n\n{NUMBERS}")
        self.table(Parametrisation, f"{path}.NAME.", ["lr"])
        for name, kind in MODELS.items():
            self.parts.append(f"#### {path}.{name}\n\n{summary(kind)}\n")
            self.table(
                kind, f"{path}.{name}.", [key for key in kind.model_fields if key in inspect.get_annotations(kind)]
            )

    def constraints(self, path: str) -> None:
        """A section for each constraint of ptymesh's own that is a key of `constraints`."""
        self.places[Constraint] = None
        self.parts.append(f"### {path}\n\n{PRIORS}")
        self.table(Prior, f"{path}.NAME.", ["strength", "rise"])
        own = [name for name in ordered({}) if name in CONSTRAINTS]
        for name in own:
            kind = CONSTRAINTS[name]
            self.parts.append(f"#### {path}.{name}\n\n{summary(kind)} Applied after `{kind.after}`.\n")
            keys = [key for key in kind.model_fields if key in inspect.get_annotations(kind)]
            if keys:
                self.table(kind, f"{path}.{name}.", keys)

    def operators(self, path: str) -> None:
        """A section for each operator that there is, with the unknowns that it declares."""
        self.places |= dict.fromkeys((Piece, WaveOperator, ShiftOperator, DetectorPiece))
        self.parts.append(f"## {path}\n\n{OPERATORS}")
        for name, kind in OPTICS.items():
            self.parts.append(f"### {path}.{name}\n\n{summary(kind)}\n")
            own = [key for key in kind.model_fields if key in inspect.get_annotations(kind)]
            if own:
                self.table(kind, f"{path}.{name}.", own)
            rows = [
                f"| `{u.name}` | {', '.join(u.axes) or 'a number'} | {u.unit or '1'} | {u.start:g} |"
                for u in kind.unknowns
            ]
            if rows:
                self.parts.append("\n".join(["| unknown | axes | unit | starts at |", "|---|---|---|---|", *rows, ""]))

    def own(self, engine: type[Options], heir: type[Engine]) -> None:
        """Table of the keys that an engine, or what several have in common, declares itself; heir: one with them."""
        keys = [key for key in engine.model_fields if key in inspect.get_annotations(engine)]
        if not issubclass(engine, Engine):
            keys = [key for key in keys if key not in Engine.model_fields]
        if keys:
            self.table(engine, STAGE, keys, heir)
        for key in keys:
            self.groups(engine.model_fields[key], STAGE + key)

    def groups(self, field: FieldInfo, path: str) -> None:
        """Sections of the groups that a key may hold."""
        for model in models(field.annotation):
            if model in self.places:
                if (first := self.places[model]) is not None:
                    said = self.parts[first].rstrip(".\n")
                    self.parts[first] = f"{said}{', ' if MORE in said else MORE}`{path}`.\n"
                continue
            kind = chosen(model)
            self.parts.append(f"{'###' if '.' in path else '##'} {path}{f', kind {kind}' if kind else ''}\n")
            said = meaning(model, "kind", self.used) if kind else summary(model)
            self.places[model] = len(self.parts)
            self.parts.append(f"{said[:1].upper()}{said[1:].rstrip('.')}.\n")
            keys = [key for key in model.model_fields if key != "kind" or not kind]
            if issubclass(model, Schedule):
                keys = [key for key in keys if key not in Schedule.model_fields]
                self.parts.append("With a [schedule](#schedules)" + (", and:\n" if keys else ".\n"))
            if keys:
                self.table(model, f"{path}.", keys)
            for key in keys:
                self.groups(model.model_fields[key], f"{path}.{key}")

    def table(
        self, model: type[BaseModel], prefix: str, keys: list[str] | None = None, heir: type[BaseModel] | None = None
    ) -> None:
        """Rows of key, type, default and meaning, which the heir of a model may have from another parent."""
        rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
        for key in model.model_fields if keys is None else keys:
            field = model.model_fields[key]
            cells = (f"`{prefix}{key}`", type_of(field), default_of(field), meaning(heir or model, key, self.used))
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        self.parts.append("\n".join(rows) + "\n")


def meaning(model: type[BaseModel], key: str, used: set[tuple[str, str]]) -> str:
    """From meanings.yaml, under the model or the nearest one that it is derived from."""
    description = model.model_fields[key].description
    if description:
        return description
    for owner in model.__mro__:
        if key in MEANINGS.get(owner.__name__, {}):
            used.add((owner.__name__, key))
            return MEANINGS[owner.__name__][key]
    raise LookupError(f"docs/meanings.yaml does not say what {key} of {model.__name__} means; add it there")


def summary(model: type[BaseModel]) -> str:
    """First sentence of a docstring."""
    text = " ".join(re.split(r"\n\s*\n", inspect.cleandoc(model.__doc__ or ""))[0].split())
    text = re.sub(r"^Recipe key `\w+`: ", "", text)
    return re.split(r"(?<=[a-z)])\.(?= [A-Z]|$)|; \w+: |: see ", text)[0].rstrip(".") + "."


def chosen(model: type[BaseModel]) -> str:
    """The `kind` by which a recipe chooses this model among others, if it does."""
    kind = model.model_fields.get("kind")
    return str(get_args(kind.annotation)[0]) if kind and get_origin(kind.annotation) is Literal else ""


def models(annotation: Any) -> list[type[BaseModel]]:
    """Groups of keys in a type; of a probe start, all those that there are."""
    if annotation is ProbeStart:
        return list(PROBE_STARTS.values())
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for argument in get_args(annotation) for found in models(argument)]


def type_of(field: FieldInfo) -> str:
    """Type and limits of a key."""
    if field.annotation == list[Engine]:
        return "list of [stages](#stages)"
    return limited(words(field.annotation), field.metadata) + (", on/off" if OnOff in field.metadata else "")


def words(annotation: Any) -> str:
    """A type in the words of a YAML file; `none` is left out of a choice, for the default says so."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in WORDS:
        return WORDS[annotation]
    if origin is Annotated:
        limits = [limit for found in arguments[1:] for limit in getattr(found, "metadata", [found])]
        inner = arguments[0]
        if get_origin(inner) is tuple and any(type(found).__name__ == "BeforeValidator" for found in arguments[1:]):
            return f"{words(get_args(inner)[0])}, or a pair"
        return limited(words(inner), limits)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(words(argument) for argument in arguments if argument is not NoneType))
    if origin in (tuple, list):
        inside = [words(argument) for argument in arguments if argument is not Ellipsis]
        if origin is list or Ellipsis in arguments:
            return f"[{inside[0]}, ...]"
        return f"pair, each {inside[0]}" if "<" in inside[0] or ">" in inside[0] else f"[{', '.join(inside)}]"
    if origin is dict:
        return f"group of names, each with {words(arguments[1])}"
    return "group" if models(annotation) else "function (in Python)"


def limited(said: str, metadata: Any) -> str:
    """With the limits of a number."""
    limits = [f"{SIGNS[type(m)][0]}{getattr(m, SIGNS[type(m)][1])}" for m in metadata if type(m) in SIGNS]
    limits = [limit.replace(str(2**63), "2^63") for limit in limits]
    return f"{said} {', '.join(limits)}" if limits else said


def default_of(field: FieldInfo) -> str:
    """Default of a key, as a recipe would say it."""
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "needed"
    if value is None or value == []:
        return "none"
    if isinstance(value, list) and isinstance(value[0], Engine):
        stages = [f"{{engine: {stage.name}, epochs: {stage.epochs}, batch: {stage.batch}}}" for stage in value]
        return f"`[{', '.join(stages)}]`"
    if isinstance(value, BaseModel):
        kind = chosen(type(value))
        return f"`{kind}`" if kind else "on" if OnOff in field.metadata else "their defaults"
    return f"`{plain(value)}`"


def plain(value: Any) -> str:
    """A value as YAML."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(plain, value))}]"
    text = yaml.safe_dump(str(value) if isinstance(value, Path) else value, default_flow_style=True)
    return text.removesuffix("...\n").strip()


def rows_for(table: str, known: Iterable[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Each name with its row of docs/formats.yaml, in the program's order. Raises where names and rows differ."""
    names = list(known)
    if odd := set(names) ^ ROWS[table].keys():
        raise LookupError(f"docs/formats.yaml, {table}: a row without a format, or none for one: {sorted(odd)}")
    return ((name, ROWS[table][name]) for name in names)


def formats() -> str:
    """The page of formats, with a row for each of ptymesh's own readers."""
    rows = ["| written by | reader | what is read | what is taken besides | what must be said | library |"]
    rows.append("|---|---|---|---|---|---|")
    for name, row in rows_for("readers", READERS):
        cells = (row["instrument"], f"`{name}`", row["reads"], row["takes"], row["asks"])
        rows.append("| " + " | ".join((*cells, row.get("library", "numpy (BSD)"))) + " |")
    return "\n".join([FORMATS_HEAD, *rows, "", FORMATS_TAIL])


def exchange() -> str:
    """The page of formats of results, with a row for each."""
    rows = ["| program | `--to`, endings | object and probe | positions | lengths | layout described by |"]
    rows.append("|---|---|---|---|---|---|")
    held = ["| format | read back | in pixel units | what it does not hold |", "|---|---|---|---|"]
    for name, row in rows_for("results", RESULT_FORMATS):
        one = RESULT_FORMATS[name]
        names = ", ".join(f"`{ending}`" for ending in one.endings)
        cells = (one.program, f"`{name}`: {names}", row["layout"], row["positions"], row["lengths"], row["source"])
        rows.append("| " + " | ".join(cells) + " |")
        missing = ", ".join(name for name in PARTS if name not in one.holds) or "nothing"
        back, pixels = ("no" if one.read is None else "yes"), ("no" if one.needs_metres else "yes")
        held.append(f"| `{one.name}` | {back} | {pixels} | {missing} |")
    return "\n".join([EXCHANGE_HEAD, *rows, "", *held, "", EXCHANGE_TAIL])


if __name__ == "__main__":
    for page, text in ((PAGE, Page().text()), (FORMATS, formats()), (EXCHANGE, exchange())):
        page.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{page}\n")
