"""Rows against values computed by hand."""

from __future__ import annotations

import io
import json
import math

import pytest
from rich.console import Console

from steppe.report import print_table, summarise
from steppe.report.findings import pareto_front, unbeaten
from steppe.report.layout import lay_out
from steppe.report.rows import name_row


def test_seeds_become_one_row_with_mean_and_sample_deviation(new_run):
    accuracies = [0.96, 0.97, 0.99]
    runs = [
        new_run(values={"seed": seed}, summary={"test": {"loss": 0.1, "accuracy": a, "examples": 100}})
        for seed, a in enumerate(accuracies)
    ]
    for run, (mean, clean) in zip(runs, [(0.3, 0.1), (0.5, 0.1), (0.4, 0.2)], strict=True):
        run.write("geometry.json", {"noise_loss": {"mean": mean, "clean": clean}})
    (row,) = summarise(runs)
    assert row.seeds == (0, 1, 2)
    assert row.run_ids == tuple(run.id for run in runs)
    assert (row.finished, row.failed, row.unfinished) == (3, 0, 0)
    assert row.test_accuracy.mean == pytest.approx(2.92 / 3)
    middle = 2.92 / 3
    assert row.test_accuracy.std == pytest.approx(math.sqrt(sum((a - middle) ** 2 for a in accuracies) / 2))
    assert row.test_accuracy.n == 3
    assert row.noise_loss.mean == pytest.approx(0.4)
    assert row.noise_loss_increase.mean == pytest.approx((0.2 + 0.4 + 0.2) / 3)
    assert row.parameters.mean == 53_130
    assert row.parameters.std == 0
    assert row.gradient_evaluations.mean == 400
    assert row.labels == {"data.name": "digits", "model.name": "vit_tiny_p2", "minimizer.name": "base"}


def test_one_seed_has_no_deviation(new_run):
    (row,) = summarise([new_run()])
    assert row.test_accuracy.n == 1
    assert row.test_accuracy.std is None


def test_a_copied_run_is_not_a_second_seed(new_run):
    unfinished = new_run(status=None, epochs_done=3, name="first")
    finished = new_run(name="copy")
    (row,) = summarise([unfinished, finished])
    assert row.run_ids == ("copy",)
    assert row.test_accuracy.n == 1


def test_a_row_is_named_by_the_labels_it_has(new_run):
    """A single run has labels that the others lack: these do not become "ASAM · –"."""
    labels = [{"training": "ASAM"}, {"training": "SGD"}, {"training": "ASAM", "schedule": "cosine"}]
    runs = [new_run(values={"batch_size": 32 * (n + 1)}) for n in range(3)]
    listed = [{"run_id": run.id, "labels": its, "seed": 0} for run, its in zip(runs, labels, strict=True)]
    rows = summarise(runs, {"runs": listed})
    assert [name_row(row, rows) for row in rows] == ["ASAM", "SGD", "ASAM · cosine"]
    assert sorted(lay_out(rows).series) == ["ASAM", "ASAM · cosine", "SGD"]


def test_folders_of_one_name_stay_apart(new_run, tmp_path):
    from steppe.config import RunConfig
    from steppe.runs import create_run

    other = create_run(tmp_path / "elsewhere" / "same", RunConfig.model_validate({"seed": 1}))
    (row,) = summarise([new_run(name="same"), other])
    assert len(set(row.run_ids)) == 2


def test_labels_are_the_keys_that_differ(new_run):
    runs = [
        new_run(values={"model": {"name": "a"}, "minimizer": {"name": "sam", "rho": 0.05}}),
        new_run(values={"model": {"name": "a"}, "minimizer": {"name": "sam", "rho": 0.1}}),
        new_run(values={"model": {"name": "b"}, "minimizer": {"name": "asam"}}),
    ]
    rows = summarise(runs)
    # eta follows from the minimizer's name and says nothing new
    assert list(rows[0].labels) == ["model.name", "minimizer.name", "minimizer.rho"]
    assert rows[1].labels == {"model.name": "a", "minimizer.name": "sam", "minimizer.rho": "0.1"}
    assert name_row(rows[1], rows) == "a · sam · rho 0.1"


def test_a_study_labels_its_rows(study_runs):
    runs, study = study_runs
    rows = summarise(runs, study)
    assert len(rows) == 16
    assert rows[0].labels == {"model": "ResNet", "optimizer": "AdamW"}
    assert [len(row.seeds) for row in rows] == [3] * 8 + [1] * 8


def test_a_run_the_study_does_not_know_is_kept_and_says_so(study_runs, new_run):
    runs, study = study_runs
    stranger = new_run(values={"batch_size": 32})
    rows = summarise([*runs, stranger], study)
    assert rows[-1].labels == {"model": "vit_tiny_p2 (not in the study)", "optimizer": "base"}


def test_failed_and_unfinished_runs_give_reasons_and_no_results(new_run):
    bad = new_run(values={"seed": 0}, status="failed", reason="the loss is no longer finite", epochs_done=2)
    bad.write("summary.json", {**bad.summary, "test": {"accuracy": 0.1}})  # whatever it says, it does not count
    cut = new_run(values={"seed": 1}, status=None, epochs_done=7)
    good = new_run(values={"seed": 2})
    (row,) = summarise([bad, cut, good])
    assert (row.finished, row.failed, row.unfinished) == (1, 1, 1)
    assert row.test_accuracy.n == 1
    assert row.reasons[bad.id] == "the loss is no longer finite"
    assert "epoch 7" in row.reasons[cut.id]
    assert good.id not in row.reasons


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"test": 3}', '{"status": "finished", "test": {"accuracy": NaN}}', "\xff"]
)
def test_damaged_or_odd_summaries_do_not_stop_the_table(new_run, text):
    run = new_run(status=None)
    (run.path / "summary.json").write_bytes(text.encode("latin-1"))
    (row,) = summarise([run])
    assert row.test_accuracy.mean is None


@pytest.mark.parametrize("value", [None, "many", True, float("nan"), float("inf"), 10**400, [], {}])
def test_what_is_no_number_counts_as_missing(new_run, value):
    run = new_run()
    (run.path / "cost.json").write_text(json.dumps({"parameters": value}))
    (row,) = summarise([run])
    assert row.parameters.mean is None
    assert row.flops_per_image.n == 0


def test_pareto_front_by_hand(new_run):
    # (accuracy, seconds): b loses to a in both, d equals c in accuracy at more cost, e is the best and dearest
    points = {"a": (0.90, 10), "b": (0.89, 11), "c": (0.95, 20), "d": (0.95, 21), "e": (0.97, 40)}
    runs = [
        new_run(values={"model": {"name": name}}, summary={"test": {"accuracy": accuracy}, "time_s": seconds})
        for name, (accuracy, seconds) in points.items()
    ]
    runs.append(new_run(values={"model": {"name": "f"}}, status=None))
    rows = summarise(runs)
    assert [rows[i].labels["model.name"] for i in pareto_front(rows)] == ["a", "c", "e"]


def test_who_was_given_the_same_seconds_cost_the_same(new_run):
    """The last step of a run may end a little after its time; that is no merit of another run."""
    points = {"a": (0.90, 30.02), "b": (0.89, 30.01), "c": (0.91, 60.0), "d": (0.70, 5.0)}  # d lost patience
    runs = [
        new_run(
            values={"model": {"name": name}, "budget": {"seconds": 60 if name == "c" else 30}},
            summary={"test": {"accuracy": accuracy}, "time_s": seconds},
        )
        for name, (accuracy, seconds) in points.items()
    ]
    rows = summarise(runs)
    assert [rows[i].labels["model.name"] for i in pareto_front(rows)] == ["d", "a", "c"]


def test_only_rows_of_the_same_data_beat_each_other(new_run):
    points = {("mnist", "a"): (0.99, 5), ("cifar10", "a"): (0.90, 10), ("cifar10", "b"): (0.80, 20)}
    rows = summarise(
        [
            new_run(
                values={"data": {"name": data}, "model": {"name": name}}, summary={"test": {"accuracy": a}, "time_s": s}
            )
            for (data, name), (a, s) in points.items()
        ]
    )
    starred = [(rows[i].labels["data.name"], rows[i].labels["model.name"]) for i in unbeaten(rows)]
    assert sorted(starred) == [("cifar10", "a"), ("mnist", "a")]


def test_equal_points_are_all_on_the_front(new_run):
    same = {"test": {"accuracy": 0.9}, "time_s": 5.0}
    rows = summarise([new_run(values={"model": {"name": n}}, summary=same) for n in "ab"])
    assert pareto_front(rows) == [0, 1]


def show(rows, width=100, terminal=False):
    file = io.StringIO()
    print_table(rows, Console(file=file, width=width, force_terminal=terminal, color_system=None))
    return file.getvalue()


def test_the_table_fits_100_columns(study_runs):
    text = show(summarise(*study_runs))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert "…" not in text.split("MLP-Mixer")[0].replace("AdamW, twice…epochs", "")  # no number is cut
    first = next(line for line in lines if "ResNet" in line and "ASAM" in line)
    row = summarise(*study_runs)[2]
    assert f"{100 * row.test_accuracy.mean:.1f} ± {100 * row.test_accuracy.std:.1f}" in first
    assert "53.1k" in first
    assert "1.65M" in first
    assert " 800 " in first


def test_the_table_marks_exactly_the_front(study_runs):
    rows = summarise(*study_runs)
    starred = [line for line in show(rows).splitlines() if " * " in line]
    assert len(starred) == len(pareto_front(rows)) > 1


def test_a_narrow_terminal_loses_columns_not_digits(study_runs):
    rows = summarise(*study_runs)
    text = show(rows, width=60, terminal=True)
    assert max(map(len, text.splitlines())) <= 60
    assert "FLOPs" not in text
    assert f"{100 * rows[1].test_accuracy.mean:.1f} ± {100 * rows[1].test_accuracy.std:.1f}" in text


def test_a_file_gets_the_whole_table_however_narrow_it_says_it_is(study_runs):
    rows = summarise(*study_runs)
    assert show(rows, width=80) == show(rows, width=100)


def test_many_axes_are_joined_and_the_accuracy_stays(new_run):
    known = {"optimizer": {"lr": 0.1, "weight_decay": 0.1, "name": "adamw"}}
    runs = [new_run(summary={"test": {"accuracy": 0.123}})]
    values = {"model": {"name": "b"}, "minimizer": {"name": "sam"}, "batch_size": 32, "budget": {"epochs": 3}, **known}
    runs.append(new_run(values=values, summary={"test": {"accuracy": 0.5}}))
    rows = summarise(runs)
    assert len(rows[0].labels) > 5
    for width in (60, 100):
        text = show(rows, width=width, terminal=True)
        assert max(map(len, text.splitlines())) <= width
        assert "12.3" in text
        assert "Row" in text


def test_one_row_has_no_star(new_run):
    assert "*" not in show(summarise([new_run()]))


def test_hostile_labels_stay_plain_text(new_run):
    study = {"runs": [{"run_id": (run := new_run()).id, "labels": {"[red]axis": "[bold]x\x1b[2J\n<script>"}}]}
    text = show(summarise([run], study))
    assert "[bold]x" in text
    assert "\x1b" not in text


def test_the_table_tells_of_failures(new_run):
    text = show(summarise([new_run(status="failed", reason="out of [memory]\nline two")]))
    assert "failed" in text
    assert "out of [memory] line two" in text
    assert show([]).strip() == "no runs"


def test_seeds_that_begin_from_runs_of_their_own_seed_are_one_row(new_run):
    runs, listed = [], []
    for start, accuracy in (("plain", 0.5), ("sam", 0.7)):
        for seed in (0, 1):
            model = {"name": "resnet_tiny", "mode": "finetune", "weights": f"run:digits-{start}-s{seed}-{seed}"}
            test = {"loss": 0.1, "accuracy": accuracy + seed / 10, "examples": 100}
            runs.append(new_run(values={"model": model, "seed": seed}, summary={"test": test}))
            listed.append({"run_id": runs[-1].id, "labels": {"start": start}, "seed": seed})
    rows = summarise(runs, {"runs": listed})
    assert [(row.labels["start"], row.seeds) for row in rows] == [("plain", (0, 1)), ("sam", (0, 1))]
    assert rows[1].test_accuracy.mean == pytest.approx(0.75)
    assert len(summarise(runs)) == 4, "without the study nobody knows which starts belong together"
