"""`dist-classicrl show`: policy and values as text."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dist_classicrl.cli import output
from dist_classicrl.cli.option_types import Whole, option
from dist_classicrl.cli.trained_agent import load_with_env, run_argument
from dist_classicrl.errors import StudyError

if TYPE_CHECKING:
    from dist_classicrl.cli.several.listing import ListedRun
    from dist_classicrl.model.policy import Policy

_STATES, _BOARDS = 20, 6  # that are shown where nobody asks for so many

_HELP = """\
Show policy and values of a trained model as text.

RUN is the folder of a run, a model file, or a folder of checkpoints; of a folder with runs in it they are
listed, and of a study all settings with their mean scores. Grids like FrozenLake are shown as
maps with an arrow for the greedy move and with values; a dot is a state that was never visited.
TicTacToe is shown as boards with the value of each empty square, and the greedy one in brackets.
Everything else is a table.

\b
    dist-classicrl train FrozenLake-v1 --env-arg map_name=8x8
    dist-classicrl show runs/FrozenLake-v1

\b
    dist-classicrl show runs
    dist-classicrl show runs/FrozenLake-v1 --live

\b
    dist-classicrl show runs/Blackjack-v1 --states 50
    dist-classicrl show runs/Blackjack-v1 --observation "(20, 10, 0)"
"""


@click.command("show", help=_HELP)
@run_argument
@option(
    "--states", type=Whole(1), metavar="N", help="A table of the first N visited states.", shown=str(_STATES)
)
@click.option(
    "--observation",
    "observations",
    multiple=True,
    metavar="OBSERVATION",
    help="All about one observation, as JSON or as Python writes it; more than once for several.",
)
@click.option("--live", is_flag=True, help="Show a run or a study that goes on, on the whole screen.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON in place of text.")
def command(
    run: str,
    env: str | None,
    env_args: tuple[str, ...],
    states: int | None,
    observations: tuple[str, ...],
    live: bool,
    as_json: bool,
) -> None:
    """Show policy and values of a trained model as text."""
    from dist_classicrl.cli.several.listing import runs_in
    from dist_classicrl.model.policy import policy_of
    from dist_classicrl.sweep.folder import studies_in
    from dist_classicrl.sweep.study import is_study

    is_of_one = env is not None or env_args or states is not None or observations
    if live and as_json:
        raise click.UsageError(
            "--live draws on the screen, and --json writes for programs: give one of them."
        )
    if is_of_one and (live or is_study(run)):
        raise click.UsageError(
            "--env, --env-arg, --states and --observation are for the policy of one run. Leave them out of "
            + ("--live." if live else f"{run}, which is a study.")
        )
    if observations and states is not None:
        raise click.UsageError(
            "--states counts states from the first one on, and --observation names those that are shown. "
            "Leave one of them out."
        )
    if live:
        _show_live(Path(run))
        return
    if is_study(run):
        _show_study(run, as_json)
        return
    if not is_of_one and (found := runs_in(Path(run))):
        _show_runs(found, as_json)
        return
    if inside := studies_in(run):
        raise StudyError(f"{run} is a folder of studies. Name one of them, such as {inside[0]}.")
    trained, made = load_with_env(run, env, env_args)
    policy = policy_of(trained.state, made)
    asked = [_state_of(policy, text) for text in observations]
    listed = asked or policy.shown_states(_STATES if states is None else states)
    if as_json:
        states_shown = [_described(policy, state) for state in listed]
        output.show_json({"run": run, **trained.described(), "states": states_shown})
        return
    click.echo(
        f"{trained.title or run}: {policy.n_states:,} states, {policy.n_actions} actions, "
        f"{trained.agent.steps:,} steps learned\n"
    )
    if asked:
        for state in asked:
            _show_state(policy, state)
    elif states is None and policy.labels.letters is not None:
        _show_map(policy)
    elif states is None and policy.labels.boards is not None:
        for state in listed[:_BOARDS]:
            _show_board(policy, state)
        _show_rest(policy, listed[:_BOARDS], states)
    else:
        _show_states(policy, listed, states)


def _show_live(folder: Path) -> None:
    """Show what goes on in the folder of a run or a study, until Ctrl-C, or it is done, which is said."""
    from dist_classicrl.cli.live.screen import check_screen, full_screen
    from dist_classicrl.cli.live.watching import view_of, wait_until_done
    from dist_classicrl.cli.signals import cleaned_up

    check_screen()
    view = view_of(folder)
    with suppress(KeyboardInterrupt), cleaned_up():
        with full_screen(view):
            wait_until_done(folder)
        words = shlex.join(["dist-classicrl", "show", str(folder)])
        click.echo(f"What goes on in {folder} is done. `{words}` shows what has come of it.")


def _show_study(folder: str, as_json: bool) -> None:
    from dist_classicrl.cli.shown_study import show_study
    from dist_classicrl.sweep.study import Study

    study = Study(folder)
    done, failed, trainings = study.done, study.failed, study.trainings
    if as_json:
        about = {"study": folder, "done": done, "failed": failed, "runs": study.plan.n_runs}
        output.show_json({**about, "settings": study.summary()})
        return
    also = f", {failed:,} failed" if failed else ""
    rungs = f" (with early stopping {trainings:,} trainings)" if trainings > study.plan.n_runs else ""
    click.echo(f"{folder}: {done:,} of {study.plan.n_runs:,} runs done{also}{rungs}\n")
    show_study(study)


def _show_runs(found: list[ListedRun], as_json: bool) -> None:
    from dist_classicrl.cli.several.listing import HEADERS

    if as_json:
        output.show_json([each.to_dict() for each in found])
    else:
        output.show_table(HEADERS, [each.to_row() for each in found])


def _state_of(policy: Policy, text: str) -> int:
    from dist_classicrl.errors import OutsideSpaceError

    try:
        return policy.state_of(observation_of(text))
    except OutsideSpaceError as error:
        space = policy.observations and policy.observations.space
        where = space or f"the whole numbers from 0 to {policy.n_states - 1}"
        raise click.BadParameter(
            f"{text!r} is none of the observations, which are {where}.", param_hint="--observation"
        ) from error


def observation_of(text: str) -> Any:
    """Return the observation that somebody has typed as JSON or as a Python literal."""
    import ast
    import json

    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
    raise click.BadParameter(
        f"{text!r} is neither JSON nor a Python literal. Write for instance 12, [3, 1] "
        "or (20, 10, 0), in quotes.",
        param_hint="--observation",
    )


def _described(policy: Policy, state: int) -> dict[str, Any]:
    return {
        "state": state,
        "observation": policy.observation_of(state),
        "values": policy.q[state].tolist(),
        "visits": policy.visits[state].tolist(),
        "greedy": int(policy.greedy[state]),
        "action": policy.action_names[policy.greedy[state]],
    }


def _show_map(policy: Policy) -> None:
    from dist_classicrl.export import text as policy_text

    for title, cells in (("greedy action", policy_text.moves(policy)), ("value", policy_text.values(policy))):
        click.echo(title)
        _show_lines(policy_text.aligned(cells))
        click.echo()


def _show_board(policy: Policy, state: int) -> None:
    from dist_classicrl.export import text as policy_text

    click.echo(f"state {state}: value {policy.values[state]:.3f}, {int(policy.visits[state].sum()):,} visits")
    _show_lines(policy_text.aligned(policy_text.board(policy, state), centered=True))
    click.echo()


def _show_states(policy: Policy, listed: list[int], asked: int | None) -> None:
    from dist_classicrl.export import text as policy_text

    output.show_table(*policy_text.state_table(policy, listed))
    click.echo()
    _show_rest(policy, listed, asked)


def _show_rest(policy: Policy, listed: list[int], asked: int | None) -> None:
    """Say how many states of how many were shown, and how to see others unless it was `asked` for so many."""
    seen = int(policy.visits.any(axis=1).sum())
    total = seen or policy.n_states
    said = f"{len(listed):,} of {total:,} {'visited ' if seen else ''}states"
    if len(listed) < total and asked is None:
        example = shlex.quote(str(policy.observation_of(listed[-1])))
        said += f". More of them: --states {total}. All about one: --observation {example}."
    click.echo(said)


def _show_state(policy: Policy, state: int) -> None:
    from dist_classicrl.export import text as policy_text

    if policy.labels.boards is not None:
        _show_board(policy, state)
    said = f"state {state}" + (f": {policy.state_text(state)}" if policy.has_observations else "")
    output.show_table(*policy_text.action_table(policy, state), title=said)
    click.echo()


def _show_lines(lines: list[str]) -> None:
    """Write lines that may have arrows in them; other characters where the terminal cannot show arrows."""
    import sys

    from dist_classicrl.export.text import in_ascii

    text = "\n".join(lines)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")  # there is none after `>&-`
    except UnicodeEncodeError:
        text = in_ascii(text)
    click.echo(text)
