"""Names that try to break a report, and a diagnosis that has one wherever a user's text can stand."""

import dataclasses

import msgspec.structs

from diagnose.model.cause import EvidenceItem, Fix, NotChecked, RefusedFix
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.place import Where, Worker
from tests.report.examples import worker_fault

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "image": '"><img src=x onerror=alert(1)>',
    "escape": "gpu\x1b[2J\x1b[31m\x07\x9b31m",
    "osc": "\x1b]8;;http://evil.example\x07click\x1b]8;;\x07",
    "right to left": "gpu\u202egnp.exe\u2066\u200f",
    "long": "x" * 10_000,
    "long words": "word " * 2_000,
    "long controls": "\x1b" * 10_000,
    "lines": "a\n# heading\n- item\n\n    code\r\n---\nb\x85c\u2028d",
    "ticks": "a`b``c```d\n```\ne`",
    "bars": "a|b\\|c\\\\|d||",
    "bar in code": "a|b@c\\|d\\\\|e",
    "mention": "@all @org/team me@example.org",
    "references": "#123 !45 GH-7 org/repo#1 ~bug %2 &3 JIRA-12 0123456789abcdef0123456789abcdef01234567",
    "links": "[x](javascript:alert(1)) <http://evil.example> www.evil.example https://evil.example [a]: http://b ![i](http://c)",
    "markup": "*a* **b** _c_ __d__ ~~e~~ $x^2$ :tada: [^1] [ ] \\ &lt; &#35;",
    "begins": "1. one",
    "quote": "> quoted",
    "underline": "===",
    "xml": "]]></testsuite><!-- &amp; \x00\x01\x0b\ufffe\uffff\ud800",
    "empty": "",
    "blank": " \t\n",
}


def hostile(text: str) -> Diagnosis:
    """Put a text into every place of a diagnosis that a trace, a rule or a file beside it can fill."""
    base = worker_fault()
    fix = Fix(
        "replace-worker",
        summary=text,
        how=text,
        predicted_step_time=6.3,
        predicted_speedup=1.9,
        assumptions=(text,),
        risks=(text,),
    )
    cause = msgspec.structs.replace(
        base.causes[0],
        title=text,
        where=Where(workers=(Worker(0, 0, rank=0, host=text),), hosts=(text, "b")),
        evidence=(EvidenceItem("rule", text, text, {}),),
        fixes=(fix,),
        refused_fixes=(RefusedFix("swap-workers", text),),
        who=text,
    )
    return dataclasses.replace(
        base,
        job=dataclasses.replace(base.job, job_id=text, gpu_type=text, owner=text, framework=text),
        causes=(cause, msgspec.structs.replace(cause, cause="network-fault")),
        not_checked=(NotChecked("data-loading", text),),
        warnings=(text, text),
        what_if=dataclasses.replace(base.what_if, by_optype={text: 2.0}),
    )
