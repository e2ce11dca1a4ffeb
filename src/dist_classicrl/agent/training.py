"""`train` from the side of an agent: alone, with others, or in place of one that was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_classicrl.agent.agent_run import get_to_know, keep, made_before, run_of, store
from dist_classicrl.agent.beginning import begin_call
from dist_classicrl.agent.replacements import train_as_replacement
from dist_classicrl.agent.request import Request, check, leave_signals_of, observed, steps_asked, watching
from dist_classicrl.agent.session import train_together
from dist_classicrl.comm.world import find_world
from dist_classicrl.engines.local.training import run_alone
from dist_classicrl.engines.outcome import TrainingResult
from dist_classicrl.errors import SettingsError
from dist_classicrl.process.parent import find_parent

if TYPE_CHECKING:
    from dist_classicrl.agent.agent import DistAsyncQLearning


def train(agent: DistAsyncQLearning, asked: Request) -> TrainingResult:
    """Do what `DistAsyncQLearning.train` says."""
    if agent._is_training:
        raise SettingsError(
            "train() was called for an agent that is training: a callback cannot do that. Let the callback "
            "return False to end the training, and call train() again when it has returned."
        )
    agent._is_training = True
    try:
        return _train(agent, asked)
    finally:
        agent._is_training = False


def _train(agent: DistAsyncQLearning, asked: Request) -> TrainingResult:
    parent = find_parent()
    if parent is not None:
        return train_as_replacement(agent, asked, parent)
    world = find_world(agent._comm, agent.settings.allow_singletons)
    if world is None:
        leave_signals_of(asked)
        return _train_alone(agent, asked)
    return train_together(agent, asked, world)


def _train_alone(agent: DistAsyncQLearning, asked: Request) -> TrainingResult:
    share, _ = steps_asked(asked.steps, asked.total_steps)
    check(agent, share, asked)
    plan = asked.make_plan()
    with watching(plan, 0) as watch:
        source = get_to_know(agent, asked.env)
        try:
            beginning = begin_call(agent, source, share, plan)
        except BaseException:
            source.close()
            raise
        with observed(agent, asked) as observer:
            run = run_of(agent, source, asked, beginning, watch, plan, observer)
            if run.steps == 0:
                source.close()
                return keep(agent, run, beginning, made_before(agent, run, beginning, 1))
            agent._pending = agent._taken = None
            try:
                result = run_alone(run)
            except BaseException:
                store(agent, run, run.kept)  # what was learned until then is not lost
                agent._requested = agent._steps
                raise
            return keep(agent, run, beginning, result)
