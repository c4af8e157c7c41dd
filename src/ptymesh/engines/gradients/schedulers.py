"""Learning rates by epoch: any torch scheduler by name, on a stand-in optimiser without real unknowns.

    scheduler: {name: cosine}                              # over the epochs of the stage
    scheduler: {name: StepLR, step_size: 30, gamma: 0.5}   # torch's own name and options

It is stepped once per epoch. Its state follows from the epoch alone (and, for `plateau`, from the losses of
the epochs before), so that a resumed run continues as if it had never stopped.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from pydantic import ConfigDict, model_validator
from torch import Tensor
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ptymesh.options import Options

SHORT = {
    "constant": "ConstantLR",
    "cosine": "CosineAnnealingLR",
    "cyclic": "CyclicLR",
    "exponential": "ExponentialLR",
    "lambda": "LambdaLR",
    "linear": "LinearLR",
    "multistep": "MultiStepLR",
    "one_cycle": "OneCycleLR",
    "plateau": "ReduceLROnPlateau",
    "polynomial": "PolynomialLR",
    "step": "StepLR",
    "warm_restarts": "CosineAnnealingWarmRestarts",
}

#: torch's schedulers that cannot be made from a name and numbers.
REFUSED = {
    "ChainedScheduler": "it is made of other schedulers; use one of them, or several stages",
    "SequentialLR": "it is made of other schedulers; use several stages, which keep the optimiser's memory",
}


class Scheduler(Options):
    """A torch scheduler: its name (torch's, or a short one) and its options, as torch calls them."""

    model_config = ConfigDict(extra="allow")

    name: str = "cosine"

    @model_validator(mode="after")
    def _known(self) -> Scheduler:
        kind = SHORT.get(self.name, self.name)
        if kind in REFUSED:
            raise ValueError(f"{kind} cannot be used by name: {REFUSED[kind]}")
        scheduler_class = getattr(lr_scheduler, kind, None)
        if not (
            inspect.isclass(scheduler_class)
            and issubclass(scheduler_class, LRScheduler)
            and scheduler_class is not LRScheduler
        ):
            raise ValueError(f"{self.name!r} is no scheduler of torch; there are {', '.join(SHORT)}")
        accepted = [p for p in inspect.signature(scheduler_class).parameters if p not in ("optimizer", "last_epoch")]
        for option in self.model_extra or {}:
            if option not in accepted:
                raise ValueError(f"{kind} has no option {option!r}; it has {', '.join(accepted)}")
        return self

    @property
    def kind(self) -> type[LRScheduler]:
        """Class of torch's scheduler that the name stands for."""
        scheduler_class: type[LRScheduler] = getattr(lr_scheduler, SHORT.get(self.name, self.name))
        return scheduler_class

    @property
    def looks_at_losses(self) -> bool:
        """True if its steps need the loss of each epoch."""
        return issubclass(self.kind, ReduceLROnPlateau)

    def over(self, optimiser: Optimizer, epochs: int) -> LRScheduler:
        """Return torch's scheduler for an optimiser and a stage of so many epochs.

        Raises:
            ValueError: torch does not accept the options.
        """
        defaults: dict[str, dict[str, object]] = {
            "CosineAnnealingLR": {"T_max": epochs},
            "LinearLR": {"total_iters": epochs},
            "PolynomialLR": {"total_iters": epochs},
            "OneCycleLR": {"total_steps": epochs, "max_lr": [group["lr"] for group in optimiser.param_groups]},
        }
        options = {**defaults.get(self.kind.__name__, {}), **(self.model_extra or {})}
        try:
            return self.kind(optimiser, **options)
        except (TypeError, ValueError) as error:
            raise self.refusal(options, error) from error

    def refusal(self, options: dict[str, object], error: Exception) -> ValueError:
        """Return the error that torch does not accept these options."""
        return ValueError(f"torch's {self.kind.__name__} does not accept {options}: {error}")


class Pace:
    """Options of each unknown's group of parameters by epoch, with the scheduler's learning rate.

    Args:
        kind: class of the torch optimiser.
        rates: learning rate by unknown.
        options: of the optimiser.
        scheduler: of the learning rates; None keeps them.
        epochs: of the stage.
    """

    def __init__(
        self,
        kind: Callable[..., Optimizer],
        rates: dict[str, float],
        options: dict[str, object],
        scheduler: Scheduler | None,
        epochs: int,
    ) -> None:
        self.kind, self.rates, self.options, self.scheduler, self.epochs = kind, rates, options, scheduler, epochs
        self._restart()

    def options_in_epoch(self, epoch: int, losses: Tensor | None = None) -> dict[str, dict[str, object]]:
        """Return the optimiser's options of each unknown in an epoch, such as its rate.

        Args:
            epoch: of the stage, from 1.
            losses: of the epochs before it, if the scheduler uses them.
        """
        if self.steps > epoch - 1:
            self._restart()
        while self.stand_in_scheduler and self.steps < epoch - 1:
            if isinstance(self.stand_in_scheduler, ReduceLROnPlateau):
                assert losses is not None, "the losses of the epochs before"
                self.stand_in_scheduler.step(float(losses[self.steps]))
            else:
                self.stand_in_scheduler.step()
            self.steps += 1
        groups = zip(self.rates, self.stand_in.param_groups, strict=True)
        return {name: {key: value for key, value in group.items() if key != "params"} for name, group in groups}

    def try_out(self) -> None:
        """Make two steps, as torch checks some options in the first one only.

        Raises:
            ValueError: torch does not accept the options.
        """
        try:
            self.options_in_epoch(min(2, self.epochs), torch.zeros(1))
        except (TypeError, ValueError, ArithmeticError) as error:
            assert self.scheduler
            raise self.scheduler.refusal(self.scheduler.model_extra or {}, error) from error

    def _restart(self) -> None:
        """Make a new stand-in optimiser and scheduler, at epoch 1."""
        groups = [{"params": [torch.zeros(())], "lr": rate} for rate in self.rates.values()]
        self.stand_in = self.kind(groups, **self.options)
        self.stand_in_scheduler = self.scheduler.over(self.stand_in, self.epochs) if self.scheduler else None
        self.stand_in.step()  # without gradients, so nothing moves; torch requires it before a scheduler's step
        self.steps = 0
