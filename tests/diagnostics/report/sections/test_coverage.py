import numpy as np
from msgspec.structs import replace

from gradscope.diagnostics.passk.measure import Samples
from gradscope.diagnostics.report.sections.coverage import MAX_PROBLEMS, coverage_section
from gradscope.estimate import Estimate
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.report.sections.made_up_inputs import inputs_of
from tests.render.examples import passk_report, source

RUN = run_of(group_of([1, 0]))
REPORT = passk_report()


def samples(name: str, *correct: int) -> Samples:
    prompts = tuple(f"p{index}" for index in range(len(correct)))
    counts = np.array(correct, dtype=np.int64)
    return Samples(
        name=name,
        source=source(name),
        prompts=prompts,
        num_samples=np.full(len(correct), 4, dtype=np.int64),
        num_correct=counts,
        num_missing=0,
    )


def test_problems_that_only_the_first_solve_are_listed_and_many_are_cut() -> None:
    both = (samples("before", 0, 1, 4, 2), samples("after", 4, 0, 4, 0))
    section = coverage_section(inputs_of(RUN, passk=REPORT, samples=both))
    assert section.tables[-1].rows == (("p1", "1/4", "0/4"), ("p3", "2/4", "0/4"))
    assert section.tables[-1].caption == (
        "Problems of which before has a correct sample and after none (2), also by chance where few were correct; "
        "correct samples in each"
    )
    assert section.findings[-1].startswith("Of 64 prompts the samples of before.jsonl alone solved 2, those of ")
    assert section.findings[-1].endswith(" alone 12.")
    number = MAX_PROBLEMS + 5
    both = (samples("before", *[1] * number), samples("after", *[0] * number))
    table = coverage_section(inputs_of(RUN, passk=REPORT, samples=both)).tables[-1]
    assert len(table.rows) == MAX_PROBLEMS
    assert f"({number}, the first {MAX_PROBLEMS})," in table.caption


def test_a_certain_loss_is_advised_on() -> None:
    uncertain = coverage_section(inputs_of(RUN, passk=REPORT))
    assert uncertain.findings == REPORT.findings
    assert uncertain.next_step.startswith("No loss of coverage is certain")
    *rows, last = REPORT.comparison.rows
    for low, severity, none in ((-0.04, "fine", "0.05 is excluded;"), (-0.5, "unknown", "0.05 is possible;")):
        open_one = replace(last, difference=Estimate(value=-0.02, low=low, high=0.3))
        report = replace(REPORT, comparison=replace(REPORT.comparison, rows=(*rows, open_one)))
        section = coverage_section(inputs_of(RUN, passk=report))
        assert section.severity == severity
        assert none in section.next_step
    lost = replace(last, difference=Estimate(value=-0.2, low=-0.3, high=-0.1))
    report = replace(REPORT, comparison=replace(REPORT.comparison, rows=(*rows, lost)))
    assert coverage_section(inputs_of(RUN, passk=report)).next_step.startswith("Coverage fell at the largest k")
    section = coverage_section(inputs_of(RUN, passk=passk_report(num_files=1), samples=(samples("before", 1),)))
    assert "one file alone has no direction" in section.next_step
    assert [table.caption[:6] for table in section.tables] == ["pass@k"]
    assert section.charts[0].series[0].values[-1] is None
