"""What the figures have in common: numbers that are checked, problems, trainings that are followed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.callbacks import BaseCallback
from dist_classicrl.environments import registry
from dist_classicrl.plotting import canvas


@dataclass(frozen=True)
class Check:
    """A number that was found, and what it should be: `expected` give or take, or a bound."""

    what: str
    found: float
    expected: float
    tolerance: float = 0.0
    by: str = "book"
    sign: str = ""  # or ">=", "<="

    @property
    def holds(self) -> bool:
        """Whether the number is as expected; NaN never is."""
        above, below = self.found >= self.expected, self.found <= self.expected
        near = abs(self.found - self.expected) <= self.tolerance
        return bool({"": near, ">=": above, "<=": below}[self.sign])

    def cells(self) -> tuple[str, ...]:
        """Return it as text, for a row of a table."""
        tolerance = "" if self.sign else f"{self.tolerance:.3g}"
        expected = f"{self.sign} {self.expected:.5g}".strip()
        return self.what, expected, f"{self.found:.5g}", tolerance, self.by, "met" if self.holds else "WRONG"


Drawn = tuple[Figure, list[Check]]


def problem(name: str, **arguments: Any) -> TabularMDP:
    """Return a problem of the registry as a model."""
    model = registry()[f"dist_classicrl/{name}-v0"].make(**arguments)
    assert isinstance(model, TabularMDP)
    return model


def backed_up(model: TabularMDP, v: np.ndarray, discount: float) -> np.ndarray:
    """Return the values of pairs, shape (states, actions), where those of states are `v`."""
    ahead = np.where(model.outcome_terminated, 0.0, v[model.outcome_next])
    pairs = np.repeat(np.arange(model.n_states * model.n_actions), np.diff(model.outcome_ptr))
    worth = model.outcome_prob * (model.outcome_reward + discount * ahead)
    return np.bincount(pairs, weights=worth, minlength=model.n_states * model.n_actions).reshape(
        model.n_states, model.n_actions
    )


def exploring(model: TabularMDP, actions: np.ndarray, epsilon: float) -> np.ndarray:
    """Return the chances of a policy that takes `actions`, and with the chance epsilon any action."""
    chances = np.full((model.n_states, model.n_actions), epsilon / model.n_actions)
    chances[np.arange(model.n_states), actions] += 1.0 - epsilon
    return chances


class Followed(NamedTuple):
    """A training: where it stood at each report, and what ended since the one before."""

    steps: np.ndarray
    episodes: np.ndarray  # that had ended until then
    returns: np.ndarray  # of each episode; of some that ended between two reports their mean
    lengths: np.ndarray
    looks: np.ndarray  # what `look` returned at each report

    def at_episodes(self, ends: np.ndarray) -> np.ndarray:
        """Return what `look` returned when so many episodes had ended, at the first report after that."""
        return self.looks[np.minimum(np.searchsorted(self.episodes, ends), self.steps.size - 1)]


@dataclass
class _Reports(BaseCallback):
    """Looks at the agent every so many steps, and ends the training when all has been seen."""

    every: int
    episodes: int | None
    look: Callable[[DistAsyncQLearning], Any]
    until: bool
    rows: list[tuple[int, int, float, float, Any]] = field(default_factory=list)
    ended: int = 0

    only_own_steps = True

    def __post_init__(self) -> None:
        super().__init__()

    def _next_step(self, after: int) -> int:
        return (after // self.every + 1) * self.every

    def _on_step(self) -> bool:
        at = self.progress
        assert at is not None
        self.ended += at.episodes
        seen = self.look(self.model)
        self.rows.append((at.steps, at.episodes, at.mean_return, at.mean_length, seen))
        return not (self.until and seen) and (self.episodes is None or self.ended < self.episodes)


def follow(
    agent: DistAsyncQLearning,
    model: TabularMDP,
    steps: int,
    every: int,
    look: Callable[[DistAsyncQLearning], Any] = lambda agent: 0.0,
    episodes: int | None = None,
    until: bool = False,
    new_env: bool = False,
) -> Followed:
    """Train, and look at the agent every so many steps.

    It ends after `steps`, when so many episodes have ended, or, with `until`, when the look finds what it
    looks for.
    """
    reports = _Reports(every, episodes, look, until)
    agent.train(model, total_steps=steps, callbacks=reports, new_env=new_env, progress_bar=False)
    at, ended, returns, lengths, looks = zip(*reports.rows, strict=True)
    return Followed(
        np.array(at), np.cumsum(ended), np.repeat(returns, ended), np.repeat(lengths, ended), np.array(looks)
    )


def lines(height: float = 4.5) -> tuple[Figure, Axes]:
    """Return a figure of one panel, whose lines have the colors of the package."""
    figure = canvas.new_figure(height)
    return figure, colored(figure.subplots())


def colored(axes: Axes) -> Axes:
    """Let lines have the colors of the package, and return the panel."""
    axes.set_prop_cycle(color=canvas.COLORS)
    return axes


def show_grid(axes: Axes, values: np.ndarray, title: str, **settings: Any) -> None:
    """Draw values over rows and columns as colors, with a bar that explains them."""
    axes.grid(False)
    image = axes.imshow(values, origin="lower", aspect="auto", **settings)
    assert axes.figure is not None
    axes.figure.colorbar(image, ax=axes, shrink=0.8)
    axes.set_title(title)
