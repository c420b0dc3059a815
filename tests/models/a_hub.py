"""A model hub on this machine: just as much of the protocol as downloading a network takes."""

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_ABOUT = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/?]+))?$")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)$")


class Hub(ThreadingHTTPServer):
    """Repositories by name: commits, newest last, each with its files."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories = {}
        self.cut = 0  # how many downloads break off half-way
        self.damage = False  # whether a byte of what is sent is wrong
        self.gated = set()
        self.asked = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def commit(self, repository, files):
        """Add a commit; return its id."""
        commits = self.repositories.setdefault(repository, {})
        number = hashlib.sha1(f"{repository}{len(commits)}".encode()).hexdigest()
        commits[number] = files
        return number

    def find(self, repository, revision):
        commits = self.repositories[repository]
        number = list(commits)[-1] if revision in (None, "main") else revision
        return number, commits[number]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self._answer(body=False)

    def do_GET(self):
        self._answer(body=True)

    def _answer(self, body):
        hub, path = self.server, self.path.partition("?")[0]
        hub.asked.append(f"{self.command} {path}")
        try:
            if found := _ABOUT.match(path):
                if found[1] in hub.gated:
                    return self._refuse(403, "GatedRepo")
                number, files = hub.find(found[1], found[2])
                return self._send(json.dumps(_about(found[1], number, files)).encode(), {}, body)
            if found := _FILE.match(path):
                number, files = hub.find(found[1], found[2])
                if found[3] not in files:
                    return self._refuse(404, "EntryNotFound")
                return self._file(number, files[found[3]], body)
        except KeyError:
            known = found is not None and found[1] in hub.repositories
            return self._refuse(404, "RevisionNotFound" if known else "RepoNotFound")
        return self._refuse(404, "EntryNotFound")

    def _refuse(self, status, code):
        self._send(b"{}", {"X-Error-Code": code, "X-Error-Message": code}, True, status)

    def _file(self, number, content, body):
        digest = hashlib.sha256(content).hexdigest()
        headers = {"X-Repo-Commit": number, "ETag": f'"{digest}"', "Accept-Ranges": "bytes"}
        start = int((self.headers.get("Range") or "bytes=0-")[6:].partition("-")[0])
        part, status = content[start:], 206 if start else 200
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if body and self.server.damage:
            part = part[:-1] + bytes([part[-1] ^ 1])
        if body and self.server.cut and len(part) > 1000:
            self.server.cut -= 1
            self._send(part, headers, False, status)
            self.wfile.write(part[: len(part) // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return
        self._send(part, headers, body, status)

    def _send(self, content, headers, body, status=200):
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if body and self.command != "HEAD":
            self.wfile.write(content)


def _large(content):
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 1}


def _about(repository, number, files):
    siblings = [
        {
            "rfilename": name,
            "size": len(content),
            "blobId": hashlib.sha1(content).hexdigest(),
            **(
                {
                    "lfs": {
                        "sha256": hashlib.sha256(content).hexdigest(),
                        "size": len(content),
                        "pointerSize": 1,
                    }
                }
                if name.endswith(".safetensors")
                else {}
            ),
        }
        for name, content in files.items()
    ]
    return {"id": repository, "sha": number, "siblings": siblings, "cardData": {"license": "mit"}, "tags": []}
