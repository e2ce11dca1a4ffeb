"""`dist-classicrl bench`: what this machine makes, in a minute."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from dist_classicrl._hints import promised_size
from dist_classicrl._words import counted
from dist_classicrl.cli import output
from dist_classicrl.cli.launch_options import ranks_option
from dist_classicrl.cli.option_types import Real, Whole, option

if TYPE_CHECKING:
    from dist_classicrl.diagnosis.rates import PushCost, Rate

_HELP = """\
Measure how fast this machine learns, in about a minute.

Medians of whole trainings by one process: in compiled environments, and in environments that Gymnasium steps,
16 copies at a time. Then what a push costs worker and server besides its way through the network, and with
--ranks the rates of a job under mpirun. The machine should do nothing else meanwhile.

\b
    dist-classicrl bench
    dist-classicrl bench --ranks 4 --json > rates.json
"""


@click.command("bench", help=_HELP)
@ranks_option(2, "Also train on N ranks, one of them the server.")
@option(
    "--seconds", type=Real(0.01), default=2.0, metavar="SECONDS", help="How long each training is at least."
)
@option("--rounds", type=Whole(1), default=3, metavar="N", help="How many there are.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON in place of tables.")
def command(ranks: int | None, seconds: float, rounds: int, as_json: bool) -> None:
    """Measure how fast this machine learns."""
    from dist_classicrl.cli.start import is_rank
    from dist_classicrl.diagnosis import rates
    from dist_classicrl.launch.plan import LaunchOptions

    if promised_size() > 1 and is_rank(LaunchOptions()):
        raise click.UsageError(
            "bench measures one process, and mpirun or srun has started this one as one of "
            f"{promised_size()}. Type it without them; with --ranks it starts ranks by itself."
        )
    one = rates.learning_rates(rates.ONE_CORE, seconds, rounds)
    pushes = [rates.push_cost(name) for name in rates.TOGETHER]
    many = [] if ranks is None else rates.rates_of_ranks(ranks, seconds, rounds)
    if as_json:
        output.show_json(
            {
                "machine": rates.machine(),
                "seconds": seconds,
                "one_core": [asdict(rate) for rate in one],
                "pushes": [asdict(cost) for cost in pushes],
                "ranks": ranks,
                "together": [asdict(rate) for rate in many],
            }
        )
        return
    about = rates.machine()
    click.echo(f"{about['processor']}, {about['cores']} cores\n")
    _show_one(one)
    _show_pushes(pushes)
    if many:
        _show_many(many, {rate.name: rate.steps_per_second for rate in one})


def _show_one(found: list[Rate]) -> None:
    rows = [[rate.name, _rate(rate.steps_per_second), _range(rate)] for rate in found]
    output.show_table(["environment", "steps/s", "runs"], rows, "Learning on one core")
    click.echo()


def _show_pushes(found: list[PushCost]) -> None:
    rows = [
        [
            cost.name,
            f"{cost.entries:,}",
            f"{cost.n_bytes / 1e3:,.1f}",
            *(f"{1e6 * each:,.1f}" for each in (cost.pack, cost.rebase, cost.apply, cost.refresh)),
        ]
        for cost in found
    ]
    headers = ["environment", "entries", "kB", "pack", "rebase", "apply", "refresh"]
    output.show_table(
        headers,
        rows,
        f"A push after {found[0].steps:,} steps, in microseconds: pack and rebase at the worker, apply and "
        "refresh at the server",
    )


def _show_many(found: list[Rate], alone: dict[str, float]) -> None:
    rows = [
        [
            rate.name,
            _rate(rate.steps_per_second),
            _range(rate),
            f"{rate.steps_per_second / alone[rate.name]:.2f}",
            f"{rate.communication_fraction:.1%}",
        ]
        for rate in found
    ]
    click.echo()
    headers = ["environment", "steps/s", "runs", "times one core", "not learning"]
    output.show_table(
        headers, rows, f"Learning under mpirun: a server and {counted(found[0].workers, 'worker')}"
    )


def _rate(value: float) -> str:
    return f"{value / 1e6:,.2f} M" if value >= 1e6 else f"{value / 1e3:,.1f} k"


def _range(rate: Rate) -> str:
    return f"{_rate(min(rate.runs))} to {_rate(max(rate.runs))}"
