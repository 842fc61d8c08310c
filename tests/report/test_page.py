"""The page as a file: what is in it, what is escaped, how large it is."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from steppe.errors import RunError
from steppe.report import write_report
from steppe.report.page import embed_json

HOSTILE = "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\"'&</title>\u2028{{7*7}}"


class Reader(HTMLParser):
    """Collects the visible text, the tags, and the embedded numbers."""

    def __init__(self):
        super().__init__()
        self.text, self.tags, self.inside, self.data = [], [], "", ""

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = "data" if ("id", "data") in attrs else tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "data":
            self.data += data
        elif self.inside not in ("script", "style"):
            self.text.append(data)


def read(path):
    reader = Reader()
    reader.feed(path.read_text())
    reader.words = " ".join(" ".join(reader.text).split())
    reader.figures = json.loads(reader.data)
    return reader


def test_one_file_that_needs_nothing_else(study_runs, tmp_path):
    runs, study = study_runs
    out = tmp_path / "new folder" / "report.html"
    assert write_report(runs, out, study=study) == out
    page = read(out)
    for tag, attributes in page.tags:
        for name in ("src", "href"):
            value = attributes.get(name) or ""
            assert not value or value.startswith(("#", "data:")), (tag, value)
    assert "@import" not in out.read_text().split("</style>")[0]
    assert [p.name for p in out.parent.iterdir()] == ["report.html"]


def test_it_says_what_the_runs_say(study_runs, tmp_path):
    runs, study = study_runs
    page = read(write_report(runs, tmp_path / "r.html", study=study))
    assert study["title"] in page.words
    assert study["question"] in page.words
    assert "is the most accurate" in page.words
    assert "all finished" in page.words
    assert "AMD EPYC 9654" in page.words
    assert 'name = "swin_tiny_p2"' in page.words
    assert len(page.figures["rows"]) == 16
    assert page.figures["rows"][0]["curve"]["runs"] == 3
    assert "std" in page.figures["rows"][0]["curve"]["y"]["val_accuracy"]
    assert "std" not in page.figures["rows"][15]["curve"]["y"]["val_accuracy"]
    assert write_report(runs, tmp_path / "t.html", title="Mine", study=study)
    assert "Mine" in read(tmp_path / "t.html").words
    assert write_report(runs, tmp_path / "t.html", title="Swin-T on CIFAR-10")
    assert "<h1>Swin-T on CIFAR\N{NON-BREAKING HYPHEN}10</h1>" in (tmp_path / "t.html").read_text(), (
        "a name is one word"
    )


def test_a_curve_is_the_mean_over_seeds(new_run, tmp_path):
    runs = [new_run(values={"seed": s, "budget": {"epochs": 2}}) for s in (0, 1)]
    page = read(write_report(runs, tmp_path / "r.html"))
    first, second = ([m["val_accuracy"] for m in run.metrics()] for run in runs)
    curve = page.figures["rows"][0]["curve"]["y"]["val_accuracy"]
    assert curve["mean"] == pytest.approx([(a + b) / 2 for a, b in zip(first, second, strict=True)], rel=1e-4)
    assert curve["std"] == pytest.approx([abs(a - b) / 2**0.5 for a, b in zip(first, second, strict=True)], rel=1e-3)


def test_long_curves_are_thinned_but_keep_their_end(new_run, tmp_path):
    run = new_run(values={"budget": {"epochs": 1000}})
    epochs = read(write_report([run], tmp_path / "r.html")).figures["rows"][0]["curve"]["x"]["epoch"]
    assert len(epochs) == 300
    assert (epochs[0], epochs[-1]) == (1, 1000)


def test_hostile_names_are_only_text(new_run, tmp_path):
    run = new_run(values={"data": {"name": HOSTILE}, "model": {"name": HOSTILE}}, env={HOSTILE: HOSTILE}, name="x")
    bad = new_run(values={"model": {"name": "m"}}, status="failed", reason=HOSTILE)
    labels = [{"run_id": r.id, "labels": {HOSTILE: f"{HOSTILE}{i}"}} for i, r in enumerate((run, bad))]
    study = {"name": HOSTILE, "title": HOSTILE, "question": HOSTILE, "runs": labels}
    out = write_report([run, bad], tmp_path / "r.html", study=study)
    source = re.sub(r"<script>.*?</script>", "", out.read_text(), flags=re.DOTALL)
    assert "<script>window" not in source
    assert "<img" not in source
    assert read(out).figures["series"][0] == HOSTILE + "0"
    assert "{{7*7}}" in read(out).words


def test_embedded_json_cannot_end_its_element():
    text = embed_json({"a": "</script><!--\u2028\u2029&\ud800"})
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == {"a": "</script><!--\u2028\u2029&\ud800"}


def test_lone_surrogates_do_not_stop_the_page(new_run, tmp_path):
    run = new_run(status="failed", reason="odd \ud800 text")
    assert write_report([run], tmp_path / "r.html").stat().st_size > 1000


def test_thirty_two_runs_stay_under_a_megabyte(study_runs, tmp_path):
    runs, study = study_runs
    assert len(runs) == 32
    assert write_report(runs, tmp_path / "r.html", study=study).stat().st_size < 5e5


def test_fifty_runs_of_a_hundred_epochs_stay_under_a_megabyte(new_run, tmp_path):
    runs = [
        new_run(values={"seed": seed, "minimizer": {"name": "sam", "rho": rho / 100}, "budget": {"epochs": 100}})
        for rho in range(1, 26)
        for seed in (0, 1)
    ]
    assert len(runs) == 50
    assert write_report(runs, tmp_path / "r.html").stat().st_size < 1e6


def test_an_unfinished_run_and_an_empty_one(new_run, tmp_path):
    page = read(write_report([new_run(status=None, epochs_done=7)], tmp_path / "r.html"))
    assert "No run has finished yet" in page.words
    assert "epoch 7" in page.words
    assert "0 of 1" in page.words
    bare = new_run(values={"seed": 9}, status=None, epochs_done=0, parameters=None, env={})
    page = read(write_report([bare], tmp_path / "b.html"))
    assert "stopped before its first epoch was done" in page.words
    assert page.figures["rows"][0]["curve"] is None


def test_a_run_under_way_says_so(new_run, tmp_path):
    run = new_run(values={"budget": {"epochs": 60}}, status=None, epochs_done=3)
    with run.lock():
        words = read(write_report([run], tmp_path / "r.html")).words
    assert "1 run: running, epoch 4 of 60." in words
    assert "running, epoch 4 of 60" in words
    words = read(write_report([run], tmp_path / "r.html")).words
    assert "1 run: stopped after epoch 3 of 60." in words
    assert "stopped after epoch 3 of 60" in words
    done = new_run(values={"budget": {"epochs": 2}}, status=None)
    with done.lock():
        assert "running, all 2 epochs are done" in read(write_report([done], tmp_path / "r.html")).words


def test_no_run_at_all(tmp_path):
    page = read(write_report([], tmp_path / "r.html"))
    assert "There is nothing here yet : no run has begun." in page.words
    assert "table" not in {tag for tag, _ in page.tags}


def test_claims_lead_a_studys_answer(study_runs, tmp_path):
    runs, study = study_runs
    claims = [{"text": "a", "verdict": "holds"}, {"text": "b", "verdict": "undecided"}]
    page = read(write_report(runs, tmp_path / "r.html", study=study, comparison={"claims": claims}))
    first = page.words.index("Of 2 claims of our own 1 holds , 1 is undecided.")
    assert first < page.words.index("is the most accurate:")


def test_runs_are_told_by_their_labels(study_runs, tmp_path):
    runs, study = study_runs
    page = read(write_report(runs[1:], tmp_path / "r.html", study=study))
    assert f"ResNet · AdamW · seed 0 {runs[0].id} not started" in page.words
    assert "ViT · SAM seed 0" in page.words


def test_runs_a_study_has_not_started_are_listed(study_runs, tmp_path):
    runs, study = study_runs
    page = read(write_report(runs[1:], tmp_path / "r.html", study=study))
    assert f"{runs[0].id} not started" in page.words


def test_odd_study_files_are_tolerated(study_runs, tmp_path):
    for study in ({"runs": None}, {"runs": [3, {"labels": 1}]}, {"title": 5, "name": None, "runs": {"a": 1}}):
        assert write_report(study_runs[0][:2], tmp_path / "r.html", study=study)


def test_not_a_number_in_the_records_is_a_gap(new_run, tmp_path):
    run = new_run(values={"budget": {"epochs": 2}}, status=None)
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 3, "val_accuracy": NaN, "train_loss": "x"}\n')
    page = read(write_report([run], tmp_path / "r.html"))
    assert page.figures["rows"][0]["curve"]["y"]["val_accuracy"]["mean"][2] is None
    assert page.figures["rows"][0]["curve"]["x"]["time_s"][2] is None


def test_a_place_that_cannot_be_written_is_explained(new_run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError):
        write_report([new_run()], tmp_path / "file" / "r.html")
