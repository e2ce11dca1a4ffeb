"""How much of what the hosts of a mixed cluster could do is done when they train together.

Three emulated hosts (network namespaces of this machine, as tests/cluster makes them: root is needed) with
two workers each, and a server beside those of the first. An environment sleeps in each step, on one host
`--factor` times as long. Each host's workers train alone with the server, one host after the other, then all
together; and so in turns, `--rounds` times. What all together do is compared with the sum of what each does
alone, and the slow host's steps with those of another, in the same run. The steps are as many as take about
`--seconds` each time.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import common

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "cluster"))

import host_jobs
import hosts as emulated

WORKERS = 2
SLOW = "h3"


def measure(
    hosts: emulated.Hosts, names: list[str], options: dict[str, Any], seconds: float
) -> dict[str, Any]:
    """Train on the workers of these hosts; return the steps per second, and the steps of each host."""
    slots = {"h1": 1}
    expected = 0.0
    for name in names:
        slots[name] = slots.get(name, 0) + WORKERS
        expected += WORKERS / (options["pause"] * options["factors"].get(name, 1.0))
    steps = int(seconds * expected)
    with tempfile.TemporaryDirectory() as folder:
        said = host_jobs.train(hosts, folder, {**options, "steps": steps}, slots=slots)
    made = dict.fromkeys(names, 0)
    for line in said[1:]:
        made[line["host"]] += line["made"]
    return {"rate": steps / said[0]["seconds"], "made": made}


def main() -> None:
    """Measure in turns, and print the comparison."""
    parser = common.parser(__doc__, "mixed_speeds.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each training (default: %(default)g)")
    parser.add_argument("--pause", type=float, default=0.01, help="of a step (default: %(default)g s)")
    parser.add_argument("--factor", type=float, default=3.0, help="of the slow host (default: %(default)g)")
    arguments = parser.parse_args()
    if reason := emulated.why_not():
        parser.error(reason)
    options = {"pause": arguments.pause, "factors": {SLOW: arguments.factor}}
    results = []
    for number in range(arguments.rounds):
        with emulated.Hosts(3) as hosts:
            alone = {name: measure(hosts, [name], options, arguments.seconds) for name in hosts.names}
            together = measure(hosts, hosts.names, options, arguments.seconds)
        rates = {name: result["rate"] for name, result in alone.items()}
        others = [steps for name, steps in together["made"].items() if name != SLOW]
        result = {
            "alone": rates,
            "together": together,
            "ratio": together["rate"] / sum(rates.values()),
            "share": together["made"][SLOW] / statistics.mean(others),
        }
        results.append(result)
        print(f"round {number}: {result}", flush=True)
    rows = [[f"{result['ratio']:.3f}", f"{result['share']:.3f}"] for result in results]
    common.show(["all together / sum of each alone", "steps of the slow host / of another"], rows)
    common.save(arguments.output, results, seconds=arguments.seconds, **options)


if __name__ == "__main__":
    main()
