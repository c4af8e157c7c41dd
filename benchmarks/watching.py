"""Overhead of `ptymesh watch`: a run with its page open beside it, against the same run without.

    python benchmarks/watching.py STAR --out F [--pairs 7] [--epochs 150] [--threads 2]

Each pair has one run of either kind, in turns first; the page is asked by a client as the browser asks: for all runs
every 3 s, for the run every 2 s, and for its picture where there is another one. The overhead of a pair is the ratio
of its times less 1, once of whole commands and once of their epochs; the medians over the pairs count. The client
takes its own time from the same cores, which a browser on another machine would not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from record import about, write

#: Seconds between two requests of the page: for all runs, and for the run that is shown.
RUNS_S, RUN_S = 3.0, 2.0
TOKEN = "watching0"


class Client:
    """Asks the page for what a browser would ask for, on a thread of its own.

    Args:
        address: of the page, without a slash at its end.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        #: Number of answers by what was asked for.
        self.answers = {"runs": 0, "run": 0, "picture": 0}

    def __enter__(self) -> Client:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _ask(self, path: str, /, **values: str) -> bytes:
        """Return the answer of the page, empty where it has none."""
        query = urlencode({"token": TOKEN, **values})
        with suppress(URLError, OSError), urlopen(f"{self._address}/api/{path}?{query}", timeout=10) as answer:
            self.answers[path] += 1
            return bytes(answer.read())
        return b""

    def _run(self) -> None:
        shown, next_runs, known = "", 0.0, ""
        while not self._stopping.is_set():
            if time.monotonic() >= next_runs:
                next_runs = time.monotonic() + RUNS_S
                runs = json.loads(self._ask("runs") or b"[]")
                known = runs[0]["id"] if runs else ""
            if known and (details := json.loads(self._ask("run", id=known) or b"{}")):
                version = str(details["arrays"].get("version", ""))
                if version != shown:
                    self._ask("picture", id=known, what="phase", index="0")
                    shown = version
            self._stopping.wait(RUN_S)


def run(folder: Path, environment: dict[str, str]) -> dict[str, float]:
    """Return the seconds of a whole run, and those of its epochs."""
    began = time.monotonic()
    command = [sys.executable, "-P", "-m", "ptymesh", "run", "../recipe.yaml", "--out", "out"]
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    whole = time.monotonic() - began
    rows = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {"whole": whole, "epochs": sum(row["seconds"] for row in rows if "epoch" in row and "seconds" in row)}


def run_watched(folder: Path, environment: dict[str, str]) -> dict[str, float]:
    """Return the same of a run whose page is asked meanwhile, and how often that has answered."""
    command = [sys.executable, "-P", "-m", "ptymesh", "watch", str(folder), "--token", TOKEN]
    page = subprocess.Popen(command, env=environment | {"PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, text=True)
    try:
        assert page.stdout is not None
        line = page.stdout.readline()
        if "http://" not in line:
            sys.exit("ptymesh watch has not said where its page is.")
        address = "http://" + line.split("http://")[1].split("/?token")[0]
        with Client(address) as client:
            found = run(folder, environment)
        if not min(client.answers.values()):
            sys.exit(
                f"The page has not answered for all that a browser asks for ({client.answers}); give more --epochs."
            )
        return found | {f"answers_{what}": count for what, count in client.answers.items()}
    finally:
        page.terminate()
        page.wait()


def main() -> None:
    """Run all pairs, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("star", type=Path)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="file that the numbers are written to, as JSON")
    arguments = parser.parse_args()
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    stage = f"{{engine: rpie, epochs: {arguments.epochs}, batch: 64}}"
    found: dict[str, Any] = {**about(threads=arguments.threads), "stage": stage, "pairs": []}
    with tempfile.TemporaryDirectory() as place:
        recipe = f"data: {{path: '{arguments.star.resolve()}'}}\nprobe: {{modes: 3}}\nstages: [{stage}]\n"
        recipe += "output: {figures: false}\n"
        (Path(place) / "recipe.yaml").write_text(recipe, encoding="utf-8")
        kinds = {"alone": run, "watched": run_watched}
        for pair in range(-1, arguments.pairs):  # the first one reads files and compiles kernels
            row = {}
            for name in sorted(kinds, reverse=pair % 2 == 1):
                (folder := Path(place) / f"{name}{pair}").mkdir()
                row[name] = kinds[name](folder, environment)
            if pair < 0:
                continue
            row["overhead"] = {what: row["watched"][what] / row["alone"][what] - 1 for what in ("whole", "epochs")}
            found["pairs"].append(row)
            found["overhead"] = {
                what: statistics.median(one["overhead"][what] for one in found["pairs"]) for what in ("whole", "epochs")
            }
            print(json.dumps(row), flush=True)
            write(arguments.out, found)
    print({what: f"{100 * share:.2f} %" for what, share in found["overhead"].items()})


if __name__ == "__main__":
    main()
