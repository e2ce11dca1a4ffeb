"""How much memory processes may still take: of the machine, and of the control groups that they are in."""

import pytest

from dist_classicrl import _memory

GIB = 1 << 30
V2 = "sys/fs/cgroup"
V1 = "sys/fs/cgroup/memory"


def of_v2(limit, used, cached=None):
    """Return what a control group tells, in GiB; None: it has no limit."""
    limit = "max" if limit is None else int(limit * GIB)
    told = {"memory.max": f"{limit}\n", "memory.current": f"{int(used * GIB)}\n"}
    if cached is not None:
        told["memory.stat"] = f"anon 5\ninactive_anon 7\ninactive_file {int(cached * GIB)}\nactive_file 9\n"
    return told


def of_v1(limit, used, cached):
    return {
        "memory.limit_in_bytes": f"{int(limit * GIB)}\n",
        "memory.usage_in_bytes": f"{int(used * GIB)}\n",
        "memory.stat": f"cache 3\ninactive_file 7\ntotal_inactive_file {int(cached * GIB)}\n",
    }


@pytest.fixture
def left(tmp_path):
    """Give a function that returns the GiB left where the system tells this of itself, by folder."""

    def ask(groups, process=None, available=64):
        for folder, told in groups.items():
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            for name, text in told.items():
                (tmp_path / folder / name).write_text(text)
        (tmp_path / "proc/self").mkdir(parents=True)
        if available is not None:
            (tmp_path / "proc/meminfo").write_text(
                f"MemTotal: 9 kB\nMemAvailable:   {available * GIB // 1024} kB\n"
            )
        if process is not None:
            (tmp_path / "proc/self/cgroup").write_text(process)
        found = _memory.memory_left(str(tmp_path))
        return None if found is None else found / GIB

    return ask


def test_without_limits_it_is_what_the_machine_has(left):
    assert left({V2: {}, f"{V2}/a": of_v2(None, 3.0)}, "0::/a\n") == 64


def test_where_nothing_is_told_nothing_is_known(left):
    assert left({}, available=None) is None


@pytest.mark.parametrize("place", [{V2: of_v2(4, 3.9, 3.5)}, {V1: of_v1(4, 3.9, 3.5)}])
def test_what_was_read_from_files_can_be_given_up(left, place):
    assert left(place, "0::/\n") == pytest.approx(3.6)


def test_a_limit_in_a_container_counts_without_more(left):
    assert left({V2: of_v2(4, 3.0)}, None) == pytest.approx(1.0)


@pytest.mark.parametrize("limited", ["job_1", "job_1/step_0", "job_1/step_0/user/task_0"])
def test_the_limit_of_a_job_is_found_in_its_group_or_above(left, limited):
    job = f"{V2}/system.slice/slurmstepd.scope"
    groups = {f"{job}/job_1/step_0/user/task_0": of_v2(None, 0.25), f"{job}/{limited}": of_v2(2, 0.5, 0.25)}
    groups[f"{V2}/system.slice"] = of_v2(32, 20, 0)
    groups[f"{job}/job_2"] = of_v2(1, 0.9)  # of somebody else
    assert left(groups, "0::/system.slice/slurmstepd.scope/job_1/step_0/user/task_0\n") == 1.75


def test_groups_of_version_1_are_those_of_memory(left):
    groups = {
        f"{V1}/slurm/uid_0/job_1": of_v1(3, 1, 0.5),
        f"{V1}/slurm/uid_0/job_1/step_0": of_v1(2**33, 1, 0.5),
        f"{V1}/other": of_v1(1, 1, 0),
    }
    said = (
        "9:cpu,cpuacct:/other\n5:hugetlb,memory:/slurm/uid_0/job_1/step_0\n1:name=systemd:/other\n0::/other\n"
    )
    assert left(groups, said) == 2.5


@pytest.mark.parametrize("said", ["0::/../../a\n", "nonsense\n", "4:memory:/not/seen/here\n", ""])
def test_groups_that_are_not_seen_here_are_passed_over(left, said):
    assert left({V2: of_v2(8, 1)}, said) == 7


def test_more_than_the_limit_is_nothing(left):
    assert left({f"{V2}/a": of_v2(2, 2.5)}, "0::/a\n") == 0
