"""One scan of a batch: the command that reconstructs it, whether that was done before, and what came out."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ptymesh.beamtime.scan_files import files_of_scan, size_and_time
from ptymesh.distributed.child import PARENT
from ptymesh.distributed.processes import start_python
from ptymesh.errors import PtymeshError
from ptymesh.files import replacing
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.io.results import read_attributes
from ptymesh.run_folder import start_record

#: File in a scan's folder that says what was asked for, and what came out.
RECORD = "batch.json"
#: File for what the run prints.
OUTPUT = "output.txt"


@dataclass(frozen=True)
class ScanOutcome:
    """Outcome of the run of one scan.

    Attributes:
        scan: path of the data set.
        folder: of the run.
        status: exit status of its command.
        verdict: good, poor, failed or unknown; empty where there is no result.
        times_noise: residual over what counting leaves; None where that is unknown, or there is no result.
        residual: the final one.
        cause: first sign of a wrong model by name, empty where there is none.
        message: last line of an error.
        seconds: that the command took.
    """

    scan: str
    folder: str
    status: int
    verdict: str = ""
    times_noise: float | None = None
    residual: float | None = None
    cause: str = ""
    message: str = ""
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        """True if there is a result whose verdict is good."""
        return self.status == 0 and self.verdict == "good"


class ScanRun:
    """The run of one scan.

    Args:
        scan: path of the data set.
        folder: of the run.
        recipe: path of the recipe; None: `ptymesh run SCAN` finds one.
        settings: `key=value`, as after --set.
        launching: options of the command that do not change what comes out, such as `--ranks 2`.
    """

    def __init__(
        self, scan: Path, folder: Path, recipe: Path | None, settings: Sequence[str], launching: Sequence[str] = ()
    ) -> None:
        self.scan, self.folder, self.recipe, self.settings = scan, folder, recipe, list(settings)
        self.launching = list(launching)

    def finished(self) -> ScanOutcome | None:
        """Return the outcome of an earlier run of the same file with the same recipe; None where it has to be run."""
        record = self._record()
        if record is None or record.get("asked") != self.request() or "outcome" not in record:
            return None
        with suppress(TypeError):
            outcome = ScanOutcome(**record["outcome"])
            if outcome.status == 0 and (self.folder / "result.h5").is_file():
                return outcome
        return None

    def request(self) -> dict[str, Any]:
        """Return what decides about the result: file, recipe and settings."""
        size, modified = size_and_time(self.scan)
        return {
            "scan": str(self.scan.absolute()),
            "bytes": size,
            "modified": modified,
            "recipe": None if self.recipe is None else self.recipe.read_text(encoding="utf-8"),
            "settings": self.settings,
        }

    def arguments(self) -> list[str]:
        """Return the arguments of `ptymesh` that run the scan, or go on with a run of it that was stopped."""
        has_begun = (
            checkpoint.exists(self.folder / "checkpoint") or start_record.pending_recipe(self.folder) is not None
        )
        record = self._record()
        if has_begun and record is not None and record.get("asked") == self.request():
            return ["resume", str(self.folder), *self.launching]
        first, further_files = files_of_scan(self.scan)
        joined = [f"data.further={str(further_files)!r}"] if further_files is not None else []
        if self.recipe is None:
            arguments, settings = ["run", str(first)], [*joined, *self.settings]
        else:
            arguments = ["run", str(self.recipe)]
            settings = [*self._data_settings(), *joined, *self.settings]
        arguments += ["--out", str(self.folder), "--force", *self.launching]
        return arguments + [part for setting in settings for part in ("--set", setting)]

    def _data_settings(self) -> list[str]:
        """Return the settings that put this scan into the recipe."""
        return [f"data.path={files_of_scan(self.scan)[0]}"]

    def start(self, parent: int, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start the command; what it prints goes to the scan's folder.

        Args:
            parent: id of the process with which it ends.
            environment: variables that restrict it to a share of the machine.

        Raises:
            PtymeshError: the folder cannot be written to.
        """
        arguments = self.arguments()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write({"asked": self.request()})
            with (self.folder / OUTPUT).open("wb") as output:
                return start_python(
                    "-m",
                    "ptymesh",
                    *arguments,
                    environment={**(environment or {}), PARENT: str(parent)},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
        except OSError as error:
            raise PtymeshError(
                f"{self.folder} cannot be written to ({error.strerror}); choose another --out."
            ) from error

    def finish(self, status: int, seconds: float) -> ScanOutcome:
        """Return the outcome, and keep it in the scan's folder.

        Args:
            status: exit status of the command.
            seconds: that it took.
        """
        attrs: dict[str, Any] = {}
        if status in (0, 4):
            attrs = read_attributes(self.folder / "result.h5")
        signs = attrs.get("verdict_causes")
        outcome = ScanOutcome(
            scan=str(self.scan),
            folder=str(self.folder),
            status=status,
            verdict=str(attrs.get("verdict", "")),
            times_noise=_number(attrs.get("times_noise")),
            residual=_number(attrs.get("final_residual")),
            cause="" if signs is None else str(next(iter(signs), "")),
            message="" if status in (0, 4) else self._last_line(),
            seconds=round(seconds, 2),
        )
        self._write({"asked": self.request(), "outcome": asdict(outcome)})
        return outcome

    def _record(self) -> dict[str, Any] | None:
        with suppress(OSError, ValueError):
            record = json.loads((self.folder / RECORD).read_text(encoding="utf-8"))
            return record if isinstance(record, dict) else None
        return None

    def _write(self, record: dict[str, Any]) -> None:
        with replacing(self.folder / RECORD) as path:
            path.write_text(json.dumps(record, indent=1), encoding="utf-8")

    def _last_line(self) -> str:
        """Return the last line that the command has printed, without the name of the program."""
        lines = (self.folder / OUTPUT).read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip().removeprefix("ptymesh: ") for line in reversed(lines) if line.strip()), "")


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
