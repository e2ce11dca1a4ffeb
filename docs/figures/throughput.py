"""Draw docs/figures/throughput.svg of what benchmarks/throughput.py has measured and computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "throughput.json"
NETWORK = "10 Gbit/s, 20 µs"
LINES = {"flat": ("tab:blue", "o-"), "tree": ("tab:green", "^-"), "decentralized": ("tab:red", "s-")}


def draw_measured(panel: Any, measured: dict[str, dict[str, float]]) -> None:
    """Draw the rates of jobs on this machine's cores, by ranks."""
    ranks = [int(each) for each in measured]
    for topology, (color, style) in LINES.items():
        rates = [each[topology] for each in measured.values()]
        panel.semilogx(ranks, rates, style, color=color, label=topology, markersize=4)
    panel.set(title="measured: 2 cores, 256 entries", xlabel="ranks, oversubscribed", ylim=(0.0, None))
    panel.set_xticks(ranks, list(measured), minor=False)
    panel.minorticks_off()


def main() -> None:
    """Draw a panel of what was measured, and one for each size of table that was simulated."""
    found = json.loads(RESULTS.read_text())["results"]
    sizes = list(found["costs"])
    plt.rcParams.update({"svg.fonttype": "path", "svg.hashsalt": "throughput", "font.size": 10})
    measured = found["measured"]
    n_panels = len(sizes) + bool(measured)
    figure, panels = plt.subplots(1, n_panels, figsize=(2.75 * n_panels, 3.6), layout="constrained")
    figure.patch.set_facecolor("white")
    simulated = panels[-len(sizes) :]
    if measured:
        draw_measured(panels[0], measured)
    for size, panel in zip(sizes, simulated, strict=True):
        step = found["costs"][size]["step"]
        panel.loglog(
            found["ranks"],
            [n / step for n in found["ranks"]],
            ":",
            color="black",
            label="a core alone, times ranks",
        )
        for each in found["simulated"]:
            if (each["size"], each["network"]) == (size, NETWORK):
                color, style = LINES[each["topology"]]
                panel.loglog(
                    found["ranks"], each["rates"], style, color=color, label=each["topology"], markersize=4
                )
        panel.set(title=f"simulated: {size}", xlabel="ranks, 16 a host")
    panels[0].set_ylabel("steps per second of all ranks")
    simulated[0].legend(fontsize=7, loc="upper left")
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
