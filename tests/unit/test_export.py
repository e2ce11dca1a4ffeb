"""`export`: the policy as a program that plays as the agent does, and tables that come back as they went."""

import json
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from learned_runs import agent_for, make_run, run_command, tied_values

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.agent.agent import state_of
from dist_classicrl.environments import TabularMDP, TicTacToeEnv
from dist_classicrl.errors import EnvError, ExportError, ModelFileError, SettingsError
from dist_classicrl.export import program as policy_program
from dist_classicrl.export.formats import KINDS, export
from dist_classicrl.export.table_file import read_table
from dist_classicrl.model.fit import get_to_know
from dist_classicrl.model.policy import plain_value, policy_of


class Spaces(gymnasium.Env):
    """An environment that is nothing but its spaces."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, True, False, {}


def multi():
    return Spaces(
        spaces.MultiDiscrete([[3, 2], [2, 4]], start=[[0, 5], [-1, 0]]), spaces.MultiDiscrete([2, 3])
    )


def masked():
    parts = {
        "seen": spaces.Tuple([spaces.Box(-2, 1, (2,), np.int8), spaces.MultiBinary(2), spaces.Dict()]),
        "action_mask": spaces.MultiBinary(4),
    }
    return Spaces(spaces.Dict(parts), spaces.Discrete(4, start=3))


def nested_actions():
    return Spaces(spaces.Discrete(5, start=7), spaces.Dict(a=spaces.Discrete(2), b=spaces.MultiBinary(2)))


CASES = {
    "lake": lambda: gymnasium.make("FrozenLake-v1"),
    "blackjack": lambda: gymnasium.make("Blackjack-v1"),
    "multi": multi,
    "masked": masked,
    "nested_actions": nested_actions,
    "tictactoe": lambda: TicTacToeEnv(agent_plays="both"),
    "large": TabularMDP.garnet(5_000, 3, 2, seed=1),
    "wide": TabularMDP.garnet(40, 300, 1, seed=1),
}

PLAY = """
import importlib.util, json, sys

assert not any("site-packages" in path for path in sys.path)
wrong = {}
for name, (path, moves, refused) in json.load(sys.stdin).items():
    spec = importlib.util.spec_from_file_location("policy", path)
    policy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(policy)
    wrong[name] = [move for move in moves if policy.act(*move[0]) != move[1]]
    for arguments in refused:
        try:
            policy.act(*arguments)
        except (ValueError, IndexError, KeyError, TypeError):
            continue
        wrong[name].append(arguments)
print(json.dumps([wrong, sorted(module for module in sys.modules if module.startswith("numpy"))]))
"""


def case(name):
    """Return an agent and its environment; a policy whose states have many ties."""
    env = CASES[name]
    shape = agent_for(env).q_table.shape
    values = tied_values(shape, 3)
    if name == "wide":  # the best action may be any of the many
        values = np.random.default_rng(3).integers(0, 600, shape)
    return agent_for(env, values), env


def masks_for(n_states, n_actions):
    masks = np.random.default_rng(5).integers(0, 2, (n_states, n_actions))
    masks[np.arange(n_states), np.arange(n_states) % n_actions] = 1
    return masks.tolist()


def moves_of(agent, policy):
    """Return arguments of `act` and what `predict` says to them: every state, also with a mask."""
    masks = masks_for(policy.n_states, policy.n_actions)
    moves = []
    for state, mask in enumerate(masks):
        observation = policy.observation_of(state)
        for arguments in ([observation], [observation, mask]):
            moves.append([arguments, plain_value(agent.predict(*arguments))])
        if isinstance(observation, dict):
            held = {**observation, "action_mask": mask}
            moves.append([[held], plain_value(agent.predict(held))])
    return moves


@pytest.mark.slow
def test_the_program_plays_as_predict_does_without_any_library(tmp_path):
    jobs = {}
    for name in CASES:
        agent, env = case(name)
        policy = policy_of(state_of(agent), env)
        path = export(state_of(agent), tmp_path / f"{name}.py", env)
        refused = [[policy.observation_of(0), [0] * policy.n_actions], [policy.observation_of(0), [1]]]
        refused += [[policy.n_states], [[99, 0, 0, 0, 0]], [None], ["x"], [-3]]
        jobs[name] = [str(path), moves_of(agent, policy), refused]
    played = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PLAY],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        timeout=60.0,
        cwd=tmp_path,
    )
    assert played.returncode == 0, played.stderr
    wrong, libraries = json.loads(played.stdout)
    assert wrong == {name: [] for name in CASES} and libraries == []


class Told(gymnasium.Env):
    """Steps that cost 1 each, where one of three actions is forbidden in each state, as info tells."""

    observation_space, action_space = spaces.Discrete(4), spaces.Discrete(3)

    def _info(self):
        return {"action_mask": np.array([self.place != each for each in (0, 2, 1)], np.int8)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return 0, self._info()

    def step(self, action):
        assert self._info()["action_mask"][action], "an illegal action"
        self.place += 1
        return self.place, -1.0, self.place == 3, False, self._info()


@pytest.mark.slow
def test_the_program_plays_what_was_tried_where_masks_were_told_as_states_were_met(tmp_path):
    agent = DistAsyncQLearning(seed=1)
    agent.train(Told, total_steps=200, progress_bar=False)
    act = module_at(export(state_of(agent), tmp_path / "told.py", Told))["act"]
    assert agent.q_table[:3].argmax(axis=1).tolist() == [0, 2, 1]  # all others have cost something
    for state in range(4):
        assert act(state) == agent.predict(state)
        for mask in ([1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 1]):
            assert act(state, mask) == agent.predict(state, mask)


def test_the_program_looks_at_no_masks_where_the_agent_does_not(tmp_path):
    agent = DistAsyncQLearning(seed=1, use_action_mask=False)
    env = CASES["masked"]()
    get_to_know(state_of(agent), env).close()
    agent.q_table = np.arange(agent.q_table.size, dtype=float).reshape(agent.q_table.shape)
    act = module_at(export(state_of(agent), tmp_path / "policy.py", env))["act"]
    env.observation_space.seed(1)
    observation = env.observation_space.sample()
    observation["action_mask"][:] = [1, 0, 0, 0]  # the last of the actions, 3 to 6, is the best one
    assert act(observation) == agent.predict(observation) == 6
    assert act(observation, [1, 0, 0, 0]) == agent.predict(observation, [1, 0, 0, 0]) == 3


def module_at(path):
    known = {}
    exec(path.read_text(), known)
    return known


@pytest.mark.parametrize("name", ["lake", "blackjack", "multi", "masked", "nested_actions"])
def test_observations_as_the_environment_gives_them(tmp_path, name):
    agent, env = case(name)
    policy = policy_of(state_of(agent), env)
    act = module_at(export(state_of(agent), tmp_path / "policy.py", env))["act"]
    space = env().observation_space
    space.seed(1)
    for _ in range(50):
        observation = space.sample()
        if isinstance(observation, dict) and "action_mask" in observation:
            observation["action_mask"][:] = np.roll([1, 0, 1, 0], _)
        if policy.observations is None:
            observation = int(observation)
        action = act(observation)
        assert np.all(plain_value(agent.predict(observation)) == action)
        assert type(action) is type(plain_value(agent.predict(observation)))
        assert policy.state_of(observation) == module_at(tmp_path / "policy.py")["state_of"](observation)


@pytest.mark.parametrize(
    "name, observation",
    [
        ("blackjack", (20, 10, 0, 7)),
        ("blackjack", (20, 10)),
        ("masked", {"seen": ([0, 0], [1, 1], {}, 0), "action_mask": [1] * 4}),
        ("multi", [[0, 5], [-1, 0], [0, 0]]),
    ],
)
def test_an_observation_of_another_length_is_refused(tmp_path, name, observation):
    agent, env = case(name)
    act = module_at(export(state_of(agent), tmp_path / "policy.py", env))["act"]
    with pytest.raises(ValueError, match="entries in place of"):
        act(observation)


def test_an_action_that_was_given_out_can_be_changed(tmp_path):
    agent, env = case("multi")
    act = module_at(export(state_of(agent), tmp_path / "policy.py", env))["act"]
    observation = [[0, 5], [-1, 0]]
    first = act(observation)
    kept = list(first)
    first[0] = 99
    assert act(observation) == kept


@pytest.mark.slow
def test_small_tables_can_be_read_and_large_ones_are_packed(tmp_path):
    agent, env = case("lake")
    text = export(state_of(agent), tmp_path / "lake.py", env, environment="FrozenLake-v1").read_text()
    order = np.argsort(-agent.q_table[6], kind="stable")
    assert f"    {', '.join(map(str, order))},  # 6\n" in text
    assert "# They are called left, down, right, up." in text
    assert text.startswith('"""What was learned in FrozenLake-v1: 16 states, 4 actions, 1234567 steps.\n')
    assert "from lake import act" in text and max(map(len, text.splitlines())) <= 110
    agent, env = case("large")
    packed = export(state_of(agent), tmp_path / "large.py", env).read_text()
    assert len(packed) < 2 * agent.q_table.size and max(map(len, packed.splitlines())) <= 110


def test_illegal_moves_are_left_out_of_values_and_policy(tmp_path):
    agent, env = case("tictactoe")
    policy = policy_of(state_of(agent), env)
    legal = CASES["tictactoe"]()._rules.legal
    assert np.array_equal(policy.values, np.where(legal, agent.q_table, -np.inf).max(axis=1))
    assert [agent.predict(state) for state in range(627)] == policy.greedy.tolist()
    assert (agent.q_table.argmax(axis=1) != policy.greedy).sum() > 100


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", ["npz", "csv", "json"])
@pytest.mark.parametrize("name", ["blackjack", "multi", "tictactoe"])
def test_a_table_comes_back_as_it_went(tmp_path, name, kind, dtype):
    env = CASES[name]
    shape = agent_for(env).q_table.shape
    rng = np.random.default_rng(1)
    agent = agent_for(env, rng.normal(size=shape) * 10.0 ** rng.integers(-9, 9, shape), dtype=dtype)
    agent.visits[:] = rng.integers(0, 1 << 47, shape)
    values, visits = read_table(export(state_of(agent), tmp_path / f"table.{kind}", env))
    back = DistAsyncQLearning(dtype=dtype)
    back.q_table, back.visits[:] = values, visits
    assert back.q_table.tobytes() == agent.q_table.tobytes()
    assert back.visits.tobytes() == agent.visits.tobytes()


@pytest.mark.slow
def test_the_arrays_of_an_npz_are_plain_and_it_is_a_model(tmp_path, capsys):
    agent, env = case("tictactoe")
    path = export(state_of(agent), tmp_path / "policy.npz", env)
    with np.load(path, allow_pickle=False) as file:
        held = dict(file)
    policy = policy_of(state_of(agent), env)
    assert held["q_table"].tobytes() == agent.q_table.tobytes()
    assert held["policy"].tolist() == [agent.predict(state) for state in range(627)]
    assert np.array_equal(held["values"], policy.values)
    back = DistAsyncQLearning.load_model(path)
    assert (back.steps, back.settings) == (agent.steps, agent.settings)
    assert [back.predict(state) for state in range(627)] == held["policy"].tolist()
    words = ("evaluate", str(path), "--env", "tictactoe", "--env-arg", "agent_plays=both", "--episodes", "3")
    assert run_command(capsys, *words)[0] == 0


def test_json_says_what_a_reader_needs(tmp_path):
    agent, env = case("blackjack")
    data = json.loads(
        export(state_of(agent), tmp_path / "policy.json", env, environment="Blackjack-v1").read_text()
    )
    assert data["observations"][461] == [20, 10, 1] and data["actions"] == ["stick", "hit"]
    assert data["q_table"] == agent.q_table.tolist() and data["environment"] == "Blackjack-v1"
    assert data["policy"] == agent.q_table.argmax(axis=1).tolist()


def test_json_has_numbers_beyond_53_bits_as_text(tmp_path):
    first = 2**53 - 2
    env = lambda: Spaces(spaces.Discrete(4, start=first), spaces.Discrete(2, start=7))  # noqa: E731
    agent = agent_for(env, tied_values((4, 2)))
    data = json.loads(export(state_of(agent), tmp_path / "policy.json", env).read_text())
    assert data["observations"] == [str(first + each) for each in range(4)]
    assert data["action_values"] == [7, 8]


def test_a_part_of_a_table_does_not_pass_for_a_whole_one(tmp_path):
    visits = np.zeros((16, 4), int)
    visits[:2] = 1  # the states that are written are 0 and 1
    agent = agent_for("FrozenLake-v1", tied_values((16, 4)), visits)
    part = export(state_of(agent), tmp_path / "part.csv", most_visited=5)
    assert [row.split(",")[:2] for row in part.read_text().splitlines()] == [
        ["state", "of_states"],
        ["0", "16"],
        ["1", "16"],
    ]
    with pytest.raises(ModelFileError, match="only the most visited states, as --states"):
        read_table(part)
    agent.visits[:] = 1
    whole = export(state_of(agent), tmp_path / "whole.csv", most_visited=16)
    assert np.array_equal(read_table(whole)[0], agent.q_table)


def test_where_nothing_was_visited_the_first_states_are_written(tmp_path):
    agent = agent_for("FrozenLake-v1", tied_values((16, 4)))
    rows = export(state_of(agent), tmp_path / "few.csv", most_visited=3).read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["state", "0", "1", "2"]


def test_the_way_back_that_the_help_names_works_for_one_table_and_for_two(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = [line.strip() for line in run_command(capsys, "export", "--help")[1].splitlines()]
    at = next(i for i, line in enumerate(lines) if line.startswith("from dist_classicrl.export"))
    of_values, of_visits = "\n".join(lines[at : at + 2]), lines[at + 2]
    for algorithm in ("q_learning", "double_q_learning"):
        agent = agent_for("FrozenLake-v1", tied_values((16, 4)), algorithm=algorithm)
        export(state_of(agent), tmp_path / "policy.csv", force=True)
        back = agent_for("FrozenLake-v1", algorithm=algorithm)
        exec(f"{of_values}\n{of_visits if algorithm == 'q_learning' else ''}", {"agent": back})
        assert np.array_equal(back.q_table, agent.q_table)


def test_a_csv_can_be_sorted_otherwise_and_lack_visits(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("\ufeffstate,q:b,greedy,q:a\n1,1.5,0,2\n\n0,4,1,-3e1\n", encoding="utf-8")
    values, visits = read_table(path)
    assert values.tolist() == [[4.0, -30.0], [1.5, 2.0]] and visits.tolist() == [[0, 0], [0, 0]]


def test_visits_belong_to_the_action_that_they_name(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("visits:b,state,q:a,q:b,visits:a\n10,0,1,2,20\n")
    values, visits = read_table(path)
    assert values.tolist() == [[1.0, 2.0]] and visits.tolist() == [[20, 10]]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "q:a\n1\n", "needs columns state"),
        ("a.csv", "state,q:a\n0,x\n", "no number"),
        ("a.csv", "state,q:a\n0\n", "no number"),
        ("a.csv", "state,q:a\n0,1\n2,1\n", "not those from 0 to 1"),
        ("a.csv", "state,q:a\n0,nan\n", "finite"),
        ("a.csv", "state,q:a,visits:a\n0,1,-1\n", "visits go from -1"),
        ("a.csv", "state,q:a,visits:a,visits:b\n0,1,1,1\n", "values of the actions a, and visits of a, b"),
        ("a.csv", "state,q:a,q:b,visits:a,visits:c\n0,1,1,1,1\n", "visits of a, c"),
        ("a.csv", "state,q:a,q:a\n0,1,2\n", "more than one column q:a"),
        ("a.csv", "state,q:a,q:b,visits:b,visits:b\n0,1,2,1,1\n", "more than one column visits:b"),
        ("a.csv", "state,state,q:a\n0,1,2\n", "more than one column state"),
        ("a.csv", "state,q:a\n0,1\n1,2,3\n", "2 columns, and a row of 3 cells"),
        ("a.csv", "", "needs columns state"),
        ("a.csv", "state,q:a\n", "shapes"),
        ("a.csv", b"\xff\xfe\x00", "cannot be read"),
        ("a.json", "[1]", "no q_table"),
        ("a.json", "{", "no JSON"),
        ("a.json", '{"q_table": [[1, 2], [3]]}', "its table is not one of numbers"),
        ("a.json", '{"q_table": [[1]], "visits": [[1.5]]}', "whole numbers"),
        ("a.npz", "PK", "cannot be read"),
        ("a.txt", "", "suffix"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, name, text, said):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ModelFileError, match=said):
        read_table(path)


def test_the_command_writes_every_format_and_replaces_nothing_unasked(tmp_path, capsys):
    values = tied_values((6, 4))
    run = make_run(tmp_path / "run", "FrozenLake-v1", values, None, {"desc": ["SFF", "HFG"]})
    for kind in KINDS:
        path = tmp_path / f"policy.{kind}"
        status, out, _ = run_command(capsys, "export", run, "--to", str(path))
        assert (status, out) == (0, f"{path}: {path.stat().st_size:,} bytes\n")
        before = path.read_bytes()
        status, _, err = run_command(capsys, "export", run, "--to", str(path))
        assert status == 2 and "--force" in err and path.read_bytes() == before
    assert "state,q:left,q:down" in (tmp_path / "policy.csv").read_text()
    status, _, _ = run_command(
        capsys, "export", run, "--to", str(tmp_path / "policy.csv"), "--format", "json", "--force"
    )
    assert status == 0 and json.loads((tmp_path / "policy.csv").read_text())["q_table"] == values.tolist()
    status, _, err = run_command(capsys, "export", run, "--to", str(tmp_path / "policy.cvs"))
    assert status == 2 and "Did you mean 'csv'?" in err
    assert run_command(capsys, "export", run, "--to", str(tmp_path / "new" / "policy.csv"))[0] == 0


def test_standard_output_is_no_file_to_export_to(tmp_path, capsys, monkeypatch):
    run = make_run(tmp_path / "run", "FrozenLake-v1")
    monkeypatch.chdir(tmp_path)
    status, out, err = run_command(capsys, "export", run, "--to", "-", "--format", "csv")
    assert (status, out) == (2, "") and "Name one, such as policy.csv" in err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    agent, env = case("lake")
    path = export(state_of(agent), tmp_path / "policy.py", env)
    before = path.read_text()

    def broken(*_):
        yield before[:100]
        raise OSError("the disk is full")

    monkeypatch.setattr(policy_program, "program", broken)
    with pytest.raises(OSError, match="disk is full"):
        export(state_of(agent), path, env, force=True)
    assert path.read_text() == before and list(tmp_path.iterdir()) == [path]
    with pytest.raises(ExportError, match="is there already"):
        export(state_of(agent), path, env)
    with pytest.raises(ExportError, match="There is no format 5 of exports. The formats are npz"):
        export(state_of(agent), path, env, kind=5)


def counted_from_zero(n=6, actions=2):
    return Spaces(spaces.Discrete(n), spaces.Discrete(actions))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_number_is_written_nowhere(tmp_path, kind):
    for number in (np.inf, np.nan):
        agent = agent_for(counted_from_zero(), tied_values((6, 2)))
        agent.q_table[3, 1] = number
        with pytest.raises(SettingsError, match="finite"):
            export(state_of(agent), tmp_path / f"table.{kind}")
    assert not list(tmp_path.iterdir())


def test_the_program_knows_no_keys_of_numpy(tmp_path):
    parts = {np.str_("q"): spaces.Discrete(3), np.str_("p"): spaces.Discrete(2)}
    env = Spaces(spaces.Dict(parts), spaces.Dict({np.str_("a"): spaces.Discrete(2, start=1)}))
    agent = agent_for(env, tied_values((6, 2)))
    path = export(state_of(agent), tmp_path / "policy.py", env)
    names = {}
    exec(path.read_text(), names)
    policy = policy_of(state_of(agent), env)
    for state in range(6):
        observation = policy.observation_of(state)
        assert names["act"](observation) == plain_value(agent.predict(observation))
    assert all(type(key) is str for key in policy.observation_of(0))


def test_a_link_is_a_file_that_is_there_and_forced_it_leads_on(tmp_path):
    agent = agent_for(counted_from_zero(), tied_values((6, 2)))
    (tmp_path / "there").mkdir()
    link, real = tmp_path / "link.csv", tmp_path / "there" / "real.csv"
    link.symlink_to(real)
    with pytest.raises(ExportError, match="is there already"):
        export(state_of(agent), link)
    assert link.is_symlink() and not real.exists()
    for _ in range(2):  # where it leads to nothing, and where it leads to a file
        assert export(state_of(agent), link, force=True) == link
        assert link.is_symlink() and np.array_equal(read_table(real)[0], agent.q_table)
        real.write_text("old")
    link.unlink()
    link.symlink_to(tmp_path / "nowhere" / "real.csv")
    assert export(state_of(agent), link, force=True) == link
    assert (tmp_path / "nowhere" / "real.csv").exists()


@pytest.mark.parametrize("kind", ["npz", "csv", "json", "py"])
def test_the_folder_of_an_export_is_made(tmp_path, kind):
    agent = agent_for(counted_from_zero(), tied_values((6, 2)))
    with pytest.raises(SettingsError):
        export(state_of(agent), tmp_path / "not" / f"x.{kind}", most_visited=0)
    assert export(state_of(agent), tmp_path / "some" / "where" / f"x.{kind}").exists()
    assert not (tmp_path / "not").exists()
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match=r"folder of .*file/x\.\w+ cannot be made: .*Give a path in one"):
        export(state_of(agent), tmp_path / "file" / f"x.{kind}")


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "3"])
def test_what_is_no_number_of_states_is_refused(tmp_path, count):
    agent = agent_for(counted_from_zero(), tied_values((6, 2)))
    with pytest.raises(SettingsError, match="most_visited must be a whole number of at least 1"):
        export(state_of(agent), tmp_path / "table.csv", most_visited=count)
    assert not list(tmp_path.iterdir())


def test_an_environment_that_counts_otherwise_is_not_taken_for_the_one_that_was_trained_in(tmp_path):
    agent = DistAsyncQLearning(seed=1)
    agent.train(counted_from_zero, total_steps=20)
    state = state_of(agent)
    known = state.observations
    others = (
        Spaces(spaces.MultiDiscrete([2, 3]), spaces.Discrete(2)),
        Spaces(spaces.Discrete(6), spaces.Discrete(2, start=1)),
        counted_from_zero(5),
    )
    for other in others:
        with pytest.raises(EnvError):
            export(state, tmp_path / "table.csv", other)
    assert state.observations is known and agent.predict(5) in (0, 1) and not list(tmp_path.iterdir())
    export(state, tmp_path / "table.csv", counted_from_zero())
