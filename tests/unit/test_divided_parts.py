"""What tables that are divided between hosts are made of: slots, parts of checkpoints."""

import threading
from mmap import PAGESIZE
from types import SimpleNamespace

import numba
import numpy as np
import pytest

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.agent.agent import state_of
from dist_classicrl.agent.divided_model import save_divided
from dist_classicrl.checkpoint import file_thread
from dist_classicrl.checkpoint.arrays import ArrayEntry
from dist_classicrl.checkpoint.file_thread import FileThread
from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.checkpoint.location import open_storage
from dist_classicrl.checkpoint.parts import rows_in, stretches_of, whole_table, write_part
from dist_classicrl.comm.messages import decode
from dist_classicrl.engines.supersteps import desk, division
from dist_classicrl.engines.supersteps.divided_server import DividedServer
from dist_classicrl.engines.supersteps.division import BLOCK_SHIFT, Division
from dist_classicrl.engines.supersteps.messages import LoadRows, SavedRows, SaveRows
from dist_classicrl.engines.supersteps.part import Part
from dist_classicrl.engines.supersteps.rows_server import RowsServer
from dist_classicrl.engines.supersteps.worker import SuperstepWorker
from dist_classicrl.errors import CheckpointError, CheckpointUnreadableError, SettingsError
from dist_classicrl.membership.group import Group

HOSTS = ["a", "b", "a", "c"]


def hosts_of(divided):
    """Return the host of each row, found host by host in slices."""
    found = np.full(divided.n_states, "", object)
    for host in set(divided.holders):
        for part in divided.slices():
            rows = divided.rows_of(host, *part)
            assert (found[rows] == "").all()
            found[rows] = host
    return found


def test_rows_are_divided_by_pages_and_stay_where_they_are(monkeypatch):
    monkeypatch.setattr(division, "SLICE_BYTES", 1 << 14)
    divided = Division("hash", 100_000, 64, list(HOSTS), 4)
    found = hosts_of(divided)
    blocks = found[: 100_000 >> BLOCK_SHIFT << BLOCK_SHIFT].reshape(-1, 1 << BLOCK_SHIFT)
    assert (blocks == blocks[:, :1]).all()  # a page's rows are of one host
    share = np.mean(found == "a")
    assert abs(share - divided.share_of("a")) < 0.05 and divided.share_of("a") == 0.5
    # Rank 2 is gone: its slot stays on its host. Host c is gone: the others get its slots, and keep theirs.
    ranks = dict(enumerate(HOSTS))
    np.testing.assert_array_equal(divided.owners([0, 1, 2, 3], ranks.get), [0, 1, 2, 3])
    np.testing.assert_array_equal(divided.owners([0, 1, 3], ranks.get), [0, 1, 0, 2])
    assert not divided.give_away({"a", "b", "c"}) and divided.give_away({"a", "b"})
    assert (hosts_of(divided)[found != "c"] == found[found != "c"]).all()
    assert set(hosts_of(divided)) == {"a", "b"} and divided.holders == ["a", "b", "a", "b"]


def test_rows_are_divided_by_ranges_as_well():
    found = hosts_of(Division("range", 1000, 64, list(HOSTS), 4))
    np.testing.assert_array_equal(found, np.repeat(HOSTS, 250))


def test_a_function_names_ranks_of_the_job_of_which_some_were_lost_before():
    divided = Division(numba.njit(lambda state: state % 4), 1000, 64, HOSTS[:3], 4)
    assert set(divided.slots_of(np.arange(1000)).tolist()) == {0, 1, 2}
    assert set(hosts_of(divided)) == {"a", "b"}


@numba.njit
def scattered(state):
    return state % 3


@numba.njit
def mostly_first(state):
    return 0 if state < 800 else 1 + state % 2


@pytest.mark.parametrize("row_bytes", [64, 192, 8192])
@pytest.mark.parametrize("partition", [scattered, mostly_first, "range"])
def test_the_memory_that_a_host_needs_is_that_of_the_pages_with_its_rows(monkeypatch, partition, row_bytes):
    monkeypatch.setattr(division, "SLICE_BYTES", 1 << 14)
    divided = Division(partition, 1200, row_bytes, ["a", "b", "a"], 3)
    found = hosts_of(divided)
    for host in ("a", "b"):
        taken = np.zeros(1200 * row_bytes // PAGESIZE + 1, bool)
        for row in np.flatnonzero(found == host):
            first, last = row * row_bytes, (row + 1) * row_bytes - 1
            taken[first // PAGESIZE : last // PAGESIZE + 1] = True
        needed = divided.bytes_of(host)
        if partition == "range":
            assert abs(needed - taken.sum() * PAGESIZE) <= 2 * PAGESIZE
        else:
            assert needed == taken.sum() * PAGESIZE


def test_rows_in_stretches_are_those_that_were_there():
    rng = np.random.default_rng(0)
    rows = np.flatnonzero(rng.random(1000) < 0.6)
    stretches = stretches_of(rows)
    assert len(stretches) < rows.size and stretches[:, 1].sum() == rows.size
    for at_once in (1, 7, 5000):
        np.testing.assert_array_equal(np.concatenate(list(rows_in(stretches, at_once))), rows)
    assert stretches_of(rows[:0]).shape == (0, 2) and not list(rows_in(stretches[:0], 5))


def parts_of(n_rows, n_parts):
    rng = np.random.default_rng(1)
    values = rng.normal(size=(n_rows, 3)).astype(np.float32)
    counts = rng.integers(1 << 31, size=(n_rows, 3), dtype=np.uint32)
    whose = rng.integers(n_parts, size=n_rows // 8 + 1).repeat(8)[:n_rows]
    return values, counts, [stretches_of(np.flatnonzero(whose == part)) for part in range(n_parts)]


def test_a_model_in_a_folder_takes_the_place_of_the_one_before(tmp_path):
    agent = DistAsyncQLearning(seed=1)
    for n in (1, 2):
        agent.train("FrozenLake-v1", total_steps=100 * n)
        save_divided(tmp_path / "model", state_of(agent))
    (name,) = CheckpointFolder(tmp_path, "model").names()
    assert len([each for each in (tmp_path / "model").iterdir() if each.is_dir()]) == 1
    loaded = DistAsyncQLearning.load_model(tmp_path / "model")
    assert loaded.steps == agent.steps
    np.testing.assert_array_equal(loaded.q_table, agent.q_table)


@pytest.mark.parametrize("is_local", [True, False])
def test_a_table_in_parts_is_read_by_any_rows(tmp_path, is_local):
    storage = open_storage(tmp_path if is_local else f"memory://{tmp_path.name}", "agent", 0o600)
    storage.create()
    values, counts, parts = parts_of(1000, 3)
    entries = {}
    for number, stretches in enumerate([*parts, parts[0][:0]]):
        entries |= write_part(storage, "one", number, stretches, values, counts)
    found = whole_table(storage, "one", entries)
    assert found["visits"].dtype == np.int64 and found["q_table"].shape == (1000, 3)
    rows = np.flatnonzero(np.random.default_rng(2).random(1000) < 0.3)
    np.testing.assert_array_equal(found["q_table"].take(rows), values[rows])
    np.testing.assert_array_equal(found["visits"][100:900], counts[100:900])
    np.testing.assert_array_equal(np.asarray(found["q_table"]), values)
    assert (found["visits"].min(), found["visits"].max()) == (counts.min(), counts.max())
    with pytest.raises(ValueError, match="no whole table"):
        whole_table(
            storage, "one", {name: entry for name, entry in entries.items() if not name.endswith("_1")}
        )
    del entries["counts_1"]
    with pytest.raises(ValueError, match="part 1 lacks counts_1"):
        whole_table(storage, "one", entries)


def test_a_checkpoint_with_parts_is_one_of_the_folder_and_damage_is_found(tmp_path):
    folder = CheckpointFolder(tmp_path, "agent")
    folder.fence.claim()
    values, counts, parts = parts_of(500, 2)
    name = folder.next_name(7, "0123abcd")
    entries: dict[str, ArrayEntry] = {}
    for number, stretches in enumerate(parts):
        entries |= write_part(folder.storage, str(name), number, stretches, values, counts)
    written = folder.write({"more": np.arange(3)}, {"steps": 7}, "0123abcd", name=name, parts=entries)
    saved = folder.read(written)
    assert set(saved.arrays) == {"more", "q_table", "visits"}
    np.testing.assert_array_equal(np.asarray(saved.arrays["q_table"]), values)
    path = tmp_path / "agent" / written / "values_1.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"values_1\.npy is damaged: its checksum"):
        folder.read(written)


def test_what_could_not_be_written_here_is_a_checkpoint_that_failed_once_all_have_answered():
    server, sent = DividedServer.__new__(DividedServer), []
    peer = SimpleNamespace(rank=1, channel=SimpleNamespace(send=sent.append))
    server._attempt = 3

    def save_rows(name, number, meanwhile):
        raise OSError("the connection is lost")

    def answer():
        server._saved[1] = SavedRows(3, "one", "", {})

    server.part = SimpleNamespace(
        players=(0, 1), save_rows=save_rows, division=SimpleNamespace(holders=["a", "b"])
    )
    server.group = SimpleNamespace(
        rank=0, host_of="ab".__getitem__, wire=SimpleNamespace(sleep=lambda _: None)
    )
    server.members = SimpleNamespace(peers=SimpleNamespace(present={1: peer}, has=lambda peer: True))
    server.keep_alive, server._look_around_anyhow = lambda: None, answer
    with pytest.raises(OSError, match="rank 0: the connection is lost"):
        server._write_parts("one")
    assert len(sent) == 1 and 1 in server._saved


def test_a_host_that_cannot_write_its_rows_says_why():
    worker, sent = SuperstepWorker.__new__(SuperstepWorker), []

    def save_rows(name, number, meanwhile):
        assert (name, number, meanwhile) == ("one", 2, worker._tend_idle)
        raise OSError("nothing was written for 600 s")

    worker.part, worker.channel = SimpleNamespace(save_rows=save_rows), SimpleNamespace(send=sent.append)
    worker._obey(SaveRows(3, "one", 2))
    (saved,) = map(decode, sent)
    assert saved == SavedRows(3, "one", "nothing was written for 600 s", {})


@pytest.fixture
def hanging_part(monkeypatch):
    """What a rank has whose disk hangs at the first piece that is read; its clock goes on by each look."""
    entered, goes_on, clock = threading.Event(), threading.Event(), SimpleNamespace(now=0.0)

    def hang(*given):
        given[-1]()
        entered.set()
        assert goes_on.wait(600.0)
        given[-1]()

    def passes(seconds=200.0):
        assert entered.wait(600.0) and clock.now < 6000.0, "this would go on for ever"
        clock.now += seconds

    part = Part.__new__(Part)
    part.group = SimpleNamespace(rank=1, host_of="ab".__getitem__)
    part.run = SimpleNamespace(
        settings=SimpleNamespace(timeout=600.0), large=object(), reload=hang, read_table=hang
    )
    part._reading, part.passes = FileThread("read"), passes
    monkeypatch.setattr(file_thread, "time", SimpleNamespace(monotonic=lambda: clock.now))
    yield part
    goes_on.set()


def test_a_host_whose_disk_hangs_with_rows_to_read_says_so_to_its_server(hanging_part):
    worker, sent = SuperstepWorker.__new__(SuperstepWorker), []
    worker.part, worker.channel = hanging_part, SimpleNamespace(send=sent.append)
    worker._tend_idle = hanging_part.passes
    worker._obey(LoadRows(3, "one"))
    (saved,) = map(decode, sent)
    why = "nothing was read for 800 s: its disk, or the server of it, hangs"
    assert saved == SavedRows(3, "one", why, {})


@pytest.mark.parametrize("which", ["own rows", "rows of another host", "the whole table"])
def test_rows_that_cannot_be_read_end_the_run_with_who_could_not_and_why(hanging_part, which):
    server = DividedServer.__new__(DividedServer)
    server.part, server._attempt, server.keep_alive = hanging_part, 3, hanging_part.passes
    server.group = SimpleNamespace(rank=0)
    told = SimpleNamespace(rank=1, channel=SimpleNamespace(send=lambda message: None))
    server._others, server._halt_all = lambda players: {"b": told}, lambda: None
    hanging_part.players = (0, 1)
    who, what, why = 0, "the rows of its host from the checkpoint one", "nothing was read for 800 s"
    if which == "rows of another host":
        who, why = 1, "the connection is lost"
        hanging_part.load_rows = lambda name, meanwhile: {}
        server._await_saved = lambda *_: server._saved.update({1: SavedRows(3, "one", why, {})})
    if which == "the whole table":
        what = "the table from the last checkpoint of this call"
    with pytest.raises(CheckpointUnreadableError, match=f"rank {who} cannot read {what}: {why}"):
        RowsServer._go_back(server) if which == "the whole table" else server._have_loaded("one")


def test_what_is_read_after_a_loss_is_looked_at_piece_by_piece(tmp_path):
    folder, looked = CheckpointFolder(tmp_path, "agent"), []
    folder.fence.claim()
    values, counts, parts = parts_of(100, 2)
    name, entries = folder.next_name(7, "0123abcd"), {}
    for number, stretches in enumerate(parts):
        entries |= write_part(folder.storage, str(name), number, stretches, values, counts)
    folder.write({"more": np.arange(3)}, {"steps": 7}, "0123abcd", name=name, parts=entries)
    pieces = 1 + 2 + 2 * 3  # the manifest, an array, and of two parts what rows they have and two heads
    folder.read(str(name), True, lambda: looked.append(1))
    assert len(looked) == pieces
    looked.clear()
    folder.read_newest(lambda: looked.append(1))
    assert len(looked) == pieces + 2 * 3 * 2  # and before that all of it is verified


def test_whoever_waits_for_a_part_hears_of_each_piece(tmp_path):
    storage, looked = open_storage(tmp_path, "agent", 0o600), []
    values, counts, (rows,) = parts_of(100, 1)
    write_part(storage, "one", 0, rows, values, counts, lambda: looked.append(1))
    assert len(looked) == 3 * (2 + 1)  # of three arrays the head and the numbers, and all of it read back


def test_tags_of_desks_begin_anew_with_the_ranks_of_another_communicator(monkeypatch):
    """Whose group may be where a freed one was in memory, on some ranks and not on others."""
    tags = []
    monkeypatch.setattr(desk, "RowDesk", lambda group, large, tag, in_use: tags.append(tag))
    for _ in range(100):
        group = group_of_two()
        for _ in range(2):
            desk.open_desk(SimpleNamespace(desk=None), group, told([]))
    assert tags == [desk._TAGS[0], desk._TAGS[1]] * 100


def group_of_two():
    return Group(SimpleNamespace(rank=0, size=2, has_threads=True), ["a", "b"])


def told(in_use):
    """Return what agrees with another rank, where these tags are in use."""
    theirs = [tag not in in_use for tag in desk._TAGS]
    return SimpleNamespace(agree=lambda error, description, own, what: np.array([own, theirs]))


def test_a_desk_takes_a_tag_that_is_free_on_all_ranks(monkeypatch):
    monkeypatch.setattr(desk, "RowDesk", lambda group, large, tag, in_use: (tag, in_use))
    monkeypatch.setattr(desk, "_TAG_SECONDS", 0.0)
    first, *rest = desk._TAGS
    group, large = group_of_two(), [SimpleNamespace(desk=None) for _ in desk._TAGS]
    for each in large:
        desk.open_desk(each, group, told([]))
    assert [each.desk[0] for each in large] == [first, *rest]
    in_use = large[0].desk[1]
    another = SimpleNamespace(desk=None)
    with pytest.raises(SettingsError, match=r"56 agents .* at a time. Let go .*del agent"):
        desk.open_desk(another, group, told([]))
    in_use -= {first, rest[3]}
    desk.open_desk(another, group, told([first]))
    assert another.desk[0] == rest[3] and in_use == {*rest}


def test_who_has_a_desk_already_agrees_with_the_others_on_its_tag(monkeypatch):
    """A rank was lost when some had opened theirs, and all begin again."""
    monkeypatch.setattr(desk, "RowDesk", lambda group, large, tag, in_use: SimpleNamespace(tag=tag))
    with_one, without, theirs = SimpleNamespace(desk=None), SimpleNamespace(desk=None), []
    before, group = group_of_two(), group_of_two()
    for _ in range(3):
        with_one.desk = None
        desk.open_desk(with_one, before, told([]))
    opened = with_one.desk
    all_told = SimpleNamespace(agree=lambda *asked: theirs.append(asked[2]) or np.array([asked[2]]))
    desk.open_desk(with_one, before, all_told)
    assert with_one.desk is opened and theirs == [[int(tag == opened.tag) for tag in desk._TAGS]]
    agreed = SimpleNamespace(agree=lambda error, description, own, what: np.array([own, theirs[0]]))
    desk.open_desk(without, group, agreed)
    assert without.desk.tag == opened.tag == desk._TAGS[2]


def test_rows_of_a_host_that_leaves_do_not_move_while_a_rank_that_came_has_not_begun(monkeypatch):
    """Its host would get them, and no player is there to take them."""
    server = object.__new__(DividedServer)
    peers = {
        rank: SimpleNamespace(rank=rank, channel=SimpleNamespace(send=lambda message: None))
        for rank in (1, 2)
    }
    server.group = SimpleNamespace(rank=0, host_of="abc".__getitem__)
    server.part = SimpleNamespace(division=Division("range", 12, 64, ["a", "b"], 2), players=(0, 1))
    server.members = SimpleNamespace(peers=SimpleNamespace(learners=list(peers.values()), present=peers))
    server._attempt, server._is_at_cut, server._must_begin, server._leaves = 1, True, True, []
    told = SimpleNamespace(lines=np.zeros(6 * 64, np.uint8))
    monkeypatch.setattr(server, "_wait", lambda answers, peer: answers.update({1: told}), raising=False)
    leave = object()
    server._let_leave(peers[1], leave)
    assert server.part.division.holders == ["a", "b"]
    assert server._leaves == [(peers[1], leave)]
