"""What a search leaves for its page: the winner's mistakes with pictures, and the moments of its candidates."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from steppe import data
from steppe.config import DataConfig, RunConfig
from steppe.runs import read_answers, read_json
from steppe.search.budget import Budget
from steppe.search.chosen import evaluate_chosen
from steppe.search.fitting import Wanted, fit
from steppe.search.mistakes import MISTAKES, MOST_MISTAKES, PICTURES, SIDE
from steppe.train import train


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    digits = data.load(DataConfig(name="digits"))
    config = RunConfig.model_validate({"model": {"name": "mlp_8"}, "budget": {"epochs": 2}})
    run = train(config, digits, tmp_path_factory.mktemp("tested") / "r", val_examples=50)
    evaluate_chosen(run, digits, torch.device("cpu"))
    return run, digits


def test_mistakes_are_the_most_confident_wrong_answers(tested):
    run, _ = tested
    answers = read_answers(run.path)
    listed = run.read(MISTAKES)["mistakes"]
    confidences = [one["confidence"] for one in listed]
    assert len(listed) == MOST_MISTAKES
    assert confidences == sorted(confidences, reverse=True)
    wrong = {
        (int(a), int(b)) for a, b, hit in zip(answers.labels, answers.answers, answers.hits, strict=True) if not hit
    }
    assert {(one["label"], one["answer"]) for one in listed} <= wrong
    # p(label) + p(answer) <= 1 for every image, so the surest mistake bounds the largest loss from below
    assert answers.nll[~answers.hits].max() >= -np.log(1 - confidences[0] + 1e-4)


def test_mistakes_count_every_test_image(tested):
    run, digits = tested
    answers = read_answers(run.path)
    found = run.read(MISTAKES)
    assert found["examples"] == len(digits.test)
    for label, line in enumerate(found["counts"]):
        counted = dict(zip(line[::2], line[1::2], strict=True))
        own = answers.answers[answers.labels == label]
        assert counted == {int(a): int((own == a).sum()) for a in np.unique(own)}


def test_mistakes_have_a_picture_each(tested):
    run, digits = tested
    sheet = Image.open(io.BytesIO((run.path / PICTURES).read_bytes()))
    assert sheet.size == (SIDE * MOST_MISTAKES, SIDE)
    first = run.read(MISTAKES)["mistakes"][0]
    answers = read_answers(run.path)
    alike = np.flatnonzero((answers.labels == first["label"]) & (answers.answers == first["answer"]))
    shown = np.asarray(sheet.crop((0, 0, SIDE, SIDE)).convert("L").resize((8, 8), Image.Resampling.BOX), float)
    originals = [digits.test.pick(torch.tensor([i]))[0, 0].numpy().astype(float) for i in alike]
    assert min(np.abs(shown - one).mean() for one in originals) < 8, "it is one of the images so mistaken"


def test_search_notes_when_each_candidate_was_finished(tmp_path):
    wanted = Wanted(DataConfig(name="digits"), ("mlp_8",), weights="none")
    found = fit(wanted, Budget(12, "epochs"), tmp_path / "f", device="cpu")
    moments = read_json(tmp_path / "f" / "fit.json")["moments"]
    assert {one["run"] for one in moments} <= {run.id for run in found.runs}
    assert found.best.id in {one["run"] for one in moments}
    assert [one["at_s"] for one in moments] == sorted(one["at_s"] for one in moments)
    assert all(0 < one["accuracy"] <= 1 and one["kind"] == "trial" for one in moments)
