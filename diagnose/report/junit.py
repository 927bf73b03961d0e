"""The diagnosis as JUnit XML for gates: one test suite a job, one test case a cause.

Enters: a `Diagnosis`, or the error of a job that could not be diagnosed. Leaves: one `testsuite` element, to stand between
`BEFORE` and `AFTER`. A cause that is said is a failure, one that could not be looked for is skipped, any other has passed. The case
`trace` says whether the job could be read and judged: an error where not read, skipped where the verdict is inconclusive.
There are no times and dates: the same job gives the same bytes. All of it is ASCII, whatever the job holds.
"""

from collections.abc import Iterator
from xml.etree import ElementTree as ET

from diagnose.model.cause import Cause
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.place import Shape
from diagnose.report import facts, words
from diagnose.report.escape import escape, name, prose

BEFORE = '<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name="diagnose">\n'
AFTER = "</testsuites>\n"
#: Lost time that no rule explains: a cause without a rule.
_UNKNOWN = "unknown"


def render(diagnosis: Diagnosis) -> str:
    """Write a diagnosis as one element `testsuite`, indented, ended by a line end."""
    job = name(diagnosis.job.job_id) or "job"
    suite = ET.Element("testsuite", name=job)
    properties = ET.SubElement(suite, "properties")
    for key, value in _figures(diagnosis):
        ET.SubElement(properties, "property", name=key, value=value)
    trace = ET.SubElement(suite, "testcase", classname=job, name="trace")
    if diagnosis.verdict == "inconclusive":
        ET.SubElement(trace, "skipped", message=f"inconclusive: {words.why_inconclusive(diagnosis)}")
    for cause, outcome in _outcomes(diagnosis):
        case = ET.SubElement(suite, "testcase", classname=job, name=escape(cause))
        if outcome is not None:
            case.append(outcome)
    return _write(suite)


def render_error(job: str, message: str) -> str:
    """Write a job, by its file, that could not be diagnosed as a test suite with one error: what was said on standard error."""
    suite = ET.Element("testsuite", name=name(job))
    case = ET.SubElement(suite, "testcase", classname=name(job), name="trace")
    ET.SubElement(case, "error", type="trace", message=prose(message))
    return _write(suite)


def _figures(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    """Give what is worth knowing beside the cases."""
    yield "verdict", escape(diagnosis.verdict)
    yield "step_time_recorded_s", f"{diagnosis.step_time.recorded:.6g}"
    if diagnosis.step_time.clean is not None:
        yield "step_time_clean_s", f"{diagnosis.step_time.clean:.6g}"
    yield "gpus", str(diagnosis.job.world_size)
    yield "made_by", facts.describe_makers(diagnosis.made_by)
    for warning in diagnosis.warnings:
        yield "warning", prose(warning)


def _outcomes(diagnosis: Diagnosis) -> list[tuple[str, ET.Element | None]]:
    """Give one entry a cause, by name: a failure, why it is skipped, or None where it has passed."""
    found: dict[str, ET.Element | None] = dict.fromkeys((*diagnosis.checked, _UNKNOWN))
    if diagnosis.verdict == "inconclusive":
        why = words.why_inconclusive(diagnosis)
        found = {cause: ET.Element("skipped", message=f"nobody can judge: {why}") for cause in found}
    for entry in diagnosis.not_checked:
        reason = prose(facts.without_features(entry.reason, diagnosis))
        found[entry.cause] = ET.Element("skipped", message=reason)
    for cause in diagnosis.causes:
        found[cause.cause] = _fail(cause, is_placed=not diagnosis.is_from_log, shape=diagnosis.shape)
    return sorted(found.items())


def _fail(cause: Cause, *, is_placed: bool, shape: Shape | None) -> ET.Element:
    """Say in a failure what was found, and below it how much, why and what to do."""
    message = f"{facts.head(cause, is_placed=is_placed, shape=shape)}; {words.promise(cause)}"
    failure = ET.Element("failure", type=escape(cause.severity or "cause"), message=message)
    lines = [f"{label}: {'; '.join(fact.splitlines())}" for label, fact in facts.measure(cause)]
    lines += [f"Evidence: {sentence}" for sentence in facts.describe_evidence(cause)]
    for fix in cause.fixes:
        lines += [f"What to do: {prose(fix.summary)} ({escape(fix.fix)}); {facts.predict(fix) or 'no prediction'}"]
        lines += [f"  {line}" for line in facts.split_how(fix)]
    failure.text = "\n" + "\n".join(lines) + "\n"
    return failure


def _write(suite: ET.Element) -> str:
    """Count the cases, and write the element."""
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(case.find(tag) is not None for case in cases)))
    ET.indent(suite, level=1)
    return f"  {ET.tostring(suite, encoding='us-ascii', xml_declaration=False).decode('ascii')}\n"
