"""What scripts/test takes for passed where MPI's end took too long after the tests."""

from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
PASSED = "==== 518 passed, 7 skipped, 2 warnings in 610.27s (0:10:10) ====\n"
REPORT = '<testsuites><testsuite tests="5" failures="{}" errors="0"/></testsuites>'


@pytest.mark.parametrize(
    ("failures", "log", "expected"),
    [
        (0, PASSED, True),
        (1, PASSED, False),
        (0, PASSED.replace("518 passed", "1 failed, 517 passed"), False),
        (0, PASSED.replace("518 passed", "518 passed, 1 error"), False),
        (0, "collected 525 items\n", False),
    ],
)
def test_all_ranks_have_to_have_passed(tmp_path, monkeypatch, failures, log, expected):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import _checks

    report = tmp_path / "report.xml"
    assert not _checks.all_ranks_have_passed(report, tmp_path, 3)
    report.write_text(REPORT.format(failures))
    (tmp_path / "rank-1.log").write_text(PASSED)
    assert not _checks.all_ranks_have_passed(report, tmp_path, 3)
    (tmp_path / "rank-2.log").write_text(log)
    assert _checks.all_ranks_have_passed(report, tmp_path, 3) == expected
