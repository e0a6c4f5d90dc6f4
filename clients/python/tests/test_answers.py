"""What is an answer of hasp serve, and what is not; by a server that answers bytes."""

import http.server
import threading
import unittest

import hasplock
from hasplock import _answers
from hasplock._http import LARGEST, Transport

ODD = [
    None, 0, "", [], {}, True, {"valid_ms": None}, {"valid_ms": "60000"}, {"valid_ms": True}, {"valid_ms": -1}, {"valid_ms": {}},
    {"session": 1, "valid_ms": 1, "can": []}, {"session": "", "valid_ms": 1, "can": []}, {"session": "s", "valid_ms": 0, "can": []},
    {"session": "s", "valid_ms": 1, "can": "adopt"}, {"valid_ms": 1, "late": {}}, {"valid_ms": 1, "late": [1]}, {"valid_ms": 1, "late": [{"lock": 0, "valid_ms": 1}]},
    {"valid_ms": 1, "lost": [{}]}, {"valid_ms": 1, "lost": "1"}, {"state": "held"}, {"state": "held", "entry": 1}, {"state": "lost", "entry": "e"},
    {"state": "busy", "quarantine_ms": "1"}, {"state": "busy", "quarantine_ms": -1}, {"state": "held", "entry": "e", "token": 1.5}, {"state": "held", "entry": "e", "token": -1}, {"version": 1, "lost": [None]}, {"version": -1}, {"version": 1}, {"version": 1, "lost": None}, {"version": 1, "lost": [], "changed": None}, {"valid_ms": 1, "late": None}, {"state": "held", "entry": "e", "token": None}, {"version": 1, "changed": [[]]},
    {"entries": None}, {"entries": [1]}, {"entries": [{"value": "Y"}]},
]  # fmt: skip


class Shapes(unittest.TestCase):
    def test_odd_answers(self):
        for answer in ODD:
            for read in (_answers.opened, _answers.alive, _answers.entered, _answers.news, _answers.published, _answers.nothing):
                with self.subTest(answer=answer, read=read.__name__):
                    if read is _answers.nothing and answer is None:
                        continue
                    if read is _answers.alive and isinstance(answer, dict) and isinstance(answer.get("valid_ms"), int) and "session" in answer:
                        continue  # more than is asked for
                    with self.assertRaises(hasplock.Unavailable):
                        read(answer)

    def test_answers(self):
        self.assertEqual(_answers.alive({"valid_ms": 1500, "late": [{"lock": 2, "valid_ms": 10}], "lost": [{"lock": 3, "detail": "why"}]}), _answers.Alive(1.5, {2: 0.01}, {3: "why"}))
        self.assertEqual(_answers.entered({"state": "held", "entry": "e"}), _answers.Entered("held", 0, "e"))
        self.assertEqual(_answers.entered({"state": "busy"}), _answers.Entered("busy", 0, "", 0.0))
        self.assertEqual(_answers.entered({"state": "busy", "quarantine_ms": 1500}).quarantine, 1.5)
        told = _answers.news({"version": 9, "lost": [], "changed": [{"lock": 3, "state": "held", "token": 41}, {"lock": 4, "state": "waiting"}], "draining": True})
        self.assertEqual(told, _answers.News(9, {}, {3: 41}, [4], True))
        self.assertEqual(_answers.published({"entries": [{"waits": True}, {"value": "YQ=="}]}), b"a")
        self.assertIsNone(_answers.published({"entries": []}))


class Bytes(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.asked.append((self.path, dict(self.headers)))
        self.wfile.write(self.server.answer)
        self.close_connection = True

    def log_message(self, *_):
        pass


def response(status, body=b"", kind="application/json", length=None, more=b""):
    head = "HTTP/1.1 %d x\r\nContent-Type: %s\r\nContent-Length: %d\r\n" % (status, kind, len(body) if length is None else length)
    return head.encode() + more + b"\r\n" + body


class Wire(unittest.TestCase):
    def setUp(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bytes)
        self.server.asked, self.server.answer = [], b""
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.transport = Transport("http://127.0.0.1:%d" % self.server.server_port, "secret", None)
        self.addCleanup(self.transport.close)

    def ask(self, answer, **more):
        self.server.answer = answer
        return self.transport.request("GET", "/v1", session="s", timeout=5, **more)

    def test_answer(self):
        self.assertEqual(self.ask(response(200, b'{"a":1}')), {"a": 1})
        self.assertIsNone(self.ask(response(204)))

    def test_what_is_no_answer(self):
        for answer in (
            b"", b"\x00\xff" * 50, b"HTTP/1.1 200\r\n", b"HTTP/9.9 abc\r\n\r\n", response(200), response(200, b"null"), response(200, b"{"), response(200, b"[" * 100000),
            response(200, b'{"a": NaN}'), response(200, b"<html>"), response(200, b'{"a":1}', length=100), response(200, b"1", length=3),
            response(200, b"zz\r\n", more=b"Transfer-Encoding: chunked\r\n"), response(200, b"5\r\n{}", more=b"Transfer-Encoding: chunked\r\n"), response(200, b"\xff\xfe"),
            response(502, b"<html>", "text/html"), response(500, b"[]", "application/problem+json"), response(200, b"x", length=LARGEST + 10),
        ):  # fmt: skip
            with self.subTest(answer[:80]), self.assertRaises(hasplock.Unavailable):
                self.ask(answer)

    def test_no_redirect_is_followed(self):
        elsewhere = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bytes)
        elsewhere.asked, elsewhere.answer = [], response(200, b'{"a":1}')
        threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
        self.addCleanup(elsewhere.server_close)
        self.addCleanup(elsewhere.shutdown)
        for status in (301, 302, 303, 307, 308):
            with self.subTest(status), self.assertRaises(hasplock.Refused):
                self.ask(response(status, more=b"Location: http://127.0.0.1:%d/v1\r\n" % elsewhere.server_port))
        self.assertEqual(elsewhere.asked, [])


if __name__ == "__main__":
    unittest.main()
