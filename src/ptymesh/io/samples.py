"""Real data sets that are downloaded by name, once, and checked against a known digest.

A path `sample:NAME` in a recipe, on the command line or in `ptymesh.load` names one of them. They are kept in
$PTYMESH_DATA, or in the user's cache folder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ptymesh.errors import BadInput
from ptymesh.paths import SAMPLE


@dataclass(frozen=True)
class Sample:
    """A file that others publish.

    Attributes:
        url: of one unchanging version.
        sha256: digest.
        owner: whose it is.
    """

    url: str
    sha256: str
    owner: str

    @property
    def file(self) -> str:
        """Name of the file."""
        return self.url.rpartition("/")[2]


SAMPLES = {
    "siemens-star": Sample(
        "https://raw.githubusercontent.com/AdvancedPhotonSource/tike/4d000d78133943d26ce6db902ea710df81e4c012/"
        "tests/data/siemens-star-small.npz.bz2",
        "dbce7715c1d4a7c28a48f684dacc7d343fbc5d06fe993d6ea31714ffb5c68d3d",
        "UChicago Argonne LLC; test data of tike, https://github.com/AdvancedPhotonSource/tike",
    )
}


def fetch(name: str) -> Path:
    """Return the file of the data set `name`, downloaded if it is not here yet.

    Raises:
        BadInput: the name is unknown, there is no network, or the content is not the expected one.
    """
    import pooch

    if not isinstance(name, str) or name not in SAMPLES:
        raise BadInput(f"There is no sample {' '.join(repr(name).split())[:80]}; known are {', '.join(SAMPLES)}.")
    sample, folder = SAMPLES[name], sample_folder()
    target = folder / sample.file
    if os.path.exists(target) and not os.path.isfile(target):
        raise BadInput(
            f"{target}, where {name} belongs, is not a file; remove it, or set PTYMESH_DATA to another folder."
        )
    try:
        return Path(pooch.retrieve(sample.url, f"sha256:{sample.sha256}", sample.file, folder))
    except ValueError as error:
        raise BadInput(
            f"{sample.url} is not the file that {name} should be (its SHA-256 differs), and was not kept; try again "
            "later, or name a file of your own in data.path."
        ) from error
    except OSError as error:
        if error.errno is not None:  # the disk; what goes wrong on the network has none
            raise BadInput(
                f"{name} cannot be kept in {folder} ({error.strerror}); set PTYMESH_DATA to a folder of your own."
            ) from error
        answer = getattr(error, "response", None)
        why = "there is no connection" if answer is None else f"the server answers {answer.status_code}"
        raise BadInput(f"{name} cannot be fetched, {why}; put {sample.url} into {folder} yourself.") from error


def sample_folder() -> Path:
    """Return the folder in which samples are kept."""
    import pooch

    named_folder = os.environ.get("PTYMESH_DATA")
    try:
        return Path(named_folder).expanduser().absolute() if named_folder else Path(pooch.os_cache("ptymesh"))
    except RuntimeError as error:  # `~name` of an unknown user
        raise BadInput(
            f"PTYMESH_DATA is {named_folder}, which is no folder ({error}); set it to a folder of your own."
        ) from error


def located(path: Path) -> Path:
    """Return the path itself, or the downloaded file if it is `sample:NAME`."""
    name = str(path)
    return fetch(name.removeprefix(SAMPLE)) if name.startswith(SAMPLE) else path
