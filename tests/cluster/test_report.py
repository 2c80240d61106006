"""The report of a run with failures."""

import cluster
import pytest


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], ["rolling_upgrade"]),
        (["--store", "s3"], ["rolling_upgrade"]),
        (["--before", "millpond"], []),
        (["--smoke"], []),
        (["--only", "etcd_down"], []),
    ],
)
def test_a_report_names_the_scenario_that_needs_an_earlier_program(arguments: list[str], names: list[str]):
    left_out = cluster.skipped(cluster.parser_of_arguments().parse_args(arguments))
    report = cluster.report_of({}, left_out, 0.0)
    assert list(report["skipped"]) == names
    assert all("--before PROGRAM" in reason for reason in report["skipped"].values())
