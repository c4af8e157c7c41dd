"""What a plan says of messages is what runs count; its memory, and the choice of a layout, follow the scan."""

import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ptymesh.cli.launching import parse_numbers
from ptymesh.cli.main import main
from ptymesh.cli.plan import fitting, kind_of, memory_size
from ptymesh.distributed.layouts.owners import owners
from ptymesh.distributed.tiles import bisect
from ptymesh.distributed.world import World
from ptymesh.engines import ENGINES, Engine
from ptymesh.errors import BadInput
from ptymesh.kernels.fused import KeptProbes
from ptymesh.physics.half_precision import Halves
from ptymesh.planning import layout_choice
from ptymesh.planning.batches import balance, draw
from ptymesh.planning.cost_model import EPOCH
from ptymesh.planning.device_pace import DevicePace
from ptymesh.planning.layout_choice import RankSpeed, choose_by_plans, choose_layout, epoch_seconds, measured_link
from ptymesh.planning.plan import FULL, LayoutName, LayoutPlan, PlannedScan, plan_layouts, scan_of
from ptymesh.recipe.starts import ObjectOptions, ProbeOptions
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import make, share

SPEED = RankSpeed(link=1e9, latency=1e-5, pace=DevicePace(1e4, 0.0))
RPIE_COST = ENGINES["rpie"].cost
CASES = {
    "rpie": {"batch": 7},
    "mpie": {"batch": 7},
    "lsqml": {"batch": 7},
    "adam": {"batch": 7},
    "dm": {},
    "ap": {},
    "cg": {},
    "bh": {},
    "lbfgs": {},
}


def engine(name: str):  # type: ignore[no-untyped-def]
    return ENGINES[name](epochs=1, **CASES[name])


def counted(world: World, name: str, layout: str) -> tuple[float, float, float, float]:
    """Per batch: bytes and messages sent, bytes of all-reduces and their number."""
    toy = make(views=45, modes=2, uneven=True)
    problem = toy.problem(world, layout)
    loop = Loop(problem, RunState(share(toy.start(), problem)), [engine(name)], seed=3)
    loop.run()
    t = loop.traffic
    return tuple(n / t.batches for n in (t.bytes_sent, t.messages, t.bytes_reduced, t.reductions))  # type: ignore[return-value]


def planned(name: str, ranks: int):  # type: ignore[no-untyped-def]
    toy = make(views=45, modes=2, uneven=True)
    e, h, w = toy.truth, *toy.truth.window
    scan = PlannedScan(toy.measurement.positions, (h, w), e.extent, (0.0, 0.0), 2, 1, 0, 8 * h * w, 8, 0)
    return plan_layouts(scan, engine(name), 3, ranks)


@pytest.mark.sample(19)
@pytest.mark.parametrize("layout", ["replicated", "sent"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size_", [2, 4])
def test_messages_are_those_of_a_run(ranks, name: str, layout: str, size_: int) -> None:  # type: ignore[no-untyped-def]
    found = np.array(ranks(size_, counted, name, layout)).max(0)
    cost = planned(name, size_)["replicated" if layout == "replicated" else "tiled"]
    assert cost.bytes_sent == found[0] and cost.messages == found[1]
    if name in ("cg", "bh", "lbfgs"):  # which need more from the second step on
        assert cost.bytes_reduced >= found[2] and cost.reductions >= found[3]
    else:
        assert cost.bytes_reduced == found[2] and cost.reductions == found[3]


@pytest.mark.parametrize("layout", ["panels", "tiled"])
@pytest.mark.parametrize("name", ["rpie", "adam", "lsqml"])
def test_messages_of_ranks_that_share_memory(ranks, name: str, layout: str) -> None:  # type: ignore[no-untyped-def]
    """As many as in a run; bytes are those of the run in tiles, and about those of one that writes no panel as a
    whole."""
    found = np.array(ranks(2, counted, name, layout)).max(0)
    toy = make(views=45, modes=2, uneven=True)
    scan = PlannedScan(
        toy.measurement.positions, toy.truth.window, toy.truth.extent, (0.0, 0.0), 2, 1, 0, 8 * 672, 8, 0
    )
    plans = plan_layouts(scan, engine(name), 3, 2, shares_memory=True)
    cost = plans["tiled" if layout == "tiled" else "replicated"]
    assert cost.reductions == found[3] and cost.messages == found[1] == 0 == found[0]
    assert cost.bytes_reduced == pytest.approx(found[2], rel=0 if layout == "tiled" else 0.25)


def test_ranks_that_share_memory_keep_panels() -> None:
    one, two = (
        plan_layouts(big(2048), engine("adam"), 0, 2, shares_memory=shared)["replicated"] for shared in (False, True)
    )
    assert two.object < 0.7 * one.object and two.bytes_reduced < 0.8 * one.bytes_reduced
    assert two.balance == one.balance, "views are dealt alike"


def big(extent: int, views: int = 3000) -> PlannedScan:
    positions = np.random.default_rng(0).random((views, 2)) * (extent - 150)
    return PlannedScan(positions, (128, 128), (extent, extent), (4.0, 4.0), 1, 1, 0, 2 * 128 * 128, 4, 0)


def test_memory_falls_with_ranks() -> None:
    few, many = (plan_layouts(big(4096), engine("rpie"), 0, ranks) for ranks in (1, 16))
    assert many["tiled"].object < few["tiled"].object / 8 and many["replicated"].object == few["replicated"].object
    assert many["tiled"].patterns <= few["tiled"].patterns / 15
    assert few["tiled"].bytes_per_batch == 0 == few["replicated"].messages
    assert many["tiled"].bytes_per_batch < many["replicated"].bytes_per_batch / 5


def test_values_take_two_arrays_more() -> None:
    plain, real, both = (
        plan_layouts(replace(big(1024), value_numbers=n), engine("rpie"), 0, 1)["replicated"] for n in range(3)
    )
    assert real.object - plain.object == both.object - real.object == 2 * 4 * 1024**2


def test_planes_that_a_constraint_gathers_count() -> None:
    """On each rank, however few pixels of the object it has."""
    gathers = ENGINES["rpie"](epochs=1, batch=7, constraints={"kr_threshold": True})
    for layout in ("replicated", "tiled"):
        plain, more = (plan_layouts(big(1024), one, 0, 4)[layout] for one in (engine("rpie"), gathers))
        assert more.memory - plain.memory == more.object - plain.object == 4 * 8 * 1024**2


def taken(ranks: int, link: float, latency: float, rate: float, memory: float = 1e15) -> tuple[LayoutName, str]:
    """The layout that ranks of such a speed and memory take."""
    scan, stage, speed = big(2048), engine("rpie"), RankSpeed(link, latency, DevicePace(rate, 0.0))
    plans = plan_layouts(scan, stage, 0, ranks)
    return choose_by_plans(
        plans, {name: epoch_seconds(plan, scan, stage, speed) for name, plan in plans.items()}, memory
    )


def test_choice() -> None:
    assert taken(8, 1e8, 1e-5, 1e4)[0] == "tiled", "a slow link"
    name, why = taken(2, 1e15, 0.0, 1.0)
    assert name == "replicated" and "the whole object fits on every rank" in why
    name, why = taken(8, 1e15, 0.0, 1.0, memory=plan_layouts(big(2048), engine("rpie"), 0, 8)["replicated"].memory)
    assert name == "tiled" and "per rank" in why, "a run fills no more than a share of the memory"
    assert choose_layout(World(), big(2048), engine("rpie"), 0)[0] == "replicated", "one rank"


def test_what_fits_in_words() -> None:
    one, eight = (plan_layouts(big(2048), engine("rpie"), 0, ranks) for ranks in (1, 8))
    least = eight["replicated"].memory / FULL
    assert fitting(eight, 0.99 * least).startswith("tiled; the whole object would make")
    assert fitting(eight, 1.01 * least).startswith("either layout fits") and fitting(one, 1.0).startswith("replicated")


def test_waves_that_engines_keep_and_chunks_of_gpus_count() -> None:
    """On a GPU chunks are larger, but never than a batch; DM keeps a wave of each view, RAAR two, LSQML a batch's."""
    scan, wave = big(1024), 8 * 128 * 128

    def memory(name: str, device: str = "cpu", **options: int) -> int:
        return plan_layouts(scan, ENGINES[name](epochs=1, **options), 0, 4, device)["replicated"].memory

    assert memory("rpie", "cuda", batch=3000) - memory("rpie", batch=3000) == 10 * (750 * wave - (4 << 20))
    assert memory("rpie", "cuda", batch=40) == memory("rpie", batch=40), "ten views of each rank fit into any chunk"
    assert memory("rpie", "xpu", batch=3000) == memory("rpie", "cuda", batch=3000)
    assert memory("raar") - memory("dm") == 750 * wave
    assert memory("lsqml", batch=3000) > memory("lsqml", batch=40) + 2 * 740 * wave


def test_kept_waves_take_half_in_mixed_precision() -> None:
    """In the plan, and but for a number per view in what engines and batches really hold."""
    for name, kept in (("dm", 1), ("raar", 2), ("ap", 1), ("lsqml", 2)):
        single, mixed = (
            plan_layouts(replace(big(1024), kept_bytes=bytes_), ENGINES[name](epochs=1), 0, 1)["replicated"].memory
            for bytes_ in (4, 2)
        )
        views = 64 if name == "lsqml" else 3000  # of a batch
        assert single - mixed == kept * views * 4 * 128 * 128, name
    for name, count in (("dm", 1), ("raar", 2), ("lsqml", 1)):
        single, mixed = (held(name, halves) for halves in (False, True))
        # twelve views of two modes
        assert single == count * 12 * 2 * 24 * 28 * 8 and mixed == single // 2 + count * 12 * 4, name


def held(name: str, halves: bool) -> int:
    """Bytes of exit waves that an engine keeps of views, or a batch of LSQML between its sweeps."""
    toy, chi = make(views=12, modes=2, dtype=torch.complex64), list[torch.Tensor]()
    problem, engine = toy.problem(halves=halves), ENGINES[name](epochs=1)
    keep = problem.evaluator.keep

    def noted(*given: Any) -> Any:
        swept = keep(*given)
        chi.extend([swept.chi.pairs, swept.chi.scale] if halves else [swept.chi])
        if isinstance(swept.intermediates, KeptProbes):  # which kernels keep, too
            assert isinstance(swept.intermediates.probes, Halves) == halves
        return swept

    problem.evaluator.keep = noted  # type: ignore[method-assign]
    Loop(problem, RunState(toy.start()), [engine], seed=1).run()
    return sum(tensor.numel() * tensor.element_size() for tensor in [*chi, *engine.per_view.values()])


def test_a_gpu_is_planned_with_its_own_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured, and the chunk, are those of the world's device."""
    found: list[object] = []
    monkeypatch.setattr(
        layout_choice,
        "measure_pace",
        lambda window, device, dtype, threads: found.append(device) or DevicePace(1e4, 0.0),
    )
    monkeypatch.setattr(layout_choice, "measured_link", lambda world: (1e9, 1e-5))
    monkeypatch.setattr(layout_choice, "memory_of_device", lambda device: 80e9)
    planned = layout_choice.plan_layouts
    monkeypatch.setattr(layout_choice, "plan_layouts", lambda *given, **more: found.append(given[4]) or planned(*given))
    world = World("meta")
    world.size, world.max = 2, lambda tensor: [torch.tensor([-1e4, 0.0, -80e9])]  # type: ignore[method-assign]
    choose_layout(world, big(512), engine("rpie"), 0)
    assert found == [torch.device("meta"), "meta"]


def test_kinds_of_devices_to_plan_for() -> None:
    assert [kind_of(kind) for kind in ("cuda", "cpu", "xpu")] == ["cuda", "cpu", "xpu"]
    with pytest.raises(BadInput, match="--device is 'tpu'; give auto, cpu, cuda or xpu"):
        kind_of("tpu")


def test_slower_links_and_larger_latencies_cost_time() -> None:
    scan, stage = big(1024), engine("rpie")
    plan = plan_layouts(scan, stage, 0, 4)["replicated"]
    quick, slow, late = (
        epoch_seconds(plan, scan, stage, speed)
        for speed in (SPEED, replace(SPEED, link=1e7), replace(SPEED, latency=1e-2))
    )
    assert slow > 2 * quick and late > quick


def link(world: World) -> tuple[float, float]:
    return measured_link(world)


def test_links_are_tried(ranks) -> None:  # type: ignore[no-untyped-def]
    (bandwidth, latency), other = ranks(2, link)
    assert 1e6 < bandwidth < 1e12 and 1e-7 < latency < 1 and other == (bandwidth, latency)


def test_balance_is_that_of_a_whole_epoch() -> None:
    scan = big(1024)
    drawn = draw(scan.positions, 64, 5, 0)
    found = plan_layouts(scan, ENGINES["rpie"](batch=64), 5, 2)
    halves, _ = bisect(scan.positions + 64, 2)
    assert found["replicated"].balance == balance(owners(scan.positions, 2), drawn, 2) > 0.97
    assert found["tiled"].balance == balance(halves, drawn, 2)
    compact = plan_layouts(scan, ENGINES["rpie"](batch=64, order="compact"), 5, 2)
    assert compact["replicated"].balance > 0.97 and compact["tiled"].balance < 0.7
    shares = RPIE_COST.per_pixel * 3000 / 2 / 1e4 / found["replicated"].balance
    assert shares < compute_seconds(found["replicated"], scan, ENGINES["rpie"](batch=64)) < 1.1 * shares


def compute_seconds(plan: LayoutPlan, scan: PlannedScan, stage: Engine, speed: RankSpeed = SPEED) -> float:
    """What an epoch takes where messages take no time."""
    return epoch_seconds(plan, scan, stage, replace(speed, link=math.inf, latency=0.0))


def test_engine_model_and_layout_make_the_time() -> None:
    """Each as its price says; what all ranks do again does not fall with their number, and threads share the rest."""
    rpie, scan = engine("rpie"), replace(big(1024), window=(64, 64))

    def seconds(
        stage: Engine = rpie,
        ranks: int = 1,
        layout: LayoutName = "replicated",
        shared: bool = False,
        threads: int = 1,
        batch_s: float = 2e-3,
        **of: Any,
    ) -> float:
        known = replace(scan, **of)
        plan = plan_layouts(known, stage, 0, ranks, shares_memory=shared)[layout]
        return compute_seconds(plan, known, stage, replace(SPEED, pace=DevicePace(1e4, batch_s), threads=threads))

    plain, views = seconds(), 3000 / 1e4
    batches = math.ceil(3000 / 7)
    whatever = 2e-3 * (RPIE_COST.per_batch * batches + EPOCH)
    between = RPIE_COST.per_epoch * 1024**2 / 64**2 / 1e4
    expected = RPIE_COST.per_pixel * views + whatever + between
    assert plain == pytest.approx(expected), "batches take something besides views"
    assert seconds(batch_s=0.0) == pytest.approx(plain - whatever)
    dearer = [seconds(engine(name)) for name in ("adam", "lsqml")]
    dearer += [seconds(modes=4), seconds(slices=3), seconds(near=True), seconds(opr_modes=2)]
    dearer += [
        seconds(ENGINES["rpie"](batch=7, positions=True)),
        seconds(ENGINES["rpie"](batch=7, probe={"intensity": True})),
    ]
    assert min(dearer) > 1.05 * plain
    assert seconds(modes=4) == pytest.approx(plain + 3 * RPIE_COST.per_further_wave * RPIE_COST.per_pixel * views)
    halves = [
        seconds(ranks=2, layout=layout, shared=shared) for layout in ("replicated", "tiled") for shared in (False, True)
    ]
    assert plain / 2 < min(halves) and max(halves) < plain
    again, panels, *_ = halves
    assert panels < again, "of panels each rank steps its own"
    assert seconds(threads=2) == pytest.approx(plain - RPIE_COST.per_pixel * views / 2, rel=0.01)
    steps = [seconds(engine(name), extent=(8192, 8192)) for name in ("rpie", "adam")]
    assert steps[1] > 5 * steps[0], "Adam steps on every pixel, rPIE on those that a batch touches"


def test_sizes_and_counts() -> None:
    assert memory_size("80GB") == 80e9 and parse_numbers("--ranks", "1,8,64") == [1, 8, 64]
    for bad in ("80", "-3GB", "GB", "3 parsec", "3 s"):
        with pytest.raises(BadInput, match=r"--device-memory is .*; give a size with a unit, such as 80GB"):
            memory_size(bad)
    for bad, most in (("0,1", None), ("1,9", 8), ("1,two", None)):
        with pytest.raises(BadInput, match=f"--ranks is '{bad}'; give whole numbers .* such as 1,2,4"):
            parse_numbers("--ranks", bad, most)


@pytest.mark.parametrize("option", ["--link", "--latency", "--rate"])
def test_speeds_are_refused(option: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["ptymesh", "plan", "recipe.yaml", option, "10"])
    with pytest.raises(SystemExit) as left:
        main()
    said = capfd.readouterr().err
    assert left.value.code == 2 and said.count("\n") == 1
    assert f"{option} '10' was for times, which a plan no longer predicts; leave it out, and measure" in said


def test_an_object_of_which_no_pixel_is_kept() -> None:
    """10^10 pixels would take 80 GB."""
    scan = PlannedScan(
        np.array([[0.0, 0.0], [99_000, 99_000]]), (32, 32), (99_072, 99_072), (8.0, 8.0), 1, 1, 0, 2048, 4, 0
    )
    assert plan_layouts(scan, ENGINES["rpie"](batch=2), 0, 2)["replicated"].object > 1 << 36


def test_an_object_whose_blocks_fill_the_memory() -> None:
    toy = make(views=9)
    far = replace(toy.measurement, positions=np.array([[0.0, 0.0], [1e8, 1e8]] * 4 + [[0.0, 0.0]]))
    with pytest.raises(BadInput, match=r"^Planning an object of 1000\d+ x 1000\d+ pixels needs 2\d\d TB of memory"):
        scan_of(far, ObjectOptions(), ProbeOptions(), "fourier", "single", 3)
