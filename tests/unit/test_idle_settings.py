"""Settings that play no part: said once to whoever trains, and refused where a study varies them."""

import json
import logging
import math
import re

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TransformReward

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.data import Transitions
from dist_classicrl.engines.engine import Layout, engine_for
from dist_classicrl.engines.idle import idle_in_learn, idle_in_study, idle_settings, told
from dist_classicrl.errors import SettingsError, StudyError
from dist_classicrl.rules import (
    TD,
    Boltzmann,
    DynaQ,
    PrioritizedSweeping,
    QLambda,
    SarsaLambda,
    UCBQLearning,
    registry,
)
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings
from dist_classicrl.sweep import Range, Study, Sweep
from dist_classicrl.sweep.choosing import idle
from dist_classicrl.sweep.choosing.idle import possible
from dist_classicrl.sweep.folder import PLAN

LAKE, COMPILED = "FrozenLake-v1", Layout(is_compiled=True)
RIVER = "dist_classicrl/RiverSwim-v0"  # which goes on for ever
RIVER_AND_LAKE = [RIVER, LAKE]


def stepped_lake():
    return TransformReward(gymnasium.make(LAKE), float)


EVENLY = np.full((16, 4), 0.25)
LOGGED = {"states": [0, 1], "actions": [0, 1], "rewards": [0.0, 1.0], "next_states": [1, 0]}
LOGGED |= {"terminated": [False, True]}


def said(records):
    return [each.getMessage() for each in records if " no part " in each.getMessage()]


def idle_of(settings, ranks=1, layout=COMPILED, placement="auto"):
    return idle_settings(settings, engine_for(settings, ranks, placement, layout), layout)


WITHOUT_PART = [
    ("epsilon", {"behavior": "ucb"}, 0.1, 0.8),
    ("epsilon", {"behavior": Boltzmann(0.1), "algorithm": "sarsa"}, 0.1, 0.8),
    ("epsilon", {"behavior": EVENLY, "algorithm": "expected_sarsa"}, 0.1, 0.8),
    ("epsilon", {"algorithm": TD()}, 0.1, 0.8),
    ("learning_rate", {"algorithm": "prioritized_sweeping"}, 0.1, 0.8),
    ("learning_rate", {"algorithm": "ucb_q_learning"}, 0.1, 0.8),
    ("trace_decay", {}, TD(n=1, trace_decay=0.5), TD(n=1)),
    ("trace_decay", {}, SarsaLambda(n=1, trace_decay=0.5), SarsaLambda(n=1)),
    ("variant", {}, QLambda(n=1, variant="peng"), QLambda(n=1)),
    ("bonus", {}, DynaQ(planning_steps=0, bonus=5.0), DynaQ(planning_steps=0)),
    ("threshold", {}, PrioritizedSweeping(0, threshold=5.0), PrioritizedSweeping(0)),
    ("buffer_size", {}, 5, 10_000),
    ("logical_workers", {}, 3, 16),
    ("n_envs", {}, 3, 16),
    ("max_replacements", {}, 3, 1),
    ("prefetch_factor", {"async_updates": False}, 2, 7),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "others", "one", "other"), WITHOUT_PART)
def test_what_is_said_to_play_no_part_changes_no_bit(name, others, one, other):
    setting = name if hasattr(Settings, name) else "algorithm"
    tables = []
    for value in (one, other):
        agent = DistAsyncQLearning(seed=1, **{**others, setting: value})
        assert name in idle_of(agent.settings)
        agent.train(LAKE, total_steps=2_000)
        tables.append(agent.q_table)
    assert np.array_equal(*tables) and tables[0].any()


@pytest.mark.slow
def test_an_average_reward_is_learned_alike_at_any_discount():
    tables = []
    for discount in (0.5, 0.99):
        agent = DistAsyncQLearning(seed=1, algorithm="differential_q_learning", discount_factor=discount)
        assert "discount_factor" not in idle_of(agent.settings)  # scores are discounted
        agent.train("dist_classicrl/AccessControl-v0", total_steps=2_000)
        tables.append(agent.q_table)
    assert np.array_equal(*tables) and tables[0].any()


@pytest.mark.parametrize(
    ("settings", "ranks", "layout", "placement", "names"),
    [
        ({}, 1, COMPILED, "auto", set()),
        ({"on_failure": "replace", "max_replacements": 1}, 3, COMPILED, "auto", set()),
        ({"topology": "tree"}, 3, COMPILED, "auto", {"topology"}),
        ({"topology": "tree"}, 3, Layout(hosts=2), "auto", set()),
        ({"topology": "tree", "tree_group_size": 3}, 4, COMPILED, "auto", set()),
        ({"topology": "decentralized", "prefetch_factor": 3}, 3, COMPILED, "auto", {"prefetch_factor"}),
        ({"n_envs": 3}, 3, COMPILED, "auto", {"n_envs"}),
        ({"n_envs": 3}, 3, Layout(), "auto", set()),
        ({"n_envs": 3, "async_updates": False}, 3, Layout(), "sharded", {"n_envs"}),
        ({"timeout": 9.0, "sync_frequency": 3, "batch_size": 8}, 1, COMPILED, "auto", set()),
    ],
)
def test_what_plays_a_part_depends_on_where_it_is_trained(settings, ranks, layout, placement, names):
    made = Settings(**settings)
    idle = idle_of(made, ranks, layout, placement)
    assert {name for name in settings if name in idle and told(made, {name: idle[name]})} == names


def test_only_what_was_given_is_told_and_the_default_is_that_of_the_rule():
    idle = {"epsilon": "here.", "learning_rate": "here."}
    assert told(Settings(), idle) == ""
    assert told(Settings(algorithm="ucb_q_learning", epsilon=0.0), idle) == ""
    given = Settings(algorithm=UCBQLearning(horizon=3), epsilon=0.1, learning_rate=PerVisit(0.6))
    rate = "learning_rate=PerVisit(0.6)"
    assert told(given, idle) == f"epsilon=0.1, {rate} play no part here."
    assert told(given, {"horizon": "here.", "bonus": "here."}) == "horizon=3 plays no part here."


def test_what_an_engine_or_a_rule_of_ones_own_heeds_is_for_it_to_say():
    class Own:
        name = "own"

        def suits(self, settings, ranks):
            return True

        def train(self, run, group, start):
            raise AssertionError

    settings = Settings(logical_workers=3, n_envs=3, behavior="ucb", epsilon=0.1)
    assert set(idle_settings(settings, Own(), COMPILED)) == {"epsilon", "buffer_size"}
    assert registry.registered("q_learning").idle is None


def test_training_says_once_what_was_given_in_vain(caplog):
    agent = DistAsyncQLearning(seed=1, behavior="ucb", epsilon=0.1, buffer_size=50)
    for _ in range(2):
        agent.train(LAKE, total_steps=50)
    (message,) = said(caplog.records)
    assert message.startswith('epsilon=0.1 plays no part with behavior="ucb", which takes the action of')
    assert 'write behavior="epsilon_greedy", or leave that out. buffer_size=50 plays no part' in message
    assert [each.levelno for each in caplog.records if each.getMessage() == message] == [logging.WARNING]
    agent.epsilon = 0.2
    agent.train(LAKE, total_steps=50)
    assert len(said(caplog.records)) == 2 and "epsilon=0.2" in said(caplog.records)[1]


def test_nothing_is_said_of_defaults_which_are_schedules_of_the_call(caplog):
    for settings in ({"behavior": "ucb"}, {"algorithm": "td"}, {"algorithm": "prioritized_sweeping"}):
        agent = DistAsyncQLearning(seed=1, **settings)
        agent.train(LAKE, total_steps=50)
        agent.train(LAKE, total_steps=50)
    assert said(caplog.records) == []


@pytest.mark.parametrize(
    ("vary", "settings", "message"),
    [
        ({"logical_workers": [2, 4]}, {}, "logical_workers, which plays no part with async_updates=True"),
        ({"timeout": [60, 600]}, {}, "timeout, which plays no part in a study, whose runs learn alone"),
        ({"sync_frequency": ["auto", 32]}, {}, "sync_frequency, which plays no part in a study"),
        ({"compression": ["none", "delta"]}, {}, "compression, which plays no part in a study"),
        (
            {"max_replacements": [1, 2]},
            {"on_failure": "replace"},
            "max_replacements, which plays no part in a",
        ),
        ({"buffer_size": [10, 20]}, {}, "buffer_size, which plays no part with replay_ratio=0"),
        ({"n_envs": [1, 2]}, {}, "n_envs, which plays no part where the environment is compiled"),
        ({"batch_size": [1, 2]}, {}, "batch_size, which plays no part where nothing is pushed"),
        ({"max_states": [100, 200]}, {}, "max_states, which plays no part where states are counted"),
        (
            {"epsilon": [0.1, 0.2]},
            {"behavior": "boltzmann"},
            'epsilon, which plays no part with behavior="bo',
        ),
        (
            {"learning_rate": [0.1, 0.2]},
            {"algorithm": "prioritized_sweeping"},
            "learning_rate, which plays no part with the algorithm prioritized_sweeping",
        ),
        ({"topology": ["flat", "tree"]}, {}, 'topology="tree" needs several ranks'),
        ({}, {"topology": "decentralized"}, 'topology="decentralized" needs several ranks'),
        ({"min_workers": [0, 2]}, {}, "min_workers=2 asks for a server and 2 workers, but 1 process trains"),
    ],
)
def test_a_study_of_what_changes_nothing_is_refused_before_it_runs(vary, settings, message, tmp_path):
    with pytest.raises(StudyError) as caught:
        Sweep(LAKE, 1_000, 2, settings, vary, folder=tmp_path / "study")
    assert message in str(caught.value) and not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("vary", "settings"),
    [
        ({"epsilon": [0.1, 0.2], "behavior": ["ucb", "epsilon_greedy"]}, {}),
        ({"logical_workers": [2, 4], "async_updates": [True, False]}, {}),
        ({"sync_frequency": [32, 64]}, {"async_updates": False}),
        ({"buffer_size": [10, 20], "replay_ratio": [0.0, 1.0]}, {}),
        ({"on_failure": ["continue", "replace"]}, {"async_updates": False}),
        ({"discount_factor": [0.5, 0.99]}, {"algorithm": "differential_q_learning"}),
    ],
)
def test_a_study_may_vary_what_plays_a_part_in_one_of_its_variants(vary, settings, tmp_path):
    sweep = Sweep(RIVER, 1_000, 2, settings, vary, folder=tmp_path)
    assert sweep.plan.n_variants == math.prod(map(len, vary.values()))


IMPOSSIBLE = [  # a problem, settings, those that vary, and why some of them cannot be had
    (
        LAKE,
        {},
        {"replay_ratio": [0.0, 1.0], "algorithm": ["q_learning", "sarsa"]},
        "which the rule 'sarsa' ca",
    ),
    (LAKE, {"algorithm": "differential_q_learning"}, {}, "FrozenLake-v1 has episodes that terminate"),
    (RIVER_AND_LAKE, {"algorithm": "differential_q_learning"}, {}, "FrozenLake-v1 has episodes that termina"),
    (LAKE, {}, {"algorithm": ["q_learning", DynaQ(successors=1)]}, "fewer outcomes than a pair of Frozen"),
    (LAKE, {}, {"behavior": ["ucb", np.full((9, 4), 0.25)]}, "has the shape (9, 4), and FrozenLake-v1 ne"),
    ({"stepped": stepped_lake}, {}, {"exploring_starts": [False, True]}, "which takes a known model"),
]


@pytest.mark.parametrize(("env", "settings", "vary", "why"), IMPOSSIBLE)
def test_settings_that_cannot_be_trained_are_refused_before_any_run(env, settings, vary, why, tmp_path):
    with pytest.raises(StudyError, match="A variant cannot be trained: .*" + re.escape(why)) as caught:
        Sweep(env, 1_000, 2, settings, vary, folder=tmp_path / "study")
    assert ("Make a study of each part" in str(caught.value)) != (not vary and env == LAKE)
    if vary:  # a search may come to what can be trained
        Sweep(env, 1_000, 2, settings, vary, "random", 1, folder=tmp_path / "study")
        return
    with pytest.raises(StudyError, match="A variant cannot be trained: .*" + re.escape(why)):
        Sweep(env, 1_000, 2, settings, vary, "random", 1, folder=tmp_path / "study")
    assert not (tmp_path / "study").exists()


def refuses_closed(parameters, source):
    if source.stepped is not None:
        source.stepped.reset(0)


@pytest.mark.parametrize("check", [refuses_closed, lambda *_: 1 // 0])
def test_what_a_rule_of_ones_own_raises_by_mistake_is_left_to_its_runs(check, monkeypatch, tmp_path):
    monkeypatch.setattr(idle, "check_source", check)
    sweep = Sweep({"stepped": stepped_lake}, 1_000, 2, folder=tmp_path / "study")
    assert sweep.plan.n_variants == 1


def test_what_is_legal_is_judged_where_all_runs_mask_actions_alike(tmp_path):
    policy = np.full((338, 9), 1.0 / 9.0)  # also where an action is illegal
    with pytest.raises(StudyError, match="where it is illegal"):
        Sweep("tictactoe", 1_000, 2, {"behavior": policy}, folder=tmp_path / "refused")
    varied = {"use_action_mask": [False]}
    sweep = Sweep("tictactoe", 1_000, 2, {"behavior": policy}, varied, folder=tmp_path / "study")
    assert sweep.plan.n_variants == 1


@pytest.mark.slow
def test_a_study_that_was_begun_with_what_cannot_be_trained_is_read_and_goes_on(tmp_path, monkeypatch):
    env, settings, vary, why = IMPOSSIBLE[0]
    given = {"settings": settings, "vary": vary, "eval_episodes": 2, "folder": tmp_path}
    with monkeypatch.context() as patched:
        patched.setattr("dist_classicrl.sweep.sweep.check_part", lambda *_: "")
        Sweep(env, 500, 1, **given).begin()
    study = Sweep(env, 500, 2, **given).run(processes=1)
    assert (study.done, study.failed) == (6, 2) and len(Study(tmp_path).variants()) == 4
    assert all(why in row["error"] for row in study.rows() if row["error"] is not None)


SEARCHED = [  # more than the lists themselves: several settings, or an end of a range, make the difference
    ({"behavior": ["ucb", "epsilon_greedy"], "epsilon": Range(0.05, 0.5)}, {}),
    ({"behavior": ["ucb", "epsilon_greedy"], "learning_rate": Range(0.05, 0.5)}, {"epsilon": 0.2}),
    ({"buffer_size": [10, 20], "replay_ratio": Range(0.0, 1.0)}, {}),
]


@pytest.mark.parametrize(("vary", "settings"), SEARCHED)
@pytest.mark.parametrize("search", ["random", pytest.param("tpe", marks=pytest.mark.slow)])
def test_a_search_is_judged_by_what_it_may_come_to_and_not_by_its_first_draws(
    vary, settings, search, tmp_path
):
    if search == "tpe":
        pytest.importorskip("optuna")
    for seed in range(12):
        made = Sweep(
            LAKE, 1_000, 2, settings, vary, search, n_variants=2, search_seed=seed, folder=tmp_path / "study"
        )
        assert made._told == ""


def test_a_search_through_what_plays_no_part_is_refused_whatever_it_draws(tmp_path):
    for vary, message in (
        ({"epsilon": Range(0.1, 0.2), "behavior": ["ucb", "boltzmann"]}, "vary has epsilon, which plays no"),
        ({"topology": ["flat", "tree"], "epsilon": Range(0.1, 0.2)}, 'topology="tree" needs several ranks'),
        ({name: list(range(10, 50)) for name in ("buffer_size", "timeout")}, "vary has buffer_size"),
    ):
        for seed in range(8):
            with pytest.raises(StudyError, match=re.escape(message)):
                Sweep(LAKE, 1_000, 2, {}, vary, "random", 1, seed, folder=tmp_path / "study")
    with pytest.raises(StudyError, match="state_size=10 makes a table of more states"):
        vary = {"epsilon": Range(0.1, 0.2)}
        Sweep(
            LAKE, 1_000, 2, {"state_size": 10, "max_states": 3}, vary, "random", 2, folder=tmp_path / "study"
        )


def test_combinations_that_cannot_be_are_left_out_of_what_a_search_may_come_to():
    found = possible({"epsilon": 0.2}, {"dtype": ["float32", "float64"], "initial_value": [0.0, 1e39]})
    values = [(each.dtype, each.initial_value) for each in found]
    assert values == [("float32", 0.0), ("float64", 0.0), ("float64", 1e39)]
    with pytest.raises(StudyError, match="does not fit into a table of float32"):
        possible({"dtype": "float32"}, {"initial_value": [1e39, 2e39]})


def test_a_study_of_an_environment_that_is_stepped_may_vary_how_it_is_stepped():
    idle = idle_in_study(Settings(), engine_for(Settings(), 1, "auto"), Layout())
    assert {"n_envs", "batch_size", "max_states"}.isdisjoint(idle) and "prefetch_factor" in idle


@pytest.mark.slow
def test_the_runs_of_a_study_say_nothing_and_the_study_once_what_none_of_them_heeds(caplog, tmp_path):
    vary = {"algorithm": ["q_learning", "prioritized_sweeping"]}
    study = Sweep(LAKE, 500, 2, {"learning_rate": 0.1}, vary, eval_episodes=2, folder=tmp_path / "one")
    assert study.run(processes=1).failed == 0 and said(caplog.records) == []
    common = {"algorithm": "prioritized_sweeping", "learning_rate": 0.1, "timeout": 60}
    vary = {"discount_factor": [0.9, 0.99]}
    Sweep(LAKE, 500, 2, common, vary, eval_episodes=2, folder=tmp_path / "other").run(processes=1)
    (message,) = said(caplog.records)
    assert "learning_rate=0.1 plays no part" in message and "timeout=60.0 plays no part" in message


def test_what_contradicts_itself_is_refused(tmp_path):
    with pytest.raises(SettingsError, match='Write max_replacements=1 or more, or on_failure="continue"'):
        DistAsyncQLearning(on_failure="replace", max_replacements=0)
    with pytest.raises(SettingsError, match="state_size=10 makes a table of more states than max_states=3"):
        DistAsyncQLearning(state_size=10, max_states=3)
    with pytest.raises(StudyError, match="cannot be trained: on_failure=.*allows none"):
        Sweep(LAKE, 1_000, 2, {"on_failure": "replace", "max_replacements": 0}, folder=tmp_path / "study")
    DistAsyncQLearning(state_size=3, max_states=3)
    settings = Settings(topology="auto", tree_group_size=3)
    with pytest.raises(SettingsError, match='"sharded" cannot be had with tree_group_size=3: .*=None'):
        engine_for(settings, 3, "sharded")
    assert engine_for(settings, 3, "auto").name == "server"


CONTRADICTIONS = [{"on_failure": "replace", "max_replacements": 0}, {"state_size": 99, "max_states": 50}]


@pytest.mark.parametrize("settings", CONTRADICTIONS)
def test_what_was_saved_with_a_contradiction_is_read_and_goes_on(settings, tmp_path):
    agent = DistAsyncQLearning(seed=1)
    for name, value in settings.items():  # as earlier versions took them
        object.__setattr__(agent._state.settings, name, value)
    agent.train(LAKE, total_steps=50, checkpoint_dir=tmp_path / "saved")
    agent.save_model(tmp_path / "model.npz")
    for place in ("model.npz", "saved"):
        loaded = DistAsyncQLearning.load_model(tmp_path / place)
        assert {name: getattr(loaded._state.settings, name) for name in settings} == settings
        assert np.array_equal(loaded.q_table, agent.q_table)
        assert loaded.train(LAKE, total_steps=50).steps == 50
    with pytest.raises(SettingsError):  # what is written now is refused still
        DistAsyncQLearning(**settings)


@pytest.mark.slow
@pytest.mark.parametrize("settings", CONTRADICTIONS)
def test_a_study_that_was_begun_with_a_contradiction_gets_further_seeds(settings, tmp_path):
    vary = {"epsilon": [0.1, 0.2]}
    Sweep(LAKE, 500, 2, {}, vary, eval_episodes=2, folder=tmp_path).begin()
    plan = json.loads((tmp_path / PLAN).read_bytes())
    for variant in plan["variants"]:
        variant |= settings
    (tmp_path / PLAN).write_text(json.dumps(plan))
    assert len(Study(tmp_path).variants()) == 2
    study = Sweep(LAKE, 500, 3, settings, vary, eval_episodes=2, folder=tmp_path).run(processes=1)
    assert study.failed == 0 and len(study.rows()) == 6


@pytest.mark.slow
def test_a_study_that_was_begun_with_what_plays_no_part_gets_further_seeds(tmp_path, monkeypatch):
    given = {"settings": {}, "vary": {"timeout": [60, 600]}, "eval_episodes": 2, "folder": tmp_path}
    with monkeypatch.context() as patched:
        patched.setattr("dist_classicrl.sweep.sweep.check_part", lambda *_: "")
        Sweep(LAKE, 500, 2, **given).begin()
    study = Sweep(LAKE, 500, 3, **given).run(processes=1)
    assert study.failed == 0 and len(study.rows()) == 6
    for other in ({"total_steps": 600}, {"vary": {"timeout": [60, 700]}}):
        with pytest.raises(StudyError, match="vary has timeout, which plays no part"):
            Sweep(**{"env": LAKE, "total_steps": 500, "seeds": 3, **given, **other})


def test_learn_refuses_what_it_cannot_do():
    with pytest.raises(SettingsError, match="device='cuda' asks for a card, and learn"):
        DistAsyncQLearning(device="cuda").learn(LOGGED)
    with pytest.raises(SettingsError, match="of 2 states, and max_states=1 allows no more"):
        DistAsyncQLearning(max_states=1).learn(LOGGED)
    with pytest.raises(SettingsError, match="epochs=500 is how often .* Leave it out"):
        DistAsyncQLearning().learn(LOGGED, epochs=500, method="sweeps")
    assert DistAsyncQLearning(max_states=2, device="auto").learn(LOGGED, epochs=3).epochs == 3
    assert DistAsyncQLearning().learn(LOGGED).epochs == 10


def test_learn_says_once_what_is_for_training_alone(caplog):
    agent = DistAsyncQLearning(seed=1, replay_ratio=3.0, exploring_starts=True, topology="tree", epsilon=0.1)
    for _ in range(2):
        agent.learn(Transitions(**LOGGED))
    names = 'exploring_starts=True, replay_ratio=3.0, topology="tree"'
    unless = "leave that out, unless train() follows."
    assert said(caplog.records) == [
        f"{names} play no part in learn(), which needs no environment and no server: {unless}"
    ]
    agent = DistAsyncQLearning(seed=1, learning_rate=0.1, timeout=60)
    agent.learn(LOGGED)
    assert len(said(caplog.records)) == 1
    agent.learn(LOGGED, method="sweeps")
    assert 'learning_rate=0.1 plays no part with method="sweeps"' in said(caplog.records)[1]
    assert told(Settings(), idle_in_learn(Settings(), "sweeps")) == ""


def test_learn_says_nothing_of_what_played_a_part_or_was_read_from_a_file(caplog, tmp_path):
    agent = DistAsyncQLearning(seed=1, exploring_starts=True, sync_frequency=8, learning_rate=0.1)
    agent.train(LAKE, total_steps=50)
    agent.learn(LOGGED)
    agent.learn(LOGGED, method="sweeps")
    agent.save_model(tmp_path / "trained.npz")
    fresh = DistAsyncQLearning(state_size=16, action_size=4, exploring_starts=True)
    fresh.save_model(tmp_path / "untrained.npz")
    for name in ("trained", "untrained"):
        DistAsyncQLearning.load_model(tmp_path / f"{name}.npz").learn(LOGGED)
    DistAsyncQLearning(n_envs=4).learn(LOGGED)  # evaluate() reads it
    assert said(caplog.records) == []
