"""Runs for tests of the commands that look at what was learned: a table that is written down, not trained."""

import numpy as np

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.agent.agent import state_of
from dist_classicrl.cli import config
from dist_classicrl.cli.main import main
from dist_classicrl.environments import named
from dist_classicrl.model.fit import get_to_know


def agent_for(env, values=None, visits=None, **settings):
    """Return an agent that knows `env`, with a table that is a function of (states, actions) or an array."""
    agent = DistAsyncQLearning(seed=1, n_envs=2, **settings)
    get_to_know(state_of(agent), env).close()
    if values is not None:
        agent.q_table = values
    if visits is not None:
        agent.visits[:] = visits
    state_of(agent).steps = 1_234_567
    return agent


def tied_values(shape, seed=0):
    """Return whole numbers, so few that most states have several best actions."""
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(float)


def make_run(folder, name, values=None, visits=None, arguments=None):
    """Write the folder of a run that has ended, and return it as text."""
    agent = agent_for(named.make(name, arguments), values, visits)
    folder.mkdir(parents=True)
    agent.save_model(folder / "model.npz")
    settings = {config.ENVIRONMENT: name, config.ENVIRONMENT_ARGUMENTS: arguments or {}}
    config.write(folder / "config.toml", settings, "a test")
    return str(folder)


def run_command(capsys, *words):
    """Return the exit status of a command, and what it wrote to standard output and to standard error."""
    capsys.readouterr()
    status = main(words)
    return (status, *capsys.readouterr())
