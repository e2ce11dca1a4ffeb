"""`dist-classicrl evaluate`: how good a trained model is."""

from __future__ import annotations

import click

from dist_classicrl.cli import output
from dist_classicrl.cli.option_types import Whole, option
from dist_classicrl.cli.trained_agent import load_with_env, run_argument

_HELP = """\
Play the greedy policy of a trained model.

RUN is the folder of a run, a model file, or a folder of checkpoints. Ties are broken at random. Where the
model of the environment is known, the exact value of the policy stands beside that of the best policy:
discounted, and for the process without its time limit.

\b
    dist-classicrl train FrozenLake-v1 --total-steps 1e7
    dist-classicrl evaluate runs/FrozenLake-v1 --episodes 10000

\b
    dist-classicrl evaluate model.npz --env FrozenLake-v1 --env-arg is_slippery=False --json
"""


@click.command("evaluate", help=_HELP)
@run_argument
@option("--episodes", type=Whole(1), default=1000, metavar="N", help="How many are played.")
@click.option("--seed", type=Whole(0), metavar="N", help="Of the episodes; by default the run's.")
@option(
    "--exact/--no-exact",
    default=True,
    help="Whether the model is solved; 100,000 states take some seconds.",
    shown="yes",
)
@click.option("--json", "as_json", is_flag=True, help="Write JSON in place of a table.")
def command(
    run: str,
    env: str | None,
    env_args: tuple[str, ...],
    episodes: int,
    seed: int | None,
    exact: bool,
    as_json: bool,
) -> None:
    """Play the greedy policy of a trained model."""
    from dist_classicrl.evaluation.assessment import assess

    trained, made = load_with_env(run, env, env_args, needs_env=True)
    found = assess(trained.state, made, episodes, seed, exact)
    if as_json:
        output.show_json({"run": run, **trained.described(), **found.to_dict()})
        return
    title = f"{trained.title}: the greedy policy after {trained.agent.steps:,} steps"
    output.show_table(["", ""], found.to_rows(), title)
    if found.hint is not None:
        click.echo(f"\nHint: {found.hint}")
