"""What an agent has learned as a file for others: NumPy arrays, a table, JSON, or a Python program."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_classicrl._files import whole_file
from dist_classicrl._words import nearest
from dist_classicrl.checks import WholeNumber, checked_path
from dist_classicrl.errors import ExportError
from dist_classicrl.export import program as policy_program
from dist_classicrl.export.table_file import OF_STATES
from dist_classicrl.model import model_file
from dist_classicrl.model.agent_state import AgentState
from dist_classicrl.model.keyed import KeyIndex
from dist_classicrl.model.policy import Policy, policy_of

FORMAT = "dist_classicrl policy"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Exported:
    """What is exported."""

    agent: AgentState
    policy: Policy
    environment: str | None  # what it is called
    most_visited: int | None = None  # how many states, of those that were visited most; None: all there are


def export(
    agent: AgentState,
    path: str | os.PathLike[str],
    env: Any = None,
    *,
    environment: str | None = None,
    kind: str | None = None,
    force: bool = False,
    most_visited: int | None = None,
) -> Path:
    """Write what `agent` has learned to exactly `path`: whole, or not at all, in a folder that is made.

    `env` is the environment that was trained in, for observations and names, and `environment` what the file
    calls it. The kind, by default the suffix of `path`, is one of `KINDS`: "npz" is a model file, which
    `load_model` reads, with the arrays `policy` and `values` besides `q_table` and `visits`; "csv" and "json"
    are what `table_file.read_table` reads; "py" is a program with a function `act(observation)`. ExportError
    if the kind is not known, or there is such a file or link, unless `force` has it replaced: of a link, what
    it leads to. A table in csv may have only so many states, those `most_visited`, the most visited first.
    SettingsError where that is no number of them, or a value is not finite; EnvError where the agent has
    learned of other observations or actions than `env` has.
    """
    target = Path(checked_path("path", path))
    write = _writer(target, kind)
    if most_visited is not None:
        most_visited = WholeNumber(1)("most_visited", most_visited)
        if write is not _write_csv:
            raise ExportError("Only csv can hold a part of the states. Leave out how many, or write csv.")
    if os.path.lexists(target) and not force:
        raise ExportError(f"{target} is there already. Give another name, or replace it with --force.")
    place = Path(os.path.realpath(target)) if target.is_symlink() else target
    policy = policy_of(agent, env)
    agent.check_values()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(
            f"The folder of {target} cannot be made: {error}. Give a path in one where you may write."
        ) from error
    write(Exported(agent, policy, environment, most_visited), place)
    return target


def _writer(target: Path, kind: str | None) -> Callable[[Exported, Path], None]:
    name = target.suffix.removeprefix(".") if kind is None else kind
    if name not in _WRITERS:
        raise ExportError(
            f"There is no format {name!r} of exports{'' if kind else f', as {target} asks for'}."
            f"{nearest(name, KINDS)} The formats are {', '.join(KINDS)}."
        )
    return _WRITERS[name]


def _write_npz(exported: Exported, target: Path) -> None:
    agent, policy = exported.agent, exported.policy
    model_file.write(target, agent.to_model(), {"policy": policy.greedy, "values": policy.values})


def _write_text(target: Path, pieces: Iterable[str]) -> None:
    with whole_file(target) as file:
        for piece in pieces:
            file.write(piece.encode())


def _write_csv(exported: Exported, target: Path) -> None:
    policy = exported.policy
    names = policy.action_names
    few = exported.most_visited
    states = range(policy.n_states) if few is None else policy.most_visited(few)
    # By this, a part of a table does not pass for a whole one.
    of = [policy.n_states] if len(states) < policy.n_states else []
    head = ["state", *([OF_STATES] if of else []), *(["observation"] if policy.has_observations else [])]
    head += [f"q:{name}" for name in names] + [f"visits:{name}" for name in names] + ["greedy"]

    def lines() -> Iterable[str]:
        yield _line(head)
        for state in states:
            greedy = policy.greedy[state]
            told = [policy.state_text(state)] if policy.has_observations else []
            yield _line(
                [state, *of, *told, *policy.q[state].tolist(), *policy.visits[state].tolist(), names[greedy]]
            )

    _write_text(target, lines())


def _line(cells: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _write_json(exported: Exported, target: Path) -> None:
    agent, policy = exported.agent, exported.policy
    observations = policy.observations
    data = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "environment": exported.environment,
        "steps": agent.steps,
        "discount_factor": agent.settings.discount_factor,
        "actions": policy.action_names,
        "action_values": _exact(policy.env_actions()),
        "observations": observations
        and _exact([policy.observation_of(state) for state in range(policy.n_states)]),
        "legal": None if policy.legal is None else policy.legal.tolist(),
        "q_table": policy.q.tolist(),
        "visits": policy.visits.tolist(),
        "policy": policy.greedy.tolist(),
        "values": policy.values.tolist(),
    }
    _write_text(target, json.JSONEncoder(indent=None).iterencode(data))


def _exact(values: list[Any]) -> list[Any]:
    """Return numbers as text where readers that take them for float64 would lose digits."""
    is_beyond = any(isinstance(value, int) and abs(value) > 2**53 for value in values)
    return [str(value) for value in values] if is_beyond else values


def _write_program(exported: Exported, target: Path) -> None:
    policy = exported.policy
    if isinstance(policy.observations, KeyIndex):
        raise ExportError(
            "A policy whose states are keys cannot be written as a program: it has nothing to say of states "
            "that were not met. Write it as npz, csv or json."
        )
    title = (
        f"What was learned{'' if exported.environment is None else ' in ' + exported.environment}: "
        f"{policy.n_states} states, {policy.n_actions} actions, {exported.agent.steps} steps."
    )
    module = target.stem if target.stem.isidentifier() else "policy"
    _write_text(target, policy_program.program(policy, title, module))


_WRITERS: dict[str, Callable[[Exported, Path], None]] = {
    "npz": _write_npz,
    "csv": _write_csv,
    "py": _write_program,
    "json": _write_json,
}

KINDS = tuple(_WRITERS)  # the formats of exports
