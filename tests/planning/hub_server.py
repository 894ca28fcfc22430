"""A local server that speaks as much of the Hugging Face hub's protocol as planning needs, and can misbehave."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

COMMIT = hashlib.sha1(b"the only commit").hexdigest()
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass
class Fault:
    """How one file, or the description of the repository, is answered otherwise than it should be.

    Attributes:
        status: of the answer.
        code: the hub's header ``X-Error-Code``.
        body: in place of the file.
        headers: in place of those of the answer.
        ignores_range: the whole file is sent.
        cut_after: bytes of the body after which the connection ends.
        silent: nothing is sent before this many seconds have passed.
        redirects: the file is at another address, without authorization.
        changes: every answer says that the file is another one.
        drips: a byte is sent at a time, this many seconds apart.
    """

    status: int | None = None
    code: str | None = None
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    ignores_range: bool = False
    cut_after: int | None = None
    silent: float = 0.0
    redirects: bool = False
    changes: bool = False
    drips: float = 0.0


@dataclass
class Hub:
    """What the server offers, and what it was asked for.

    Attributes:
        folders: of each repository, by its name.
        faults: by file name; ``""`` is the description of the repository.
        token: needed for everything, if there is one.
        sent: bytes of bodies, by file name.
        requests: path and headers of each.
        address: with the scheme.
    """

    folders: dict[str, Path]
    faults: dict[str, Fault] = field(default_factory=dict)
    token: str | None = None
    sent: Counter[str] = field(default_factory=Counter)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    address: str = ""


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve on a free port of this machine for as long as the block lasts."""
    stopped = threading.Event()
    handler = type("Handler", (_Handler,), {"hub": hub, "stopped": stopped})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield hub
    finally:
        stopped.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    hub: Hub
    stopped: threading.Event

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(self.path)
        self.hub.requests.append((path, dict(self.headers)))
        found = re.fullmatch(r"/(?:api/models/(.+?)/revision/(.+)|(cdn/)?(.+?)/resolve/([^/]+)/(.+))", path)
        if found is None:
            self._answer("", 404, b"", {})
            return
        described, its_revision, is_elsewhere, name, revision, file = found.groups()
        file = file or ""
        folder = self.hub.folders.get(described or name)
        fault = self.hub.faults.get(file, Fault())
        if fault.silent:
            self.stopped.wait(fault.silent)
        is_open = self.hub.token is None or self.headers.get("Authorization") == f"Bearer {self.hub.token}"
        if folder is None or not (is_open or is_elsewhere):
            self._answer(file, 401, b"", {"X-Error-Code": "RepoNotFound"})
        elif (its_revision or revision) not in ("main", "v1", "refs/pr/1", COMMIT):
            self._answer(file, 404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif fault.redirects and not is_elsewhere:
            location = f"{self.hub.address.replace('127.0.0.1', 'localhost')}/cdn{self.path}"
            self._answer(file, 302, b"", {"Location": location})
        elif described:
            siblings = [{"rfilename": str(each.relative_to(folder))} for each in sorted(folder.rglob("*"))]
            content = {"id": described, "sha": COMMIT, "siblings": siblings}
            self._send(file, json.dumps(content).encode(), fault)
        elif (folder / file).is_file():
            self._send(file, (folder / file).read_bytes(), fault)
        else:
            self._answer(file, 404, b"", {"X-Error-Code": "EntryNotFound"})

    def _send(self, file: str, content: bytes, fault: Fault) -> None:
        asked = _RANGE.fullmatch(self.headers.get("Range", ""))
        status, headers = 200, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        if asked is not None and not fault.ignores_range:
            first, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            status, content = 206, content[first : last + 1]
        if fault.changes:
            headers["ETag"] = f'"{len(self.hub.requests)}"'
        if fault.body is not None:
            content = fault.body
        if fault.code is not None:
            headers["X-Error-Code"] = fault.code
        self._answer(file, fault.status or status, content, headers | dict(fault.headers), fault)

    def _answer(
        self, file: str, status: int, content: bytes, headers: Mapping[str, str], fault: Fault | None = None
    ) -> None:
        fault = fault or Fault()
        sent, step = content[: fault.cut_after], 1 if fault.drips else 1 << 14
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            for start in range(0, len(sent), step):
                self.hub.sent[file] += len(sent[start : start + step])  # before whoever reads it can go on
                self.wfile.write(sent[start : start + step])
                if fault.drips and self.stopped.wait(fault.drips):
                    break
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        if fault.cut_after is not None or fault.drips:
            self.close_connection = True
