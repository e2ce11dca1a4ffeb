"""The random walk of 19 states: n-step TD in chapter 7, lambda-returns in chapter 12."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.plotting import canvas
from dist_classicrl.rules import TD
from textbook_chapters.common import Check, Drawn, follow, lines, problem

_TRUTH = np.arange(1, 20) / 10.0 - 1.0
_TRUNCATED = 16  # steps after which a return is truncated that is learned on the way
_LONGEST = 2_048  # steps: of the episodes, whose mean is 100, nearly none is longer


def _error(rule: TD, rate: float, runs: int) -> float:
    """Return the RMS error over the states after each of ten episodes, the mean of these and runs."""
    model = problem("RandomWalk")
    errors = []
    for seed in range(runs):
        agent = DistAsyncQLearning(algorithm=rule, learning_rate=rate, discount_factor=1.0, seed=seed)
        run = follow(agent, model, 100_000, 10, lambda agent: _rms(agent.q_table[:, 0]), episodes=10)
        errors.append(run.at_episodes(np.arange(1, 11)).mean())
    return float(np.mean(errors))


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(((values - _TRUTH) ** 2).mean()))


def _walk(random: np.random.Generator) -> tuple[list[int], float]:
    """Return the states of an episode and the reward at its end."""
    states = [9]
    while 0 <= states[-1] < 19:
        states.append(states[-1] + (1 if random.random() < 0.5 else -1))
    return states[:-1], 1.0 if states[-1] == 19 else -1.0


def _twin(learn: Callable[[np.ndarray, list[int], float], None], runs: int = 200) -> float:
    """Return what `_error` returns, by plain loops that learn an episode of their own."""
    random, errors = np.random.default_rng(1), []
    for _ in range(runs):
        v = np.zeros(19)
        for _ in range(10):
            learn(v, *_walk(random))
            errors.append(_rms(v))
    return float(np.mean(errors))


def _n_steps(v: np.ndarray, states: list[int], reward: float, n: int, rate: float) -> None:
    """Learn an episode as equation 7.2 says."""
    for t, state in enumerate(states):
        target = v[states[t + n]] if t + n < len(states) else reward
        v[state] += rate * (target - v[state])


def _returns(v: np.ndarray, states: list[int], reward: float, decay: float, rate: float) -> None:
    """Learn the lambda-returns (equation 12.2) of an episode at its end, the newest first."""
    before, target = v.copy(), reward
    for t in range(len(states) - 1, -1, -1):
        if t < len(states) - 1:
            target = (1.0 - decay) * before[states[t + 1]] + decay * target
        v[states[t]] += rate * (target - v[states[t]])


def _truncated(v: np.ndarray, states: list[int], reward: float, decay: float, rate: float) -> None:
    """Learn truncated lambda-returns (equation 12.9) on the way, and what is left at the end."""
    kept: list[tuple[int, float]] = []  # a state, and what its return has of the value of the next one
    for t, state in enumerate(states[:-1]):
        ahead = float(v[states[t + 1]])
        kept.append((state, (1.0 - decay) * ahead))
        if len(kept) == _TRUNCATED:
            target = ahead
            for _, constant in kept[-2::-1]:
                target = constant + decay * target
            oldest, _ = kept.pop(0)
            v[oldest] += rate * (target - v[oldest])
    target = reward
    v[states[-1]] += rate * (target - v[states[-1]])
    for state, constant in reversed(kept):
        target = constant + decay * target
        v[state] += rate * (target - v[state])


def _traces(v: np.ndarray, states: list[int], reward: float, decay: float, rate: float) -> None:
    """Learn by TD(lambda) with accumulating traces (equations 12.5 to 12.7)."""
    trace = np.zeros(v.size)
    for t, state in enumerate(states):
        trace *= decay
        trace[state] += 1.0
        target = v[states[t + 1]] if t + 1 < len(states) else reward
        v += rate * (target - v[state]) * trace


def _curves(
    rules: Sequence[TD], labels: Sequence[str], rates: Sequence[float], runs: int, title: str
) -> tuple[Figure, dict[int, float], dict[tuple[int, float], float]]:
    """Draw a line for each rule; return each one's least error, and the error of each rule and step size."""
    figure, axes = lines(5.0)
    best, every = {}, {}
    for number, (rule, label) in enumerate(zip(rules, labels, strict=True)):
        errors = [_error(rule, rate, runs) for rate in rates]
        color, style = canvas.line_look(number)
        axes.plot(rates, errors, linestyle=style, color=color, label=label)
        best[number] = min(errors)
        every |= {(number, rate): error for rate, error in zip(rates, errors, strict=True)}
    axes.set(xlabel="step size", ylabel="mean RMS error", ylim=(0.2, 0.56), title=title)
    canvas.legend_below(figure, axes.lines, len(rules))
    return figure, best, every


@canvas.styled
def n_step_td(quick: bool) -> Drawn:
    """Draw example 7.1 and figure 7.2: the error of n-step TD, by n and step size."""
    ns = (1, 2, 4, 8) if quick else (1, 2, 4, 8, 16, 32, 64)
    rates = (0.2, 0.4, 0.8) if quick else (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
    runs = 4 if quick else 20
    figure, best, every = _curves(
        [TD(n) for n in ns], [f"n = {n}" for n in ns], rates, runs, f"n-step TD, the mean of {runs} runs"
    )
    plain = {n: _twin(partial(_n_steps, n=n, rate=0.4)) for n in (1, 4)}
    spread = 0.16 / np.sqrt(runs)  # four standard errors
    return figure, [
        Check("error, n = 4, step size 0.4", every[2, 0.4], plain[4], spread, "plain loops"),
        Check("error, n = 1, step size 0.4", every[0, 0.4], plain[1], 0.02, "plain loops"),
        Check("least error, n = 1, to that of n = 4", best[0] / best[2], 1.05, sign=">="),
        Check("n of the least error", float(ns[min(best, key=best.__getitem__)]), 4.0, 4.0),
    ]


@canvas.styled
def lambda_returns(quick: bool) -> Drawn:
    """Draw figure 12.3: the error of offline lambda-returns, by lambda and step size.

    `TD` with n beyond the episode's length learns at the end of it. It is compared with plain loops, too.
    """
    decays = (0.0, 0.8, 1.0) if quick else (0.0, 0.4, 0.8, 0.9, 0.95, 0.99, 1.0)
    rates = (0.1, 0.3, 0.6) if quick else (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
    runs = 4 if quick else 20
    rules = [TD(_LONGEST, decay) for decay in decays]
    figure, best, every = _curves(
        rules, [f"lambda = {decay}" for decay in decays], rates, runs, f"lambda-returns, mean of {runs} runs"
    )
    at = decays.index(0.8)
    spread = 0.16 / np.sqrt(runs)  # four standard errors
    plain = _twin(partial(_returns, decay=0.8, rate=0.3))
    return figure, [
        Check("error, lambda = 0.8, step size 0.3", every[at, 0.3], plain, spread, "plain loops"),
        Check("least error, lambda = 1, to that of 0.8", best[len(decays) - 1] / best[at], 1.1, sign=">="),
    ]


@canvas.styled
def truncated_returns(quick: bool) -> Drawn:
    """Draw figure 12.6: the error of lambda-returns that are learned on the way, by lambda and step size.

    The book's are learned by traces, which a merged table cannot have: these are truncated after 16 steps
    (section 12.3), as `TD` has them. Their least error is that of plain loops with traces.
    """
    decays = (0.0, 0.8, 0.9) if quick else (0.0, 0.4, 0.8, 0.9, 0.95, 1.0)
    rates = (0.2, 0.4, 0.8) if quick else (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
    runs = 4 if quick else 20
    rules = [TD(_TRUNCATED, decay) for decay in decays]
    title = f"truncated lambda-returns, mean of {runs} runs"
    figure, best, every = _curves(rules, [f"lambda = {decay}" for decay in decays], rates, runs, title)
    at = decays.index(0.8)
    spread = 0.16 / np.sqrt(runs)  # four standard errors
    plain = _twin(partial(_truncated, decay=0.8, rate=0.4))
    traces = min(_twin(partial(_traces, decay=0.8, rate=rate), 100) for rate in (0.2, 0.3, 0.4))
    return figure, [
        Check("error, lambda = 0.8, step size 0.4", every[at, 0.4], plain, spread, "plain loops"),
        Check("least error, lambda = 0.8", best[at], traces, spread, "plain loops, traces"),
        Check("least error, lambda = 0, to that of 0.8", best[0] / best[at], 1.1, sign=">="),
    ]
