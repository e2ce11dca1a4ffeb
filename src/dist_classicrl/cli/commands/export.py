"""`dist-classicrl export`: a trained model as a file for others."""

from __future__ import annotations

from pathlib import Path

import click

from dist_classicrl.cli.option_types import Place, Whole, option
from dist_classicrl.cli.trained_agent import load_with_env, run_argument

_HELP = """\
Write a trained model as NumPy arrays, a table, JSON, or a Python program.

RUN is the folder of a run, a model file, or a folder of checkpoints.

\b
npz   arrays q_table, visits, policy and values, for np.load; also a model
      file, which the other commands and load_model take
csv   a line for each state: values and visits of each action, greedy action
json  the same with observations, as one object
py    a program with a function act(observation) that needs no library

\b
    dist-classicrl train Blackjack-v1
    dist-classicrl export runs/Blackjack-v1 --to policy.py
    python -c "from policy import act; print(act((20, 10, 0)))"

And back, into an agent:

\b
    agent = DistAsyncQLearning.load_model("policy.npz")
or
    from dist_classicrl.export.table_file import read_table
    agent.q_table, visits = read_table("policy.csv")
    agent.visits[:] = visits  # where the rule learns one table
"""


@click.command("export", help=_HELP)
@run_argument
@click.option(
    "--to",
    "target",
    required=True,
    type=Place(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where to; its suffix is the format unless --format says otherwise.",
)
@click.option("--format", "kind", metavar="npz|csv|json|py", help="In place of the suffix of FILE.")
@option("--states", type=Whole(1), metavar="N", help="Of csv, the N most visited states only.", shown="all")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def command(
    run: str,
    env: str | None,
    env_args: tuple[str, ...],
    target: Path,
    kind: str | None,
    states: int | None,
    force: bool,
) -> None:
    """Write a trained model as NumPy arrays, a table, JSON, or a Python program."""
    from dist_classicrl.export.formats import export

    if str(target) == "-":
        raise click.BadParameter(
            "an export is written to a file, and not to standard output. Name one, such as policy.csv.",
            param_hint="--to",
        )
    trained, made = load_with_env(run, env, env_args)
    written = export(
        trained.state,
        target,
        made,
        environment=trained.title,
        kind=kind,
        force=force,
        most_visited=states,
    )
    click.echo(f"{written}: {written.stat().st_size:,} bytes")
