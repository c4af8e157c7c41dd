"""YAML that was made to do harm, and any tree of values at all: a recipe, or one sentence."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from ptymesh.engines import ENGINES
from ptymesh.errors import BadInput
from ptymesh.io.options import DataOptions
from ptymesh.recipe.schema import Recipe, anchor, apply_overrides, load_recipe
from ptymesh.recipe.yaml_text import parsed, text_of
from ptymesh.sentences import known_keys
from ptymesh.tune.options import load_tuning


def bomb(link: str) -> str:
    """Twelve lines that stand for 9 ** 12 values."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]" if link == "{}" else "a: &a {x: 1}"]
    for one, above in zip("bcdefghijklm", "abcdefghijkl", strict=True):
        lines.append(f"{one}: &{one} " + link.replace("{}", f"[{', '.join(['*' + above] * 9)}]"))
    return "\n".join(lines)


REFUSED = {
    "number without digits": ("seed: 0b_", "0b_ is no int (line 1)"),
    "hexadecimal without digits": ("x: 1\nseed: 0x_", "0x_ is no int (line 2)"),
    "endless number": ("seed: " + "9" * 5000, "is no int (line 1)"),
    "number beyond arrays": (f"x: 1\nseed: {2**63}", "9223372036854775808 has more than the 63 bits of the whole"),
    "int of text": ("seed: !!int abc", "abc is no int (line 1)"),
    "float of text": ("seed: !!float abc", "abc is no float (line 1)"),
    "bool of text": ("seed: !!bool maybe", "maybe is no bool (line 1)"),
    "group of a list": ("data: !!map [a, b]", "no group of keys (line 1)"),
    "list of a group": ("data: !!seq {a: 1}", "expected a sequence"),
    "text of a list": ("data: !!str [a]", "expected a scalar"),
    "timestamp": ("seed: !!timestamp x", "timestamp"),
    "binary": ("seed: !!binary x", "binary"),
    "set": ("!!set {a: 1}", "set"),
    "object": ("seed: !!python/object:os.system {}", "python/object"),
    "deep lists": ("data: " + "[" * 3000, "more than 40 deep (line 1)"),
    "deep groups": ("data: " + "{a: " * 3000, "more than 40 deep (line 1)"),
    "deep through aliases": (
        "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 60)),
        "40 deep",
    ),
    "laughs": (bomb("{}"), "more than 50000 values"),
    "merged laughs": (bomb("{<<: {}}"), "more than 50000 values"),
    "list in itself": ("a: &a [*a]", "holds itself"),
    "group in itself": ("a: &a {b: *a}", "holds itself"),
    "no anchor": ("a: *b", "undefined alias"),
    "key twice": ("seed: 1\nseed: 2", "'seed' is given twice"),
    "list as key": ("[a, b]: 1", "a key is a group or a list"),
    "group as key": ("? {a: b}\n: 1", "a key is a group or a list"),
    "merging of a number": ("<<: 5", "merging"),
    "NUL": ("x: \0", "#x0000"),
    "bell": ("x: \x07", "#x0007"),
    "surrogate": ("x: \udcff", "#xdcff"),
    "escape beyond the last character": ('x: "\\U00110000"', "line 1"),
    "two documents": ("--- {a: 1}\n--- {a: 2}", "another document"),
    "version": ("%YAML 9.9\n---\na: 1", "incompatible"),
    "open quotation": ("a: 'b", "not valid YAML"),
    "too long": ("a" * (1 << 21), "1048576 are the most"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_yaml_that_is_refused(name: str) -> None:
    text, expected = REFUSED[name]
    began = time.process_time()
    with pytest.raises(BadInput) as caught:
        parsed(text, "The recipe")
    said = str(caught.value)
    assert expected in said and said.endswith(".") and said.isprintable() and len(said) < 400
    assert time.process_time() - began < 5


def test_dates_are_text_and_numbers_are_numbers() -> None:
    assert parsed("{a: 2020-13-45, b: 2020-11-05, c: 3e5, d: 0x10, e: [1, .inf], f: ~}", "It") == {
        "a": "2020-13-45", "b": "2020-11-05", "c": 3e5, "d": 16, "e": [1, float("inf")], "f": None,
    }  # fmt: skip
    assert parsed("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]", "It")["b"] == {"x": 1, "y": 2}


def made(path: Path, kind: str) -> Path:
    """A file that is no recipe."""
    path.parent.mkdir(exist_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 34)
    else:
        path.write_bytes({"bytes": bytes(range(256)), "utf16": "data: {path: a}".encode("utf-16")}[kind])
    return path


@pytest.mark.parametrize(
    "kind", ["folder", "pipe", "loop", "huge", "bytes", "utf16", "device", "home", "long", "through"]
)
def test_files_that_are_no_recipes(tmp_path: Path, kind: str) -> None:
    there = made(tmp_path / "r.yaml", "bytes") if kind == "through" else tmp_path
    special = {"device": Path("/dev/zero"), "home": Path("~nosuch/x"), "long": Path("a" * 300), "through": there / "x"}
    path = special.get(kind) or made(tmp_path / "r.yaml", kind)
    for load in (load_recipe, load_tuning):
        with pytest.raises(BadInput) as caught:
            load(path)
        assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_bytes(b"\xef\xbb\xbfdata: {path: a}")
    assert text_of(tmp_path / "r.yaml", "recipe") == "data: {path: a}"


@pytest.mark.parametrize(
    "text",
    [
        "seed=!!int abc", "seed=0b_", "seed=" + "9" * 5000, "data=!!map [a, b]", "data=" + "[" * 3000,
        "seed=2020-13-45",
        "a.b.c.d=1", "stages.999999999.epochs=1", "stages.-1.epochs=1", "stages.0x1.epochs=1", "seed.x=1",
        "seed=\0",
        "stages." + "9" * 5000 + ".epochs=1", ".".join(["a"] * 3000) + "=1", "=1", "a..b=1", "seed", "", "\0=1", "\n=1",
        "stages=[]", "stages=5", "stages=[5]", "stages.0=5", "stages.0.engine=[1]", "data.path=\x07", "data.path=",
        "data.path=~nosuch/x", "data.mask=~nosuch/x", "object.initial=~nosuch/x.h5", "scratch=~nosuch/x",
        "output.dir=~nosuch/x", "output.dir=''", 'output.dir="\\0"', 'data.path="\\0"', 'data.path="\\ud800"',
        "probe.start={kind: array, path: ~nosuch/x}", "data.path=" + "a" * 300, "data.mask=" + "a" * 300 + ".npy",
        "object.initial=" + "a" * 300 + ".h5", "data.path=/dev/null/x", "output.dir=/dev/null/x", "scratch=/dev/null/x",
        "stages.0.epochs=true", "stages.0.batch=true", "seed=true", "data.bin=true", "data.crop=true",
        "data.crop=[true, 16]", "data.energy_eV=true", "probe.modes=true", "object.slices=true", "hold_out=false",
        "stages.0.gamma_object=true", "stages.0.positions={limit_px: true}", "output.checkpoint_every=true",
        "positions.affine=[[true, 0], [0, 1]]", "memory_budget=true", "stages.0.coarsen=true", "data.dark=true",
        "stages.0.gamma_object=.nan", "stages.0.gamma_object=.inf", "hold_out=.nan", "stages.0.epochs=.inf",
        "data.energy_eV=.inf", "output.checkpoint_minutes=.inf", "stages.0.object={amplitude: {high: .nan}}",
        "stages.0.epochs=" + str(10**30), "stages.0.batch=" + str(10**20), "probe.modes=" + str(10**9), "seed=-1",
        "seed=" + str(2**63), "object={slices: " + str(10**9) + ", slice_spacing_m: 1e-6}", "stages.0.epochs=0",
        "stages.0.epochs=-3", "memory_budget=-1", "memory_budget=0", "hold_out=1e308", "data.saturation=-1",
        "stages=[" + "{engine: rpie}, " * 201 + "]",
    ],
)  # fmt: skip
def test_settings_that_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.yaml").write_text("data: {path: scan.cxi}\nstages: [{engine: rpie, epochs: 2}]\n")
    with pytest.raises(BadInput) as caught:
        load_recipe(tmp_path / "r.yaml", [text])
    said = str(caught.value)
    assert said.endswith((".", "?")) and "\n" not in said and len(said) < 1000


def test_as_many_stages_as_are_allowed_can_be_read_back() -> None:
    recipe = Recipe.parse({"data": {"path": "x"}, "stages": [{"engine": "adam"}] * 200})
    assert len(Recipe.from_yaml(recipe.to_yaml()).stages) == 200


def names(*models: type[BaseModel]) -> list[str]:
    """All keys that some group of a recipe has."""
    found, seen = set(known_keys(Recipe, ())), 0
    while len(found) > seen:
        seen = len(found)
        found |= {key for model in models for name in list(found) for key in known_keys(model, (name,))}
        found |= {key for model in models for key in known_keys(model, ())}
    return sorted(found)


NAMES = names(Recipe, DataOptions, *ENGINES.values())
ODD = [
    "~nosuch/x",
    "a" * 300,
    "ones",
    "auto",
    "find",
    "\0",
    "x.h5",
    "1e-8",
    10**30,
    0,
    1,
    -1,
    "kb",
    "electron",
    "poisson",
]
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(ODD))
KEYS = st.one_of(st.sampled_from(NAMES), st.integers(-2, 3).map(str), st.text(max_size=3))
TREES = st.recursive(
    LEAVES,
    lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(KEYS, below, max_size=4)),
    max_leaves=12,
)
ROOTS = st.dictionaries(st.one_of(st.sampled_from(list(Recipe.model_fields)), KEYS, st.integers(), st.floats()), TREES)
STAGES = st.lists(st.dictionaries(st.sampled_from(NAMES), TREES, max_size=4), max_size=3)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(ROOTS, STAGES, st.lists(st.tuples(st.lists(KEYS, min_size=1, max_size=4), TREES), max_size=2))
@example({"\n": []}, [], [])
def test_any_tree_is_a_recipe_or_one_sentence(
    raw: dict[Any, Any], stages: list[dict[str, Any]], changes: list[tuple[list[str], Any]]
) -> None:
    raw = {"data": {"path": "scan.cxi"}, **raw}
    if stages:
        raw["stages"] = [{"engine": "rpie", **stage} for stage in stages]
    try:
        read = parsed(yaml.safe_dump(raw), "The recipe")
        anchor(read, Path("/tmp"))
        read = apply_overrides(read, [f"{'.'.join(key)}={json.dumps(value)}" for key, value in changes])
        recipe = Recipe.parse(read)
    except BadInput as refused:
        said = str(refused)
        assert said.endswith((".", "?")) and "\n" not in said and len(said) < 1500, said
    else:
        assert Recipe.from_yaml(recipe.to_yaml()) == recipe


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.one_of(st.text(alphabet="ab:-[]{}&*!<>|\"' \n,0x.~#%?\\"), st.text()))
def test_any_text_is_yaml_or_one_sentence(text: str) -> None:
    try:
        parsed(text, "It")
    except BadInput as refused:
        assert str(refused).startswith("It is not valid YAML") and "\n" not in str(refused)
