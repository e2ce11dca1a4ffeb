"""The registry of problems: what they are worth, that Gymnasium makes them, and that they are compiled."""

import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import click
import gymnasium
import numpy as np
import pytest
from average_reward import best_gain
from gymnasium.utils.env_checker import check_env

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.cli.main import cli
from dist_classicrl.environments import registry
from dist_classicrl.environments.labels import labels_of
from dist_classicrl.environments.named import make
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.errors import EnvError, IllegalActionError, SettingsError

PROBLEMS = registry()
MODELS = {}


def model_of(name):
    """Return a problem with its default arguments, made once for all tests."""
    if name not in MODELS:
        MODELS[name] = PROBLEMS[f"dist_classicrl/{name}"].make()
    return MODELS[name]


NAMES = [name.partition("/")[2] for name in PROBLEMS]
HAVE_OPTIMUM = [name for name in NAMES if PROBLEMS[f"dist_classicrl/{name}"].optimum is not None]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_registry_says_how_large_they_are(name):
    problem, made = PROBLEMS[f"dist_classicrl/{name}"], model_of(name)
    assert (made.n_states, made.n_actions) == (problem.n_states, problem.n_actions)
    assert made.max_episode_steps == problem.max_episode_steps == problem.arguments["max_episode_steps"]
    # How it is trained in is told, and can be typed.
    (command,) = re.findall(r"Train: ``dist-classicrl (train [^`]*)``", problem.function.__doc__)
    name, *arguments = shlex.split(command)
    context = cli.get_command(click.Context(cli), name).make_context(name, arguments)
    assert context.params["env"] == problem.id and context.params["total_steps"] >= 10**6


@pytest.mark.slow
@pytest.mark.parametrize("name", HAVE_OPTIMUM)
def test_the_best_policy_collects_what_the_registry_says(name):
    problem, model = PROBLEMS[f"dist_classicrl/{name}"], model_of(name)
    if problem.discount_factor is None:
        best = best_gain(model)[0]
    else:
        best = model.start_value(model.solve(problem.discount_factor).v)
    assert best == pytest.approx(problem.optimum, abs=6e-7, rel=1e-6)


def test_walks_have_the_values_of_the_book():
    state = np.arange(19)
    assert model_of("RandomWalk-v0").solve(1.0).v == pytest.approx((state - 9) / 10, abs=1e-8)
    small = PROBLEMS["dist_classicrl/RandomWalk-v0"].make(n_states=5, left_reward=0.0)
    assert small.solve(1.0).v == pytest.approx(np.arange(1, 6) / 6, abs=1e-8)


def test_deep_sea_can_hide_which_action_moves_to_the_right():
    deep = PROBLEMS["dist_classicrl/DeepSea-v0"].make(size=6, seed=3)
    solution = deep.solve(1.0)
    assert deep.start_value(solution.v) == pytest.approx(0.99)
    diagonal = solution.policy[np.arange(6) * 7]
    assert set(diagonal) == {0, 1}


def bold(capital, goal, p, plays=80):
    """Return the value of so many plays of bold play, from its definition."""
    if capital in (0, goal) or plays == 0:
        return float(capital == goal)
    if 2 * capital <= goal:
        return p * bold(2 * capital, goal, p, plays - 1)
    return p + (1 - p) * bold(2 * capital - goal, goal, p, plays - 1)


@pytest.mark.parametrize("p, goal", [(0.4, 100), (0.25, 64)])
def test_bold_play_is_best_for_the_gambler(p, goal):
    model = PROBLEMS["dist_classicrl/Gambler-v0"].make(p_heads=p, goal=goal)
    expected = [bold(capital, goal, p) for capital in range(1, goal)]
    assert model.solve(1.0).v[1:goal] == pytest.approx(expected, abs=1e-8)


def outcomes_of(model, state, action):
    pair = state * model.n_actions + action
    which = slice(model.outcome_ptr[pair], model.outcome_ptr[pair + 1])
    return zip(
        model.outcome_prob[which],
        model.outcome_next[which],
        model.outcome_reward[which],
        model.outcome_terminated[which],
        strict=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_gymnasium_makes_them_and_finds_nothing_wrong(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(f"dist_classicrl/{name}").unwrapped)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["RiverSwim-v0", "Blackjack-v0"])
def test_stepped_by_gymnasium_they_are_the_same_process(name):
    """How often each outcome comes, against its probability: chi squared over all pairs that were met."""
    model, env = model_of(name), gymnasium.make(f"dist_classicrl/{name}")
    rng = np.random.default_rng(1)
    expected = {(s, a): {} for s in range(model.n_states) for a in range(model.n_actions)}
    for (s, a), chances in expected.items():
        for chance, *outcome in outcomes_of(model, s, a):
            key = int(outcome[0]), round(float(outcome[1]), 9), bool(outcome[2])
            chances[key] = chances.get(key, 0.0) + chance
    met = {pair: dict.fromkeys(chances, 0) for pair, chances in expected.items()}
    state, _ = env.reset(seed=2)
    for _ in range(20_000):
        action = int(rng.integers(model.n_actions))
        after, reward, ends, is_cut, _ = env.step(action)
        met[state, action][after, round(reward, 9), ends] += 1  # an outcome that cannot be is no key
        state = env.reset()[0] if ends or is_cut else after
    squares, freedom = 0.0, 0
    for pair, counts in met.items():
        visits = sum(counts.values())
        likely = {key: chance for key, chance in expected[pair].items() if visits * chance > 5}
        squares += sum((counts[key] - visits * c) ** 2 / (visits * c) for key, c in likely.items())
        freedom += max(0, len(likely) - 1)
    assert freedom > 5 and abs(squares - freedom) < 5 * np.sqrt(2 * freedom)


def test_a_seed_makes_episodes_the_same():
    def episode(seed):
        env = gymnasium.make("dist_classicrl/RiverSwim-v0")
        env.reset(seed=seed)
        return [env.step(1)[0] for _ in range(100)]

    assert episode(3) == episode(3) != episode(4)


def test_an_id_is_learned_in_compiled_code_and_to_the_optimum():
    name = "dist_classicrl/DeepSea-v0"
    agent = DistAsyncQLearning(seed=1, discount_factor=1.0, epsilon=1.0)
    env = gymnasium.make(name, size=4)
    agent.train(env, total_steps=20_000)
    model = PROBLEMS[name].make(size=4)
    value = model.policy_value(agent.policy.greedy, 1.0)
    assert model.start_value(value) == pytest.approx(0.99)


def test_every_form_of_a_problem_is_compiled_with_its_arguments_and_its_time_limit():
    name = "dist_classicrl/RiverSwim-v0"
    for env in (name, gymnasium.make(name), make(name), gymnasium.spec(name)):
        source = resolve(env, 1, None)
        assert source.simulator is not None and source.fingerprint == model_of("RiverSwim-v0").fingerprint()
    source = resolve(make(name, {"n_states": 9, "max_episode_steps": 7}), 1, None)
    assert source.n_states == 9 and source.simulator.max_episode_steps == 7
    assert source.recipe[0] == name and source.recipe[1]["n_states"] == 9
    assert resolve(gymnasium.make(name).unwrapped, 1, None).simulator.max_episode_steps is None
    changed = gymnasium.wrappers.TransformReward(gymnasium.make(name), lambda reward: -reward)
    assert resolve(lambda: changed, 1, None).simulator is None
    assert resolve(name, 1, None, compile_env=False).simulator is None


def test_actions_have_names_where_they_are_no_numbers():
    labels = labels_of(gymnasium.make("dist_classicrl/WindyGridworld-v0"))
    assert labels.actions == ("left", "down", "right", "up") and labels.letters.shape == (7, 10)
    assert labels_of("dist_classicrl/Blackjack-v0").actions == ("stick", "hit")
    assert labels_of("dist_classicrl/MountainCar-v0").actions == ("backward", "none", "forward")
    assert labels_of("dist_classicrl/Gambler-v0").actions is None
    named = [each for each in PROBLEMS.values() if each.actions]
    assert len(named) > 10 and all(len(each.actions) >= each.n_actions for each in named)


@pytest.mark.slow
def test_gymnasium_knows_them_once_both_are_imported():
    """In either order; and nothing of Gymnasium is imported before."""
    said = "print(gymnasium.make('dist_classicrl/Chain-v0').observation_space.n)"
    first = "import dist_classicrl, sys, importlib.util; assert importlib.util.find_spec('gymnasium')"
    first += "; assert 'gymnasium' not in sys.modules; import gymnasium"
    named = "import gymnasium; print(gymnasium.make('dist_classicrl:dist_classicrl/Chain-v0').action_space.n)"
    programs = [f"{first}; {said}", f"import gymnasium, dist_classicrl; {said}", named]
    for program, printed in zip(programs, "552", strict=True):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.stdout.strip(), done.stderr) == (printed, "")


def test_what_is_not_there_is_refused():
    problem = PROBLEMS["dist_classicrl/RiverSwim-v0"]
    with pytest.raises(SettingsError, match="no argument 'n_state'. Did you mean 'n_states'"):
        problem.make(n_state=7)
    with pytest.raises(EnvError, match="no argument 'n_state'. Did you mean 'n_states'"):
        make(problem.id, {"n_state": 7})
    with pytest.raises(EnvError, match="Did you mean 'dist_classicrl/RiverSwim-v0'"):
        make("dist_classicrl/RiverSwam-v0")
    with pytest.raises(EnvError, match="Did you mean 'dist_classicrl/Chain-v0'"):
        make("Chain-v0")
    with pytest.raises(SettingsError, match="n_states must be a whole number of at least 3, got 2"):
        problem.make(n_states=2)
    with pytest.raises(SettingsError, match="n_states must be odd"):
        PROBLEMS["dist_classicrl/RandomWalk-v0"].make(n_states=4)
    env = gymnasium.make(problem.id).unwrapped
    with pytest.raises(SettingsError, match=r"gymnasium.make\('.*RiverSwim-v0', max_episode_steps=3\)"):
        type(env)(problem.id, max_episode_steps=3)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
    env.reset(seed=1)
    for wrong in (2, -1, 0.5):
        with pytest.raises(IllegalActionError, match="integer from 0 to 1"):
            env.step(wrong)


@pytest.mark.parametrize(
    "name, wrong, said",
    [
        (
            "RandomWalk-v0",
            {"n_states": 10**30 + 1},
            "2,000,000,.* outcomes, and at most 33,554,432",
        ),
        ("RiverSwim-v0", {"forward": 0.7, "backward": 0.4}, "add up to at most 1, got 0.7 and 0.4"),
        ("DeepSea-v0", {"size": 10_000}, "200,000,000 outcomes"),
        ("Gambler-v0", {"goal": 100_000}, "outcomes, and at most"),
        ("JacksCarRental-v0", {"max_cars": 60}, "outcomes, and at most"),
        ("AccessControl-v0", {"n_servers": 1_000, "payments": [1.0] * 5}, "outcomes, and at most"),
        ("AccessControl-v0", {"payments": "high"}, "payments must be a list of finite numbers"),
        ("Routing-v0", {"max_customers": 3_000}, "outcomes, and at most"),
        ("DynamicPricing-v0", {"periods": 10**6}, "outcomes, and at most"),
        ("Inventory-v0", {"highest": 1_000}, "outcomes, and at most"),
        ("Inventory-v0", {"lowest": 3}, "lowest must be a whole number of at most 0, got 3"),
        ("LostSales-v0", {"mean_demand": 1e9}, "mean_demand must be at most 10,000"),
        ("LostSales-v0", {"lead_time": 20}, "lead_time=20 makes .* states, and at most"),
        ("LostSales-v0", {"lead_time": 9, "max_stock": 5}, "1,286,153,286 states, and at most 1,073,741,823"),
        ("AccessControl-v0", {"payments": 10**400}, "payments must be a list of finite numbers"),
        ("Routing-v0", {"service_rates": [10**400, 1]}, "service_rates must be a list of finite numbers"),
        ("Gridworld-v0", {"desc": ["." * 1_000] * 400, "moves": 9}, "36,000,000 outcomes"),
        ("Chain-v0", {"slip": -0.1}, "slip must be a number from 0 to 1"),
        ("Admission-v0", {"arrival_rate": 0.0}, "arrival_rate must be a finite number above 0"),
        (
            "Admission-v0",
            {"arrival_rate": 1e308, "service_rate": 1e308},
            "arrival_rate and service_rate must add",
        ),
        ("Routing-v0", {"service_rates": [1e308, 1e308]}, "arrival_rate and service_rates must add up to"),
        ("MachineReplacement-v0", {"running_cost": float("nan")}, "running_cost must be a number"),
        ("DynamicPricing-v0", {"max_price": 1e308}, "max_price times n_prices must .* got 1e[+]308 times 16"),
        ("Chain-v0", {"max_episode_steps": 0}, "max_episode_steps must be a whole number .*, or None"),
        ("MultiProduct-v0", {"max_episode_steps": -1}, "max_episode_steps must be a whole number"),
        ("CartPole-v0", {"max_episode_steps": 1.0}, "max_episode_steps must be a whole number"),
    ],
)
def test_what_is_too_large_or_makes_no_sense_is_refused(name, wrong, said):
    with pytest.raises(SettingsError, match=said):
        PROBLEMS[f"dist_classicrl/{name}"].make(**wrong)


def test_the_gallery_shows_them_all():
    docs = Path(__file__).resolve().parents[2] / "docs"
    page, reference = (docs / "problems.md").read_text(), (docs / "reference" / "problems.md").read_text()
    for name in NAMES:
        problem = PROBLEMS[f"dist_classicrl/{name}"]
        (row,) = (line for line in page.splitlines() if f"[`{name}`]" in line)
        assert problem.summary in row and problem.source in row
        assert f"{problem.n_states:,} x {problem.n_actions}" in row
        assert problem.optimum is None or f"{problem.optimum:.6g}" in row
        assert f"::: {problem.path.replace(':', '.')}\n" in reference
        assert (
            f"figures/problems/{name}.png" in row and (docs / "figures" / "problems" / f"{name}.png").exists()
        )
