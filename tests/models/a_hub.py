"""A hub on this machine: just as much of the protocol as downloading networks and data sets takes."""

import hashlib
import json
import re
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_ABOUT = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/revision/([^/?]+))?$")
_LIST = re.compile(r"/api/(models|datasets)$")
_TREE = re.compile(r"/api/datasets/([^/]+/[^/]+)/tree/([^/?]+)(?:/(.+))?$")
_PATHS = re.compile(r"/api/datasets/([^/]+/[^/]+)/paths-info/([^/?]+)$")
_FILE = re.compile(r"/(?:datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)$")


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

    def do_POST(self):
        form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self._answer(body=True, asked=form.get("paths", []))

    def _answer(self, body, asked=()):
        hub, (path, _, query) = self.server, self.path.partition("?")
        path = urllib.parse.unquote(path)
        hub.asked.append(f"{self.command} {path}")
        repository = None
        try:
            if found := _LIST.match(path):
                return self._send(json.dumps(_listed(hub, query)).encode(), {}, body)
            for pattern, answer in ((_TREE, self._tree), (_PATHS, self._paths), (_FILE, self._resolve)):
                if found := pattern.match(path):
                    repository = found[1]
                    return answer(*hub.find(found[1], found[2]), found, asked, body)
            if found := _ABOUT.match(path):
                repository = found[2]
                if repository in hub.gated:
                    return self._refuse(403, "GatedRepo")
                number, files = hub.find(repository, found[3])
                return self._send(json.dumps(_about(repository, number, files)).encode(), {}, body)
        except KeyError:
            known = repository in hub.repositories
            return self._refuse(404, "RevisionNotFound" if known else "RepoNotFound")
        return self._refuse(404, "EntryNotFound")

    def _tree(self, _, files, found, asked, body):
        inside = f"{found[3]}/" if found[3] else ""
        entries = [_entry(name, content) for name, content in files.items() if name.startswith(inside)]
        folders = {name[: name.rfind("/")] for name in files if "/" in name[len(inside) :]}
        entries += [{"type": "directory", "path": each, "size": 0, "oid": "0" * 40} for each in folders]
        self._send(json.dumps(entries).encode(), {}, body)

    def _paths(self, _, files, found, asked, body):
        entries = [_entry(name, files[name]) for name in asked if name in files]
        self._send(json.dumps(entries).encode(), {}, body)

    def _resolve(self, number, files, found, asked, body):
        if found[1] in self.server.gated:
            return self._refuse(403, "GatedRepo")
        if found[3] not in files:
            return self._refuse(404, "EntryNotFound")
        return self._file(number, files[found[3]], body)

    def _refuse(self, status, code):
        self._send(b"{}", {"X-Error-Code": code, "X-Error-Message": code}, True, status)

    def _file(self, number, content, body):
        digest = hashlib.sha256(content).hexdigest()
        headers = {"X-Repo-Commit": number, "ETag": f'"{digest}"', "Accept-Ranges": "bytes"}
        asked = self.headers.get("Range")
        start, _, last = (asked or "bytes=0-")[6:].partition("-")
        start, end = int(start), min(int(last) + 1, len(content)) if last else len(content)
        part, status = content[start:end], 206 if asked else 200
        if asked:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
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


def _listed(hub, query):
    """Return the repositories of an author, or those whose names have a word."""
    asked = urllib.parse.parse_qs(query)
    author, word = asked.get("author", [""])[0], asked.get("search", [""])[0]
    names = [name for name in hub.repositories if name.startswith(f"{author}/" if author else "")]
    return [{"id": name, "tags": []} for name in names if word in name]


def _entry(name, content):
    about = {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
    return about | ({"lfs": _large(content) | {"oid": _large(content)["sha256"]}} if _is_large(name) else {})


def _is_large(name):
    return name.endswith((".safetensors", ".parquet"))


def _about(repository, number, files):
    siblings = [
        {
            "rfilename": name,
            "size": len(content),
            "blobId": hashlib.sha1(content).hexdigest(),
            **({"lfs": _large(content)} if _is_large(name) else {}),
        }
        for name, content in files.items()
    ]
    return {"id": repository, "sha": number, "siblings": siblings, "cardData": {"license": "mit"}, "tags": []}
