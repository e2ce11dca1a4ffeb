"""`load_model` of a folder: the newest good checkpoint or a named error, never a wrong table, nothing run."""

import logging
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from edited_checkpoints import edit

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.environments.tictactoe.model import model as tictactoe_model
from dist_classicrl.errors import CheckpointError, CheckpointUnreadableError, ModelFileError
from dist_classicrl.model import places
from dist_classicrl.schedules import Linear, PerVisit

LAKE = TabularMDP.from_gymnasium("FrozenLake-v1")


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    monkeypatch.setattr(places, "_agents", {})


def trained(folder, env=LAKE, calls=3, **settings):
    """Return an agent that has left a checkpoint in `folder` at the end of each of its calls."""
    agent = DistAsyncQLearning(**{"seed": 1, "learning_rate": PerVisit(0.7), **settings})
    for _ in range(calls):
        agent.train(env, total_steps=2_000, checkpoint_dir=folder)
    return agent


def same(one, other):
    return (
        one.settings == other.settings
        and one.steps == other.steps
        and one.q_table.dtype == other.q_table.dtype
        and one.q_table.tobytes() == other.q_table.tobytes()
        and one.visits.tobytes() == other.visits.tobytes()
    )


def newest(folder):
    return Path(max(Path(folder).glob("agent-0/f0*")))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("place", [".", "agent-0", "checkpoint"])
def test_the_agent_comes_back_from_each_kind_of_folder(tmp_path, monkeypatch, place, dtype):
    agent = trained(tmp_path, dtype=dtype, epsilon=Linear(1.0, 0.1, 9_000), state_size=20)
    path = newest(tmp_path) if place == "checkpoint" else tmp_path / place
    for given in (path, f"{path}/", path.as_uri()):
        assert same(DistAsyncQLearning.load_model(given), agent)
    monkeypatch.chdir(tmp_path)
    assert same(DistAsyncQLearning.load_model(os.path.relpath(path)), agent)
    monkeypatch.chdir(path)
    assert same(DistAsyncQLearning.load_model("."), agent)


@pytest.mark.slow
def test_the_policy_is_that_of_the_trained_agent(tmp_path):
    game = tictactoe_model()
    agent = DistAsyncQLearning(seed=1, state_size=512, action_size=12)
    agent.q_table[:, 9:] = 1e6  # columns that the environment does not have
    agent.train(game, total_steps=2_000, checkpoint_dir=tmp_path)
    loaded = DistAsyncQLearning.load_model(tmp_path)
    assert [loaded.predict(state) for state in range(512)] == [agent.predict(state) for state in range(512)]
    chosen = [loaded.predict(state) for state in range(game.n_states)]
    playing = game.action_mask.any(axis=1)
    assert max(chosen) == 8 and game.action_mask[playing, np.array(chosen)[playing]].all()


def test_training_goes_on_from_there(tmp_path):
    agent = trained(tmp_path)
    loaded = DistAsyncQLearning.load_model(tmp_path)
    loaded.train(LAKE, total_steps=1_000)
    assert loaded.steps == agent.steps + 1_000
    assert loaded.visits.sum() == agent.visits.sum() + 1_000


def test_a_seed_that_was_drawn_is_that_of_the_checkpoint(tmp_path):
    agent = trained(tmp_path, calls=1, seed=None)
    assert DistAsyncQLearning.load_model(tmp_path).seed == agent.seed is not None


def test_one_checkpoint_is_the_one_that_was_asked_for(tmp_path):
    trained(tmp_path)
    checkpoints = sorted(tmp_path.glob("agent-0/f0*"))
    assert [DistAsyncQLearning.load_model(path).steps for path in checkpoints] == [2_000, 4_000, 6_000]
    (tmp_path / "best").symlink_to(checkpoints[1])
    assert DistAsyncQLearning.load_model(tmp_path / "best").steps == 4_000


def test_an_agents_folder_may_have_another_name(tmp_path):
    agent = trained(tmp_path)
    (tmp_path / "agent-0").rename(tmp_path / "copy")
    assert same(DistAsyncQLearning.load_model(tmp_path / "copy"), agent)


@pytest.mark.parametrize("resume", ["auto", "never"])
def test_training_into_an_agents_own_folder_is_refused_and_its_checkpoints_stay(tmp_path, anew, resume):
    trained(tmp_path / "all")
    (tmp_path / "all" / "agent-0").rename(tmp_path / "moved")
    before = sorted(each.name for each in (tmp_path / "moved").iterdir())
    anew()
    agent = DistAsyncQLearning(seed=1, learning_rate=PerVisit(0.7))
    with pytest.raises(CheckpointError, match="moved is the folder of one agent.* must be called agent-0"):
        agent.train(LAKE, total_steps=8_000, checkpoint_dir=tmp_path / "moved", resume=resume)
    assert sorted(each.name for each in (tmp_path / "moved").iterdir()) == before
    (tmp_path / "moved").rename(tmp_path / "all" / "agent-0")
    result = agent.train(LAKE, total_steps=8_000, checkpoint_dir=tmp_path / "all", resume="must")
    assert result.resumed_from is not None


def test_several_agents_are_told_apart(tmp_path):
    agents = [trained(tmp_path, seed=seed) for seed in (1, 2)]
    with pytest.raises(CheckpointError, match=f"2 agents .*agent-0, agent-1.*{tmp_path}/agent-0"):
        DistAsyncQLearning.load_model(tmp_path)
    for number, agent in enumerate(agents):
        assert same(DistAsyncQLearning.load_model(tmp_path / f"agent-{number}"), agent)


def test_a_damaged_one_is_skipped_but_not_if_it_was_asked_for(tmp_path, caplog):
    trained(tmp_path)
    damaged = newest(tmp_path)
    content = bytearray((damaged / "q_table.npy").read_bytes())
    content[-1] ^= 1
    (damaged / "q_table.npy").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert DistAsyncQLearning.load_model(tmp_path).steps == 4_000
    assert "q_table.npy is damaged" in caplog.text
    with pytest.raises(CheckpointError, match="q_table.npy is damaged"):
        DistAsyncQLearning.load_model(damaged)
    for path in tmp_path.glob("agent-0/f0*/visits.npy"):
        path.unlink()
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        DistAsyncQLearning.load_model(tmp_path)


@pytest.mark.parametrize("name", ["", "agent-0", "other"])
def test_a_folder_without_checkpoints_is_refused(tmp_path, monkeypatch, name):
    (tmp_path / name).mkdir(exist_ok=True)
    with pytest.raises(CheckpointError, match="no checkpoint in .*save_model"):
        DistAsyncQLearning.load_model(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        DistAsyncQLearning.load_model(tmp_path / "missing")
    trained(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint in /[.]"):
        DistAsyncQLearning.load_model("/")


def test_the_folder_of_a_run_is_told_from_that_of_its_checkpoints(tmp_path):
    for inner in ("checkpoints", "best_model.npz", "model.npz"):  # the last of these is meant first
        (tmp_path / inner).mkdir()
        with pytest.raises(CheckpointError) as raised:
            DistAsyncQLearning.load_model(tmp_path)
        assert str(raised.value).endswith(f"Write load_model({str(tmp_path / inner)!r}).")


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(CheckpointError, match="cannot be listed: .*Permission denied"):
        DistAsyncQLearning.load_model(tmp_path)


def test_what_carries_a_foreign_name_is_refused(tmp_path):
    trained(tmp_path)
    checkpoint = newest(tmp_path)
    for name in ("mine", checkpoint.name.replace("c0000", "c0001")):
        foreign = checkpoint.rename(tmp_path / "agent-0" / name)
        with pytest.raises(CheckpointError, match="its name"):
            DistAsyncQLearning.load_model(foreign)
        checkpoint = foreign


def changed(folder, arrays=None, **body):
    """Write the newest checkpoint once more, with changes and with sums that fit."""
    own = ("format", "format_version", "package_version", "fence", "sequence", "written", "host", "arrays")
    place = CheckpointFolder(folder, "agent-0")
    saved = place.read_newest()
    plain = {key: value for key, value in saved.body.items() if key not in own}
    place.fence.claim()
    place.write({**saved.arrays, **(arrays or {})}, {**plain, **body}, plain["run"])


TABLE = np.zeros((16, 4))


@pytest.mark.parametrize(
    ("fault", "changes"),
    [
        ("finite", {"arrays": {"q_table": np.full((16, 4), np.nan)}}),
        ("finite", {"arrays": {"q_table": np.where(TABLE == 0, -np.inf, TABLE)}}),
        ("float32", {"arrays": {"q_table": TABLE.astype(np.float32)}}),
        ("shapes", {"arrays": {"q_table": TABLE[:15]}}),
        ("visits go", {"arrays": {"visits": np.full((16, 4), -1)}}),
        ("mask", {"arrays": {"legal": np.ones((17, 4), bool)}}),
        ("mask", {"arrays": {"legal": np.ones((16, 4), np.uint8)}}),
        ("actions", {"actions": 5}),
        ("actions", {"actions": 0}),
        ("settings", {"settings": {}}),
        ("settings", {"settings": {"dtype": "float64", "batch_size": 0}}),
        ("settings", {"settings": [1]}),
        ("settings", {"settings": None}),
    ],
)
def test_sums_that_fit_do_not_make_it_good(tmp_path, fault, changes):
    trained(tmp_path, calls=1)
    changed(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=f"no usable checkpoint: .*{fault}"):
        DistAsyncQLearning.load_model(tmp_path)


def test_settings_that_this_version_does_not_have_are_named_and_no_damage(tmp_path):
    trained(tmp_path, calls=2)
    saved = CheckpointFolder(tmp_path, "agent-0").read_newest()
    settings = {**saved.body["settings"], "colour": "red"}
    edit(saved, lambda body, arrays: body.update(package_version="9.0.0", settings=settings))
    why = "it has no settings colour. .*'9.0.0'.*install that version"
    with pytest.raises(CheckpointUnreadableError, match=why):
        DistAsyncQLearning.load_model(tmp_path)


def test_what_another_version_wrote_is_not_called_damaged_alone(tmp_path):
    trained(tmp_path, calls=1)
    saved = CheckpointFolder(tmp_path, "agent-0").read_newest()
    edit(saved, lambda body, arrays: body.update(package_version="9.0.0", mode="another"))
    with pytest.raises(CheckpointError, match="its mode is 'another'. Go on with dist_classicrl '9.0.0'"):
        DistAsyncQLearning.load_model(tmp_path)


def test_nothing_is_ever_unpickled(tmp_path):
    mark = tmp_path / "executed"

    class Trap:
        def __reduce__(self):
            return Path.touch, (mark,)

    trained(tmp_path / "run", calls=1)
    checkpoint = newest(tmp_path / "run")
    trap = np.empty(1, object)
    trap[0] = Trap()
    np.save(checkpoint / "q_table.npy", trap)
    with pytest.raises(CheckpointError):
        DistAsyncQLearning.load_model(checkpoint)
    (checkpoint / "manifest.json").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(CheckpointError):
        DistAsyncQLearning.load_model(checkpoint)
    assert not mark.exists()


def test_a_model_file_in_the_folder_is_still_a_file(tmp_path):
    agent = trained(tmp_path)
    agent.save_model(tmp_path / "agent-7")
    assert same(DistAsyncQLearning.load_model(tmp_path / "agent-7"), agent)
    with pytest.raises(ModelFileError):
        DistAsyncQLearning.load_model(newest(tmp_path) / "manifest.json")


@pytest.mark.parametrize("root", ["memory://run-1", "memory://some/where/run-1"])
def test_urls(root):
    pytest.importorskip("fsspec")
    from fsspec.implementations.memory import MemoryFileSystem

    MemoryFileSystem.store.clear()
    agent = trained(root)
    with_slash = f"{root}/"
    checkpoint = CheckpointFolder(root, "agent-0").names()[0]
    below = (f"{with_slash}agent-0", f"{with_slash}agent-0/", f"{with_slash}agent-0/{checkpoint}")
    for url in (root, with_slash, *below):
        assert same(DistAsyncQLearning.load_model(url), agent)
    for nothing in ("memory://elsewhere", "memory://else/where", "memory://"):
        with pytest.raises(CheckpointError, match=f"no checkpoint in {nothing}[.]"):
            DistAsyncQLearning.load_model(nothing)
    trained(root, seed=2)
    with pytest.raises(CheckpointError, match="agent-0, agent-1"):
        DistAsyncQLearning.load_model(root)


def test_a_url_of_an_unknown_kind_is_refused():
    pytest.importorskip("fsspec")
    with pytest.raises(CheckpointError, match="unheard"):
        DistAsyncQLearning.load_model("unheard://of/this")
