"""Draw the pictures of the page on problems, one each: `python docs/figures/problems.py`.

Each shows the best policy, or its values, as an exact solver finds them.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.environments import registry
from dist_classicrl.environments.problems.gridworlds import KEY_AND_DOOR, MAZE, MOVES, WIND, WINDY

FOLDER = Path(__file__).parent / "problems"
DISCOUNT = 0.9999
"""Of problems whose optimum is a mean per step: near to 1, where the best policies are those of the mean."""

_COLORS = {"#": "0.25", "S": "tab:blue", "G": "tab:green", "H": "tab:red"}


def _made(name: str) -> TabularMDP:
    model = registry()[f"dist_classicrl/{name}"].make()
    assert isinstance(model, TabularMDP)
    return model


def _solved(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the best policy and its values."""
    discount = registry()[f"dist_classicrl/{name}"].discount_factor
    solution = _made(name).solve(DISCOUNT if discount is None else discount)
    return solution.policy, solution.v


def _random_walk(axes: Axes) -> None:
    axes.plot(np.arange(1, 20), _solved("RandomWalk-v0")[1], "o-", markersize=3)
    axes.set(title="true values", xlabel="state", ylabel="value")


def _chain(axes: Axes) -> None:
    _relative_values(axes, "Chain-v0")


def _river_swim(axes: Axes) -> None:
    _relative_values(axes, "RiverSwim-v0")


def _relative_values(axes: Axes, name: str) -> None:
    values = _solved(name)[1]
    axes.bar(np.arange(values.size), values - values[0])
    axes.set(title="values, less that of state 0", xlabel="state", ylabel="value")


def _deep_sea(axes: Axes) -> None:
    _image(axes, _solved("DeepSea-v0")[1].reshape(10, 10), "values", "column", "row")


def _gambler(axes: Axes) -> None:
    axes.plot(np.arange(1, 100), _solved("Gambler-v0")[1][1:-1])
    axes.set(title="chance to reach the goal", xlabel="capital", ylabel="value")


def _car_rental(axes: Axes) -> None:
    policy = _solved("JacksCarRental-v0")[0].reshape(21, 21) - 5
    first, second = np.indices(policy.shape)
    moved = np.clip(policy, -second, first)
    _image(axes, moved, "cars moved to the second", "cars at the second", "cars at the first", "lower")


def _access_control(axes: Axes) -> None:
    policy = _solved("AccessControl-v0")[0].reshape(11, 4)[1:]
    _image(axes, policy.T, "who gets in", "free servers", "class that pays", "lower")
    axes.set_xticks([0, 4, 9], ["1", "5", "10"])
    axes.set_yticks(range(4), ["1", "2", "4", "8"])


def _admission(axes: Axes) -> None:
    _relative_values(axes, "Admission-v0")
    axes.axvline(3.5, color="black", linewidth=0.8, linestyle="--")
    axes.set(title="values; let in on the left", xlabel="customers there")


def _routing(axes: Axes) -> None:
    _image(
        axes, _solved("Routing-v0")[0].reshape(16, 16), "queue to join", "in queue 1", "in queue 0", "lower"
    )


def _machine_replacement(axes: Axes) -> None:
    k = np.arange(1, 11)
    axes.plot(k, (20 + k * (k - 1) / 0.6) / (1 + k / 0.3), "o-", markersize=3)
    axes.set(title="mean cost", xlabel="replaced from state", ylabel="per period")


def _dynamic_pricing(axes: Axes) -> None:
    policy = _solved("DynamicPricing-v0")[0].reshape(50, 6)[:, 1:]
    axes.plot(4.0 * (policy + 1) / 16, label=[f"{n + 1} left" for n in range(5)])
    axes.set(title="best price", xlabel="periods over", ylabel="price")
    axes.legend(fontsize=6)


def _inventory(axes: Axes) -> None:
    level, policy = np.arange(-10, 61), _solved("Inventory-v0")[0] - 10
    axes.plot(level, np.maximum(policy, level))
    axes.set(title="ordered up to", xlabel="level", ylabel="level")


def _lost_sales(axes: Axes) -> None:
    orders = _solved("LostSales-v0")[0].reshape(25, 11)[:14]
    _image(axes, orders.T, "pieces ordered", "stock", "under way", "lower")


def _multi_product(axes: Axes) -> None:
    policy = _solved("MultiProduct-v0")[0].reshape(10, 10, 10)[4]
    _image(axes, policy, "product ordered (first: 4 left)", "stock of the third", "of the second", "lower")


def _gridworld(axes: Axes) -> None:
    _board(axes, KEY_AND_DOOR, _solved("Gridworld-v0")[0])


def _windy_gridworld(axes: Axes) -> None:
    _board(axes, WINDY, _solved("WindyGridworld-v0")[0])
    axes.set_xticks(range(10), [str(wind) for wind in WIND], fontsize=6)
    axes.set_xlabel("wind")


def _dyna_maze(axes: Axes) -> None:
    _board(axes, MAZE, _solved("DynaMaze-v0")[0])


def _board(axes: Axes, desc: tuple[str, ...], policy: np.ndarray) -> None:
    """Draw a map, and arrows where no key is taken."""
    for row, line in enumerate(desc):
        for column, letter in enumerate(line):
            color = _COLORS.get(letter, "0.95" if letter == "." else "tab:orange")
            axes.add_patch(plt.Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=color, edgecolor="white"))
            if letter in ".S":
                down, right = MOVES[policy[row * len(line) + column]]
                axes.annotate(
                    "",
                    (column + 0.35 * right, row + 0.35 * down),
                    (column - 0.35 * right, row - 0.35 * down),
                    arrowprops={"arrowstyle": "->", "linewidth": 0.6},
                )
            elif letter != "#":
                axes.text(column, row, letter, ha="center", va="center", fontsize=7)
    axes.set(xlim=(-0.5, len(desc[0]) - 0.5), ylim=(len(desc) - 0.5, -0.5), aspect="equal")
    axes.set(title="best moves", xticks=[], yticks=[])


def _blackjack(axes: Axes) -> None:
    policy = _solved("Blackjack-v0")[0][:704].reshape(32, 11, 2)[11:22, 1:]
    sides = np.hstack((policy[:, :, 0], np.full((11, 1), -1), policy[:, :, 1]))
    _image(axes, np.ma.masked_less(sides, 0), "hit: no ace | usable ace", "dealer's card", "sum", "lower")
    axes.set_yticks(range(0, 11, 2), [str(total) for total in range(11, 22, 2)])
    axes.set_xticks([0, 9, 11, 20], ["A", "10", "A", "10"])


def _cart_pole(axes: Axes) -> None:
    policy = _learned("CartPole-v0", 5_000_000).reshape(3, 6, 12, 12)[1, 3]
    _image(axes, policy.T, "learned: push to the right", "angle", "angular velocity", "lower")


def _mountain_car(axes: Axes) -> None:
    policy = _learned("MountainCar-v0", 20_000_000).reshape(40, 40) - 1
    _image(axes, policy.T, "learned: throttle", "position", "velocity", "lower")


def _acrobot(axes: Axes) -> None:
    policy = _learned("Acrobot-v0", 20_000_000).reshape(12, 12, 12, 12)[:, 6, :, 6] - 1
    _image(axes, policy.T, "learned: torque", "first angle", "its velocity", "lower")


def _learned(name: str, steps: int) -> np.ndarray:
    agent = DistAsyncQLearning(seed=1)
    agent.train(f"dist_classicrl/{name}", total_steps=steps, verbose=0)
    return np.where(agent.visits.any(axis=1), agent.policy.greedy, 0)


def _image(axes: Axes, values: np.ndarray, title: str, x: str, y: str, origin: str = "upper") -> None:
    shown = axes.imshow(values, origin=origin, aspect="auto", interpolation="nearest")
    axes.set(title=title, xlabel=x, ylabel=y)
    plt.colorbar(shown, ax=axes)


#: What draws each; a problem of the registry that is missing here has no picture.
PICTURES = {
    "RandomWalk-v0": _random_walk,
    "Chain-v0": _chain,
    "RiverSwim-v0": _river_swim,
    "DeepSea-v0": _deep_sea,
    "Gambler-v0": _gambler,
    "JacksCarRental-v0": _car_rental,
    "AccessControl-v0": _access_control,
    "Admission-v0": _admission,
    "Routing-v0": _routing,
    "MachineReplacement-v0": _machine_replacement,
    "DynamicPricing-v0": _dynamic_pricing,
    "Inventory-v0": _inventory,
    "LostSales-v0": _lost_sales,
    "MultiProduct-v0": _multi_product,
    "Gridworld-v0": _gridworld,
    "WindyGridworld-v0": _windy_gridworld,
    "DynaMaze-v0": _dyna_maze,
    "Blackjack-v0": _blackjack,
    "CartPole-v0": _cart_pole,
    "MountainCar-v0": _mountain_car,
    "Acrobot-v0": _acrobot,
}


def main() -> None:
    """Draw them all."""
    plt.rcParams.update({"font.size": 7, "axes.titlesize": 8})
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        figure, axes = plt.subplots(figsize=(2.6, 2.0), layout="constrained", dpi=110)
        draw(axes)
        figure.savefig(FOLDER / f"{name}.png", metadata={"Software": None})
        plt.close(figure)


if __name__ == "__main__":
    main()
