"""A server that is slow, large, broken or wants a password: what is asked of it, how often, and what is said."""

import base64
import http.server
import json
import threading
import urllib.parse

import pytest

import diagnose.telemetry.server as module
from diagnose.errors import ServiceError, TraceError, UsageError
from diagnose.telemetry.read import read_telemetry
from tests.telemetry.test_read import T0, _series

NAMES = json.dumps({"status": "success", "data": ["node_procs_running", "go_threads", "node_cpu_seconds_total"]})


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers from the lists of its server, by the last word of the path; the last answer is given again and again."""

    def _answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length).decode()
        parts = urllib.parse.urlsplit(self.path)
        asked = dict(urllib.parse.parse_qsl(body or parts.query))
        self.server.asked.append((parts.path, asked, self.headers.get("Authorization")))
        queue = self.server.answers.get(parts.path.rsplit("/", 1)[-1], [(404, "no")])
        status, content = queue.pop(0) if len(queue) > 1 else queue[0]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(content.encode())

    do_GET = do_POST = _answer  # noqa: N815

    def log_message(self, *args):
        """Say nothing."""


@pytest.fixture
def serve(monkeypatch):
    """Give what starts a server with its answers; nobody waits between two tries."""
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    started = []

    def serve(**answers):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        server.answers = {"values": [(200, NAMES)], **answers}
        server.asked = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        started.append(server)
        return server, f"127.0.0.1:{server.server_address[1]}"

    yield serve
    for server in started:
        server.shutdown()
        server.server_close()


def _matrix(*series):
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": list(series)}})


def test_only_what_is_known_is_asked_for(serve):
    """Known metrics alone, of the machines of the job, with a step that suits the span; CPUs are added up by the server."""
    server, address = serve(query_range=[(200, _matrix(_series("node_procs_running", [1, 2], instance="node-1:9100")))])
    telemetry = read_telemetry(f"http://{address}/prom/", begin_s=T0, end_s=T0 + 7200, hosts=("node-1.cluster",))
    assert telemetry.hosts == ("node-1",)
    queries = [asked["query"] for path, asked, _ in server.asked if path == "/prom/api/v1/query_range"]
    assert [query.split("{")[0] for query in queries] == [
        "node_uname_info",
        "sum without (cpu) (node_cpu_seconds_total",
        "node_procs_running",
    ]
    assert all("node-1" in query and "cluster" not in query for query in queries)
    assert {asked["step"] for path, asked, _ in server.asked if path.endswith("query_range")} == {"10"}


def test_names_of_machines_cannot_ask_for_more(serve):
    """What a trace says of its machines goes into a query as a word, whatever it holds."""
    server, address = serve(query_range=[(200, _matrix(_series("node_procs_running", [1], instance="x:1")))])
    read_telemetry(f"http://{address}", begin_s=T0, end_s=T0 + 60, hosts=('a"} or up{x=~"', "b|c"))
    query = server.asked[-1][1]["query"]
    assert 'a"}' not in query
    assert r"a\\\"\\}" in query
    assert r"b\\|c" in query


def test_a_busy_server_is_asked_again(serve):
    """One that cannot answer for a moment is asked again; one that never can is told after three tries."""
    good = (200, _matrix(_series("node_procs_running", [1, 2], instance="n:1")))
    server, address = serve(query_range=[(503, ""), (429, ""), good])
    assert read_telemetry(f"http://{address}", begin_s=T0, end_s=T0 + 60).hosts == ("n",)
    server, address = serve(query_range=[(503, '{"status":"error","error":"too many queries"}')])
    with pytest.raises(ServiceError, match=r"answers 503 \('too many queries'\)"):
        read_telemetry(f"http://{address}")
    assert len(server.asked) == 1 + module.TRIES


def test_a_password_is_sent_and_never_shown(serve):
    """The name and password of the address go to the server, and into no name, error or report."""
    server, address = serve(query_range=[(200, _matrix(_series("node_procs_running", [1], instance="n:1")))])
    said = []
    telemetry = read_telemetry(f"http://me:secret@{address}", report=said.append)
    assert server.asked[0][2] == "Basic " + base64.b64encode(b"me:secret").decode()
    assert "secret" not in telemetry.name + "".join(said)
    server, address = serve(values=[(401, "")])
    with pytest.raises(ServiceError, match="answers 401") as error:
        read_telemetry(f"http://me:secret@{address}")
    assert "secret" not in str(error.value)


def test_a_token_is_sent_and_never_shown(serve, monkeypatch, tmp_path):
    """It comes from the environment or a file; an address with a password needs none; what is none is refused, unseen."""
    server, address = serve(query_range=[(200, _matrix(_series("node_procs_running", [1], instance="n:1")))])
    monkeypatch.setenv(module.TOKEN, "word-1")
    assert "word-1" not in read_telemetry(f"http://{address}").name
    read_telemetry(f"http://me:secret@{address}")
    (tmp_path / "token").write_text("word-2\n")
    monkeypatch.delenv(module.TOKEN)
    monkeypatch.setenv(f"{module.TOKEN}_FILE", str(tmp_path / "token"))
    read_telemetry(f"http://{address}")
    assert list(dict.fromkeys(sent.split()[0] + sent.split()[1][:6] for *_, sent in server.asked)) == [
        "Bearerword-1",
        "Basic" + base64.b64encode(b"me:secret").decode()[:6],
        "Bearerword-2",
    ]
    (tmp_path / "token").write_text("hidden\nX-Other: y")
    with pytest.raises(UsageError, match=f"{module.TOKEN}: what is there is no token") as error:
        read_telemetry(f"http://{address}")
    assert "hidden" not in str(error.value)
    (tmp_path / "token").unlink()
    with pytest.raises(UsageError, match="_FILE: cannot read"):
        read_telemetry(f"http://{address}")


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        ((200, "<html>login</html>"), TraceError, "no JSON"),
        ((200, "x" * 100_000), TraceError, "answers with more than"),
        ((302, ""), ServiceError, "answers 302"),
        ((200, '{"status":"error","error":"out of memory"}'), TraceError, "out of memory"),
        ((200, '{"status":"success","data":{"resultType":"string","result":[1,"x"]}}'), TraceError, "expected matrix"),
    ],
)
def test_odd_answers(serve, monkeypatch, answer, kind, said):
    """What is no answer, or far too long, is refused in one line."""
    monkeypatch.setattr(module, "MAX_ANSWER", 50_000)
    _, address = serve(query_range=[answer])
    with pytest.raises(kind, match=said) as error:
        read_telemetry(f"http://{address}")
    assert "\n" not in str(error.value)


def test_a_server_of_other_things(serve):
    """A server without any metric that is known here says what is expected."""
    _, address = serve(values=[(200, '{"data":["up","go_threads"]}')])
    with pytest.raises(TraceError, match="no metric that is known here"):
        read_telemetry(f"http://{address}")
