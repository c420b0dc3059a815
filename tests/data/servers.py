"""Object storage and a web server on this machine, and a bad line to them."""

import io
import re
import select
import socket
import threading
import time
from contextlib import contextmanager
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Storage(ThreadingHTTPServer):
    """Files at /bucket/key: as much of S3 as we need, and of the web; what it was asked for is kept."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = {}  # path → content
        self.uploads = {}  # path → number of a part → content, of files that are not complete yet
        self.key = None  # the only access key that is good, if there is one
        self.pause = 0.0  # seconds between parts of an answer
        self.failing = 0  # requests that are answered by an error
        self.asked = []  # (method, path, range)

    def handle_error(self, *_):
        """Say nothing of clients that are gone."""

    @property
    def host(self):
        return f"127.0.0.1:{self.server_address[1]}"

    def put(self, folder, bucket="bucket"):
        """Take all files below a folder."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.files[f"/{bucket}/{path.relative_to(folder)}"] = path.read_bytes()


def _chunks(file):
    """Yield the chunks of a body, up to the one of no bytes; what follows that is read, and left out."""
    while size := int(file.readline().split(b";")[0], 16):
        yield file.read(size)
        file.readline()
    while file.readline().strip():
        pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self._answer()

    def do_GET(self):
        self._answer()

    def do_POST(self):
        """Begin or complete a file that comes in parts."""
        path, query = self._asked()
        content, space = self._body(), "http://s3.amazonaws.com/doc/2006-03-01/"
        if "uploads" in query:
            self.server.uploads[path] = {}
            kind, inside = "InitiateMultipartUploadResult", "<UploadId>1</UploadId>"
        else:
            assert b"CompleteMultipartUpload" in content
            parts = self.server.uploads.pop(path)
            self.server.files[path] = b"".join(parts[number] for number in sorted(parts))
            kind, inside = "CompleteMultipartUploadResult", f"<Key>{path}</Key>"
        self._send(200, f'<{kind} xmlns="{space}">{inside}</{kind}>'.encode())

    def do_PUT(self):
        path, query = self._asked()
        if "partNumber" in query:
            self.server.uploads[path][int(query["partNumber"][0])] = content = self._body()
        else:
            self.server.files[path] = content = self._body()
        self._send(200, b"", {"ETag": f'"{md5(content).hexdigest()}"'})

    def do_DELETE(self):
        self.server.files.pop(self._asked()[0], None)
        self._send(204, b"")

    def _asked(self):
        address = urlsplit(self.path)
        self.server.asked.append((self.command, unquote(address.path), None))
        return unquote(address.path), parse_qs(address.query, keep_blank_values=True)

    def _body(self):
        """Return what was sent; Amazon's library sends it in chunks, each with its size before it."""
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "Content-Length" in self.headers:
            sent = io.BytesIO(self.rfile.read(int(self.headers["Content-Length"])))
        else:
            sent = io.BytesIO(b"".join(_chunks(self.rfile)))
        return b"".join(_chunks(sent))

    def _answer(self):
        server, address = self.server, urlsplit(self.path)
        path, query = unquote(address.path), parse_qs(address.query, keep_blank_values=True)
        server.asked.append((self.command, path, self.headers.get("Range")))
        said = re.search(r"Credential=(\w+)/", self.headers.get("Authorization", ""))
        if server.failing > 0:
            server.failing -= 1
            self._send(503, b"")
        elif server.key is not None and (said is None or said[1] != server.key):
            self._send(403, b"<Error><Code>AccessDenied</Code></Error>")
        elif "list-type" in query:
            self._send(200, self._listing(path.strip("/"), query.get("prefix", [""])[0]))
        elif path in server.files:
            self._file(server.files[path])
        elif path.count("/") == 1 and any(name.startswith(f"{path}/") for name in server.files):
            self._send(200, b"")  # a bucket
        else:
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def _listing(self, bucket, prefix):
        start = f"/{bucket}/"
        keys = sorted(
            name.removeprefix(start) for name in self.server.files if name.startswith(start + prefix)
        )
        found = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.server.files[start + key])}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key in keys
        )
        count = f"<KeyCount>{len(keys)}</KeyCount><IsTruncated>false</IsTruncated>"
        space = "http://s3.amazonaws.com/doc/2006-03-01/"
        inside = f"<Name>{bucket}</Name>{count}{found}"
        return f'<ListBucketResult xmlns="{space}">{inside}</ListBucketResult>'.encode()

    def _file(self, content):
        part = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        more = {"ETag": f'"{md5(content).hexdigest()}"', "Accept-Ranges": "bytes"}
        if part is None:
            self._send(200, content, more)
            return
        first, last = int(part[1]), min(int(part[2] or len(content) - 1), len(content) - 1)
        more["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        self._send(206, content[first : last + 1], more)

    def _send(self, status, content, more=()):
        self.send_response(status)
        for key, value in dict(more).items():
            self.send_header(key, value)
        self.send_header("Last-Modified", formatdate(1.8e9, usegmt=True))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        step = max(len(content) // 8, 1) if self.server.pause else max(len(content), 1)
        for start in range(0, len(content), step):
            self.wfile.write(content[start : start + step])
            time.sleep(self.server.pause)


@contextmanager
def storage():
    """Run a server while the block runs."""
    server = Storage()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class BadLine:
    """Carries bytes to a server; the first connections are cut after some bytes of the answers."""

    def __init__(self, host):
        self._host, self.cuts, self.after, self.cut = host, 0, 2000, 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open = True
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def host(self):
        return f"127.0.0.1:{self._listening.getsockname()[1]}"

    def close(self):
        self._open = False
        self._listening.close()

    def _serve(self):
        while self._open:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client):
        name, _, port = self._host.partition(":")
        with client, socket.create_connection((name, int(port))) as server:
            carried = 0
            while True:
                ready, _, _ = select.select([client, server], [], [], 30)
                if not ready:
                    return
                for end in ready:
                    content = end.recv(4096)
                    if not content:
                        return
                    carried += len(content) if end is server else 0
                    if self.cuts > 0 and carried > self.after:
                        self.cuts -= 1
                        self.cut += 1
                        return
                    (client if end is server else server).sendall(content)
