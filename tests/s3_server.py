"""An S3 server on loopback for tests (moto's), behind a proxy that fails, stalls and truncates on order."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BUCKET = "bucket"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
_DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
_BROKEN = b"<Error><Code>InternalError</Code><Message>We are sorry</Message></Error>"

Fault = str
"""What happens to a request: "fail", "deny", "stall", "lose" its answer, "truncate" what is sent or answered."""


@dataclass
class S3:
    """A server, and what befalls requests.

    Attributes:
        port: of the proxy.
        fault: says for a method and a path what happens; "": nothing.
        struck: faults that happened, with their paths.
        released: set at the end, so that nothing stalls any longer.
    """

    port: int = 0
    fault: Callable[[str, str], Fault] = lambda method, path: ""
    struck: list[tuple[Fault, str]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def environment(self) -> dict[str, str]:
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}

    def put(self, folder: Path, name: str) -> None:
        """Puts a folder's files into the bucket, below a name."""
        from s3fs import S3FileSystem

        key, secret = CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
        system = S3FileSystem(key=key, secret=secret, endpoint_url=self.environment["AWS_ENDPOINT_URL"])
        system.put(f"{folder}/", f"{BUCKET}/{name}/", recursive=True)

    def strike(self, fault: Fault, method: str, part: str, times: int = 1) -> None:
        """Has a fault befall the next requests of a method whose path has this part in it."""

        def chosen(asked: str, path: str) -> Fault:
            with self.lock:
                is_struck = asked == method and part in path and len(self.struck) < times
                if is_struck:
                    self.struck.append((fault, path))
            return fault if is_struck else ""

        self.struck.clear()
        self.fault = chosen


@contextmanager
def serving() -> Iterator[S3]:
    """Runs a server with one empty bucket."""
    from moto.server import ThreadedMotoServer

    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    _, port = moto.get_host_and_port()
    s3 = S3()
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), _handler(s3, port))
    proxy.daemon_threads = True
    s3.port = proxy.server_address[1]
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    # All servers of a process have the same objects.
    for method, path in (("POST", "/moto-api/reset"), ("PUT", f"/{BUCKET}")):
        connection.request(method, path, headers={"Host": "127.0.0.1", "Authorization": _SIGNED})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200
    try:
        yield s3
    finally:
        s3.released.set()
        proxy.shutdown()
        proxy.server_close()
        moto.stop()


_SIGNED = "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


def _handler(s3: S3, port: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = s3.fault(self.command, self.path)
            if fault == "stall":
                s3.released.wait()
                self.close_connection = True
                return
            if fault in ("fail", "deny"):
                self._answer(*((500, _BROKEN) if fault == "fail" else (403, _DENIED)), [])
                return
            headers = {name: value for name, value in self.headers.items() if name.lower() != "content-length"}
            if fault == "truncate" and self.command == "PUT":
                body = body[: len(body) // 2]
                headers = {name: value for name, value in headers.items() if "checksum" not in name.lower()}
                headers.pop("Content-MD5", None)
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            if fault == "lose":
                self.close_connection = True
                return
            self._answer(answer.status, content, answer.getheaders(), cut=fault == "truncate")

        def _answer(self, status: int, content: bytes, headers: list[tuple[str, str]], *, cut: bool = False) -> None:
            self.send_response_only(status)
            own = ("content-length", "connection", "transfer-encoding")
            length = str(len(content))
            for name, value in headers:
                if self.command == "HEAD" and name.lower() == "content-length":
                    length = value
                if name.lower() not in own:
                    self.send_header(name, value)
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content[: len(content) // 2] if cut and self.command == "GET" else content)
            self.close_connection = self.close_connection or cut

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815

    return Handler
