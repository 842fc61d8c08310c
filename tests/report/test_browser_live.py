"""A served page in a real browser: it takes in what is new and leaves the reader where they are."""

from __future__ import annotations

import threading

import pytest
from report_results import add_results
from report_runs import make_run

from steppe.report import serve
from steppe.report.page import render
from steppe.report.record import read_records
from steppe.report.studies import StudyRuns
from steppe.runs import find_runs


@pytest.fixture
def folder(tmp_path):
    runs = tmp_path / "runs"
    for name in ("a", "b", "c"):
        run = make_run(runs, values={"model": {"name": name}}, name=name)
        add_results(run, {"a": 0.5, "b": 1.0, "c": 2.0}[name])
    return runs


@pytest.fixture
def served(browser, folder):
    """The page of a folder, served; gives (page, what the browser said, end the server)."""

    def make(version, bare):
        return render([StudyRuns(read_records(find_runs([folder])))], version=version, bare=bare)

    server = serve.open_server([folder], make)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()

    def end():
        server.shutdown()
        server.server_close()
        thread.join()

    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    said = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda message: said.append(message.text))
    page.goto(serve.address_of(server))
    page.wait_for_selector("#landscapes canvas")
    yield page, said, end
    context.close()
    if thread.is_alive():
        end()


def test_new_runs_come_in_and_nothing_is_lost(served, folder):
    page, said, _ = served
    page.locator("#filter").fill("a")
    page.get_by_role("button", name="Params").first.click()
    page.get_by_role("button", name="Params").first.click()
    page.locator("#metric").select_option(label="Training loss")
    page.locator("#cost .legend button", has_text="b").click()
    page.locator("#corruption-row").select_option(label="c")
    page.locator("#run-0 summary").click()
    page.get_by_text("Every single figure, with its settings").click()
    page.locator("#scalar-filter").fill("whole")
    page.locator("#robustness h2").evaluate("e => e.scrollIntoView({behavior: 'instant'})")
    place = "document.getElementById('robustness').getBoundingClientRect().top"
    top = page.evaluate(place)
    page.locator("#corruption-row").focus(timeout=1000)
    page.evaluate("window.same = true")

    make_run(folder, values={"model": {"name": "A new one"}}, name="aa")
    page.wait_for_function("() => document.querySelectorAll('#table tbody tr').length === 4", timeout=15_000)
    page.wait_for_function("() => !document.documentElement.hasAttribute('data-drawing')")
    assert page.evaluate("window.same")  # taken in, not loaded again
    assert page.locator("#filter").input_value() == "a"
    assert page.locator("#table tbody tr:visible").count() == 2
    assert page.locator("#table th[aria-sort=ascending]").inner_text().startswith("Params")
    assert page.locator("#metric").input_value() == "train_loss"
    assert page.locator("#cost .legend button[aria-pressed=false]").inner_text() == "b"
    assert page.locator("#corruption-row").evaluate("e => e.selectedOptions[0].textContent") == "c"
    assert page.locator("details.run[open] summary").inner_text().startswith("a")
    assert page.locator("#scalars tbody tr").count() > 5
    assert page.evaluate(place) == pytest.approx(top, abs=3)
    assert page.evaluate("document.activeElement.id") == "corruption-row"
    assert page.locator("#plot-curves svg.chart").count() > 0
    assert page.locator("#landscapes canvas").count() == 2
    assert said == []


def test_it_says_when_the_server_has_ended(served):
    page, _, end = served
    assert page.locator("#live").inner_text() == "live"
    end()
    page.wait_for_function("() => document.getElementById('live').textContent === 'server stopped'", timeout=15_000)
    assert page.locator("#table tbody tr").count() == 3


def test_a_page_in_a_file_asks_nobody(folder, tmp_path):
    text = render([StudyRuns(read_records(find_runs([folder])))])
    assert 'name="steppe-version"' not in text
    assert "connect-src" not in text.split("</head>")[0]
    assert 'id="live"' not in text
