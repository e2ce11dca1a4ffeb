"""Draw docs/figures/supersteps.svg of what benchmarks/superstep_simulation.py has computed."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "superstep_simulation.json"
SIZE, WALKERS = "1 M entries", 4096
LINES = (
    (1.0, False, "tab:red", "o-", "hash, direct: as the engine does"),
    (1.0, True, "tab:orange", "s--", "hash, by host: not built"),
    (0.1, False, "tab:blue", "^-", "1 step in 10 crosses, direct"),
    (0.01, False, "tab:green", "v-", "1 in 100 crosses, direct"),
    (0.01, True, "tab:cyan", "d--", "1 in 100 crosses, by host: not built"),
)


def main() -> None:
    """Draw a panel for each network."""
    found = json.loads(RESULTS.read_text())["results"]
    ranks = found["ranks"]
    plt.rcParams.update({"svg.fonttype": "path", "svg.hashsalt": "supersteps", "font.size": 10})
    chosen = [each for each in found["simulated"] if (each["size"], each["walkers"]) == (SIZE, WALKERS)]
    networks = list(dict.fromkeys(each["network"] for each in chosen))
    figure, panels = plt.subplots(1, len(networks), figsize=(9.0, 3.8), layout="constrained", sharey=True)
    figure.patch.set_facecolor("white")
    for network, panel in zip(networks, panels, strict=True):
        here = {(each["crossing"], each["by_host"]): each for each in chosen if each["network"] == network}
        alone = here[1.0, False]["rates"][0]
        panel.loglog(ranks, [n * alone for n in ranks], ":", color="black", label="a core alone, times ranks")
        for crossing, by_host, colour, style, label in LINES:
            rates = here[crossing, by_host]["rates"]
            panel.loglog(ranks, rates, style, color=colour, label=label, markersize=4)
        panel.axvline(16, color="grey", linewidth=0.8)
        panel.set(title=f"simulated: {network} a host", xlabel="ranks, 16 a host")
    panels[0].set_ylabel("steps per second of all ranks")
    panels[0].legend(fontsize=7, loc="upper left")
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
