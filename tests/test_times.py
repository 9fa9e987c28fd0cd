"""The seconds of a report belong to the right tests, and those of fast tests are counted apart."""

from __future__ import annotations

from pathlib import Path

from tests.times import Timed, table, timed_tests

REPORT = """<testsuites><testsuite>
<testcase classname="tests.ir.graph.test_rewrite" name="test_a[1-x@y]" time="0.25"/>
<testcase classname="tests.e2e.test_models" name="test_b@models" time="4.0"/>
<testcase classname="tests.test_options" name="test_c" time="1.5"><skipped/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_read_and_summed(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    tests = timed_tests(report)
    assert [test.file for test in tests] == [
        "ir/graph/test_rewrite.py",
        "e2e/test_models.py",
        "test_options.py",
    ]
    assert tests[1] == Timed("e2e/test_models.py", "test_b", 4.0)
    assert [test.is_fast for test in tests] == [True, False, True]
    assert table(tests, 1).splitlines() == [
        " seconds     fast  folder",
        "     4.0      0.0  e2e",
        "     1.5      1.5  .",
        "     0.2      0.2  ir/graph",
        "     5.8      1.8  all 3 tests",
        "",
        "     4.0  e2e/test_models.py",
        "",
        "    4.00  e2e/test_models.py::test_b",
    ]
