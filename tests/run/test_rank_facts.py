"""Ranks that would not run the same are refused, each with the name of the rank and of what differs."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import ptymesh as pm
from ptymesh.distributed.agreement import difference, flatten
from ptymesh.distributed.world import World
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.recipe.schema import Recipe
from ptymesh.run.assembly.rank_facts import file_facts, recipe_facts
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked
from toy import make
from warm import python

Ranks = Callable[..., list[str]]

#: Options of rank 1, and what is said of them.
OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": 3}, "Rank 1 has seed 3, rank 0 has 0: start all ranks with the same recipe, options and data."),
    "precision": ({"precision": "double"}, "Rank 1 has precision double, rank 0 has single: "),
    "subpixel": ({"subpixel": "bilinear"}, "Rank 1 has subpixel bilinear, rank 0 has fourier: "),
    "modes": ({"probe_modes": 3}, "Rank 1 has probe.modes 3, rank 0 has none: "),
    "start": ({"probe": {"start": {"kind": "data"}}}, "Rank 1 has probe.start.kind data, rank 0 has "),
    "slices": ({"object": {"slices": 2, "slice_spacing_m": 1e-6}}, "Rank 1 has object.slices 2, rank 0 has 1; it has "),
    "layout": ({"layout": "tiled"}, "Rank 1 has layout tiled, rank 0 has auto: "),
}


def mirrored(scan: Measurement) -> Measurement:
    return replace(scan, patterns=ArraySource(scan.patterns.read(np.arange(scan.views))[:, ::-1].copy()))


def one_view(scan: Measurement) -> Measurement:
    patterns = scan.patterns.read(np.arange(scan.views)).copy()
    patterns[5, 0, 0] += 1
    return replace(scan, patterns=ArraySource(patterns))


#: Scans of rank 1, and what is said of them.
SCANS: dict[str, tuple[Callable[[Measurement], Measurement], str]] = {
    "mirrored": (mirrored, "Rank 1 has data (patterns) "),
    "one pixel of one view": (one_view, "Rank 1 has data (patterns) "),
    "positions": (lambda scan: replace(scan, positions=scan.positions[:, ::-1].copy()), "(nominal positions) "),
    "rotated by little": (
        lambda scan: replace(scan, positions=scan.positions + np.array([0.0, 1e-5])),
        "(nominal positions) ",
    ),
    "mask": (lambda scan: replace(scan, mask=scan.mask & (np.arange(16) > 2)), "Rank 1 has data (mask) "),
    "pixel": (
        lambda scan: replace(scan, geometry=replace(scan.geometry, object_pixel_m=(1e-8, 1e-8))),
        "Rank 1 has geometry.object_pixel_m",
    ),
    "fewer views": (
        lambda scan: replace(scan, positions=scan.positions[:8], patterns=ArraySource(scan.patterns.patterns[:8])),
        "data (views) 8, rank 0 has 9",
    ),
}


def refused(world: World, options: dict[str, Any], scan: str = "") -> str:
    """What a rank is told where rank 1 has these options, or this scan."""
    measured = make(views=9, window=(16, 16)).measurement
    if scan and world.rank == 1:
        measured = SCANS[scan][0](measured)
    try:
        pm.Reconstruction(measured, device=world, **(options if world.rank == 1 else {}))
    except pm.BadInput as error:
        return str(error)
    return "not refused"


@pytest.mark.parametrize("name", OPTIONS)
def test_other_options(ranks: Ranks, name: str) -> None:
    options, said = OPTIONS[name]
    every = ranks(2, refused, options)
    assert every[0] == every[1] and every[0].startswith(said), every[0]


@pytest.mark.parametrize("name", SCANS)
def test_other_data(ranks: Ranks, name: str) -> None:
    every = ranks(2, refused, {}, name)
    assert every[0] == every[1] and SCANS[name][1] in every[0], every[0]


def other_stage(world: World, options: dict[str, Any]) -> str:
    """What a rank is told where rank 1 goes on with another stage, after one that all have run."""
    recon = pm.Reconstruction(make(views=9, window=(16, 16)).measurement, device=world)
    for _ in recon.run({"engine": "rpie", "epochs": 1, "batch": 3}):
        pass
    stage = {"engine": "rpie", "epochs": 1, "batch": 3, **(options if world.rank == 1 else {})}
    try:
        for _ in recon.run(stage):
            pass
    except pm.BadInput as error:
        for _ in recon.run({"engine": "rpie", "epochs": 1, "batch": 3}):  # what is alike goes on
            pass
        return f"{error} {len(recon.stages)}"
    return "not refused"


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"alpha": 0.3}, "Rank 1 has stages.1.alpha 0.3, rank 0 has "),
        ({"batch": 4}, "Rank 1 has stages.1.batch 4, rank 0 has 3: "),
        ({"epochs": 2}, "Rank 1 has stages.1.epochs 2, rank 0 has 1: "),
        ({"engine": "epie", "batch": 1}, "Rank 1 has stages.1.engine epie, rank 0 has rpie; it has "),
    ],
    ids=["alpha", "batch", "epochs", "engine"],
)
def test_other_stages(ranks: Ranks, options: dict[str, Any], said: str) -> None:
    every = ranks(2, other_stage, options)
    assert every[0] == every[1] and every[0].startswith(said) and every[0].endswith(" 2"), every[0]


def other_call(world: World) -> str:
    recon = pm.Reconstruction(make(views=9, window=(16, 16)).measurement, device=world)
    try:
        if world.rank:
            recon.result()
        for _ in recon.run({"engine": "rpie", "epochs": 1, "batch": 3}):
            pass
    except pm.BadInput as error:
        return str(error)
    return "not refused"


def test_another_call(ranks: Ranks) -> None:
    first, second = ranks(2, other_call)
    assert first == second and first.startswith("Rank 1 has the call result, rank 0 has stages.0"), first


def test_sentences() -> None:
    assert difference({0: {"a": "1"}, 1: {"a": "1"}}, "mend it") == ""
    assert difference({0: {"a": "1"}, 1: {"a": "1"}, 2: {}}, "mend it") == "Rank 2 has no a, rank 0 has 1: mend it."
    many = {0: dict.fromkeys("abcde", "0"), 1: dict.fromkeys("abcde", "1")}
    assert difference(many, "mend it").endswith("it has c 1, rank 0 has 0 (and 2 more): mend it.")
    assert flatten({"a": [1, {"b": None}], "c": "x"}) == {"a.0": "1", "a.1.b": "none", "c": "x"}


def test_what_may_differ(tmp_path: Path) -> None:
    """Paths of the same data, and what a rank may hold."""
    stages = [{"engine": "rpie", "epochs": 1, "batch": 2}]
    one = Recipe.parse({"data": {"path": "/a/scan.cxi"}, "stages": stages})
    other = Recipe.parse(
        {"data": {"path": "/b/scan.cxi"}, "stages": stages, "memory_budget": "1GB", "scratch": str(tmp_path)}
    )
    assert recipe_facts(one) == recipe_facts(other)
    for name, content in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        np.savez(tmp_path / f"{name}.npz", start=np.full((2, 2), content))
    a, b, c = (file_facts("key", f"{tmp_path / name}.npz:start") for name in "abc")
    assert a == b != c and file_facts("key", "ones") == {}


#: Recipes of rank 1, by what differs, and what is said of them.
RECIPES: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": 3}, "Rank 1 has seed 3, rank 0 has 0"),
    "precision": ({"precision": "double"}, "Rank 1 has precision double, rank 0 has single"),
    "engine": ({"stages": [{"engine": "epie", "epochs": 2}]}, "Rank 1 has stages.0.engine epie, rank 0 has rpie"),
    "alpha": (
        {"stages": [{"engine": "rpie", "epochs": 2, "batch": 5, "alpha": 0.2}]},
        "Rank 1 has stages.0.alpha 0.2, rank 0 has ",
    ),
    "batch": (
        {"stages": [{"engine": "rpie", "epochs": 2, "batch": 6}]},
        "Rank 1 has stages.0.batch 6, rank 0 has 5",
    ),
    "rotation": ({"positions": {"rotation_deg": 90}}, "Rank 1 has positions.rotation_deg 90"),
    "energy": ({"data": {"path": "scan.cxi", "energy_eV": 7000}}, "Rank 1 has data.energy_eV 7000"),
    "data": ({"data": {"path": "other.cxi"}}, "Rank 1 has data (file) "),
    "folder": ({"output": {"dir": "elsewhere"}}, "Rank 1 has output.dir elsewhere, rank 0 has out"),
}


@pytest.mark.sample(5)
@pytest.mark.skipif(sys.platform == "win32", reason="ranks are forked")
@pytest.mark.parametrize("name", RECIPES)
def test_other_recipes(name: str, tmp_path: Path) -> None:
    """Two processes that the environment makes ranks, as any launcher does, each with a recipe of its own."""
    changes, said = RECIPES[name]
    write(checked(kind="xray", views=20, window=16, seed=3), tmp_path / "scan.cxi")
    if name == "data":
        write(checked(kind="xray", views=20, window=16, seed=4), tmp_path / "other.cxi")
    common = {"data": {"path": "scan.cxi"}, "stages": [{"engine": "rpie", "epochs": 2, "batch": 5}]}
    common["output"] = {"dir": "out"}
    (tmp_path / "r0.yaml").write_text(yaml.safe_dump(common))
    (tmp_path / "r1.yaml").write_text(yaml.safe_dump({**common, **changes}))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    place = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    ranks = [
        python(["-m", "ptymesh", "run", f"r{rank}.yaml"], tmp_path, {**place, "RANK": rank, "LOCAL_RANK": rank})
        for rank in "01"
    ]
    ended = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [2, 2], ended
    assert all(said in one for one in ended), ended
    assert not (tmp_path / "out" / "result.h5").exists()
