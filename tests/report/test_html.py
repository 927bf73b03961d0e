"""The page for a browser, read as text: what is on it, that it is harmless, and that it stays the same."""

import base64
import dataclasses
import functools
import hashlib
import html.parser
import json
import re
from pathlib import Path

import msgspec.structs
import numpy as np
import pytest

from diagnose.cli.main import main
from diagnose.judge.proof import add_proofs
from diagnose.judge.rules import load_rules
from diagnose.model.analysis import ReportData
from diagnose.model.cause import Alternative, EvidenceItem
from diagnose.model.place import Where, Worker
from diagnose.model.plain import to_json
from diagnose.model.proof import Proof
from diagnose.model.request import Request
from diagnose.model.saved import restore
from diagnose.pipeline import prepare_report
from diagnose.report import words
from diagnose.report.html import page
from diagnose.report.html.draw import COLOURS, Sheet, round_ticks, styled
from diagnose.report.html.environment import _gather_styles
from diagnose.report.html.picture import UNITS, level_of
from diagnose.report.html.proof import draw_proof
from diagnose.report.html.timelines import choose_ranks, worst_step
from tests.jobs import random_job, random_shape, to_file

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = sorted((ROOT / "fixtures").glob("*.parquet"))
STYLE = (ROOT / "diagnose/report/html/style.css").read_text(encoding="utf-8")
#: What a name may hold that a page must not obey.
HOSTILE = (
    "<script>alert(1)</script>\"'>&amp;</style>]]>--><!--\x1b[31m\u202eevil\u2066{{7*7}}$\\frac{1}{2}$" + "x" * 10_000
)


class Reader(html.parser.HTMLParser):
    """Collects elements, attributes, ids and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        """Keep an element."""
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        """Keep text."""
        self.said.append(data)


@pytest.fixture(scope="module")
def data() -> ReportData:
    """Give a job with a slow worker."""
    return data_of("worker-fault")


@pytest.fixture(scope="module")
def rendered(data: ReportData) -> str:
    """Give its page."""
    return page.render(data)


def probes_of(text: str) -> dict:
    """Read the data that the script gets."""
    found = re.search(r'<script type="application/json" id="probes">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_verdict_and_sections(rendered: str, data: ReportData) -> None:
    """The headline of the terminal stands in the first heading, and every part that was asked for is there."""
    first = re.search(r'<h1 id="headline">(.*?)</h1>', rendered)
    assert (
        first
        and first[1] == "Slow worker (dp 1, stage 0); let it finish: with the fix steps of the next job are 15% shorter"
    )
    for key in (
        "pace",
        "workers",
        "causes",
        "steps",
        "ledger",
        "timeline",
        "others",
        "measures",
        "trust",
        "features",
        "about",
    ):
        assert f'id="{key}"' in rendered, key
    for feature in data.diagnosis.features:
        assert feature in rendered
    assert data.diagnosis.made_by.rules in rendered


def test_what_to_do_stands_above_all_figures(rendered: str, data: ReportData) -> None:
    """How bad it is, where, since when, how sure, what to do and who does it: before the first figure."""
    head = rendered[: rendered.index("<figure")]
    (cause,) = data.diagnosis.causes
    assert f'<strong class="severity {cause.severity}">{cause.severity}</strong>' in head
    for said in ("dp 1, stage 0</strong>", "from step 37 on", words.confidence(cause.confidence), "platform</strong>"):
        assert said in head, said
    assert f'Do: <a href="#causes">{cause.fixes[0].summary}</a>' in head
    assert head.count("S ") == 0, "the paper's measures stand further down"


def test_noise_and_alternatives_are_on_the_page(data: ReportData) -> None:
    """What else a cause may be stands in its card, and a job whose steps merely vary says what varies."""
    other = Alternative("sequence-imbalance", 0.37, "the documents of dp 1")
    cause = msgspec.structs.replace(data.diagnosis.causes[0], alternatives=(other,))
    told = page.render(dataclasses.replace(data, diagnosis=dataclasses.replace(data.diagnosis, causes=(cause,))))
    assert "Or else" in told
    assert "sequence-imbalance, possible (0.37); what would tell: the documents of dp 1" in told
    noisy = dataclasses.replace(
        data.diagnosis,
        verdict="noisy",
        why="steps vary by 4%; no cause can be named",
        causes=(),
        ledger=None,
        plan=None,
    )
    told = page.render(dataclasses.replace(data, diagnosis=noisy, plan=()))
    assert '<section class="verdict noisy"' in told
    assert "steps vary by 4%; no cause can be named" in told


def test_every_figure_has_alt_text_and_table(rendered: str) -> None:
    """Each drawing says in words what it shows, and each figure has a table with rows."""
    reader = Reader(rendered)
    drawings = [attributes for tag, attributes in reader.tags if tag == "svg"]
    assert len(drawings) == 6
    assert all(drawing["role"] == "img" and len(drawing["aria-label"] or "") > 30 for drawing in drawings)
    figures = re.findall(r"<figure.*?</figure>", rendered, re.DOTALL)
    assert len(figures) == len(drawings)
    assert all("<tbody>\n<tr>" in figure and "<figcaption>" in figure for figure in figures)


def test_nothing_is_fetched(rendered: str) -> None:
    """No element names another file, and the policy of the page forbids to fetch one."""
    reader = Reader(rendered)
    for tag, attributes in reader.tags:
        for name in ("src", "href", "data", "action", "srcset"):
            target = attributes.get(name)
            assert target is None or target.startswith("#") or target == "data:,", (tag, target)
    assert "default-src 'none'" in rendered
    style = re.findall(r"<style>.*?</style>", rendered, re.DOTALL)
    assert len(style) == 1 and "@import" not in style[0] and "url(" not in style[0]


def test_only_our_style_and_script_are_obeyed(rendered: str) -> None:
    """By their digests: no other that got onto the page would be, and no element has a style of its own."""
    rules = re.search(r'Content-Security-Policy" content="([^"]*)"', rendered)
    assert rules is not None and "unsafe" not in rules[1] and rules[1].startswith("default-src 'none'; ")
    for element in ("style", "script"):
        (content,) = re.findall(rf"<{element}>(.*?)</{element}>", rendered, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}';" in rules[1]
    assert not re.findall(r"<[^>]*\s(?:style|on\w+)=", rendered)
    used = set(re.findall(r'data-style="(\d+)"', rendered))
    assert used and used == set(re.findall(r':is\(#style,\[data-style="(\d+)"\]\)\{', rendered))


def test_words_are_no_style() -> None:
    """What reads as a style in the words of a trace stays words, and what is no plain style of ours is an error."""
    said = '<text style="fill: none"> style="}body{display:none}" </text>'
    found, style = _gather_styles(said, "")
    assert found == '<text data-style="0"> style="}body{display:none}" </text>'
    assert style == '\n:is(#style,[data-style="0"]){fill: none}'
    for hostile in ("}body{", "background:url(https://x)", "a\\3c", "@import x", "&quot;&lt;/style&gt;"):
        with pytest.raises(ValueError, match="no style of ours"):
            _gather_styles(f'<p style="{hostile}">', "")


def test_ids_are_unique(rendered: str) -> None:
    """Drawings that were made one by one share no id, and what they refer to is there."""
    ids = [attributes["id"] for _, attributes in Reader(rendered).tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', rendered)) <= set(ids)


def test_colours_are_the_page_s(rendered: str) -> None:
    """Drawings take every colour from the style, which knows each of them in light and dark."""
    for drawing in re.findall(r"<svg.*?</svg>", rendered, re.DOTALL):
        assert not re.findall(r"#[0-9a-fA-F]{6}\b", drawing)
    for name in COLOURS:
        assert len(re.findall(rf"--{name}:", STYLE)) == 2, name


def test_same_bytes(data: ReportData, rendered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same job gives the same page, whatever the user's settings of matplotlib are."""
    import matplotlib as mpl

    monkeypatch.setitem(mpl.rcParams, "font.size", 31)
    monkeypatch.setitem(mpl.rcParams, "axes.grid", True)
    assert page.render(data) == rendered
    assert page.render(prepare_report(Request(ROOT / "fixtures/worker-fault.parquet"))) == rendered
    assert mpl.rcParams["font.size"] == 31


def test_values_are_those_of_the_json(rendered: str, data: ReportData) -> None:
    """What the slider shows is the slowdown of the JSON, in thousandths; the map, the steps and the types read the same."""
    w = data.diagnosis.what_if
    probe = probes_of(rendered)["workers"]
    packed = np.frombuffer(base64.b64decode(probe["values"]), dtype="<u2") / probe["unit"]
    values = packed.reshape(1 + len(w.steps), *w.by_worker.shape)
    np.testing.assert_allclose(values[0], w.by_worker, atol=0.0006)
    np.testing.assert_allclose(values[1:], np.moveaxis(w.by_worker_step, 2, 0), atol=0.0006)
    assert probe["steps"] == w.steps.tolist()
    for series in (w.by_step, np.array(list(w.by_optype.values()))):
        for value in series:
            assert f"<td>{words.ratio(float(value))}</td>" in rendered


def test_large_jobs_keep_the_slowest_steps(data: ReportData, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not every step fits, the slider has the slowest ones."""
    from diagnose.report.html import workers

    monkeypatch.setattr(workers, "_MAX_VALUES", 16 * 3)
    picture = workers.draw_workers(data.diagnosis) if styled() else None
    assert picture is not None
    w = data.diagnosis.what_if
    assert picture.probe["steps"] == sorted(w.steps[np.argsort(-w.by_step)[:3]].tolist())
    assert picture.probe["left_out"] == len(w.steps) - 3


def test_timeline_shows_what_the_scene_says(rendered: str, data: ReportData) -> None:
    """Bars start and end when the timelines say so, for the culprit's dp rank and a sound one."""
    step = worst_step(data)
    affected, sound = choose_ranks(data, step)
    assert affected == 1 and sound != 1
    probe = probes_of(rendered)["timeline"]
    bars = np.array(probe["bars"]).reshape(-1, 6)
    line = data.analysis.timelines.recorded(step, np.array([affected]))
    assert line is not None
    lane = line.nodes.stage == 2
    expected = np.sort(line.start_s[lane, 0][(line.end_s - line.start_s)[lane, 0] > 0])
    found = np.sort(bars[bars[:, 0] == 2, 4] * probe["unit"])
    np.testing.assert_allclose(found, expected, atol=2 * probe["unit"])


def first_proof(name: str) -> tuple[Proof, np.ndarray]:
    """Give what shows the first cause of a fixture, with its values as an array, rows by columns."""
    proof = data_of(name).diagnosis.causes[0].proof
    assert proof is not None
    return proof, np.array(proof.values, dtype=float)


@functools.cache
def data_of(name: str) -> ReportData:
    """Diagnose a fixture once."""
    return prepare_report(Request(ROOT / f"fixtures/{name}.parquet"))


@pytest.mark.parametrize("name", [path.stem for path in FIXTURES if path.stem != "healthy"])
def test_the_figures_of_the_cause_come_first(name: str) -> None:
    """The first figure of each fixture is that of its rule, and says every value that the diagnosis keeps, in words."""
    data = data_of(name)
    text = page.render(data)
    proof, _ = first_proof(name)
    rule = next(rule for rule in load_rules().rules if rule.id == name)
    assert proof.kind == rule.pictures[0]
    figure = first_figure(text)
    assert figure.startswith(f'<figure id="{proof.kind}"')
    for place in proof.rows:
        assert place in figure
    say = words.seconds if proof.unit == "seconds" else lambda value: f"{words.ratio(value)}x"
    cells = re.findall(r"<td>(.*?)</td>", figure)
    assert sorted(cells) == sorted(say(value) for row in proof.values for value in row)
    assert len(text) < 1_000_000


def first_figure(text: str) -> str:
    """Give the first figure of a page."""
    found = re.search(r"<figure.*?</figure>", text, re.DOTALL)
    assert found
    return found[0]


def test_a_slow_worker_stands_out_of_its_peers_from_its_onset_on() -> None:
    """The culprit's compute leaves the band of its peers at the onset, which is marked."""
    proof, values = first_proof("worker-fault")
    (culprit, median, low, high), steps = values, np.array(proof.columns)
    assert proof.n_culprits == 1 and proof.rows[0] == "dp 1, stage 0"
    assert (culprit[steps >= 37] > 1.5 * high[steps >= 37]).all()
    assert np.abs(culprit[steps < 37] - 1.0).max() < 0.05
    assert (low <= median).all() and (median <= high).all() and np.ptp(high - low) < 0.05
    assert "worker-fault begins: step 37" in first_figure(page.render(data_of("worker-fault")))


def test_slow_links_stand_out_of_all_others() -> None:
    """Links of the card are far above ordinary in some steps; the others never are."""
    proof, values = first_proof("network-fault")
    assert [name.startswith("link dp 1, ") for name in proof.rows[:2]] == [True, True]
    assert np.median(values[:2].max(axis=0)) > 10 and values[:2].min() > 0.9
    assert values[proof.n_culprits :].max() < 1.1
    probes = probes_of(page.render(data_of("network-fault")))
    worst = max(probes["network"]["items"], key=lambda item: float(re.search(r"([\d.]+) ms", item[4] + " 0.0 ms")[1]))
    assert worst[4] == "dp 1, stage 1 - 2: 197 ms a step"


def test_long_documents_move_from_rank_to_rank() -> None:
    """Every rank is the longest of some step; on a slow worker's job one would be the longest of all."""
    proof, values = first_proof("sequence-imbalance")
    assert proof.rows == ("dp 0", "dp 1", "dp 2", "dp 3")
    assert len(set(values.argmax(axis=0).tolist())) >= 3
    assert values.max() > 1.4
    np.testing.assert_allclose(values.mean(axis=0), 1.0, atol=1e-3)


@pytest.mark.parametrize(
    ("workers", "says"),
    [((), "another rank from step to step"), ((Worker(0, 0),), "the same one, whose documents are longer")],
    ids=["in turns", "one replica"],
)
def test_whose_documents_are_the_longest_is_said_below_the_picture(workers: tuple[Worker, ...], says: str) -> None:
    """Where a replica is named it is no other one from step to step."""
    data = data_of("sequence-imbalance")
    cause = msgspec.structs.replace(data.diagnosis.causes[0], where=Where(workers=workers))
    picture = draw_proof(data.diagnosis, cause, "documents")
    assert picture is not None and says in picture.says


def test_busy_experts_differ_from_stage_to_stage() -> None:
    """The busiest rank of a step is another one on another stage, and in another step."""
    _, values = first_proof("expert-imbalance")
    busiest = values.reshape(4, 4, -1).argmax(axis=1)  # by stage and step
    assert all(len(set(of_stage.tolist())) > 1 for of_stage in busiest)
    assert np.mean([len(set(of_step.tolist())) > 1 for of_step in busiest.T]) > 0.8


def test_pauses_lie_where_their_cause_strikes() -> None:
    """Collections strike workers at random, one or two a step; the others only their stage, the queue in every step."""
    _, collections = first_proof("garbage-collection")
    assert (collections > 0).sum(axis=0).max() <= 2 and ((collections > 0).any(axis=1)).sum() >= 5
    for name, stage in (("allocator-stall", 0), ("data-loading", 0), ("kernel-queue-contention", 3)):
        _, lost = first_proof(name)
        by_stage = lost.reshape(4, 4, -1).sum(axis=(0, 2))
        assert by_stage[stage] > 0.85 * by_stage.sum(), name
    assert (lost.reshape(4, 4, -1)[:, 3] > 0.8).all()


def test_steps_with_a_checkpoint_are_long_and_would_not_be() -> None:
    """Only marked steps are long, and without the cause they are as the others."""
    proof, (recorded, without) = first_proof("checkpoint-stall")
    saved = np.isin(proof.columns, proof.marked)
    assert saved.sum() == 2
    assert (recorded[saved] > 4).all() and (recorded[~saved] < 1.8).all() and (without < 1.8).all()


def test_the_longest_stage_is_told_by_how_much() -> None:
    """The bar of the culprit has its share above the others."""
    _, values = first_proof("stage-imbalance")
    assert values.sum(axis=0).argmax() == 3
    figure = first_figure(page.render(data_of("stage-imbalance")))
    assert "219 ms (+57%)" in figure and "mean of the other stages" in figure


def test_a_kept_diagnosis_has_the_same_first_figure() -> None:
    """Without the trace the first figure is drawn of what the diagnosis keeps: the same to the byte, whatever its cause."""
    for name in ("worker-fault", "network-fault", "sequence-imbalance", "garbage-collection", "stage-imbalance"):
        data = data_of(name)
        kept = restore(json.loads(to_json(data.diagnosis.to_document())), min_speedup=data.diagnosis.min_speedup)
        saved = page.render_saved(kept, "/jobs/one.parquet")
        assert first_figure(saved) == first_figure(page.render(data))
        assert "diagnose explain /jobs/one.parquet CAUSE" in saved


def test_what_is_left_and_why_no_other_cause_is_blamed(rendered: str) -> None:
    """Both words have one meaning, in one place, and each cause that is not blamed has its reason."""
    assert rendered.count("<dt>unknown</dt>") == rendered.count("<dt>unexplained</dt>") == 1
    section = rendered[rendered.index('<section id="others"') : rendered.index('<section id="measures"')]
    for rule in load_rules().rules:
        assert (f'<th scope="row">{rule.id}</th>' in section) == (rule.id != "worker-fault")
    assert re.search(r"stage-imbalance</th><td>[^<]*2.0% is asked for", section)


def test_an_unknown_cause_has_figures_too() -> None:
    """What no rule explains is shown by what it loses time to, and the page says what it is not instead of a fix."""
    data = data_of("network-fault")
    known = data.diagnosis.causes[0]
    item = EvidenceItem("rule", "unknown/gain.transfer", "nobody knows", {"gain.transfer": 0.075})
    cause = msgspec.structs.replace(
        known, cause="unknown", title="unknown cause: slow transfers", evidence=(item,), fixes=(), proof=None
    )
    causes = add_proofs(data.analysis, [cause], data.pictured)
    ledger = msgspec.structs.replace(data.diagnosis.ledger, causes={"unknown": 1.002})
    text = page.render(
        dataclasses.replace(data, diagnosis=dataclasses.replace(data.diagnosis, causes=causes, ledger=ledger))
    )
    shown = re.findall(r'<figure id="([^"]+)"', text)
    assert shown[:2] == ["transfers", "network"]
    assert "No rule knows what this is" in text and "No fix is known" not in text
    assert f"unknown cause: slow transfers: {words.percent(known.share)} of the lost time" in text
    assert "<details open><summary>Why each other cause is not blamed" in text


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0.0, 0.43, 6, [0.0, 0.1, 0.2, 0.3, 0.4]),
        (0.0, 46.6, 6, [0.0, 10.0, 20.0, 30.0, 40.0]),
        (0.98, 1.67, 6, [1.0, 1.2, 1.4, 1.6]),
        (0.0, 3e-5, 6, [0.0, 1e-5, 2e-5, 3e-5]),
        (3.0, 3.0, 6, [3.0]),
    ],
)
def test_ticks_are_round(low: float, high: float, most: int, expected: list[float]) -> None:
    """Marks of an axis are 1, 2 or 5 times a power of ten apart."""
    assert round_ticks(low, high, most) == pytest.approx(expected)


def test_times_of_an_axis_have_one_unit() -> None:
    """People write 400 ms, not 4.0e-01."""
    assert UNITS["seconds"].label([0.0, 0.2, 0.4]) == ["0", "200 ms", "400 ms"]
    assert UNITS["seconds"].label([0.0, 0.5, 1.0]) == ["0", "0.5 s", "1 s"]


def hostile(data: ReportData) -> ReportData:
    """Fill every string that a trace or a rule can carry with what a page must not obey."""
    old = data.diagnosis
    cause = msgspec.structs.replace(
        old.causes[0],
        title=HOSTILE,
        cause=HOSTILE,
        evidence=tuple(msgspec.structs.replace(item, text=HOSTILE, id=HOSTILE) for item in old.causes[0].evidence),
        fixes=tuple(
            msgspec.structs.replace(fix, summary=HOSTILE, how=HOSTILE, risks=(HOSTILE,), settings={HOSTILE: HOSTILE})
            for fix in old.causes[0].fixes
        ),
        where=msgspec.structs.replace(
            old.causes[0].where,
            hosts=(HOSTILE,),
            workers=tuple(msgspec.structs.replace(w, host=HOSTILE) for w in old.causes[0].where.workers),
        ),
    )
    diagnosis = dataclasses.replace(
        old,
        job=dataclasses.replace(old.job, job_id=HOSTILE, gpu_type=HOSTILE, owner=HOSTILE, framework=HOSTILE),
        causes=(cause,),
        ledger=msgspec.structs.replace(old.ledger, causes={HOSTILE: 0.9}, components={HOSTILE: 0.9})
        if old.ledger
        else None,
        what_if=dataclasses.replace(old.what_if, by_optype={HOSTILE: 1.5, "b\x07": 1.1}),
        hosts=tuple(f"{HOSTILE}{n}" for n in range(16)),
        features={HOSTILE: 1.0},
        warnings=(HOSTILE,),
        checked=(HOSTILE,),
    )
    return dataclasses.replace(data, diagnosis=diagnosis)


def test_hostile_strings_are_text(data: ReportData, rendered: str) -> None:
    """No string of the input makes an element, reaches a terminal or a reader as a command, or makes the page endless."""
    text = page.render(hostile(data))
    plain_tags = [tag for tag, _ in Reader(rendered).tags]
    tags = [tag for tag, _ in Reader(text).tags]
    assert tags.count("script") == plain_tags.count("script") == 2
    assert set(tags) <= set(plain_tags)
    assert "<script>alert" not in text
    assert "straggling" not in text[text.index("<h1") : text.index("</h1>")], (
        "the name of the job stands above, not here"
    )
    assert "alert(1)" in text, "the names should be shown, as text"
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069]", text)
    assert "{{7*7}}" in text and "49}}" not in text
    assert len(text) < 1_000_000
    json.dumps(probes_of(text))


def test_contrast() -> None:
    """All text and all marks stand out from what they lie on, in light and dark: WCAG AA."""
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    for block in (light, dark):
        colour = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        for ground in ("bg", "panel"):
            for name in ("ink", "muted", "bad", "good", "warn", "accent"):
                assert contrast(colour[name], colour[ground]) >= 4.5, (name, ground)
            for name in ("forward", "backward", "comm", "other"):
                assert contrast(colour[name], colour[ground]) >= 3.0, (name, ground)
        for level in range(9):
            assert contrast(colour[f"heat{level}-ink"], colour[f"heat{level}"]) >= 4.5, level


def contrast(one: str, other: str) -> float:
    """Give the contrast of two colours. Source: WCAG 2.2."""

    def light_of(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light_of(one), light_of(other)))
    return (high + 0.05) / (low + 0.05)


def test_levels() -> None:
    """Values get the level of their ninth of the range; what is not known has none."""
    assert level_of(np.array([1.0, 1.5, 2.0, 5.0, np.nan]), 1.0, 2.0).tolist() == [0, 4, 8, 8, -1]


def test_words_of_a_drawing_are_kept() -> None:
    """Places are rounded to save bytes, numbers that a reader sees are not."""
    with styled():
        sheet = Sheet("x", 200, 100)
        sheet.write(0.12345, 0.5, "0.0625 < 1.23456")
        text = sheet.svg("a < b\x1b").svg
    assert ">0.0625 &lt; 1.23456<" in text
    assert 'aria-label="a &lt; b\\x1b"' in text
    assert not [number for tag in re.findall("<[^>]*>", text) for number in re.findall(r"\d\.\d{3,}", tag)]


def test_a_cell_lies_where_it_is_drawn() -> None:
    """Data coordinates come out as pixels from the upper left corner of the sheet."""
    with styled():
        sheet = Sheet("x", 200, 100, (50, 50, 10, 40))
        sheet.axes.set_xlim(0, 10)
        sheet.axes.set_ylim(5, 0)
        assert sheet.box(0, 1, 0, 1).listed() == [50, 10, 10, 10]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page is written beside the other format, which stays the same; no other file is left."""
    job, target = str(ROOT / "fixtures/worker-fault.parquet"), tmp_path / "page.html"
    assert main([job, "--format", "json"]) == 0
    alone = capsys.readouterr().out
    assert main([job, "--format", "json", "--html", str(target), "--steps", "16-60"]) == 0
    capsys.readouterr()
    assert "diagnose TRACE --steps 16-60 --min-speedup 1.02 --html report.html" in target.read_text(encoding="utf-8")
    assert main([job, "--format", "json", "--html", str(target)]) == 0
    assert capsys.readouterr().out == alone
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--html", "{job}"], "read or written already"),
        (["--html", "{tmp}/a.html", "-o", "{tmp}/a.html"], "read or written already"),
        (["--html", "{tmp}/none/a.html"], "there is no folder"),
        (["{job}", "--html", "{tmp}/a.html"], "2 are given"),
    ],
)
def test_refusals(more: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What would overwrite something or cannot be written is refused before any work, in one line."""
    job = str(ROOT / "fixtures/healthy.parquet")
    assert main([job, *(arg.format(job=job, tmp=tmp_path) for arg in more)]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


@pytest.mark.parametrize("seed", range(8))
def test_odd_jobs(seed: int) -> None:
    """Jobs of any shape have a page, with numbers that JSON knows."""
    found = page.render(prepare_report(Request(to_file(random_job(random_shape(seed), seed)), name="random")))
    assert probes_of(found)
    assert "NaN" not in json.dumps(probes_of(found))


def test_one_step() -> None:
    """A single step is drawn, and called inconclusive."""
    found = page.render(prepare_report(Request(ROOT / "fixtures/worker-fault.parquet", steps=np.array([40]))))
    assert '<section class="verdict inconclusive"' in found and 'id="timeline"' in found
