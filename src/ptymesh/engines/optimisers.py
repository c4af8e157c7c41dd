"""Torch optimisers that are engines, each with its own hyperparameters as torch calls them; and those that are refused.

Learning rates are those that worked best on the Siemens star and on simulated scans; `eps` is explained in
gradients/elementwise.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from ptymesh.engines.gradients.elementwise import Elementwise, eager
from ptymesh.engines.gradients.schedulers import Scheduler
from ptymesh.options import Options
from ptymesh.schedule import OnOff

#: torch optimisers that are no engines, and why.
REFUSED = {
    "sparseadam": "it works on sparse gradients alone; use adam",
    "adafactor": "its rows and columns of second moments mix pixels of a whole array; use adam",
    "muon": "it orthogonalises whole matrices, which an object is not; use adam",
    "rprop": "it follows signs alone, which are rounding errors where no light falls; use adam",
    "asgd": "torch keeps the average beside the unknowns and never uses it; use sgd",
}

Beta = Annotated[float, Field(ge=0, lt=1)]
NotNegative = Annotated[float, Field(ge=0)]
Eps = Annotated[float, Field(gt=0)]
Betas = tuple[Beta, Beta]
#: Fraction of a fully illuminated pixel's gradient below which a pixel does not move at the full rate.
EPS = 1e-3


class Moments(Options):
    """Options of optimisers that divide a mean of slopes by the root of a mean of their squares.

    Means reach over the last 3 and 5 batches, not over torch's 10 and 1,000: the first slopes, of a probe that is far
    off, tell nothing about later ones. Steps are large at first and fall to nothing by the end of the stage, which so
    ends in the middle of the region in which large steps wander. The probe, which all views have in common, takes
    larger steps than the object. Measured effects are in docs/reference/engines.md.
    """

    larger: ClassVar[dict[str, float]] = {"probe": 2.5}

    lr: float = Field(0.06, gt=0)
    scheduler: Annotated[Scheduler | None, OnOff] = Scheduler()
    betas: Betas = (0.7, 0.8)
    eps: Eps = EPS


class Adam(Moments, Elementwise):
    """Adaptive moments (Kingma & Ba, ICLR 2015)."""

    name: ClassVar[str] = "adam"
    peer_names: ClassVar[Mapping[str, tuple[str, ...]]] = {"ptychi": ("",), "ptyrad": ("",)}
    torch_class = eager(torch.optim.Adam)

    weight_decay: NotNegative = 0.0
    amsgrad: bool = False


class AdamW(Moments, Elementwise):
    """Adam with weight decay apart from the gradient (Loshchilov & Hutter, ICLR 2019)."""

    name: ClassVar[str] = "adamw"
    torch_class = eager(torch.optim.AdamW)

    weight_decay: NotNegative = 0.01
    amsgrad: bool = False


class NAdam(Moments, Elementwise):
    """Adam with Nesterov's momentum (Dozat 2016)."""

    name: ClassVar[str] = "nadam"
    torch_class = eager(torch.optim.NAdam)

    weight_decay: NotNegative = 0.0
    momentum_decay: NotNegative = 0.004
    decoupled_weight_decay: bool = False


class RAdam(Moments, Elementwise):
    """Rectified Adam (Liu et al., ICLR 2020)."""

    name: ClassVar[str] = "radam"
    torch_class = eager(torch.optim.RAdam)

    weight_decay: NotNegative = 0.0
    decoupled_weight_decay: bool = False


class Adamax(Moments, Elementwise):
    """Adam by the largest gradient (Kingma & Ba 2015, sec. 7.1)."""

    name: ClassVar[str] = "adamax"
    torch_class = eager(torch.optim.Adamax)

    lr: float = Field(0.2, gt=0)
    weight_decay: NotNegative = 0.0


class Adagrad(Elementwise):
    """Steps by the root of all squared gradients so far (Duchi, Hazan & Singer, JMLR 12, 2121, 2011)."""

    name: ClassVar[str] = "adagrad"
    torch_class = eager(torch.optim.Adagrad)

    lr: float = Field(0.1, gt=0)
    lr_decay: NotNegative = 0.0
    weight_decay: NotNegative = 0.0
    initial_accumulator_value: NotNegative = 0.0
    eps: Eps = EPS


class Adadelta(Elementwise):
    """Steps in the ratio of past steps to past gradients (Zeiler, arXiv:1212.5701)."""

    name: ClassVar[str] = "adadelta"
    torch_class = eager(torch.optim.Adadelta)

    lr: float = Field(3.0, gt=0)
    rho: Beta = 0.9
    eps: Eps = EPS**2
    weight_decay: NotNegative = 0.0


class RMSprop(Elementwise):
    """Steps by the running root of squared gradients (Tieleman & Hinton 2012)."""

    name: ClassVar[str] = "rmsprop"
    torch_class = eager(torch.optim.RMSprop)

    lr: float = Field(0.01, gt=0)
    alpha: Beta = 0.99
    eps: Eps = EPS
    weight_decay: NotNegative = 0.0
    momentum: Beta = 0.0
    centered: bool = False


class SGD(Elementwise):
    """Gradient descent, with momentum if given."""

    name: ClassVar[str] = "sgd"
    torch_class = eager(torch.optim.SGD)
    alike: ClassVar[bool] = False

    lr: float = Field(0.5, gt=0)
    momentum: Beta = 0.0
    dampening: NotNegative = 0.0
    weight_decay: NotNegative = 0.0
    nesterov: bool = False


ELEMENTWISE: tuple[type[Elementwise], ...] = (
    Adam,
    AdamW,
    NAdam,
    RAdam,
    Adamax,
    Adagrad,
    Adadelta,
    RMSprop,
    SGD,
)
