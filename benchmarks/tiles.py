"""Objects in tiles: memory and messages against what `ptymesh plan` says, and times against the whole object.

    python benchmarks/tiles.py memory --data big.cxi        4 ranks: peak memory above imports, bytes per batch
    python benchmarks/tiles.py batches --data big.cxi       a batch of 64 there and on an object of 1,024 x 1,024
    python benchmarks/tiles.py ranks                        2 ranks of a thread against 1 rank of two threads
                                    --out tiles.json        what was found, beside what the file holds already

`ptymesh simulate big.cxi --views 20000 --window 128 --object-size 4096 --compression none` makes the data of the first.
Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

IMAGE = "PTYMESH_BENCH"


def rank() -> None:
    """What one rank does: runs a recipe, and notes its memory above the imports and its epochs' seconds."""
    import psutil

    from ptymesh.recipe.schema import Recipe
    from ptymesh.run.session import run_recipe
    from ptymesh.run_folder.reports import Callback

    if os.environ.get("PTYMESH_BENCH_THREADS"):
        import torch

        torch.set_num_threads(int(os.environ["PTYMESH_BENCH_THREADS"]))
    seconds = []

    class Epochs(Callback):
        def epoch(self, report) -> None:  # type: ignore[no-untyped-def]
            seconds.append(report.seconds)

    settings = json.loads(os.environ[IMAGE])

    warm(settings)
    before = psutil.Process().memory_info().rss
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what it is from here on
    outcome = run_recipe(Recipe.parse(settings["recipe"]), device="cpu", callbacks=[Epochs()])
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    attrs = outcome.result.attrs
    found = {
        "before": before,
        "above": peak - before,
        "seconds": seconds,
        "layout": attrs["layout"],
        "bytes_per_batch": attrs.get("bytes_per_batch", 0.0),
        "messages_per_batch": attrs.get("messages_per_batch", 0.0),
        "residual": attrs["final_residual"],
    }
    folder = Path(settings["folder"])
    (folder / f"{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found), encoding="utf-8")


def warm(settings: dict) -> None:
    """Kernels are loaded before anything is measured: they are code, as imports are."""
    import ptymesh as pm
    from ptymesh.distributed.world import Solo

    recon = pm.Reconstruction(pm.load(settings["warm"]), device=Solo())
    for engine in (pm.RPIE(epochs=1, batch=16), pm.LSQML(epochs=1, batch=16)):
        for _ in recon.run(engine):
            pass


def run(recipe: dict, ranks: int, threads: int, warm_with: str) -> list[dict]:
    """What each of `ranks` ranks of `threads` threads notes."""
    from ptymesh.launcher.rank_processes import launch

    with tempfile.TemporaryDirectory() as folder:
        recipe = {**recipe, "output": {"dir": f"{folder}/out", "figures": False}}
        os.environ[IMAGE] = json.dumps({"recipe": recipe, "folder": folder, "warm": warm_with})
        os.environ["OMP_NUM_THREADS"] = os.environ["PTYMESH_BENCH_THREADS"] = str(threads)
        status = launch([], ranks, log_dir=Path(folder) / "logs", program=(__file__,))
        if status:
            sys.exit(f"a rank failed with status {status}")
        return [json.loads((Path(folder) / f"{r}.json").read_text(encoding="utf-8")) for r in range(ranks)]


def main() -> None:
    """Measures what is asked for, and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["memory", "batches", "ranks"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    from record import about, write

    measure = {"memory": memory, "batches": batches, "ranks": ranks_against_threads}[arguments.what]
    here = about(threads=2)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(arguments, simulated(Path(folder) / "tiny.cxi", 30, 300), folder)
    before = json.loads(arguments.out.read_text()) if arguments.out and arguments.out.exists() else {}
    write(arguments.out, before | here | {arguments.what: found})


def simulated(path: Path, views: int, side: int) -> str:
    """A data set of 128 x 128 patterns over an object of about `side` pixels a side."""
    import subprocess

    command = [sys.executable, "-m", "ptymesh", "simulate", str(path), "--views", str(views), "--window", "128"]
    subprocess.run([*command, "--object-size", str(side), "--compression", "none"], check=True, capture_output=True)
    return str(path)


def memory(arguments: argparse.Namespace, tiny: str, folder: str) -> dict:
    """Peak memory of each of 4 ranks above its imports, against the plan; bytes per batch."""
    from ptymesh.io import load_measurement
    from ptymesh.planning.plan import plan_layouts, scan_of
    from ptymesh.recipe.initial import MARGIN_PX
    from ptymesh.recipe.schema import Recipe

    stage = {"engine": "rpie", "epochs": arguments.epochs, "batch": 64}
    raw = {"data": {"path": str(arguments.data.absolute())}, "layout": "tiled", "stages": [stage]}
    recipe = Recipe.parse(raw)
    data = load_measurement(recipe.data, recipe.positions)
    scan = scan_of(data, recipe.object, recipe.probe, recipe.positions.subpixel, recipe.precision, MARGIN_PX)
    plans = {n: plan_layouts(scan, recipe.stages[0], 0, n)["tiled"] for n in (1, 4)}
    found = run(raw, 4, 1, tiny)
    dense = scan.extent[0] * scan.extent[1] * 2 * scan.real_bytes
    print(f"object {scan.extent}, {len(scan.positions)} views")
    print(
        f"plan: 1 rank {plans[1].memory / 1e6:.0f} MB, 4 ranks {plans[4].memory / 1e6:.0f} MB "
        f"({plans[4].memory / plans[1].memory:.3f} of one rank's; at most 0.35)"
    )
    for rank, one in enumerate(found):
        ratio = one["above"] / plans[4].memory
        print(f"rank {rank}: {one['above'] / 1e6:.0f} MB above imports, {ratio:.2f} of the plan (at most 1.2)")
    sent = found[0]["bytes_per_batch"]
    print(
        f"sent per batch {sent / 1e6:.2f} MB in {found[0]['messages_per_batch']:.1f} messages "
        f"(planned {plans[4].bytes_per_batch / 1e6:.2f} MB), 1/{dense / sent:.0f} of the object (at least 1/20)"
    )
    print(f"seconds per epoch {found[0]['seconds']}")
    return {
        "object": list(scan.extent),
        "views": len(scan.positions),
        "planned_bytes": {n: plan.memory for n, plan in plans.items()},
        "above_imports_bytes": [one["above"] for one in found],
        "planned_bytes_per_batch": plans[4].bytes_per_batch,
        "bytes_per_batch": sent,
        "object_bytes": dense,
    }


def batches(arguments: argparse.Namespace, tiny: str, folder: str) -> dict:
    """Seconds per batch of 64 on the large object, and on one of about 1,024 x 1,024."""
    small = simulated(Path(folder) / "small.cxi", 1280, 1024)
    per_batch: dict[str, list[float]] = {"large": [], "small": []}
    for _ in range(arguments.repeats):
        for name, path in (("large", str(arguments.data.absolute())), ("small", small)):
            stage = {"engine": "rpie", "epochs": arguments.epochs, "batch": 64}
            raw = {"data": {"path": path}, "layout": "replicated", "stages": [stage]}
            one = run(raw, 1, 2, tiny)[0]
            count = 313 if name == "large" else 20
            per_batch[name].append(min(one["seconds"]) / count)
    large, little = (1e3 * statistics.median(per_batch[name]) for name in ("large", "small"))
    print(f"batch of 64: {large:.2f} ms on the large object, {little:.2f} ms on the small one: {large / little:.2f}")
    return {"ms_per_batch": {"large": large, "small": little}}


def ranks_against_threads(arguments: argparse.Namespace, tiny: str, folder: str) -> dict:
    """2,000 views over about 1,500 x 1,500: 2 ranks of a thread, tiled and replicated, against 1 rank of two."""
    path = simulated(Path(folder) / "scan.cxi", 2000, 1500)
    found = {}
    for engine in ("rpie", "lsqml"):
        seconds: dict[str, list[float]] = {"one": [], "tiled": [], "replicated": []}
        for _ in range(arguments.repeats):
            for name, ranks, threads in (("one", 1, 2), ("tiled", 2, 1), ("replicated", 2, 1)):
                stage = {"engine": engine, "epochs": arguments.epochs + 1, "batch": 64}
                layout = "replicated" if name == "one" else name
                raw = {"data": {"path": path}, "layout": layout, "stages": [stage]}
                seconds[name].append(statistics.median(run(raw, ranks, threads, tiny)[0]["seconds"][1:]))
        one, tiled, whole = (statistics.median(seconds[name]) for name in ("one", "tiled", "replicated"))
        print(
            f"{engine}: 1 rank of 2 threads {one:.2f} s/epoch; 2 ranks of 1 thread: tiled {tiled:.2f} s "
            f"({tiled / one:.2f}), replicated {whole:.2f} s ({whole / one:.2f})"
        )
        found[engine] = {"one": one, "tiled": tiled, "replicated": whole, "tries": seconds}
    return {"s_per_epoch": found}


if __name__ == "__main__":
    if IMAGE in os.environ and "RANK" in os.environ:
        rank()
    else:
        main()
