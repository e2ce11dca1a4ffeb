"""Model files: what was saved comes back, and nothing else is ever accepted, run or left half written."""

import json
import os
import pickle
import stat
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.callbacks import EvalCallback
from dist_classicrl.errors import ModelFileError, SettingsError
from dist_classicrl.model import model_file
from dist_classicrl.model.archive import ArrayArchive, digest_of
from dist_classicrl.model.model_file import SavedModel
from dist_classicrl.schedules import Linear, PerVisit
from dist_classicrl.settings import Settings


def saved_model(seed=0, states=4, actions=3, **settings):
    rng = np.random.default_rng(seed)
    settings = Settings(**settings)
    return SavedModel(
        settings,
        rng.normal(size=(states, actions)).astype(settings.dtype),
        rng.integers(0, 2**40, (states, actions)),
        123_456_789_012,
    )


def same(one, other):
    return (
        one.settings == other.settings
        and one.steps == other.steps
        and one.q_table.dtype == other.q_table.dtype
        and one.q_table.tobytes() == other.q_table.tobytes()
        and one.visits.tobytes() == other.visits.tobytes()
        and one.q_table.shape == other.q_table.shape
    )


@pytest.mark.parametrize("name", ["model.npz", "model.pkl", "model", "model.tar.gz", "Modell für Köln.q"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_round_trip_at_exactly_the_path(tmp_path, name, dtype):
    model = saved_model(
        dtype=dtype,
        learning_rate=PerVisit(0.7),
        epsilon=Linear(1.0, 0.1, 99),
        state_size=4,
        action_size=3,
        seed=8,
    )
    assert model_file.write(tmp_path / name, model) == tmp_path / name
    assert os.listdir(tmp_path) == [name]
    assert same(model_file.read(tmp_path / name), model)
    assert same(model_file.read(str(tmp_path / name)), model)


def test_the_file_holds_no_pickle_and_is_readable_elsewhere(tmp_path):
    path = model_file.write(tmp_path / "model.pkl", saved_model())
    with np.load(path, allow_pickle=False) as archive:
        assert sorted(archive.files) == ["about", "q_table", "visits"]
        about = json.loads(archive["about"].tobytes())
    assert about["format"] == "dist_classicrl model" and about["settings"]["batch_size"] == 32
    with pytest.raises(pickle.UnpicklingError):
        pickle.loads(path.read_bytes())


def test_every_truncation_is_refused(tmp_path):
    path = model_file.write(tmp_path / "model.npz", saved_model())
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelFileError, match="no usable model file"):
            model_file.read(path)
    path.write_bytes(whole)
    model_file.read(path)


def test_damage_is_refused_or_harmless(tmp_path):
    model = saved_model()
    path = model_file.write(tmp_path / "model.npz", model)
    whole = path.read_bytes()
    rng = np.random.default_rng(1)
    # Every byte of the zip directory and of the heads once, and some bytes of the rest.
    places = {*range(60), *range(len(whole) - 300, len(whole)), *rng.integers(0, len(whole), 400).tolist()}
    refused = 0
    for place in sorted(places):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            assert same(model_file.read(path), model)
        except ModelFileError:
            refused += 1
    assert refused > 0.5 * len(places)


@pytest.mark.slow
def test_every_flip_of_the_zip_directory_is_refused_or_harmless(tmp_path):
    model = saved_model(states=1, actions=1)
    path = model_file.write(tmp_path / "model.npz", model)
    whole = path.read_bytes()
    directory = whole.index(b"PK\x01\x02")
    for place in range(directory, len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                assert same(model_file.read(path), model)
            except ModelFileError:
                pass


class Trap:
    """Unpickling this writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def test_foreign_files_are_refused_and_never_run(tmp_path):
    mark = tmp_path / "executed"
    path = tmp_path / "model.npz"
    model = saved_model()

    def write_npz(**arrays):
        with open(path, "wb") as file:
            np.savez(file, **arrays)

    def about(**changes):
        model_file.write(path, model)
        with np.load(path) as archive:
            text = json.loads(archive["about"].tobytes())
            arrays = {name: archive[name] for name in ("q_table", "visits")}
        text.update(changes)
        write_npz(about=np.frombuffer(json.dumps(text).encode(), np.uint8), **arrays)

    def pickled_npz():
        trap = np.empty(1, object)
        trap[0] = Trap(mark)
        write_npz(about=trap, q_table=trap, visits=trap)

    def bad_table():
        model_file.write(path, model)
        with np.load(path) as archive:
            arrays = dict(archive)
        arrays["q_table"] = np.array([[Trap(mark)]], object)
        write_npz(**arrays)

    def not_arrays():
        with zipfile.ZipFile(path, "w") as archive:
            for name in ("about", "q_table", "visits"):
                archive.writestr(name, b"text")

    def pickles_as_members():
        with zipfile.ZipFile(path, "w") as archive:
            for name in ("about.npy", "q_table.npy", "visits.npy"):
                archive.writestr(name, pickle.dumps(Trap(mark)))

    def npy():
        with open(path, "wb") as file:
            np.save(file, np.zeros((3, 2)))

    def wrong_shapes():
        wrong = saved_model()
        model_file.write(path, SavedModel(wrong.settings, wrong.q_table, wrong.visits[:2], 0))

    def wrong_dtype():
        wrong = saved_model()
        model_file.write(path, SavedModel(wrong.settings, wrong.q_table.astype("f4"), wrong.visits, 0))

    def visits_of(count):
        wrong = saved_model()
        wrong.visits[1, 2] = count
        model_file.write(path, wrong)

    writers = {
        "negative visits": lambda: visits_of(-1),
        "more visits than step sizes": lambda: visits_of(2**48),
        "a pickle": lambda: path.write_bytes(pickle.dumps(Trap(mark))),
        "an old pickle": lambda: path.write_bytes(pickle.dumps(Trap(mark), protocol=0)),
        "a pickle inside an npz": pickled_npz,
        "a pickle in place of the table": bad_table,
        "pickles as members": pickles_as_members,
        "an npy file": npy,
        "an npz of something else": lambda: write_npz(weights=np.zeros(3)),
        "arrays of the same names": lambda: write_npz(
            about=np.zeros(3), q_table=np.zeros(3), visits=np.zeros(3)
        ),
        "a zip of text": not_arrays,
        "an empty file": lambda: path.write_bytes(b""),
        "text": lambda: path.write_text("q_table = 3\n"),
        "another format": lambda: about(format="something else"),
        "another version": lambda: about(format_version=2),
        "no checksums": lambda: about(sha256=None),
        "a wrong checksum": lambda: about(sha256={"q_table": "0", "visits": "0"}),
        "unknown settings": lambda: about(settings={"colour": "red"}),
        "settings that are not allowed": lambda: about(settings={"batch_size": -1}),
        "settings of another kind": lambda: about(settings=[1, 2]),
        "a schedule that is none": lambda: about(settings={"epsilon": {"kind": "Sine"}}),
        "no steps": lambda: about(steps=None),
        "negative steps": lambda: about(steps=-5),
        "more actions than columns": lambda: about(actions=4),
        "actions of another kind": lambda: about(actions="3"),
        "shapes that differ": wrong_shapes,
        "another dtype than it says": wrong_dtype,
    }
    for what, write in writers.items():
        write()
        with pytest.raises(
            ModelFileError, match="no usable model file: .*Give the path of a file that save_model"
        ):
            DistAsyncQLearning.load_model(path)
        assert not mark.exists(), what
    with pytest.raises(ModelFileError):
        model_file.read(tmp_path)
    with pytest.raises(FileNotFoundError):
        model_file.read(tmp_path / "nothing")


def test_folders_on_the_way_are_made_and_a_folder_is_not_replaced(tmp_path):
    agent = DistAsyncQLearning(2, 2, seed=1)
    path = tmp_path / "not" / "there" / "agent.npz"
    assert agent.save_model(path) == path
    assert DistAsyncQLearning.load_model(path).q_table.shape == (2, 2)
    with pytest.raises(SettingsError, match=r"there is a folder. Write save_model\('.*there/model.npz'\)"):
        agent.save_model(path.parent)
    assert [each.name for each in path.parent.iterdir()] == ["agent.npz"]


def test_what_is_wrong_with_visits_is_told(tmp_path):
    wrong = saved_model()
    path = tmp_path / "model.npz"
    model_file.write(path, SavedModel(wrong.settings, wrong.q_table, wrong.visits.astype("i4"), 0))
    with pytest.raises(ModelFileError, match="its visits are int32; .*visits int64"):
        model_file.read(path)


def test_the_greatest_number_of_visits_is_read(tmp_path):
    model = saved_model()
    model.visits[0] = 0
    model.visits[1] = 2**48 - 1
    assert same(model_file.read(model_file.write(tmp_path / "model.npz", model)), model)


def test_a_file_is_what_numpy_writes_but_for_how_hard_it_is_compressed(tmp_path):
    model = saved_model(states=3_000)
    path = model_file.write(tmp_path / "model.npz", model, {"more": np.arange(3)})
    with np.load(path, allow_pickle=False) as loaded:
        arrays = dict(loaded)
    assert sorted(arrays) == ["about", "more", "q_table", "visits"]
    np.savez_compressed(tmp_path / "numpy.npz", **arrays)
    with zipfile.ZipFile(path) as ours, zipfile.ZipFile(tmp_path / "numpy.npz") as other:
        for one, another in zip(ours.infolist(), other.infolist(), strict=True):
            assert (one.filename, one.date_time) == (another.filename, another.date_time)
            assert ours.read(one) == other.read(another) and one.compress_type == zipfile.ZIP_DEFLATED
            # As zlib does it at level 1.
            made = zlib.compressobj(1, zlib.DEFLATED, -15)
            assert one.compress_size == len(made.compress(ours.read(one)) + made.flush())
    again = model_file.write(tmp_path / "again.npz", model, {"more": np.arange(3)})
    assert again.read_bytes() == path.read_bytes()


def test_an_existing_file_survives_a_failed_write(tmp_path, monkeypatch):
    path = model_file.write(tmp_path / "model.pkl", saved_model(1))
    before = path.read_bytes()

    def fails(*arguments, **keywords):
        arguments[0].write(b"half a file")
        raise OSError("no space left on device")

    monkeypatch.setattr(model_file, "write_arrays", fails)
    with pytest.raises(OSError, match="no space left"):
        model_file.write(path, saved_model(2))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.pkl"]
    monkeypatch.undo()
    model_file.write(path, saved_model(2))
    assert same(model_file.read(path), saved_model(2))


def test_permissions_are_those_of_an_ordinary_new_file(tmp_path):
    before = os.umask(0o027)
    try:
        path = model_file.write(tmp_path / "model.npz", saved_model())
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


def test_a_name_of_the_greatest_length_can_be_written(tmp_path):
    path = tmp_path / ("m" * 255)
    model_file.write(path, saved_model())
    assert same(model_file.read(path), saved_model())


# Files that somebody else made


def write_members(path, about=None, **members):
    """Write a model file of raw members; `about` has what differs from that of a good one."""
    good = saved_model()
    made = model_file.write(path.with_suffix(".good"), good)
    with np.load(made) as archive:
        told = json.loads(archive["about"].tobytes())
    arrays = {"q_table": good.q_table, "visits": good.visits, **members}
    told["sha256"] = {name: digest_of(np.ascontiguousarray(array)) for name, array in arrays.items()}
    told.update(about or {})
    with open(path, "wb") as file:
        np.savez_compressed(file, about=np.frombuffer(json.dumps(told).encode(), np.uint8), **arrays)
    return path


def test_a_file_made_by_hand_is_read_where_it_is_right(tmp_path):
    assert same(model_file.read(write_members(tmp_path / "model.npz")), saved_model())


@pytest.mark.parametrize(
    ("members", "about", "message"),
    [
        ({"q_table": np.ones((4, 3), ">f8")}, {}, "q_table is >f8, this library reads <f8"),
        ({"visits": np.ones((4, 3), ">i8")}, {}, "visits is >i8, this library reads <f8"),
        ({"q_table": np.ones((3, 4)).T}, {}, "q_table is in Fortran's order"),
        ({"visits": np.ones((400, 3), np.int64)}, {}, r"its visits has the shape \(400, 3\)"),
        ({"legal": np.zeros((4, 3), bool)}, {}, "its mask is bool and allows 0 actions"),
        ({"legal": np.ones((5, 3), bool)}, {}, r"its mask has the shape \(5, 3\)"),
        ({"tables": np.ones((4, 3))}, {}, "its tables are not those of the algorithm 'q_learning'"),
        ({}, {"steps": True}, "its number of steps is True"),
        ({}, {"steps": 10**4000}, r"its number of steps is 1000\d*\.\.\.\d*000\."),
        ({}, {"steps": 2**63}, "its number of steps is"),
        ({}, {"steps": 1.0}, "its number of steps is 1.0"),
        ({}, {"actions": True}, "its number of actions is True"),
        ({}, {"seed": -1}, "its seed is -1"),
        ({}, {"seed": 1.0}, "its seed is 1.0"),
    ],
)
def test_what_would_go_wrong_later_is_refused(tmp_path, members, about, message):
    path = write_members(tmp_path / "model.npz", about, **members)
    with pytest.raises(ModelFileError, match=message):
        DistAsyncQLearning.load_model(path)


def test_a_table_of_another_size_than_its_settings_ask_for_is_refused(tmp_path):
    settings = {**saved_model().settings.to_dict(), "state_size": 400}
    path = write_members(tmp_path / "model.npz", {"settings": settings})
    with pytest.raises(ModelFileError, match=r"its table has the shape \(4, 3\), its settings say \(400, "):
        model_file.read(path)


def big_member(archive, name, shape, blocks):
    """Write an array of zeros of `shape`, of which there are so many blocks of a MiB."""
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for _ in range(blocks):
            file.write(bytes(1 << 20))


def with_big_tables(path, shape, blocks):
    """Write a small file whose q_table and visits unpack to `blocks` MiB each."""
    made = model_file.write(path.with_suffix(".good"), saved_model())
    with np.load(made) as archive:
        about = archive["about"]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("about.npy", "w") as file:
            np.save(file, about)
        big_member(archive, "q_table", shape, blocks)
        big_member(archive, "visits", shape, blocks)
    assert path.stat().st_size < 2**20
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2**40, 2**20), r"q_table has the shape .* allowed are 17,179,869,184 bytes"),
        ((2**21, 3), "q_table is said to be float64 of shape .* and has 67108864 bytes"),
    ],
)
def test_a_small_file_that_would_be_large_is_refused_before_it_is_unpacked(
    tmp_path, monkeypatch, shape, message
):
    path = with_big_tables(tmp_path / "model.npz", shape, 64)
    made = []
    empty = np.empty
    monkeypatch.setattr(np, "empty", lambda *given, **more: made.append(given) or empty(*given, **more))
    with pytest.raises(ModelFileError, match=message):
        model_file.read(path)
    assert all(np.prod(given[0]) < 10_000 for given in made)  # what the file says of itself


@pytest.mark.slow
def test_reading_needs_no_second_copy_of_the_table(tmp_path):
    shape = (2**21, 4)
    path = model_file.write(
        tmp_path / "model.npz",
        SavedModel(Settings(), np.zeros(shape), np.zeros(shape, np.int64), 0),
    )
    tracemalloc.start()
    try:
        model = model_file.read(path)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 1.3 * (model.q_table.nbytes + model.visits.nbytes)


def test_memory_that_cannot_be_had_is_said(tmp_path, monkeypatch):
    path = model_file.write(tmp_path / "model.npz", saved_model())
    read = ArrayArchive.read

    def fails(self, member):
        if member.name == "visits":
            raise MemoryError
        return read(self, member)

    monkeypatch.setattr(ArrayArchive, "read", fails)
    with pytest.raises(ModelFileError, match="its arrays need .* GiB of memory, which cannot be had here"):
        model_file.read(path)


def test_a_pipe_is_no_model_file_and_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "model.npz")
    with pytest.raises(ModelFileError, match="Not a regular file"):
        DistAsyncQLearning.load_model(tmp_path / "model.npz")


def test_a_model_is_not_saved_to_a_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # "file:" would be a folder here
    agent = DistAsyncQLearning(state_size=2, action_size=2)
    with pytest.raises(SettingsError, match=r"s3://me:\.\.\.@bucket/model.npz is a URL.*checkpoint_dir=URL"):
        agent.save_model("s3://me:word@bucket/model.npz")
    assert not os.listdir(tmp_path)


def test_a_behavior_may_take_more_than_the_other_settings(tmp_path, monkeypatch):
    """It is kept among them: what can be saved can be loaded, however many states it is for."""
    monkeypatch.setattr(model_file, "_MAX_ABOUT", 4096)
    behavior = np.full((2_000, 4), 0.25)
    model = TabularMDP.garnet(2_000, 4, 2, seed=1)
    for dtype in ("float32", "float64"):
        agent = DistAsyncQLearning(algorithm="td", behavior=behavior, dtype=dtype, seed=1)
        agent.train(model, total_steps=1_000)
        agent.save_model(tmp_path / "model.npz")
        np.testing.assert_array_equal(
            DistAsyncQLearning.load_model(tmp_path / "model.npz").q_table, agent.q_table
        )


def test_a_seed_that_was_drawn_is_kept(tmp_path):
    class Reseeded(DistAsyncQLearning):
        def __init__(self, **settings):
            super().__init__(**{**settings, "seed": 5})

    agent = DistAsyncQLearning()
    agent.train("FrozenLake-v1", total_steps=200)
    path = agent.save_model(tmp_path / "model.npz")
    again = DistAsyncQLearning.load_model(path)
    assert again.seed == agent.seed is not None and again.settings.seed is None
    first, second = (one.evaluate("FrozenLake-v1", episodes=20).lengths for one in (agent, again))
    assert first.tolist() == second.tolist()
    assert Reseeded.load_model(path).seed == 5
    older = DistAsyncQLearning.load_model(write_members(tmp_path / "older.npz", {"seed": None}))
    assert older.seed is None


def test_a_model_is_read_where_a_package_is_missing_that_its_training_needed(tmp_path, monkeypatch):
    model_file.write(tmp_path / "model", saved_model(compression="lossless"))
    monkeypatch.setattr("dist_classicrl.settings.find_spec", lambda name: None)
    assert DistAsyncQLearning.load_model(tmp_path / "model").predict(0) in range(3)


def test_the_home_of_the_user_has_its_short_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    agent = DistAsyncQLearning(state_size=3, action_size=2, seed=1)
    assert agent.save_model("~/model.npz") == tmp_path / "model.npz"
    assert DistAsyncQLearning.load_model("~/model.npz").q_table.shape == (3, 2)
    assert EvalCallback(TabularMDP.garnet(3, 2, 2, seed=1), log_path="~").log_file.parent == tmp_path
