"""Draw docs/figures/affine.svg: what k updates do to an entry, and what a server makes of several workers."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt

STEP_SIZE, TARGET, UPDATES, WORKERS, ROUNDS = 0.1, 1.0, 10, 4, 6


def after(updates: int) -> tuple[float, float]:
    """Return weight and offset of so many updates towards `TARGET`."""
    weight, offset = 1.0, 0.0
    for _ in range(updates):
        weight, offset = (1 - STEP_SIZE) * weight, (1 - STEP_SIZE) * offset + STEP_SIZE * TARGET
    return weight, offset


def rounds_of(merge: str) -> list[float]:
    """Return the server's value after each round of pushes, by maps or by sums of differences."""
    weight, offset = after(UPDATES)
    values = [0.0]
    for _ in range(ROUNDS):
        value = begin = values[-1]
        for _ in range(WORKERS):
            value = weight * value + offset if merge == "maps" else value + (weight * begin + offset - begin)
        values.append(value)
    return values


def main() -> None:
    """Draw both panels."""
    plt.rcParams.update({"svg.fonttype": "path", "svg.hashsalt": "affine", "font.size": 10})
    figure, (maps, merged) = plt.subplots(1, 2, figsize=(9.0, 3.6), layout="constrained")
    figure.patch.set_facecolor("white")
    colours = plt.get_cmap("viridis")
    for number, updates in enumerate((0, 1, 5, 10, 40)):
        weight, offset = after(updates)
        label = f"{updates} update{'' if updates == 1 else 's'}: w = {weight:.2f}, b = {offset:.2f}"
        maps.plot((0, 2), (offset, 2 * weight + offset), color=colours(number / 4.8), label=label)
    maps.plot(TARGET, TARGET, "o", color="black")
    maps.annotate("target", (TARGET, TARGET), (1.07, 0.83))
    maps.set(
        title="Updates are one map, Q → wQ + b", xlabel="Q before", ylabel="Q after", xlim=(0, 2), ylim=(0, 2)
    )
    maps.legend(fontsize=8)
    numbers = range(ROUNDS + 1)
    merged.axhline(TARGET, color="black", linewidth=0.8)
    merged.plot(numbers, rounds_of("differences"), "s--", color="tab:red", label="differences added up")
    merged.plot(numbers, rounds_of("maps"), "o-", color="tab:blue", label="maps applied")
    merged.set(
        title=f"{WORKERS} workers, {UPDATES} updates each per round",
        xlabel="round of pushes",
        ylabel="the server's Q (target 1)",
        ylim=(-5, 7),
    )
    merged.legend(fontsize=8, loc="upper left")
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
