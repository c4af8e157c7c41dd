"""Writes tables into the pages, from the newest files of benchmarks/results and cases.yaml: python docs/measured.py

A table stands between `<!-- measured: NAME -->` and `<!-- measured: end -->`; the tests compare the two. Which command
makes which file stands in docs/background/numbers.md.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"
MARKED = re.compile(r"(<!-- measured: ([a-z-]+) -->\n).*?(<!-- measured: end -->)", re.S)
ENGINES = {"rpie": "rPIE", "lsqml": "LSQML", "adam": "Adam", "bh": "BH"}
PEERS = {"ptychi": "Pty-Chi", "cdtools": "CDTools", "ptyrad": "PtyRAD"}
SUBPIXEL = {"none": "none", "fourier": "Fourier"}


def newest(name: str) -> dict[str, Any]:
    """The newest file of a benchmark; names begin with the date."""
    found = max(path for path in RESULTS.glob("*.json") if path.stem[11:] == name)
    return dict(json.loads(found.read_text(encoding="utf-8")))


def table(head: str, rows: Iterable[Iterable[Any]]) -> str:
    """In markdown; `head` is its first line."""
    lines = [head, "|" + "---|" * (head.count("|") - 1), *("| " + " | ".join(map(str, row)) + " |" for row in rows)]
    return "\n".join(lines)


def floor() -> str:
    """Speeds against the floor, whole pixels beside Fourier shifts."""
    cases = {(one["engine"], one["modes"], one["subpixel"]): one for one in newest("bench-star")["cases"]}
    rows = []
    for engine in ("rpie", "lsqml", "adam"):
        for modes in (1, 4):
            cells: list[Any] = [ENGINES[engine], modes]
            for subpixel in SUBPIXEL:
                one = cases[engine, modes, subpixel]
                cells += [f"{one['view_modes_per_s']:,.0f}", f"{one['fraction']:.0%}".replace("%", " %")]
            rows.append(cells)
    return table("| engine | modes | whole pixels: view-modes/s | of floor | Fourier: view-modes/s | of floor |", rows)


def turns(name: str, key: Callable[[dict[str, Any]], int], sizes: tuple[int, ...], rising: bool) -> str:
    """Views per second by what is varied, and the factor from the slowest to the fastest."""
    cases = {(one["modes"], one["subpixel"], key(one)): one["views_per_s"] for one in newest(name)["cases"]}
    rows = []
    for subpixel, said in SUBPIXEL.items():
        for modes in (1, 4):
            speeds = [cases[modes, subpixel, size] for size in sizes]
            factor = speeds[-1] / speeds[0] if rising else speeds[0] / speeds[-1]
            rows.append([modes, said, *(f"{speed:,.0f}" for speed in speeds), f"{factor:.2f}"])
    return table(f"| modes | sub-pixel | {' | '.join(f'{size:,}' for size in sizes)} | factor |", rows)


def peers() -> str:
    """Views per second beside the peers."""
    rows = []
    for engine in ENGINES:
        beside = [one for one in newest("peers")["comparisons"] if one["engine"] == engine]
        for one in sorted(beside, key=lambda one: (one["modes"], -one["peer_views_per_s"])):
            speeds = [f"{one[f'{side}_views_per_s']:,.0f}" for side in ("peer", "ptymesh")]
            rows.append([ENGINES[engine], one["modes"], PEERS[one["peer"].split()[0]], *speeds, f"{one['ratio']:.1f}"])
    return table("| engine | modes | peer | its views/s | ptymesh | ratio |", rows)


def solution(kind: str = "solution") -> str:
    """The picture, of the star; where each program ends, when it is there, and when ptymesh is."""
    sys.path.insert(0, str(DOCS.parent / "benchmarks" / "peers"))
    from arrivals import arrivals

    rows, found = [], newest(kind)
    for one in arrivals(found["cases"]):
        name, chosen = one.case["program"], one.case["options"]
        words = [f"{ENGINES[chosen['engine']]}, batches of {chosen['batch']}" if "batch" in chosen else "default"]
        words += [f"{key} {chosen[key]}" for key in ("rate", "momentum") if key in chosen]
        theirs = [f"{one.lowest:#.3g}", one.epoch, f"{one.seconds:.1f}"]
        ours = ["never" if one.ours is None else f"{one.ours:.1f}", "" if one.ratio is None else f"{one.ratio:.1f}"]
        ours = ["", ""] if name == "ptymesh" else ours
        rows.append([one.case["modes"], {**PEERS, "ptymesh": "ptymesh"}[name], ", ".join(words), *theirs, *ours])
    head = "| modes | program | recipe | lowest held out | epochs | seconds | ptymesh: seconds | ratio |"
    here, clock = found["machine"], "on the clock" if found["clock"] == "wall" else "of the processor"
    said = f"Seconds {clock}, of which every peer had {found['seconds']:.0f}; threads: {here['threads']}"
    figure = "![held-out residual against seconds since the start, of ptymesh and of each peer](figures/solution.png)"
    shown = f"{figure}\n\n" if kind == "solution" else ""
    return f"{shown}{table(head, rows)}\n\n{said}; cores that others kept busy: {here['cores_busy_with_others']:.1f}."


def auto_studies() -> str:
    """Recipes that were found beside the best of a study, or of one of another seed; ratios above the bar in bold."""
    rows = []
    for row in newest("auto-studies")["rows"]:
        ours, best = row["found"], row.get("borrowed") or row.get("study") or {}
        stages = [_stage(one) for one in ours["recipe"]["stages"]]
        stages[-1] += _refined(ours["recipe"]["stages"][-1])
        cells = [row["kind"] + (f", {row['seed']}" if row["seed"] else "")]
        cells += [", ".join([*stages, _modes(ours["recipe"].get("probe", {}).get("modes", 1))])]
        cells += [f"{ours['residual']:.3g}", _of_study(row["study"]) if "study" in row else ""]
        cells += [f"{best['residual']:.3g}" if best else "", _bold(row["ratio"], 1.03) if "ratio" in row else ""]
        rows.append([*cells, "{command_s:.0f}, {command_cpu_s:.0f}, {run_s:.1f}".format(**ours)])
    head = "| scan | found | held out | best of the study | its held out | ratio | command, its CPU time, recipe (s) |"
    return table(head, rows)


def _of_study(study: dict[str, Any]) -> str:
    """The best recipe of a study: epochs, engine, what it refines, modes."""
    said = {key.rsplit(".", 1)[-1]: value for key, value in study["settings"].items()}
    names = [name for name in ("positions", "intensity", "background") if said.get(name)]
    return f"{study['epochs']} {said['engine']}{_in_brackets(names)}, {_modes(said['modes'])}"


def _stage(one: dict[str, Any]) -> str:
    """Its epochs and engine, and Adam's rate (0.03 where it says none)."""
    rate = f" {one.get('lr', 0.03):g}" if one["engine"] == "adam" else ""
    return f"{one['epochs']} {one['engine']}{rate}"


def _refined(stage: dict[str, Any]) -> str:
    """What a stage refines besides object and probe."""
    options = {
        "positions": stage.get("positions"),
        "intensity": (stage.get("probe") or {}).get("intensity"),
        "background": (stage.get("unknowns") or {}).get("background"),
    }
    return _in_brackets([name for name, option in options.items() if option not in (None, False)])


def _in_brackets(names: list[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _modes(count: int) -> str:
    return f"{count} mode{'s' * (count > 1)}"


def _bold(ratio: float, bar: float) -> str:
    """In bold where it is above the bar."""
    return f"**{ratio:.3f}**" if ratio > bar else f"{ratio:.3f}"


def safe_rates() -> str:
    """Held-out residual with each unknown over that without, by data set; ratios above the bar in bold."""
    found = newest("safe-rates")
    ratios = {(row["unknown"], row["data"]): _bold(row["ratio"], found["bar"]) for row in found["rows"]}
    unknowns, sets = (list(dict.fromkeys(key[i] for key in ratios)) for i in (0, 1))
    rows = [[unknown, *(ratios.get((unknown, data), "") for data in sets)] for unknown in unknowns]
    return table(f"| unknown | {' | '.join(sets)} |", rows)


def fog(what: str) -> str:
    """Verdicts on simulated scans: every scan, or what they amount to."""
    sys.path.insert(0, str(DOCS.parent / "benchmarks"))
    from fog_table import lines, totals

    found = newest("fog")
    if what == "totals":
        done = f"{len(found['rows'])} of {found['scans']}"
        return table("| what | how many |", [("scans that were run", done), *totals(found["rows"]).items()])
    return "\n".join(lines(found["rows"]))


#: As benchmarks/bars.py calls them: engine and number of modes.
BARS = {
    "rpie": ("rPIE", 1),
    "lsqml": ("LSQML", 1),
    "lsqml, positions, momentum": ("LSQML, positions from epoch 10, momentum", 1),
    "lsqml, 3 modes": ("LSQML", 3),
    "lsqml, 3 modes, positions, momentum": ("LSQML, positions from epoch 10, momentum", 3),
    "dm 30 + ap 20": ("DM 30, then AP 20", 1),
    "raar, beta 0.75": ("RAAR, beta 0.75", 1),
    "cg": ("CG", 1),
    "bh": ("BH", 1),
    "l-bfgs": ("L-BFGS", 1),
    "adam": ("Adam", 1),
}


def bars() -> str:
    """Where each engine ends on the star: frozen residual of all views; of views held out in runs of their own."""
    frozen, held, rows = newest("siemens-star"), newest("bars-held-out"), []
    for name, (engine, modes) in BARS.items():
        at, out = frozen[name]["at"], held[name]["at"]
        cells = ([f"{at[epoch]['residual']:.5f}", f"{out[epoch]['held_out']:.5f}"] for epoch in at)
        seconds = (f"{at[epoch]['processor_s']:.0f}" for epoch in at)
        rows.append([engine, modes, *(", ".join(column) for column in (at, *zip(*cells, strict=True), seconds))])
    return table("| engine | modes | epochs | residual | held out | seconds |", rows)


def fly_scan() -> str:
    """Errors of objects of a scan that stops and of a fly scan, with the motion in the model and without."""
    found, rows = newest("fly-scan"), []
    for one in found["cases"]:
        step, fly, ignored = (one[kind]["nrmse"] for kind in ("step", "fly", "ignored"))
        what = "3 modes, 2 OPR modes, positions 1 px off" if one["hard"] else "1 mode"
        cells = [ENGINES[one["engine"]], one["epochs"], what, *(f"{error:.3f}" for error in (step, fly, ignored))]
        rows.append([*cells, f"{fly / step:.2f}", f"{ignored / fly:.1f}"])
    head = "| engine | epochs | scan | stops: error | fly: error | motion ignored | fly over stops | ignored over fly |"
    shares = [f"{ENGINES[name]} {one['fraction']:.2f}" for name, one in found["speeds"].items()]
    beam = f"The beam's power is {found['beam_px']:.1f} px wide (FWHM)"
    said = f"Speed over what two transforms for each wave and direction alone allow: {', '.join(shares)}."
    return f"{table(head, rows)}\n\n{beam}. {said}"


def fly_freedoms() -> str:
    """Errors of object and positions of a fly scan and of a scan that stops, by what else is looked for, by seed."""
    by_row: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.glob("*-fly-freedoms-*.json")):
        for one in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            keys = ("modes", "opr_modes", "positions", "from_truth", "epochs")
            by_row.setdefault(tuple(one[key] for key in keys), []).append(one)
    rows = []
    for (modes, opr_modes, positions, from_truth, epochs), runs in sorted(by_row.items()):
        named = {"3 modes": modes > 1, "2 OPR modes": opr_modes > 0, "positions": positions}
        cells = [", ".join(name for name, is_free in named.items() if is_free) or "nothing"]
        cells += ["truth" if from_truth else "usual", epochs]
        for kind, key in (("step", "nrmse"), ("fly", "nrmse"), ("fly", "positions_px")):
            cells.append(", ".join(f"{run[kind][key]:.3f}" for run in runs))
        rows.append([*cells, ", ".join(f"{run['fly']['nrmse'] / run['step']['nrmse']:.2f}" for run in runs)])
    head = "| also found | start | epochs | stops: error | fly: error | fly: positions, px | fly over stops |"
    return table(head, rows)


def scans() -> str:
    """Errors of the object from two scans together, from either alone, and from a single scan of the same dose."""
    found = newest("scans")["cases"]
    rows = []
    for one in found:
        errors = (f"{one['nrmse'][name]:.4f}" for name in ("together", "first", "second", "single"))
        shift = max(map(abs, one["shift_error_px"]))
        cells = [f"{one['photons_per_view']:.0e}".replace("e+0", "e"), one["seed"], *errors]
        ratios = (f"{one[name]:.2f}" for name in ("together_over_best_alone", "together_over_single"))
        rows.append([*cells, *ratios, f"{shift:.3f}", f"{abs(one['rotation_error_deg']):.4f}"])
    head = "| photons | seed | together | first alone | second alone | single scan | over best alone | over single |"
    return table(f"{head} shift off by, px | rotation off by, degrees |", rows)


def models() -> str:
    """Differences of intensities and gradients from CDTools', by its options."""
    names = ("intensities", "object", "probe", "mixing")
    rows = []
    for case, found in newest("models")["differences"].items():
        rows.append([case, *(f"{found[name]:.0e}" if name in found else "" for name in names)])
    return table("| options of CDTools | intensities | by object | by probe | by mixtures |", rows)


def electrons_ptyrad() -> str:
    """PtyRAD's settings on the first seed, and its best beside what `ptymesh calibrate` writes, on each seed."""
    rows = []
    runs = newest("electrons-ptyrad")["runs"]
    for one in sorted(runs, key=lambda one: (one["seed"], one["program"] != "ptyrad", -one["sum"] - one["single"])):
        name = {**PEERS, "ptymesh": "ptymesh"}[one["program"]]
        recipe = "calibrated" if one["setting"] == "potential" else one["setting"]
        rows.append([one["seed"], name, recipe, *_of_crystal(one)])
    return table(f"| seed | program | recipe {CRYSTAL}", rows)


def electrons_thin() -> str:
    """Our recipe of a thick potential, with thin slices and a coarse beginning, on each seed and dose."""
    runs = sorted(newest("electrons-thin")["runs"], key=lambda one: (-one["dose"], one["seed"]))
    return table(f"| e/Å² | seed {CRYSTAL}", [[f"{one['dose']:.0e}", one["seed"], *_of_crystal(one)] for one in runs])


#: Columns of `_of_crystal`.
CRYSTAL = (
    "| sum | single | interface, nm | rms of slices over the truth's | rotation, degrees | C10, nm | C12, nm | "
    "positions, Å | residual | seconds |"
)


def _of_crystal(run: dict[str, Any]) -> list[str]:
    """What a run on two crystals is worth, as cells."""
    numbers = [f"{run[key]:.3f}" for key in ("sum", "single")]
    numbers += [f"{run['interface_nm']:.1f}", f"{min(run['rms']):.2f} to {max(run['rms']):.2f}"]
    numbers += [f"{abs(run[key]):.2f}" for key in ("rotation_deg", "C10_nm", "C12_nm")]
    return [*numbers, f"{run['positions_A']:.3f}", f"{run['residual']:.4f}", f"{run['cpu_seconds']:.0f}"]


def cases() -> dict[str, list[dict[str, Any]]]:
    """Situations that once ended wrongly, by what they are about: what, before, now, cause, tests."""
    found: dict[str, list[dict[str, Any]]] = yaml.safe_load((DOCS / "cases.yaml").read_text(encoding="utf-8"))
    return found


def tables_of_cases() -> str:
    """One table for each thing that the cases are about."""
    parts = []
    for title, rows in cases().items():
        cells = [
            (row["what"], row["before"], row["now"], _code(row.get("cause", [])), _code(row["tests"], "<br>"))
            for row in rows
        ]
        parts.append(f"## {title}\n\n" + table("| situation | before | now | first cause | held by |", cells))
    return "\n\n".join(parts)


def _code(names: list[str], between: str = ", ") -> str:
    """Names in backticks, of tests without the folder."""
    return between.join(f"`{name.removeprefix('tests/')}`" for name in names)


TABLES: dict[str, Callable[[], str]] = {
    "cases": tables_of_cases,
    "fly-scan": fly_scan,
    "fly-freedoms": fly_freedoms,
    "scans": scans,
    "models": models,
    "electrons-ptyrad": electrons_ptyrad,
    "electrons-thin": electrons_thin,
    "bars": bars,
    "auto-studies": auto_studies,
    "fog": lambda: fog("scans"),
    "fog-totals": lambda: fog("totals"),
    "safe-rates": safe_rates,
    "floor": floor,
    "batches": lambda: turns("bench-batches", lambda one: int(one["batch"]), (16, 64, 256), True),
    "objects": lambda: turns("bench-objects", lambda one: int(one["object"][0]), (1024, 4096), False),
    "peers": peers,
    "solution": solution,
    "solution-crystal": lambda: solution("solution-crystal"),
    "solution-near": lambda: solution("solution-near"),
}


def written(text: str) -> str:
    """A page with its tables as they were measured."""
    return MARKED.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", text)


def pages() -> list[Path]:
    """Those with measured tables."""
    return [path for path in sorted(DOCS.rglob("*.md")) if MARKED.search(path.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    for page in pages():
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
