"""Names that people of this field type: the error says what they are called here."""

import abc
import copy
import inspect
from unittest.mock import patch

import gymnasium
import numpy as np
import pytest

from dist_classicrl import DistAsyncQLearning, EvaluationResult, Policy, Sweep, TrainingResult
from dist_classicrl._arguments import OURS
from dist_classicrl.callbacks import EvalCallback
from dist_classicrl.environments import TabularMDP
from dist_classicrl.errors import (
    DataError,
    EnvError,
    MissingArgumentError,
    SettingsError,
    UnknownArgumentError,
    UnknownAttributeError,
)
from dist_classicrl.schedules import Exponential, Linear, PerVisit
from dist_classicrl.sweep.comparison import compare

AGENT = DistAsyncQLearning(state_size=16, action_size=4)
ENV = "FrozenLake-v1"
EVALUATION = EvaluationResult(np.ones(3), np.ones(3, int))
POLICY = Policy(np.zeros((16, 4)), np.zeros((16, 4), int))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: DistAsyncQLearning(gamma=0.95),
            r"gamma is called discount_factor here: .*discount_factor=0.95\)",
        ),
        (lambda: DistAsyncQLearning(lr=0.1), r"DistAsyncQLearning\(learning_rate=0.1\)"),
        (lambda: DistAsyncQLearning(alpha=print), r"alpha is called learning_rate .*learning_rate=...\)"),
        (lambda: DistAsyncQLearning(exploration_rate=0.2), r"epsilon=0.2"),
        (lambda: DistAsyncQLearning(exploration_fraction=0.2), r"epsilon=Linear\("),
        (
            lambda: DistAsyncQLearning(learning_rat=0.1),
            r"no argument learning_rat\. Did you mean 'learning_rate'",
        ),
        (
            lambda: DistAsyncQLearning(env=ENV),
            r"env is one of train\(\)\. Write train\(env='FrozenLake-v1'\)",
        ),
        (lambda: DistAsyncQLearning(tensorboard_log="runs"), r"callbacks=TensorBoardCallback\(folder\)"),
        (
            lambda: DistAsyncQLearning().train(ENV, tb_log_name="q"),
            r"callbacks=TensorBoardCallback\(folder\)",
        ),
        (lambda: DistAsyncQLearning(total_timesteps=5), r"total_steps is one of train\(\)"),
        (lambda: DistAsyncQLearning(n_workers=5), r"mpirun -n 4"),
        (
            lambda: AGENT.train(ENV, total_timesteps=10),
            r"total_timesteps is called total_steps here: write train\(",
        ),
        (lambda: AGENT.train(ENV, n_steps=10), r"total_steps=10"),
        (lambda: AGENT.train(ENV, callback=print, total_steps=5), r"callback is called callbacks here"),
        (lambda: AGENT.train(ENV, log_interval=4), r"seconds apart, and not episodes.*progress_interval="),
        (
            lambda: AGENT.train(ENV, eval_freq=4),
            r"train\(\) has no argument eval_freq: write train\(callbacks=EvalCallback\(",
        ),
        (lambda: AGENT.train(ENV, eval_env=ENV), r"train\(callbacks=EvalCallback\("),
        (
            lambda: DistAsyncQLearning(learning_starts=100),
            "no argument learning_starts: learning begins with the first step: leave it out.$",
        ),
        (lambda: DistAsyncQLearning(train_freq=4), "train_freq: all steps are learned.*replay_ratio="),
        (lambda: DistAsyncQLearning(tau=1.0), "tau: there is no target network.*leave it out"),
        (lambda: DistAsyncQLearning(target_update_interval=1), "there is no target network.*leave it out"),
        (lambda: AGENT.train(ENV, episodes=10), r"training is counted in steps, total_steps="),
        (
            lambda: AGENT.train(ENV, total_steps=5, learning_rate=0.1),
            r"learning_rate is one of DistAsyncQLearning\(\)",
        ),
        (lambda: Sweep(ENV, 100, n_seeds=3), r"n_seeds is called seeds here: write Sweep\(seeds=3\)"),
        (lambda: AGENT.evaluate(ENV, n_eval_episodes=3), r"n_eval_episodes is called episodes here"),
        (lambda: AGENT.predict(0, state=None), r"no argument state: nothing is recurrent here.*leave it out"),
        (lambda: AGENT.predict(observation=0, state=None), "no argument state: nothing is recurrent"),
        (lambda: AGENT.predict(state=0), r"state is called observation here: write predict\(observation=0"),
        (lambda: AGENT.predict(0, episode_start=True), "episode_start: nothing is recurrent here"),
        (
            lambda: AGENT.train(ENV, total_steps=5, total_timesteps=5),
            "total_timesteps: it is called total_steps here, which is given, too. Leave total_timesteps out",
        ),
        (lambda: AGENT.train(ENV, device="cuda"), r"device is one .*Write DistAsyncQLearning\(device='cuda'"),
        (lambda: AGENT.predict(0, deterministic=True), r"always the best action: leave it out"),
        (lambda: DistAsyncQLearning.load_model("x", environment=ENV), r"environment is called env here"),
        (
            lambda: DistAsyncQLearning.load_model("x", epsilon=0.05),
            r"loaded with the settings that it was saved with\. Set it on the agent: agent\.epsilon = 0\.05",
        ),
        (
            lambda: DistAsyncQLearning.load_model("x", gamma=0.9),
            r"other = DistAsyncQLearning\(discount_factor=0\.9\), then other\.q_table = agent\.q_table",
        ),
        (lambda: AGENT.train(ENV, total_steps=5, options={"a": 1}), r"a gymnasium\.Wrapper whose reset\("),
        (lambda: AGENT.evaluate(ENV, options={}), r"returns self\.env\.reset\(seed=seed, options="),
        (
            lambda: EvalCallback(ENV, deterministic=True),
            r"^EvalCallback\(\) has no argument deterministic: .* always the best action: leave it out",
        ),
        (
            lambda: DistAsyncQLearning(n_steps=5),
            r"n_steps: there are no rollouts.*leave it out\. .*algorithm=NStepSarsa\(n=5\)\), from dist",
        ),
        (lambda: AGENT.evaluate(ENV, return_episode_rewards=True), r"read \.returns and \.lengths of it"),
        (
            lambda: AGENT.evaluate(ENV, reward_threshold=0.7),
            r"read \.mean_return of .*OnRewardThreshold\(0\.7",
        ),
        (lambda: AGENT.evaluate(ENV, warn=False), "warn: there is no warning .*: leave it out"),
        (lambda: DistAsyncQLearning.load_model("x", custom_objects={}), "no objects of Python: leave it out"),
        (lambda: DistAsyncQLearning.load_model("x", print_system_info=True), "print_system_info: .*leave it"),
        (
            lambda: POLICY(0, deterministic=True),
            r"^policy\(\) has no .* always the best action: leave it out",
        ),
        (lambda: POLICY(obs=0), r"obs is called observation here: write policy\(observation=0\)"),
        (lambda: EvalCallback(ENV, render=False), "nothing is drawn: leave it out"),
        (lambda: EvalCallback(env=ENV), r"env is called eval_env here: write EvalCallback\(eval_env="),
        (lambda: EvalCallback(ENV, episodes=3), "episodes is called n_eval_episodes here"),
        (lambda: Linear(start=1.0, end=0.1, steps=5), r"start is called initial .*Linear\(initial=1.0\)"),
        (lambda: Linear(1.0, 0.1, end_fraction=0.1), r"end_fraction is called fraction here"),
        (lambda: Exponential(1.0, end=0.1, steps=5), r"end is called final .*Exponential\(final=0.1\)"),
        (lambda: PerVisit(power=0.7), "power is called exponent here"),
        (lambda: Linear(1.0, 0.1, step=5), "no argument step. Did you mean 'steps'"),
        (
            lambda: AGENT.train(ENV, total_steps=5, frobnicate=1),
            r"no argument frobnicate\. It takes callbacks, .*",
        ),
    ],
)
def test_an_argument_by_another_name(call, words):
    with pytest.raises(UnknownArgumentError, match=words) as error:
        call()
    assert isinstance(error.value, (SettingsError, TypeError)) and AGENT.steps == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fit", r"it is called train\(env, total_steps=100_000\) here"),
        ("save", r"save_model\(path\)"),
        ("load", r"load_model\(path\)"),
        ("num_timesteps", "called steps here"),
        ("gamma", r"settings\.discount_factor"),
        ("comm", r"and stays\.$"),
        ("q_values", r"action_values\(observation\)"),
        ("set_env", r"given to train\(env\)"),
        ("q_net", "what is learned is the table: read agent.q_table"),
        ("get_parameters", "read agent.q_table"),
        ("set_parameters", r"agent\.q_table, or assign it"),
        ("logger", r'logging\.getLogger\("dist_classicrl"\).* record\(name, value\)'),
        ("verbose", r"given to train\(env, verbose=1\)"),
        ("learning_starts", "begins with the first step"),
        ("observation_space", r"agent\.q_table\.shape"),
        ("action_space", r"env\.action_space"),
        ("replay_buffer", r"of buffer_size transitions"),
        ("ep_info_buffer", r"read \.mean_return and \.reports of what train\(env\) returns"),
        ("set_random_seed", r"given to DistAsyncQLearning\(seed=\.\.\.\)"),
        ("callback", r"given to train\(env, callbacks=\.\.\.\)"),
        ("reset", r"another agent begins anew"),
        ("step", r"given to train\(env\)"),
        ("q_tabel", "Did you mean 'q_table'"),
        ("_nothing", "no attribute '_nothing'"),
    ],
)
def test_an_attribute_by_another_name(name, words):
    with pytest.raises(UnknownAttributeError, match=words):
        getattr(AGENT, name)
    assert not hasattr(AGENT, name)


@pytest.mark.parametrize(
    ("holder", "name", "written"),
    [
        (POLICY, "predict", r"policy\(observation\)\.$"),
        (POLICY, "predict_values", r"policy\.values, .* or agent\.state_values\(observation\)"),
        (POLICY, "act", r"policy\(observation\)\.$"),
        (EVALUATION, "mean_reward", r"result\.mean_return\.$"),
        (EVALUATION, "std_reward", r"result\.std_return\.$"),
        (EVALUATION, "rewards", r"result\.returns\.$"),
        (EVALUATION, "episode_lengths", r"result\.lengths\.$"),
        (TrainingResult(), "rewards", r"result\.mean_return, .* each report"),
        (TrainingResult(), "mean_reward", r"result\.mean_return\.$"),
        (TrainingResult(), "history", r"result\.reports"),
        (TrainingResult(), "predict", r"agent\.predict\(observation\), of the agent that was trained"),
        (TrainingResult(), "save_model", r"agent\.save_model\(path\)"),
        (TrainingResult(), "save", r"agent\.save_model\(path\)"),
        (TrainingResult(), "q_table", r"agent\.q_table"),
        (TrainingResult(), "num_timesteps", r"result\.steps, of this call, or agent\.steps, of all calls"),
    ],
)
def test_what_a_policy_and_a_result_have_not_is_told_by_what_to_write(holder, name, written):
    with pytest.raises(UnknownAttributeError, match=f"^'{type(holder).__name__}' .*{name}': write {written}"):
        getattr(holder, name)
    with pytest.raises(AttributeError, match="no attribute 'frobnicate'$") as error:
        holder.frobnicate  # noqa: B018
    assert type(error.value) is AttributeError and not hasattr(holder, name)
    assert repr(copy.deepcopy(holder)) == repr(holder)


def test_what_other_libraries_load_with_is_told_of_the_class():
    with pytest.raises(UnknownAttributeError, match=r"^type object .* called load_model\(path\) here"):
        DistAsyncQLearning.load("x")
    assert not hasattr(DistAsyncQLearning, "load")

    class Mine(DistAsyncQLearning, abc.ABC):
        @classmethod
        def load(cls, path):
            return path

    assert Mine.load("x") == "x"


def test_what_other_libraries_give_first_is_told_where_it_goes():
    for given in (("MlpPolicy", ENV), ("MlpPolicy",), (None, ENV)):
        with pytest.raises(SettingsError, match=r"_size must be .*write DistAsyncQLearning\(\) and train\("):
            DistAsyncQLearning(*given)
    with pytest.raises(DataError, match=r"To learn in an environment write train\(env, total_steps="):
        AGENT.learn(ENV, 1000)


def test_every_name_that_is_told_is_there():
    methods = (AGENT.train, AGENT.evaluate, AGENT.predict, AGENT.save_model, AGENT.load_model, type(AGENT))
    known = {name for method in methods for name in inspect.signature(method).parameters}
    assert set(OURS.values()) <= known
    assert known & set(OURS) <= {"max_steps"}  # of an episode, for evaluate


def test_an_agent_can_still_be_subclassed_and_copied():
    class Mine(DistAsyncQLearning):
        def __init__(self, mine=3, **settings):
            super().__init__(**settings)
            self.mine = mine

    agent = Mine(seed=4)
    agent.q_table = [[1.0, 2.0]]
    assert copy.copy(agent).mine == 3 and agent.seed == 4
    with pytest.raises(UnknownArgumentError, match="gamma is called discount_factor"):
        Mine(gamma=0.5)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gamma", "discount_factor is given to DistAsyncQLearning.*and stays.*other.q_table = agent.q"),
        ("discount_factor", r"and stays.*other = DistAsyncQLearning\(discount_factor=...\)"),
        ("batch_size", "is given to"),
    ],
)
def test_what_stays_cannot_be_set_by_the_way(name, says):
    agent = DistAsyncQLearning()
    with pytest.raises(UnknownAttributeError, match=says):
        setattr(agent, name, 0.5)
    agent.epsilon, agent.of_mine = 0.5, 1
    assert (agent.epsilon, agent.settings.discount_factor) == (0.5, 0.99)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("epsilonn", "epsilon"),
        ("epsilno", "epsilon"),
        ("exploration_rat", "epsilon"),
        ("learning_rates", "learning_rate"),
        ("q_tabel", "q_table"),
        ("max_state", "max_states"),
        ("discount_facter", "discount_factor"),
    ],
)
def test_a_mistyped_attribute_is_not_set_in_silence(name, meant):
    agent = DistAsyncQLearning()
    with pytest.raises(UnknownAttributeError, match=f"no attribute '{name}'. Did you mean '{meant}'"):
        setattr(agent, name, 0.5)
    assert name not in vars(agent)


@pytest.mark.parametrize(
    "name",
    [
        "Q",
        "counts",
        "env",
        "learning_starts",
        "logger",
        "num_timesteps",
        "q_net",
        "q_values",
        "set_env",
        "table",
    ]
    + ["tensorboard_log", "total_steps", "verbose"],
)
def test_setting_says_what_reading_says(name):
    agent = DistAsyncQLearning()
    with pytest.raises(UnknownAttributeError) as read:
        getattr(agent, name)
    with pytest.raises(UnknownAttributeError) as set_:
        setattr(agent, name, np.ones((16, 4)))
    assert str(set_.value) == str(read.value) and name not in vars(agent)


def test_methods_of_an_agent_are_not_set():
    agent = DistAsyncQLearning()
    for name in ("predict", "train", "load_model", "plot"):
        with pytest.raises(
            UnknownAttributeError, match=f"{name} of .* cannot be set: it is a method. Write a"
        ):
            setattr(agent, name, None)
    agent.register = agent.mro = 1  # what its metaclass alone has
    assert agent.register == 1 and callable(agent.predict)


def test_a_function_may_stand_in_for_a_method():
    """As tests of programs want it."""
    agent = DistAsyncQLearning()
    with patch.object(agent, "evaluate", return_value=3):
        assert agent.evaluate("FrozenLake-v1") == 3
    assert "evaluate" not in vars(agent)


def test_attributes_of_ones_own_are_set():
    class Mine(DistAsyncQLearning):
        def __init__(self):
            super().__init__()
            self.epsilons = [0.5]
            self.env = self.values = self.predict = None

    mine, agent = Mine(), DistAsyncQLearning()
    assert mine.epsilons == [0.5]
    for name in (
        "note",
        "step",
        "reset",
        "callback",
        "best_return",
        "history",
        "_cache",
        "env_id",
        "timer",
        "count",
    ):
        setattr(agent, name, 1)
        assert getattr(agent, name) == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("visits", r"write into the array between calls of train\(\)"),
        ("steps", r"train\(\) counts them"),
        ("policy", "assign q_table"),
        ("settings", "epsilon, learning_rate and max_states, which are set on the agent"),
        ("seed", r"DistAsyncQLearning\(seed=...\)"),
        ("run_id", "set are epsilon, learning_rate, max_states and q_table"),
    ],
)
def test_what_can_be_read_alone_says_what_to_set_instead(name, says):
    with pytest.raises(
        UnknownAttributeError, match=f"^{name} of 'DistAsyncQLearning' .*cannot be set: .*{says}"
    ):
        setattr(DistAsyncQLearning(), name, 1)


def test_a_subclass_that_is_not_made_to_an_agent_is_told_so():
    class Mine(DistAsyncQLearning):
        def __init__(self):
            self.mine = 3

    agent = Mine()
    for use in (lambda: agent.train(ENV, total_steps=5), lambda: agent.epsilon, lambda: agent.q_tabel):
        with pytest.raises(UnknownAttributeError, match=r"begin __init__ of Mine with super\(\).__init__"):
            use()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: AGENT.train(total_steps=5),
            r"^train\(\) needs env, .* none\. Write train\(env=...\)\.$",
        ),
        (lambda: AGENT.evaluate(), r"evaluate\(\) needs env"),
        (lambda: AGENT.predict(), r"predict\(\) needs observation"),
        (lambda: DistAsyncQLearning.load_model(), r"load_model\(\) needs path"),
        (lambda: EvalCallback(), r"EvalCallback\(\) needs eval_env"),
        (
            lambda: compare([0.1, 0.3], [0.2, 0.5]),
            r"compare\(\) needs second, the name of a variant, as in compare\(\{.*\}, \"a\", \"b\"\)",
        ),
        (lambda: Linear(1.0), r"Linear\(\) needs final"),
        (
            lambda: TabularMDP.from_arrays(np.ones((1, 1, 1)), np.ones((1, 1))),
            r"^TabularMDP.from_arrays\(\) needs start_prob, the probability of each state to begin",
        ),
        (
            lambda: TabularMDP.from_dict({}),
            r"^TabularMDP.from_dict\(\) needs start_prob, .*start_prob=...",
        ),
    ],
)
def test_an_argument_that_is_missing(call, words):
    with pytest.raises(MissingArgumentError, match=words) as error:
        call()
    assert isinstance(error.value, SettingsError) and isinstance(error.value, TypeError)


def test_a_model_is_not_loaded_into_an_agent(tmp_path):
    path = AGENT.save_model(tmp_path / "model")
    with pytest.raises(SettingsError, match=r"makes another agent, .*DistAsyncQLearning.load_model\(path\)"):
        AGENT.load_model(path)

    class Own(DistAsyncQLearning):
        pass

    assert type(Own.load_model(path)) is Own
    assert inspect.signature(DistAsyncQLearning.load_model).parameters.keys() == {"path", "comm", "env"}


def test_the_class_of_all_environments_is_none():
    for env in (gymnasium.Env, gymnasium.Env(), gymnasium.vector.VectorEnv()):
        with pytest.raises(EnvError, match=r"has no (single_)?observation_space\. Give a class of your own"):
            DistAsyncQLearning().train(env, total_steps=5)


def test_progress_takes_a_report():
    for wrong in (lambda: 0, 3, lambda one, other: 0):
        with pytest.raises(SettingsError, match="progress must be a function of one argument, a Progress"):
            AGENT.train(ENV, total_steps=5, progress=wrong)
    assert AGENT.steps == 0


def test_a_communicator_that_was_freed_is_refused():
    from mpi4py import MPI

    comm = MPI.COMM_SELF.Dup()
    agent = DistAsyncQLearning(comm=comm)
    comm.Free()
    for wrong in (comm, MPI.COMM_NULL):
        with pytest.raises(SettingsError, match="comm is a communicator without ranks, such as one after F"):
            DistAsyncQLearning(comm=wrong)
    for use in (lambda: agent.train(ENV, total_steps=5), lambda: agent.rank):
        with pytest.raises(SettingsError, match="comm is a communicator without ranks"):
            use()
