"""A picture comes from wherever the user points; what goes wrong on the way is said in one line."""

import base64
import io
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from engine.errors import ImageError
from engine.image_sources import open_source, printable_name

DATA = b"the picture's bytes" * 1000


def read(source: str, stdin: bytes | None = None, *, timeout_s: float = 20.0) -> bytes:
    standard_input = None if stdin is None else io.BytesIO(stdin)
    with open_source(source, standard_input, timeout_s, len(DATA)) as stream:
        assert (stream.seekable(), stream.tell()) == (True, 0)
        return stream.read()


def refusal(source: str, stdin: bytes | None = None, *, timeout_s: float = 20.0) -> str:
    with pytest.raises(ImageError) as caught:
        read(source, stdin, timeout_s=timeout_s)
    message = str(caught.value)
    assert message.isprintable()  # so on one line
    assert len(message) < 500
    return message


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder and the user's home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may read everything, so it becomes nobody meanwhile."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


class TestFiles:
    @pytest.mark.parametrize(
        "name",
        [
            "with some spaces.png",
            "[a] {b} (c) *.png",
            "Großmutter 雪 😀.png",
            "--image.png",
            "~",
            "~nobody.png",
            "100%25.png",
            "new\nline.png",
            "data.png",
            "http:",
        ],
    )
    def test_any_name_will_do(self, folder: Path, name: str) -> None:
        (folder / name).write_bytes(DATA)
        assert read(name) == DATA
        assert read(str(folder / name)) == DATA

    @pytest.mark.skipif(sys.platform == "darwin", reason="whose file names are Unicode")
    def test_a_name_that_is_not_unicode(self, folder: Path) -> None:
        name = os.fsdecode(b"caf\xe9.png")
        (folder / name).write_bytes(DATA)
        assert read(name) == DATA
        assert printable_name(name) == r"caf\udce9.png"

    def test_an_empty_name_is_none(self) -> None:
        assert refusal("").startswith("'': an empty name; give a file")

    def test_a_tilde_is_the_home_folder(self, folder: Path) -> None:
        (folder / "x.png").write_bytes(DATA)
        assert read("~/x.png") == DATA

    def test_a_link_is_followed(self, folder: Path) -> None:
        (folder / "x.png").write_bytes(DATA)
        (folder / "link.png").symlink_to("x.png")
        assert read("link.png") == DATA

    def test_a_file_may_be_larger_than_the_limit_of_downloads(self, folder: Path) -> None:
        (folder / "x.png").write_bytes(DATA * 2)
        assert read("x.png") == DATA * 2

    def test_a_pipe_is_read_like_a_file(self) -> None:
        reader, writer = os.pipe()
        with os.fdopen(reader), os.fdopen(writer, "wb") as pipe:
            pipe.write(DATA)
            pipe.close()
            assert read(f"/dev/fd/{reader}") == DATA

    def test_a_device_without_an_end_is_refused(self) -> None:
        assert "over the limit" in refusal("/dev/zero")

    def test_a_missing_file(self, folder: Path) -> None:
        message = refusal("gone.png")
        assert message == f"gone.png: no such file in {folder}; check the name"
        assert f"no folder {folder / 'gone'}" in refusal("gone/x.png")
        assert "no such file" in refusal("~/gone.png")
        assert "no folder" in refusal("~no-such-user/x.png")

    def test_a_dangling_link(self, folder: Path) -> None:
        (folder / "link.png").symlink_to("gone.png")
        assert "a link to gone.png, which does not exist" in refusal("link.png")

    def test_a_link_to_itself(self, folder: Path) -> None:
        (folder / "link.png").symlink_to("link.png")
        assert refusal("link.png").startswith("link.png: cannot be opened")

    def test_a_folder(self, folder: Path) -> None:
        assert "a folder, not a picture" in refusal(str(folder))

    def test_a_file_that_the_user_may_not_read(self, folder: Path) -> None:
        (folder / "x.png").write_bytes(DATA)
        (folder / "x.png").chmod(0)
        with unprivileged():
            assert "may not read it" in refusal("x.png")

    @pytest.mark.parametrize("name", ["a\0b.png", "x" * 5000, "/dev/null/x.png"])
    def test_a_name_that_cannot_be_a_file_s(self, name: str) -> None:
        assert "cannot be opened" in refusal(name)

    def test_control_characters_do_not_reach_the_terminal(self) -> None:
        assert refusal("\x1b[2J\n.png").startswith(r"\x1b[2J\n.png: no such file")


class TestStandardInput:
    def test_a_dash_is_standard_input(self) -> None:
        assert read("-", DATA) == DATA

    def test_more_than_the_limit_is_refused(self) -> None:
        assert "over the limit" in refusal("-", DATA + b"x")

    def test_where_there_is_none(self) -> None:
        assert refusal("-").startswith("standard input: ")


class TestDataURLs:
    @pytest.mark.parametrize(
        "source",
        [
            "data:image/png;base64," + base64.b64encode(DATA[:20]).decode(),
            "DATA:image/png;charset=x;BASE64," + base64.b64encode(DATA[:20]).decode().rstrip("="),
            "data:;base64," + quote(base64.encodebytes(DATA[:20])),
            "data:," + quote(DATA[:20]),
        ],
    )
    def test_hold_the_bytes(self, source: str) -> None:
        assert read(source) == DATA[:20]

    def test_that_are_broken(self) -> None:
        assert "not base64" in refusal("data:image/png;base64,@@@@")
        assert "not base64" in refusal("data:image/png;base64,aaaaa")
        assert "without data" in refusal("data:image/png;base64")

    def test_are_named_without_their_data(self) -> None:
        source = "data:image/png;base64," + "A" * 100_000 + "@"
        assert printable_name(source) == "data:image/png;base64,…"
        assert refusal(source).startswith("data:image/png;base64,…: ")


class Handler(BaseHTTPRequestHandler):
    """Answers as the path asks; `requests` collects what came."""

    requests: list[tuple[str, str]]

    def do_GET(self) -> None:
        self.requests.append((self.path, self.headers["User-Agent"]))
        what = self.path[1:].partition("?")[0]
        if what.startswith("status-"):
            self.send_error(int(what.removeprefix("status-")))
        elif what == "moved":
            self._head(302, Location="/picture.png")
        elif what == "circle":
            self._head(302, Location="/circle")
        elif what == "to-ftp":
            self._head(302, Location="ftp://127.0.0.1/picture.png")
        elif what == "hangs":
            time.sleep(0.5)
        elif what == "drips":
            self._drip()
        elif what == "large":
            self._head(200, **{"Content-Length": str(10**12)})
        elif what == "endless":
            self._head(200)
            self.wfile.write(DATA + b"x")
        elif what == "broken":
            self._head(200, **{"Content-Length": str(len(DATA))})
            self.wfile.write(DATA[:-1])
        else:
            self._head(200, **{"Content-Length": str(len(DATA))})
            self.wfile.write(DATA)

    def _head(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _drip(self) -> None:
        """Faster than any wait's limit, slower than the whole's."""
        self._head(200)
        try:
            for _ in range(100):
                self.wfile.write(b"x")
                time.sleep(0.02)
        except OSError:
            pass  # the client has had enough

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server on this machine."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(Handler, "requests", [], raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


class TestURLs:
    def test_are_fetched(self, server: str) -> None:
        assert read(f"{server}/picture.png") == DATA
        assert read(f"{server.upper()}/picture.png") == DATA

    def test_follow_a_redirection(self, server: str) -> None:
        assert read(f"{server}/moved") == DATA

    def test_do_not_go_round_in_circles(self, server: str) -> None:
        reason = "the server answered 302 again and again, redirecting in a circle"
        assert refusal(f"{server}/circle") == f"{server}/circle: {reason}; check the address"

    def test_are_asked_for_in_our_name(self, server: str) -> None:
        read(f"{server}/picture.png")
        ((_, agent),) = Handler.requests
        assert agent.startswith("recap-vlm/")

    @pytest.mark.parametrize(
        ("path", "sent"),
        [
            ("/a b [c] ü.png?q=é&r=1#part", "/a%20b%20%5Bc%5D%20%C3%BC.png?q=%C3%A9&r=1"),
            ("/a%20b.png?q=%C3%A9", "/a%20b.png?q=%C3%A9"),
        ],
    )
    def test_are_quoted_where_they_are_not(self, server: str, path: str, sent: str) -> None:
        assert read(server + path) == DATA
        ((asked, _),) = Handler.requests
        assert asked == sent

    @pytest.mark.parametrize("status", [403, 404, 500])
    def test_report_the_status(self, server: str, status: int) -> None:
        message = refusal(f"{server}/status-{status}")
        assert message.startswith(f"{server}/status-{status}: the server answered {status} ")

    @pytest.mark.parametrize("path", ["large", "endless"])
    def test_that_are_too_large_are_refused(self, server: str, path: str) -> None:
        assert "over the limit" in refusal(f"{server}/{path}")

    @pytest.mark.parametrize("path", ["hangs", "drips"])
    def test_that_take_too_long_are_given_up(self, server: str, path: str) -> None:
        assert "not here within 0.1 s" in refusal(f"{server}/{path}", timeout_s=0.1)

    def test_that_break_off_are_no_pictures(self, server: str) -> None:
        assert "closed 1 bytes before the end" in refusal(f"{server}/broken")

    def test_are_never_followed_to_another_protocol(self, server: str) -> None:
        assert "unknown url type: ftp" in refusal(f"{server}/to-ftp")

    @pytest.mark.parametrize("source", ["http://", "http://[half/x.png", "http://127.0.0.1:x/"])
    def test_that_are_none(self, source: str) -> None:
        assert "cannot be fetched" in refusal(source)

    def test_of_nobody(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
            port = http.server_port
        assert "Connection refused" in refusal(f"http://127.0.0.1:{port}/x.png")

    @pytest.mark.parametrize("source", ["ftp://host/x.png", "file:///x.png", "s3://bucket/x.png"])
    def test_of_other_kinds_are_not_files(self, source: str) -> None:
        assert "only http, https and data URLs" in refusal(source)
