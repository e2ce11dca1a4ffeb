"""Evaluates the greedy policy while the training goes on, and keeps the best one."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl._arguments import named_constructor
from dist_classicrl._random import stream_key
from dist_classicrl._steps import next_multiple
from dist_classicrl.callbacks.base import BaseCallback, CallbacksLike, one_callback
from dist_classicrl.callbacks.evaluation_log import Evaluated, EvaluationLog
from dist_classicrl.callbacks.events import EventCallback
from dist_classicrl.callbacks.tables import whole_table
from dist_classicrl.checks import checked_path, checked_whole
from dist_classicrl.environments.finite_model import FiniteModel
from dist_classicrl.errors import ConvergenceError, EvaluationStopped, SettingsError
from dist_classicrl.evaluation import EPISODES, LONGEST_EPISODE, SEED, STEPS
from dist_classicrl.monitoring.files import set_aside

if TYPE_CHECKING:
    from dist_classicrl.environments.identity import Identity
    from dist_classicrl.environments.resolve import EnvLike

logger = logging.getLogger(__name__)

_EXACT_STATES = 10_000


@named_constructor(
    env="eval_env",
    episodes="n_eval_episodes",
    eval_episodes="n_eval_episodes",
    eval_every="eval_freq",
    n_episodes="n_eval_episodes",
)
class EvalCallback(EventCallback):
    """Plays episodes of the greedy policy every so many steps, and keeps the best model.

    Where the environment's model is known, it also computes the exact value of that policy, discounted, from
    the start states and without a time limit; then this decides which model is the best, else the mean
    return does, and so it does for a policy whose episodes may go on for ever. Evaluation takes nothing from
    the random streams of the training. It runs on the server, so it should be short: nothing is saved
    meanwhile. In an environment that is stepped it is left out where the training is asked to stop.

    Parameters
    ----------
    eval_env : str, gymnasium.Env, gymnasium.vector.VectorEnv, callable, TabularMDP or CompiledSimulator
        As in `train`. An environment that is not compiled must not be the same object that the training
        steps through.
    callback_on_new_best, callback_after_eval : BaseCallback, function or sequence, optional
        What is called after an evaluation, the first only if it found a better model, or if its mean return
        is higher than those of all before it. Each may end the training.
    n_eval_episodes : int
    eval_freq : int
        Environment steps, of all ranks, between two evaluations. They are made at its multiples, counted as
        `num_timesteps` is. Where one process learns alone that is exactly there in a compiled environment,
        but at the next multiple of 32 steps of the call where 32 walkers take turns: with
        ``placement="sharded"``, and, without replay, in tables of 16,384 entries or more. On a card it is at
        the end of a round, and in an environment that is stepped at the end of the batch; in the reproducible
        mode at the end of the round, or of the superstep; and else on the first table of the server that
        contains as many.
    log_path : str or path, optional
        Folder of ``evaluations.npz``: arrays timesteps, results and ep_lengths (a row per evaluation),
        exact_values (NaN where not known), the number saved_score, which the best model that is saved had,
        and the texts run, environment and fingerprint, which say whose evaluations these are. By default the
        folder of the best model.
    best_model_save_path : str or path, optional
        Folder of ``best_model.npz``, for `load_model`.
    verbose : int
        1: log each evaluation.
    seed : int, optional
        Of the evaluation's own random streams. By default the agent's.
    max_steps : int
        An episode that is longer is cut off there: a policy that does not end must not stop the server.
    exact_states : int
        Models with more states are not solved, which would take long.

    Attributes
    ----------
    last_mean_reward, best_mean_reward : float
        Mean returns of the last evaluation and of the best model's; minus infinity before the first one.
    last_exact_value, best_exact_value : float
        Likewise the exact values; NaN where they are not known.
    has_improved : bool
        Whether the last evaluation found a better model.
    log : EvaluationLog
        All evaluations.

    Notes
    -----
    An agent that goes on, in another call of `train` or from a checkpoint, goes on with its
    ``evaluations.npz``, without the evaluations of later steps, which are made again, as long as it is
    evaluated in the same environment. Its best model stays, though of a later step, until there is a better
    one. What is there of another agent, such as one that `load_model` returned,
    or of another environment, such as an earlier stage of a curriculum, is renamed, and nothing of it counts.
    """

    def __init__(
        self,
        eval_env: EnvLike,
        callback_on_new_best: CallbacksLike = None,
        callback_after_eval: CallbacksLike = None,
        n_eval_episodes: int = 20,
        eval_freq: int = 100_000,
        log_path: str | os.PathLike[str] | None = None,
        best_model_save_path: str | os.PathLike[str] | None = None,
        verbose: int = 0,
        *,
        seed: int | None = None,
        max_steps: int = LONGEST_EPISODE,
        exact_states: int = _EXACT_STATES,
    ) -> None:
        super().__init__(callback_after_eval, verbose)
        self.callback_on_new_best = one_callback(callback_on_new_best)
        self.eval_env = eval_env
        self.n_eval_episodes = EPISODES("n_eval_episodes", n_eval_episodes)
        self.eval_freq = checked_whole("eval_freq", eval_freq, 1)
        self.max_steps = STEPS("max_steps", max_steps)
        self.exact_states = checked_whole("exact_states", exact_states, 0)
        self.seed = None if seed is None else SEED("seed", seed)
        log_path = None if log_path is None else checked_path("log_path", log_path)
        if best_model_save_path is not None:
            best_model_save_path = checked_path("best_model_save_path", best_model_save_path)
        folder = best_model_save_path if log_path is None else log_path
        self.log_file = None if folder is None else Path(folder) / "evaluations.npz"
        self.best_model_file = (
            None if best_model_save_path is None else Path(best_model_save_path) / "best_model.npz"
        )
        self.log = EvaluationLog()
        self._failing: set[Path] = set()  # what could not be saved, which is told once
        self._forget_best()
        self._env: Any = None
        self._model: FiniteModel | None = None
        self._next = self.eval_freq

    @property
    def children(self) -> Sequence[BaseCallback]:
        """What is called after evaluations."""
        return self.callback_on_new_best, self.callback

    def _forget_best(self) -> None:
        self.last_mean_reward = self.best_mean_reward = -math.inf
        self.last_exact_value = self.best_exact_value = math.nan
        self._best_score = -math.inf
        self.has_improved = False

    def _next_step(self, after: int) -> int:
        return next_multiple(after, self.eval_freq)

    def _on_training_start(self) -> None:
        identity = self._resolve()
        # A fault of the environment shows now, and code is compiled now.
        self.model.evaluate(self._env, 1, self._stream(), max_steps=1)
        now = Evaluated(self.model.run_id, identity.name, identity.fingerprint)
        if self.num_timesteps == 0 or not self._goes_on_with_log(now):
            self._begin_afresh(now)
        self.log.cut_off(self.reported_timesteps)
        self._forget_best()
        for mean, exact in zip(self.log.means, self.log.exact_values, strict=True):
            self.has_improved = self._compare(mean, exact)
        if self.best_model_file is None or not self.best_model_file.exists():
            self.log.saved_score = -math.inf
        self._next = next_multiple(self.reported_timesteps, self.eval_freq)

    def _resolve(self) -> Identity:
        """Compile the environment, once, where that can be done, and find its model; return which it is."""
        from dist_classicrl.environments.resolve import resolve

        source = resolve(self.eval_env, 1, self.model.settings.use_action_mask)
        source.close()
        # Without the spaces that it was given, where it has some, it would be another environment.
        is_whole = source.simulator is not None and source.spaces == (None, None)
        self._env = source.simulator if is_whole else self.eval_env
        model = None if source.simulator is None else source.simulator.model
        self._model = model if model is not None and model.n_states <= self.exact_states else None
        return source.identity

    def _begin_afresh(self, now: Evaluated) -> None:
        self.log = EvaluationLog(now)
        for file in (self.log_file, self.best_model_file):
            if file is None:
                continue
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                if file.exists():
                    (moved,) = set_aside([file])
                    logger.warning("An earlier run's %s is %s now.", file.name, moved)
            except OSError as error:
                if self.num_timesteps > 0:  # what goes on unattended is not ended by that
                    logger.warning("EvalCallback cannot write to %s: %s.", file.parent, error)
                    continue
                raise SettingsError(
                    f"EvalCallback cannot write to {file.parent}: {error.strerror or error}. Give a folder "
                    "that this user may write to."
                ) from error

    def _goes_on_with_log(self, now: Evaluated) -> bool:
        """Return whether there are evaluations of the same run in the same environment; go on with them."""
        if self.log.of == now:
            return True
        if self.log_file is None:
            return False
        try:
            log = EvaluationLog.read(self.log_file)
        except OSError as error:
            logger.warning("Earlier evaluations cannot be read: %s.", error)
            return False
        if log.of != now:
            return False
        self.log = log
        return True

    def _on_step(self) -> bool:
        if self.num_timesteps < self._next:
            return True
        self._next = next_multiple(self.num_timesteps, self.eval_freq)
        asked = self._env, self.n_eval_episodes, self._stream(), self.max_steps
        try:
            played = self.model.evaluate(*asked, stops_with_training=True)
        except EvaluationStopped as stopped:
            logger.warning("No evaluation after %s steps: %s", f"{self.num_timesteps:,}", stopped)
            return True
        # After a policy that is the best there is no value is better, and means may still be higher.
        has_best_mean = played.mean_return > max(self.log.means, default=-math.inf)
        self.has_improved = self._compare(played.mean_return, self._exact_value())
        self.log.add(self.num_timesteps, played.returns, played.lengths, self.last_exact_value)
        self._tell(played.std_return, played.mean_length)
        self._save()
        assert self.progress is not None  # it came with the step
        is_new_best = self.has_improved or has_best_mean
        goes_on = not is_new_best or self.callback_on_new_best.on_step(self.progress)
        return self._on_event() and goes_on

    def improvements(self) -> list[bool]:
        """Return of each evaluation in the log, oldest first, whether it was better than those before it."""
        best, found = -math.inf, []
        for mean, exact in zip(self.log.means, self.log.exact_values, strict=True):
            score = self._score(mean, exact)
            found.append(score > best)
            best = score if found[-1] else best
        return found

    def _score(self, mean: float, exact: float) -> float:
        # Values are infinite at discount factor 1 alone, where the mean return is on the same scale.
        return mean if math.isnan(exact) else exact

    def _compare(self, mean: float, exact: float) -> bool:
        """Take in an evaluation, and return whether it is the best."""
        self.last_mean_reward, self.last_exact_value = mean, exact
        score = self._score(mean, exact)
        is_best = score > self._best_score
        if is_best:
            self._best_score, self.best_mean_reward, self.best_exact_value = score, mean, exact
        return is_best

    def _exact_value(self) -> float:
        """Return the value of the policy that is played: greedy, ties broken at random."""
        from dist_classicrl.evaluation.exact import greedy_value

        if self._model is None:
            return math.nan
        try:
            settings = self.model.settings
            return greedy_value(self._model, self._values(self._model.n_states), settings.discount_factor)
        except ConvergenceError:
            return math.nan

    def _values(self, n_states: int) -> np.ndarray:
        """Return the action values; of a table that is divided between hosts what they tell when asked."""
        values: np.ndarray | None = whole_table(self.model)
        if values is None:
            environment = self.model.learned_in
            can_ask = environment.is_numbered and environment.n_states >= n_states
            # The table itself says why it cannot be had.
            values = self.model.action_values(np.arange(n_states)) if can_ask else self.model.q_table
        return values

    def _stream(self) -> int:
        """Return the seed of this evaluation: each has other episodes, the same ones if it is made again."""
        seed = self.model.seed or 0 if self.seed is None else self.seed
        return int(stream_key(seed, "evaluation callback", self.num_timesteps) >> np.uint64(1))

    def _tell(self, std_return: float, mean_length: float) -> None:
        self.record("eval/mean_reward", self.last_mean_reward)
        self.record("eval/mean_ep_length", mean_length)
        if self._model is not None:
            self.record("eval/exact_value", self.last_exact_value)
        if self.verbose > 0:
            exact = "" if self._model is None else f"; exact value {self.last_exact_value:.6g}"
            logger.info(
                "Evaluation after %s steps: mean return %.6g +/- %.6g, mean length %.6g%s%s.",
                f"{self.num_timesteps:,}", self.last_mean_reward, std_return, mean_length, exact,
                "; the best so far" if self.has_improved else "",
            )  # fmt: skip

    def _save(self) -> None:
        score = self._score(self.last_mean_reward, self.last_exact_value)
        # Not by `has_improved`: what could not be saved is lost, and the next best takes its place.
        if self.best_model_file is not None and score > self.log.saved_score:
            if self._is_written(self.best_model_file, self.model.save_model):
                self.log.saved_score = score
        if self.log_file is not None:
            self._is_written(self.log_file, self.log.write)

    def _is_written(self, file: Path, write: Callable[[Path], Any]) -> bool:
        """Write a file, and say whether that could be done."""
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write(file)
        except (OSError, ValueError) as error:  # the latter of a table that is saved into a folder
            if file not in self._failing:
                why = str(error).rstrip(".")
                logger.warning("What EvalCallback found cannot be saved: %s. It tries again later.", why)
            self._failing.add(file)
            return False
        self._failing.discard(file)
        return True
