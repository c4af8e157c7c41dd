"""What a plan says of messages is what runs count; what it says of memory and time follows the scan."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ptymesh.cli.plan import counts, kind_of, quantity
from ptymesh.distributed.owners import owners
from ptymesh.distributed.tiles import bisect
from ptymesh.distributed.world import World
from ptymesh.engines import ENGINES, Engine
from ptymesh.errors import BadInput
from ptymesh.kernels.fused import KeptProbes
from ptymesh.physics.halves import Halves
from ptymesh.run import plan
from ptymesh.run.batches import balance, draw
from ptymesh.run.cost_model import ENGINE_COSTS, EPOCH
from ptymesh.run.device_pace import DevicePace
from ptymesh.run.loop import Loop
from ptymesh.run.plan import LayoutName, Machine, Scan, choose, costs, measured_link, scan_of, shared_by
from ptymesh.run.starts import ObjectOptions, ProbeOptions
from ptymesh.run.state import RunState
from toy import make, share

MACHINE = Machine(link=1e9, latency=1e-5, rate=1e4)
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
    scan = Scan(toy.measurement.positions, (h, w), e.extent, (0.0, 0.0), 2, 1, 0, 8 * h * w, 8, 0)
    return costs(scan, engine(name), 3, ranks, MACHINE)


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
    scan = Scan(toy.measurement.positions, toy.truth.window, toy.truth.extent, (0.0, 0.0), 2, 1, 0, 8 * 672, 8, 0)
    cost = costs(scan, engine(name), 3, 2, replace(MACHINE, shared=True))[
        "tiled" if layout == "tiled" else "replicated"
    ]
    assert cost.reductions == found[3] and cost.messages == found[1] == 0 == found[0]
    assert cost.bytes_reduced == pytest.approx(found[2], rel=0 if layout == "tiled" else 0.25)


def test_ranks_that_share_memory_keep_panels() -> None:
    one, two = (costs(big(2048), engine("adam"), 0, 2, replace(MACHINE, shared=s))["replicated"] for s in (False, True))
    assert two.object < 0.7 * one.object and two.bytes_reduced < 0.8 * one.bytes_reduced
    assert two.balance == one.balance, "views are dealt alike"


def big(extent: int, views: int = 3000) -> Scan:
    positions = np.random.default_rng(0).random((views, 2)) * (extent - 150)
    return Scan(positions, (128, 128), (extent, extent), (4.0, 4.0), 1, 1, 0, 2 * 128 * 128, 4, 0)


def test_memory_falls_with_ranks() -> None:
    few, many = costs(big(4096), engine("rpie"), 0, 1, MACHINE), costs(big(4096), engine("rpie"), 0, 16, MACHINE)
    assert many["tiled"].object < few["tiled"].object / 8 and many["replicated"].object == few["replicated"].object
    assert many["tiled"].patterns <= few["tiled"].patterns / 15
    assert few["tiled"].bytes_per_batch == 0 == few["replicated"].messages
    assert many["tiled"].bytes_per_batch < many["replicated"].bytes_per_batch / 5
    assert few["tiled"].efficiency == pytest.approx(1, abs=0.01) and many["tiled"].efficiency < 1


def test_choice() -> None:
    found = costs(big(2048), engine("rpie"), 0, 8, MACHINE)
    slow = Machine(1e8, 1e-5, 1e4)
    assert choose(costs(big(2048), engine("rpie"), 0, 8, slow), slow)[0] == "tiled"
    fast = Machine(1e15, 0.0, 1.0)
    assert choose(costs(big(2048), engine("rpie"), 0, 2, fast), fast)[0] == "replicated"
    small = Machine(1e15, 0.0, 1.0, memory=found["replicated"].memory)
    name, why = choose(costs(big(2048), engine("rpie"), 0, 8, small), small)
    assert name == "tiled" and "per rank" in why
    assert choose(costs(big(2048), engine("rpie"), 0, 1, MACHINE), MACHINE)[0] == "replicated"


def test_waves_that_engines_keep_and_chunks_of_gpus_count() -> None:
    """On a GPU chunks are larger, but never than a batch; DM keeps a wave of each view, RAAR two, LSQML a batch's."""
    scan, wave = big(1024), 8 * 128 * 128

    def memory(name: str, device: str = "cpu", **options: int) -> int:
        machine = replace(MACHINE, device=device)
        return costs(scan, ENGINES[name](epochs=1, **options), 0, 4, machine)["replicated"].memory

    assert memory("rpie", "cuda", batch=3000) - memory("rpie", batch=3000) == 10 * (750 * wave - (4 << 20))
    assert memory("rpie", "cuda", batch=40) == memory("rpie", batch=40), "ten views of each rank fit into any chunk"
    assert memory("rpie", "xpu", batch=3000) == memory("rpie", "cuda", batch=3000)
    assert memory("raar") - memory("dm") == 750 * wave
    assert memory("lsqml", batch=3000) > memory("lsqml", batch=40) + 2 * 740 * wave


def test_kept_waves_take_half_in_mixed_precision() -> None:
    """In the plan, and but for a number per view in what engines and batches really hold."""
    for name, kept in (("dm", 1), ("raar", 2), ("ap", 1), ("lsqml", 2)):
        single, mixed = (
            costs(replace(big(1024), kept_bytes=bytes_), ENGINES[name](epochs=1), 0, 1, MACHINE)["replicated"].memory
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
        plan, "measure_pace", lambda window, device, dtype, threads: found.append(device) or DevicePace(1e4, 0.0)
    )
    monkeypatch.setattr(plan, "measured_link", lambda world: (1e9, 1e-5))
    monkeypatch.setattr(plan, "memory_of", lambda device: 80e9)
    monkeypatch.setattr(plan, "choose", lambda costs, machine: found.append(machine.device))
    world = World("meta")
    world.size, world.max = 2, lambda tensor: [torch.tensor([-1e4, 0.0, -80e9])]  # type: ignore[method-assign]
    plan.decide(world, big(512), engine("rpie"), 0)
    assert found == [torch.device("meta"), "meta"]


def test_kinds_of_devices_to_plan_for() -> None:
    assert kind_of("cuda", 1e6) == ("cuda", "cpu") and kind_of("cpu", None) == ("cpu", "cpu")
    with pytest.raises(BadInput, match="--device is 'tpu'; give auto, cpu, cuda or xpu"):
        kind_of("tpu", None)
    with pytest.raises(BadInput, match="none is here to measure on; give its --rate as well"):
        kind_of("xpu", None)


def test_slower_links_and_larger_latencies_cost_time() -> None:
    quick, slow, late = (
        costs(big(1024), engine("rpie"), 0, 4, machine)["replicated"].epoch_s
        for machine in (MACHINE, Machine(1e7, 1e-5, 1e4), Machine(1e9, 1e-2, 1e4))
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
    found = costs(scan, ENGINES["rpie"](batch=64), 5, 2, MACHINE)
    halves, _ = bisect(scan.positions + 64, 2)
    assert found["replicated"].balance == balance(owners(scan.positions, 2), drawn, 2) > 0.97
    assert found["tiled"].balance == balance(halves, drawn, 2)
    compact = costs(scan, ENGINES["rpie"](batch=64, order="compact"), 5, 2, MACHINE)
    assert compact["replicated"].balance > 0.97 and compact["tiled"].balance < 0.7
    shares = ENGINE_COSTS["rpie"].per_pixel * 3000 / 2 / 1e4 / found["replicated"].balance
    assert shares < found["replicated"].compute_s < 1.1 * shares


def test_engine_model_and_layout_make_the_time() -> None:
    """Each as its price says; what all ranks do again does not fall with their number, and threads share the rest."""
    machine, rpie = replace(MACHINE, batch_s=2e-3), engine("rpie")
    scan = replace(big(1024), window=(64, 64))

    def seconds(with_: Engine = rpie, ranks: int = 1, layout: LayoutName = "replicated", **of: Any) -> float:
        given = {name: value for name, value in of.items() if name in ("threads", "batch_s", "shared")}
        known = replace(scan, **{name: value for name, value in of.items() if name not in given})
        return costs(known, with_, 0, ranks, replace(machine, **given))[layout].compute_s

    plain, views = seconds(), 3000 / machine.rate
    batches = math.ceil(3000 / 7)
    rpie_cost, whatever = ENGINE_COSTS["rpie"], 2e-3 * (ENGINE_COSTS["rpie"].per_batch * batches + EPOCH)
    between = rpie_cost.per_epoch * 1024**2 / 64**2 / machine.rate
    assert plain == pytest.approx(rpie_cost.per_pixel * views + whatever + between), (
        "batches take something besides views"
    )
    assert seconds(batch_s=0.0) == pytest.approx(plain - whatever)
    dearer = [seconds(engine(name)) for name in ("adam", "lsqml")]
    dearer += [seconds(modes=4), seconds(slices=3), seconds(near=True), seconds(opr_modes=2)]
    dearer += [
        seconds(ENGINES["rpie"](batch=7, positions=True)),
        seconds(ENGINES["rpie"](batch=7, probe={"intensity": True})),
    ]
    assert min(dearer) > 1.05 * plain
    assert seconds(modes=4) == pytest.approx(plain + 3 * rpie_cost.per_further_wave * rpie_cost.per_pixel * views)
    halves = [
        seconds(ranks=2, layout=layout, shared=shared) for layout in ("replicated", "tiled") for shared in (False, True)
    ]
    assert plain / 2 < min(halves) and max(halves) < plain
    again, panels, *_ = halves
    assert panels < again, "of panels each rank steps its own"
    assert seconds(threads=2) == pytest.approx(plain - rpie_cost.per_pixel * views / 2, rel=0.01)
    wide = replace(scan, extent=(8192, 8192))
    steps = [costs(wide, engine(name), 0, 1, machine)["replicated"].compute_s for name in ("rpie", "adam")]
    assert steps[1] > 5 * steps[0], "Adam steps on every pixel, rPIE on those that a batch touches"


def test_ranks_of_a_machine_share_its_threads() -> None:
    machine = replace(MACHINE, threads=8)
    assert [shared_by(machine, ranks, 8).threads for ranks in (1, 2, 3, 8, 9)] == [8, 4, 2, 1, 8]
    assert [shared_by(machine, ranks, 8).shared for ranks in (1, 8, 9)] == [True, True, False]


def test_quantities() -> None:
    assert quantity("--device-memory", "80GB") == 80e9 and quantity("--latency", "10us") == pytest.approx(1e-5)
    assert counts("1,8,64") == [1, 8, 64]
    for bad in ("80", "-3GB", "GB", "3 parsec"):
        with pytest.raises(BadInput, match="--link"):
            quantity("--link", bad)
    with pytest.raises(BadInput, match="--ranks"):
        counts("0,1")


def test_an_object_of_which_no_pixel_is_kept() -> None:
    """10^10 pixels would take 80 GB."""
    scan = Scan(np.array([[0.0, 0.0], [99_000, 99_000]]), (32, 32), (99_072, 99_072), (8.0, 8.0), 1, 1, 0, 2048, 4, 0)
    assert costs(scan, ENGINES["rpie"](batch=2), 0, 2, MACHINE)["replicated"].object > 1 << 36


def test_an_object_whose_blocks_fill_the_memory() -> None:
    toy = make(views=9)
    far = replace(toy.measurement, positions=np.array([[0.0, 0.0], [1e8, 1e8]] * 4 + [[0.0, 0.0]]))
    with pytest.raises(BadInput, match=r"^Planning an object of 1000\d+ x 1000\d+ pixels needs 2\d\d TB of memory"):
        scan_of(far, ObjectOptions(), ProbeOptions(), "fourier", "single", 3)
