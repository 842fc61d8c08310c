"""The served page: this machine alone, new when runs are, nothing else to be had."""

from __future__ import annotations

import http.client
import threading

import pytest

from steppe.errors import RunError
from steppe.report import serve


@pytest.fixture
def served(tmp_path):
    """A server over a folder, whose page is its version and how often it was made."""
    made = []

    def render(version, bare):
        made.append(bare)
        return f"{'bare' if bare else 'whole'} {version} {len(made)}"

    server = serve.open_server([tmp_path], render)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


def ask(port, path="/", *, method="GET", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def test_a_page_is_made_again_only_when_files_change(served, tmp_path, monkeypatch):
    monkeypatch.setattr(serve, "_LOOK_S", 0.0)
    status, page = ask(served)
    assert (status, page.split()[0], page.split()[2]) == (200, "whole", "1")
    assert ask(served) == (200, page)
    assert ask(served, "/update")[1].split()[::2] == ["bare", "2"]
    version = ask(served, "/version")[1]
    assert version == page.split()[1]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "weights.safetensors").write_bytes(b"w")
    assert ask(served, "/version")[1] == version  # nothing a report shows
    (tmp_path / "run" / "metrics.jsonl").write_text("{}")
    now = ask(served, "/version")[1]
    assert now != version
    assert ask(served)[1].split() == ["whole", now, "3"]


def test_nothing_else_is_served(served):
    assert ask(served, "/../../etc/passwd")[0] == 404
    assert ask(served, "/metrics.jsonl")[0] == 404
    assert ask(served, "/", method="POST")[0] == 501
    assert ask(served, "/", method="HEAD") == (200, "")
    assert ask(served, "/?x=1")[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1"])
def test_a_page_from_elsewhere_cannot_read_along(served, host):
    assert ask(served, "/", host=host) == (403, "only this machine is served\n")


def test_an_error_is_told_and_does_not_end_the_server(tmp_path):
    def render(version, bare):
        raise RunError("odd", where="there")

    server = serve.open_server([tmp_path], render)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        for _ in range(2):
            status, text = ask(server.server_address[1])
            assert status == 503
            assert "odd" in text
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_taken_port_is_explained(served, tmp_path):
    with pytest.raises(RunError, match=f"port {served} cannot be used"):
        serve.open_server([tmp_path], lambda version, bare: "", served)
