"""Planning and learning: Dyna-Q, mazes that change, and prioritized sweeping."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.plotting import canvas
from dist_classicrl.rules import DynaQ, PrioritizedSweeping
from textbook_chapters.common import Check, Drawn, Followed, exploring, follow, lines, problem

_MAZE = (".......#G", "..#....#.", "S.#....#.", "..#......", ".....#...", ".........")
_FEW = 8  # steps between two reports: no episode of these mazes is shorter, so that each is seen by itself


def _maze(rows: tuple[str, ...], step_reward: float = 0.0) -> TabularMDP:
    return problem("Gridworld", desc=rows, step_reward=step_reward, goal_reward=1.0, max_episode_steps=None)


def _shortest(rows: tuple[str, ...]) -> float:
    counted = _maze(rows, -1.0)
    return 1.0 - counted.start_value(counted.solve(1.0).v)


@canvas.styled
def dyna_maze(quick: bool) -> Drawn:
    """Draw example 8.1 and figure 8.2: steps of each episode in the Dyna maze, by planning steps.

    A run has reached its best where the mean of its kind is within half of the shortest way, 14 steps.
    """
    runs = 4 if quick else 30
    figure, axes = lines()
    model, reached, late = _maze(_MAZE), {}, {}
    for planning in (0, 5, 50):
        lengths = []
        for seed in range(runs):
            agent = DistAsyncQLearning(
                algorithm=DynaQ(planning), learning_rate=0.1, epsilon=0.1, discount_factor=0.95, seed=seed
            )
            lengths.append(follow(agent, model, 10**6, _FEW, episodes=50).lengths[:50])
        mean = np.mean(lengths, axis=0)
        axes.plot(np.arange(2, 51), mean[1:], label=f"{planning} planning steps")
        reached[planning] = int(np.argmax(mean < 1.5 * 14.0)) + 1
        late[planning] = float(mean[-20:].mean())
    axes.set(xlabel="episodes", ylabel="steps in the episode", ylim=(0, 800))
    axes.legend()
    counted = _maze(_MAZE, -1.0)
    best = counted.solve(1.0).q.argmax(axis=1)
    exact = 1.0 - counted.start_value(counted.policy_value(exploring(counted, best, 0.1), 1.0))
    return figure, [
        Check("shortest way", _shortest(_MAZE), 14.0, 1e-9),
        Check("episodes to the best way, 0 planning steps", reached[0], 25, 10),
        Check("episodes to the best way, 5 planning steps", reached[5], 5, 2),
        Check("episodes to the best way, 50 planning steps", reached[50], 3, 1),
        Check("steps of the last 20 episodes, 50 planning steps", late[50], exact, 2.5, "linear equations"),
    ]


@dataclass(frozen=True)
class _Change:
    """A maze that changes, and how it is learned."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    at: int
    until: int
    planning_steps: int
    bonus: float


_BLOCKING = _Change(
    ("........G", ".........", ".........", "########.", ".........", "...S....."),
    ("........G", ".........", ".........", ".########", ".........", "...S....."),
    1_000,
    3_000,
    10,
    1e-3,
)
_SHORTCUT = _Change(
    ("........G", ".........", ".........", ".########", ".........", "...S....."),
    ("........G", ".........", ".........", ".#######.", ".........", "...S....."),
    3_000,
    6_000,
    50,
    1e-3,
)


def _changed(change: _Change, bonus: float, seed: int) -> tuple[Followed, Followed]:
    """Train in the one maze and then in the other; the episode under way at the change begins anew."""
    agent = DistAsyncQLearning(
        algorithm=DynaQ(change.planning_steps, bonus),
        learning_rate=1.0,
        epsilon=0.1,
        discount_factor=0.95,
        seed=seed,
    )
    before = follow(agent, _maze(change.before), change.at, _FEW)
    return before, follow(agent, _maze(change.after), change.until - change.at, _FEW, new_env=True)


def _draw_change(change: _Change, runs: int) -> tuple[Figure, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Draw cumulative rewards; return those at the end, and the shortest of the last 10 episodes."""
    figure, axes = lines()
    rewards, shortest = {}, {}
    for name, bonus in (("Dyna-Q+", change.bonus), ("Dyna-Q", 0.0)):
        pairs = [_changed(change, bonus, seed) for seed in range(runs)]
        steps = np.append(pairs[0][0].steps, change.at + pairs[0][1].steps)
        sums = np.array([np.append(one.episodes, one.episodes[-1] + two.episodes) for one, two in pairs])
        axes.plot(steps, sums.mean(axis=0), label=name)
        rewards[name] = sums[:, -1]
        shortest[name] = np.array([two.lengths[-10:].min(initial=np.inf) for _, two in pairs])
    axes.axvline(change.at, color=canvas.BLACK, linestyle="--", linewidth=0.8, label="the maze changes")
    axes.set(xlabel="time steps", ylabel="cumulative reward", title=f"mean of {runs} runs")
    axes.legend()
    return figure, rewards, shortest


@canvas.styled
def blocking_maze(quick: bool) -> Drawn:
    """Draw example 8.2 and figure 8.4: after 1,000 steps a longer way takes the place of the way."""
    figure, rewards, shortest = _draw_change(_BLOCKING, 4 if quick else 30)
    return figure, [
        Check("shortest way before", _shortest(_BLOCKING.before), 10.0, 1e-9),
        Check("shortest way after", _shortest(_BLOCKING.after), 16.0, 1e-9),
        Check(
            "runs of Dyna-Q+ that find the new way, share",
            float((shortest["Dyna-Q+"] <= 20).mean()),
            0.9,
            sign=">=",
        ),
        Check(
            "reward of Dyna-Q+ to that of Dyna-Q",
            float(rewards["Dyna-Q+"].mean() / rewards["Dyna-Q"].mean()),
            1.0,
            sign=">=",
        ),
    ]


@canvas.styled
def shortcut_maze(quick: bool) -> Drawn:
    """Draw example 8.3 and figure 8.5: after 3,000 steps there is a shorter way besides."""
    figure, rewards, shortest = _draw_change(_SHORTCUT, 4 if quick else 30)
    return figure, [
        Check("shortest way before", _shortest(_SHORTCUT.before), 16.0, 1e-9),
        Check("shortest way after", _shortest(_SHORTCUT.after), 10.0, 1e-9),
        Check(
            "runs of Dyna-Q+ that take the shortcut, share",
            float((shortest["Dyna-Q+"] < 16).mean()),
            0.9,
            sign=">=",
        ),
        Check(
            "runs of Dyna-Q that take the shortcut, share",
            float((shortest["Dyna-Q"] < 16).mean()),
            0.1,
            sign="<=",
        ),
        Check(
            "reward of Dyna-Q+ to that of Dyna-Q",
            float(rewards["Dyna-Q+"].mean() / rewards["Dyna-Q"].mean()),
            1.0,
            sign=">=",
        ),
    ]


@canvas.styled
def prioritized_sweeping(quick: bool) -> Drawn:
    """Draw example 8.4: updates until the greedy way is a shortest one, in finer and finer mazes.

    Both make 5 planning steps at most for each step. Those of prioritized sweeping are counted from the first
    reward on, also where its queue was empty. Its values become the means of its model at once; Dyna-Q's
    step size is 0.5. Epsilon is 0.3, for with 0.1 ways to a shorter one may stay unmet for long. Drawn is the
    median of runs.
    """
    scales, runs = ((1, 2), 5) if quick else ((1, 2, 3), 7)
    figure, axes = lines()
    updates: dict[str, list[float]] = {}
    sizes = []
    for scale in scales:
        rows = _finer(scale)
        model = _maze(rows)
        sizes.append(sum(row.count(".") for row in rows) + 1)
        for name, rule in (("prioritized sweeping", PrioritizedSweeping(5)), ("Dyna-Q", DynaQ(5))):
            found = [_updates(model, rule, round(_shortest(rows)), seed) for seed in range(runs)]
            updates.setdefault(name, []).append(float(np.median(found)))
    for name, found in updates.items():
        axes.plot(sizes, found, "o-", label=name)
    axes.set(xscale="log", yscale="log", xlabel="states", ylabel="updates until the way is shortest")
    axes.legend()
    ratios = np.array(updates["Dyna-Q"]) / updates["prioritized sweeping"]
    return figure, [
        Check(f"updates of Dyna-Q to those of the other, {size:,} states", float(ratio), 2.0, sign=">=")
        for size, ratio in zip(sizes, ratios, strict=True)
    ]


def _finer(scale: int) -> tuple[str, ...]:
    """Return the Dyna maze with scale * scale cells for each; the start and the goal are one of them."""
    rows = [["".join(cell * scale for cell in row)] * scale for row in _MAZE]
    flat = [list(row) for many in rows for row in many]
    for letter in "SG":
        cells = [(r, c) for r, row in enumerate(flat) for c, cell in enumerate(row) if cell == letter]
        for r, c in cells[1:]:
            flat[r][c] = "."
    return tuple("".join(row) for row in flat)


def _updates(model: TabularMDP, rule: DynaQ | PrioritizedSweeping, shortest: int, seed: int) -> float:
    """Return the updates until the greedy way from the start is a shortest one, or infinity."""
    agent = DistAsyncQLearning(algorithm=rule, epsilon=0.3, discount_factor=0.95, seed=seed)
    if isinstance(rule, DynaQ):  # the other has no step size
        agent.learning_rate = 0.5
    after = model.outcome_next.reshape(model.n_states, model.n_actions, -1)[:, :, 0]
    start = int(model.start_prob.argmax())
    goal = int(model.outcome_next[model.outcome_reward > 0.5][0])

    def arrives(agent: DistAsyncQLearning) -> bool:
        state = start
        for _ in range(shortest):
            values = agent.q_table[state]
            if values.max() <= 0.0:
                return False
            state = int(after[state, values.argmax()])
        return state == goal

    run = follow(agent, model, 200_000, 50, arrives, until=True)
    if not run.looks[-1]:
        return np.inf
    last = int(run.steps[-1])
    rewarded = int(run.steps[np.searchsorted(run.episodes, 1)])
    # Until there is a reward nothing would change, and so nothing waits to be swept.
    planning = last - rewarded if isinstance(rule, PrioritizedSweeping) else last
    return float(last + 5 * planning)
