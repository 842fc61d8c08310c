"""The page in a real browser, offline: what a person clicks, types and sees."""

from __future__ import annotations

import pytest

from steppe.report import write_report

INK = "document.querySelector('#plot-cost .xtitle').getAttribute('fill')"
HOSTILE = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>%{x}$a$"


@pytest.fixture(scope="module")
def study_page(study_runs, tmp_path_factory):
    runs, study = study_runs
    return write_report(runs, tmp_path_factory.mktemp("page") / "report.html", study=study)


def column(page, number):
    script = "n => [...document.querySelectorAll('#table tbody tr:not([hidden])')].map((r) => r.cells[n].dataset.sort)"
    return page.evaluate(script, number)


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_headers_sort_by_click(show, study_page):
    page = show(study_page)
    accuracies = [float(a) for a in column(page, 2)]
    assert len(accuracies) == 16
    assert accuracies == sorted(accuracies, reverse=True)  # as it opens
    button = page.get_by_role("button", name="Params")
    button.click()
    counts = [float(c) for c in column(page, 4)]
    assert counts == sorted(counts, reverse=True)  # numbers as numbers: 105,482 before 88,210
    assert counts[0] == 105_482
    button.click()
    assert [float(c) for c in column(page, 4)] == sorted(counts)
    assert page.locator("th[aria-sort=ascending]").count() == 1
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("Params")
    page.get_by_role("button", name="Rise").click()
    rises = [float(r) for r in column(page, 10)]
    assert rises == sorted(rises, reverse=True)
    page.get_by_role("button", name="Model").click()
    assert column(page, 0) == sorted(column(page, 0), key=str.lower)


def test_missing_values_sort_last_both_ways(show, new_run, tmp_path):
    runs = [new_run(values={"model": {"name": n}}, level=0.9 + i / 50) for i, n in enumerate("abc")]
    runs.append(new_run(values={"model": {"name": "d"}}, status=None))
    page = show(write_report(runs, tmp_path / "r.html"))
    assert column(page, 0) == ["c", "b", "a", "d"]
    page.get_by_role("button", name="Test acc.").click()
    assert column(page, 0) == ["a", "b", "c", "d"]


def test_headers_sort_by_keyboard(show, study_page):
    page = show(study_page)
    page.locator("#filter").focus()
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.startsWith('Optimizer')"):
            break
    assert page.evaluate("document.activeElement.tagName") == "BUTTON"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"
    page.keyboard.press("Enter")
    labels = column(page, 1)
    assert labels[:4] == ["AdamW"] * 4
    assert labels[-1] == "SAM"
    page.keyboard.press("Space")
    assert column(page, 1)[0] == "SAM"


def test_filter(show, study_page):
    page = show(study_page)
    page.locator("#filter").fill("VIT asam")
    assert list(zip(column(page, 0), column(page, 1), strict=True)) == [("ViT", "ASAM")]
    assert page.locator("#shown").inner_text() == "1 of 16 rows"
    page.locator("#filter").fill("nothing like it")
    assert column(page, 0) == []
    page.locator("#filter").fill("")
    assert len(column(page, 0)) == 16


def test_cost_axis_changes(show, study_page):
    page = show(study_page)
    title = page.locator("#plot-cost .xtitle")
    assert title.text_content() == "Training time, seconds"
    for cost in ("Gradient evaluations", "FLOPs per image", "Parameters"):
        page.locator("#cost-axis").select_option(label=cost)
        assert title.text_content() == cost
    xs = page.evaluate("document.getElementById('plot-cost').data.slice(1).map((t) => t.x[0])")
    assert sorted(set(xs)) == [41_900, 53_130, 88_210, 105_480]
    page.locator("#cost-axis").focus()
    page.keyboard.press("ArrowUp")
    assert title.text_content() == "FLOPs per image"


def test_pareto_front_and_bands_are_drawn(show, study_page):
    page = show(study_page)
    traces = page.evaluate(
        "document.querySelector('#plot-curves .plot').data.map((t) => [Boolean(t.fill), t.y.length])"
    )
    assert traces[:2] == [[True, 40], [False, 20]]  # three seeds: there and back over 20 epochs, then the mean
    front = page.evaluate("document.getElementById('plot-cost').data[0]")
    assert front["line"]["shape"] == "hv"
    assert len(front["x"]) > 1
    assert front["x"] == sorted(front["x"])
    assert front["y"] == sorted(front["y"])
    assert "Swin · ASAM" in page.locator("#plot-cost .annotation").all_text_contents()


def test_learning_curves_change(show, study_page):
    page = show(study_page)
    assert page.locator("#plot-curves .plot").count() == 4
    page.locator("#metric").select_option(label="Training loss")
    page.locator("#progress").select_option(label="Gradient evaluations")
    plot = "document.querySelector('#plot-curves .plot')"
    assert page.evaluate(f"{plot}.layout.yaxis.type") == "log"
    assert page.evaluate(f"{plot}.layout.xaxis.title.text") == "Gradient evaluations"
    page.locator("#panel").select_option(label="Swin")
    assert page.locator("#plot-curves h3").all_inner_texts() == ["Swin"]
    assert page.evaluate(f"{plot}.data.length") == 4  # one seed: lines without bands


def test_legend_hides_a_series_everywhere(show, study_page):
    page = show(study_page)
    before = page.evaluate("document.getElementById('plot-flatness').data.length")
    page.locator("#cost .legend button", has_text="AdamW, twice").click()
    assert page.evaluate("document.getElementById('plot-flatness').data.length") == before - 4
    assert page.locator("#flatness .legend button[aria-pressed=false]").count() == 1


def test_theme_button_changes_page_and_plots(show, study_page):
    page = show(study_page)
    ink = INK
    light, light_ink = background(page), page.evaluate(ink)
    page.locator("#theme").click()
    assert background(page) != light
    assert page.evaluate(ink) != light_ink
    assert brightness(background(page)) < 60 < 200 < brightness(light)
    page.locator("#theme").click()
    assert background(page) == light
    assert page.evaluate(ink) == light_ink


def test_it_follows_the_system(show, study_page):
    page = show(study_page, scheme="dark")
    assert brightness(background(page)) < 60
    assert brightness(page.evaluate(INK)) > 120
    page.emulate_media(color_scheme="light")
    page.wait_for_function("() => document.getElementById('theme').textContent === 'Dark'")
    assert brightness(background(page)) > 200
    assert brightness(page.evaluate(INK)) < 120


def test_the_page_never_scrolls_sideways(show, study_page):
    page = show(study_page, width=390)
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    for width in (390, 320, 760):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("(width) => document.documentElement.scrollWidth <= width", arg=width)
        wide = page.evaluate("[...document.querySelectorAll('.scroll')].map((s) => s.scrollWidth > s.clientWidth)")
        assert any(wide)  # the table does, in its own box


def test_long_names_do_not_widen_the_page(show, new_run, tmp_path):
    long = "an_endless_name_" * 12
    runs = [
        new_run(values={"model": {"name": f"{long}{n}"}, "minimizer": {"name": m}})
        for n in (1, 2)
        for m in ("sam", "base")
    ]
    page = show(write_report(runs, tmp_path / "r.html", title=long), width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_configs_can_be_reached_and_copied(show, study_page):
    page = show(study_page)
    page.locator("#curves summary", has_text="The runs behind it").click()
    page.locator("#curves .behind a").first.click()
    card = page.locator("#run-0")
    page.wait_for_function("() => document.getElementById('run-0').open")
    card.get_by_role("button", name="Copy").nth(1).click()
    page.wait_for_function("() => document.querySelectorAll('#run-0 .copy')[1].textContent === 'Copied'")
    page.locator("#filter").focus()
    page.keyboard.press("Control+V")
    assert 'name = "resnet_tiny"' in page.locator("#filter").input_value()


def test_hostile_names_do_not_run(show, new_run, tmp_path):
    runs = [
        new_run(values={"model": {"name": f"{HOSTILE}{n}"}, "minimizer": {"name": m}}, env={"device_name": HOSTILE})
        for n in (1, 2)
        for m in ("sam", "base")
    ]
    runs.append(new_run(values={"batch_size": 8}, status="failed", reason=HOSTILE))
    labels = [
        {"run_id": r.id, "labels": {HOSTILE: r.config.model.name, "b": f"{HOSTILE}{r.config.minimizer.name}"}}
        for r in runs
    ]
    study = {"name": HOSTILE, "title": HOSTILE, "question": HOSTILE, "runs": labels}
    page = show(write_report(runs, tmp_path / "r.html", study=study))
    page.locator("#plot-cost .points path").first.hover(force=True)
    page.wait_for_timeout(100)
    assert page.evaluate("window.hacked") is None
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.locator("main img").count() == 0
    assert HOSTILE + "1" in page.locator("#plot-curves h3").all_inner_texts()
    ticks = "".join(page.locator("#plot-flatness .ytick").all_text_contents())
    assert "<script>" in ticks  # shown, not swallowed


@pytest.mark.parametrize("kind", ["single", "unfinished", "bare", "fifty"])
def test_other_kinds_of_page_open_without_complaint(show, new_run, tmp_path, kind):
    if kind == "single":
        runs = [new_run()]
    elif kind == "unfinished":
        runs = [new_run(status=None, epochs_done=4)]
    elif kind == "bare":
        runs = [new_run(status=None, epochs_done=0, parameters=None, env={})]
    else:
        runs = [new_run(values={"minimizer": {"name": "sam", "rho": r / 100}}, level=0.9 + r / 1000) for r in range(50)]
    page = show(write_report(runs, tmp_path / "r.html"), width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert len(column(page, 0)) == (50 if kind == "fifty" else 1)
    for choice in page.locator(".options label:nth-child(2)").all():
        choice.click()


def brightness(colour):
    red, green, blue = (float(part) for part in colour.split("(")[1].rstrip(")").split(",")[:3])
    return 0.3 * red + 0.6 * green + 0.1 * blue
