"""A server that speaks as much of a Hugging Face hub's protocol as fetching a model takes, and fails when told to.

Large files are redirected to another server, as the real one does: a token must not follow there.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_right"
LARGE = (".safetensors", ".gguf")


@dataclass
class HubServer:
    """Repositories, and what has been asked for. What may be set while it runs is public.

    cuts: file -> after how many bytes each of the next connections breaks off. Without an entry left, none does.
    refusals: file -> status and headers of each of the next answers.
    stalls: file -> set by a test to let a connection that has sent half go on.
    """

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gguf_architecture: dict[str, str] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    stated: dict[str, str] = field(default_factory=dict)  # file -> a checksum that is not its own
    cuts: dict[str, list[int]] = field(default_factory=dict)
    refusals: dict[str, list[tuple[int, dict[str, str]]]] = field(default_factory=dict)
    stalls: dict[str, threading.Event] = field(default_factory=dict)
    half_sent: threading.Event = field(default_factory=threading.Event)
    status: int = 200  # of everything, when it is another
    can_resume: bool = True
    sent: list[tuple[str, str, int]] = field(default_factory=list)  # file, range asked for, bytes sent
    asked: list[str] = field(default_factory=list)  # paths of the addresses
    leaked: list[str] = field(default_factory=list)  # tokens that came to the other server
    port: int = 0
    other_port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def listing(self, repository: str) -> dict[str, object]:
        """As /api/models/NAME?blobs=True answers."""
        siblings = []
        for path, content in self.repositories[repository].items():
            entry: dict[str, object] = {"rfilename": path, "size": len(content), "blobId": blob_id(content)}
            if path.endswith(LARGE):
                digest = self.stated.get(path) or hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 134}
            elif path in self.stated:
                entry["blobId"] = self.stated[path]
            siblings.append(entry)
        facts: dict[str, object] = {"id": repository, "sha": COMMIT, "siblings": siblings}
        if repository in self.gguf_architecture:
            facts["gguf"] = {"architecture": self.gguf_architecture[repository], "total": 1}
        return facts


def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def running(hub: HubServer) -> Iterator[HubServer]:
    class Handler(_Handler):
        pass

    Handler.hub = hub
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    hub.port, hub.other_port = (server.server_address[1] for server in servers)
    threads = [threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for event in hub.stalls.values():
            event.set()
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(path)
        if self.hub.status != 200:
            return self.answer(self.hub.status)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            return self.describe(found[1], found[2])
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self.resolve(*found.groups())
        if found := re.fullmatch(r"/cdn/([^/]+/[^/]+)/(.+)", path):
            if "Authorization" in self.headers:
                self.hub.leaked.append(self.headers["Authorization"])
            return self.send(found[2], self.hub.repositories[found[1]][found[2]])
        return self.answer(404)

    def describe(self, repository: str, revision: str | None) -> None:
        if repository not in self.hub.repositories:
            return self.refuse(401, "RepoNotFound")
        if revision not in (None, "main", COMMIT):
            return self.refuse(404, "RevisionNotFound")
        return self.answer(200, json.dumps(self.hub.listing(repository)).encode(), {"Content-Type": "application/json"})

    def resolve(self, repository: str, revision: str, path: str) -> None:
        if repository in self.hub.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.refuse(403 if "Authorization" in self.headers else 401, "GatedRepo")
        if refusals := self.hub.refusals.get(path):
            status, headers = refusals.pop(0)
            return self.answer(status, b"", headers)
        if revision != COMMIT:
            return self.refuse(404, "RevisionNotFound")
        content = self.hub.repositories[repository].get(path)
        if content is None:
            return self.refuse(404, "EntryNotFound")
        headers = {"X-Repo-Commit": COMMIT}
        if path.endswith(LARGE):
            linked = {"X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Linked-Size": str(len(content))}
            location = {"Location": f"http://127.0.0.1:{self.hub.other_port}/cdn/{repository}/{path}"}
            return self.answer(302, b"", headers | linked | location)
        return self.send(path, content, headers | {"ETag": f'"{blob_id(content)}"'})

    def send(self, path: str, content: bytes, headers: dict[str, str] | None = None) -> None:
        """A file, from the byte that is asked for, as far as the test lets it come."""
        wanted = self.headers.get("Range", "")
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.hub.can_resume else 0
        rest = content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        for name, value in {**(headers or {}), "Content-Length": str(len(rest))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        cuts = self.hub.cuts.get(path, [])
        num_bytes = min(cuts.pop(0), len(rest)) if cuts else len(rest)
        if path in self.hub.stalls:
            num_bytes = len(rest) // 2
        self.wfile.write(rest[:num_bytes])
        self.wfile.flush()
        self.hub.sent.append((path, wanted, num_bytes))
        if path in self.hub.stalls:
            self.hub.half_sent.set()
            self.hub.stalls[path].wait(timeout=60)
        if num_bytes < len(rest):
            self.close_connection = True

    def refuse(self, status: int, code: str) -> None:
        self.answer(status, b"", {"X-Error-Code": code})

    def answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
