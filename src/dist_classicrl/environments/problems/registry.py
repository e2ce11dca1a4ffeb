"""Which problems there are, how each is made, and what the best policy of each collects."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dist_classicrl._words import counted, nearest
from dist_classicrl.errors import EnvError, SettingsError

if TYPE_CHECKING:
    from dist_classicrl.environments.function_model import FunctionMDP
    from dist_classicrl.environments.model import TabularMDP
    from dist_classicrl.environments.simulate import CompiledSimulator

NAMESPACE = "dist_classicrl"
_HERE = __name__.rpartition(".")[0]


@dataclass(frozen=True)
class Problem:
    """A problem whose answer is known.

    `id` is what `train`, `gymnasium.make` and the command line take. Sizes and the optimum are those with the
    default arguments.

    Attributes
    ----------
    id : str
        Such as "dist_classicrl/RiverSwim-v0".
    summary : str
        One sentence.
    path : str
        ``module:function`` of what makes it, whose docstring says more.
    n_states, n_actions : int
    max_episode_steps : int or None
        Steps after which an episode is truncated.
    discount_factor : float or None
        Of which `optimum` is the value; None: `optimum` is the mean reward per step.
    optimum : float or None
        The value of the best policy, over the distribution of the first state. None: not known.
    source : str
        Where the optimum is published, or how it was computed.
    actions : tuple of str
        What the actions are called; none where they are numbers.
    """

    id: str
    summary: str
    path: str
    n_states: int
    n_actions: int
    max_episode_steps: int | None
    discount_factor: float | None
    optimum: float | None
    source: str
    actions: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return (
            f"Problem({self.id!r}, {counted(self.n_states, 'state')}, {counted(self.n_actions, 'action')}: "
            f"{self.summary})"
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that it can be made with, and their defaults."""
        parameters = inspect.signature(self.function).parameters.values()
        return {each.name: each.default for each in parameters}

    def make(self, **arguments: Any) -> TabularMDP | FunctionMDP | CompiledSimulator:
        """Return the problem in the form that `train` takes.

        Raises
        ------
        SettingsError
            There is no such argument, or its value is not allowed.
        """
        known = self.arguments
        for name in arguments:
            if name not in known:
                raise SettingsError(
                    f"{self.id} takes no argument {name!r}.{nearest(name, known)} It takes "
                    f"{', '.join(known)}."
                )
        made: TabularMDP | FunctionMDP | CompiledSimulator = self.function(**arguments)
        return made

    @property
    def function(self) -> Callable[..., Any]:
        """What makes it."""
        module, _, function = self.path.partition(":")
        found: Callable[..., Any] = getattr(importlib.import_module(module), function)
        return found


def registry() -> dict[str, Problem]:
    """Return all problems by their ids.

    ``registry()["dist_classicrl/RiverSwim-v0"].make(n_states=12)`` is a model to solve, and the id itself is
    an environment of `train`, of ``gymnasium.make`` and of the command line.
    """
    return dict(_PROBLEMS)


def problem_of(name: str) -> Problem:
    """Return the problem of this id, which may be written without the namespace.

    Raises
    ------
    EnvError
        There is none.
    """
    full = name if "/" in name else f"{NAMESPACE}/{name}"
    if full not in _PROBLEMS:
        raise EnvError(
            f"There is no problem {name!r}.{nearest(full, _PROBLEMS)} "
            f"dist_classicrl.environments.registry() has all: {', '.join(_PROBLEMS)}."
        )
    return _PROBLEMS[full]


def register_all() -> None:
    """Make the problems and TicTacToe known to Gymnasium."""
    import gymnasium

    gymnasium.register(f"{NAMESPACE}/TicTacToe-v0", "dist_classicrl.environments.tictactoe.env:TicTacToeEnv")
    for problem in _PROBLEMS.values():
        gymnasium.register(
            problem.id,
            f"{_HERE}.env:ProblemEnv",
            max_episode_steps=problem.max_episode_steps,
            kwargs={"problem": problem.id},
        )


_PROBLEMS: dict[str, Problem] = {}
_MOVES = (
    *("left", "down", "right", "up"),
    *("left and down", "right and down", "right and up", "left and up", "stay"),
)


def _add(
    name: str,
    summary: str,
    path: str,
    sizes: tuple[int, int],
    optimum: float | None,
    source: str,
    *,
    limit: int | None = None,
    discount: float | None = 1.0,
    actions: tuple[str, ...] = (),
) -> None:
    full = f"{NAMESPACE}/{name}"
    _PROBLEMS[full] = Problem(
        full, summary, f"{_HERE}.{path}", *sizes, limit, discount, optimum, source, actions
    )


_add(
    "RandomWalk-v0",
    "Steps to the left or right by chance, with a reward at either end: its values are a straight line.",
    "walks:random_walk",
    (19, 1),
    0.0,
    "closed form (Sutton and Barto, example 7.1)",
)
_add(
    "Chain-v0",
    "A reward of 10 at the end of a chain, and one of 2 for going back to its beginning.",
    "walks:chain",
    (5, 2),
    3.6768,
    "closed form; Strens (2000) has 3,677 for 1,000 steps",
    limit=1_000,
    discount=None,
    actions=("on", "back"),
)
_add(
    "RiverSwim-v0",
    "Swim against the current for a large reward, or stay where it is calm for a small one.",
    "walks:river_swim",
    (6, 2),
    0.428622,
    "closed form of a birth-death chain",
    limit=1_000,
    discount=None,
    actions=("left", "right"),
)
_add(
    "DeepSea-v0",
    "The treasure lies where only ten moves to the right lead, each of which costs something.",
    "walks:deep_sea",
    (100, 2),
    0.99,
    "closed form (Osband et al. 2020)",
)
_add(
    "Gambler-v0",
    "Stake on a biased coin until the goal or nothing is left.",
    "gambler:gambler",
    (101, 50),
    0.399064,
    "closed form of bold play (Dubins and Savage 1965); Sutton and Barto, example 4.3",
)
_add(
    "JacksCarRental-v0",
    "Cars are moved overnight between two locations whose customers come and return them by chance.",
    "car_rental:car_rental",
    (441, 11),
    574.9483,
    "value iteration; the policy of Sutton and Barto, figure 4.2",
    limit=100,
    discount=0.9,
)
_add(
    "AccessControl-v0",
    "Customers of four classes ask for one of ten servers: who should be turned away?",
    "queues:access_control",
    (44, 2),
    2.747642,
    "policy iteration (Sutton and Barto, example 10.2)",
    limit=1_000,
    discount=None,
    actions=("send away", "let in"),
)
_add(
    "Admission-v0",
    "Each customer who is let into a queue pays, and costs while it waits.",
    "queues:admission",
    (21, 2),
    3.035669,
    "closed form (Naor 1969)",
    limit=1_000,
    discount=None,
    actions=("send away", "let in"),
)
_add(
    "Routing-v0",
    "Each customer is sent to one of two queues.",
    "queues:routing",
    (256, 2),
    -1.048883,
    "policy iteration; the shorter queue is best (Winston 1977)",
    limit=1_000,
    discount=None,
    actions=("queue 0", "queue 1"),
)
_add(
    "MachineReplacement-v0",
    "A machine costs more the more it is worn, until it is replaced.",
    "maintenance:machine_replacement",
    (10, 2),
    -2.727273,
    "closed form of the renewal-reward theorem",
    limit=1_000,
    discount=None,
    actions=("run", "replace"),
)
_add(
    "DynamicPricing-v0",
    "A stock is to be sold by a deadline to customers who buy the rather the less it costs.",
    "pricing:dynamic_pricing",
    (300, 16),
    7.002104,
    "value iteration; near the closed form of Gallego and van Ryzin (1994)",
)
_add(
    "Inventory-v0",
    "Orders have a set-up cost, and customers wait: (s, S) policies are best.",
    "inventory:inventory",
    (71, 71),
    -35.021555,
    "policy iteration; Zheng and Federgruen (1991) have 35.022",
    limit=1_000,
    discount=None,
)
_add(
    "LostSales-v0",
    "An order comes some periods later, and customers do not wait.",
    "inventory:lost_sales",
    (275, 11),
    -4.395295,
    "value iteration; Zipkin (2008) has 4.40",
    limit=1_000,
    discount=None,
)
_add(
    "MultiProduct-v0",
    "Of several products only one can be ordered in a period; up to millions of states.",
    "inventory:multi_product",
    (1_000, 4),
    263.9853,
    "value iteration",
    limit=1_000,
    discount=0.99,
)
_add(
    "Gridworld-v0",
    "A map in text; in the default one a key opens the way to another key, and that the way to the goal.",
    "gridworlds:gridworld",
    (256, 4),
    -19.0,
    "the length of the shortest way",
    limit=1_000,
    actions=_MOVES,
)
_add(
    "WindyGridworld-v0",
    "A wind pushes the walker upwards.",
    "gridworlds:windy_gridworld",
    (70, 4),
    -15.0,
    "Sutton and Barto, example 6.5",
    limit=1_000,
    actions=_MOVES,
)
_add(
    "DynaMaze-v0",
    "A maze in which nothing but the goal gives a reward.",
    "gridworlds:dyna_maze",
    (54, 4),
    0.95**13,
    "Sutton and Barto, example 8.1: 14 steps",
    limit=1_000,
    discount=0.95,
    actions=_MOVES,
)
_add(
    "Blackjack-v0",
    "Hit or stick against a dealer who stands on 17.",
    "blackjack:blackjack",
    (715, 2),
    -0.043113,
    "value iteration; the policy of Sutton and Barto, figure 5.2",
    actions=("stick", "hit"),
)
_add(
    "CartPole-v0",
    "Keep a pole upright on a cart that is pushed to the left and the right, observed in bins.",
    "control:cart_pole",
    (2_592, 2),
    None,
    "not known; 500.0 after 5 million steps of Q-learning",
    limit=500,
    actions=("left", "right"),
)
_add(
    "MountainCar-v0",
    "A car whose engine is too weak has to swing out of a valley, observed in bins.",
    "control:mountain_car",
    (1_600, 3),
    None,
    "not known; -113.0 after 20 million steps of Q-learning",
    limit=200,
    actions=("backward", "none", "forward"),
)
_add(
    "Acrobot-v0",
    "A pendulum of two links has to swing up by the joint between them, observed in bins.",
    "control:acrobot",
    (20_736, 3),
    None,
    "not known; -102.8 after 20 million steps of Q-learning",
    limit=500,
)
