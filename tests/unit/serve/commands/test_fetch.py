"""Fetching over every kind of bad connection, from a hub on this machine that serves a few kilobytes."""

import hashlib
import http.server
import pickle
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.checkpoint.layout import FILES, MANIFEST_FILE
from pipeline.checkpoint.locate import hub_folder
from pipeline.checkpoint.manifest import read_manifest, verify_files
from pipeline.errors import CheckpointError
from pipeline.voices.catalogue import VoiceCatalogue
from pipeline.voices.seeds import draw_embedding
from pipeline.voices.strings import decode_embedding, encode_embedding
from serve.commands.weights import fetch as fetch_weights
from serve.commands.weights.convert_voice import NoSpeaker, read_speaker
from serve.commands.weights.convert_voice import main as convert
from serve.commands.weights.fetch import (
    EXIT_INCOMPLETE,
    EXIT_OK,
    EXIT_REFUSED,
    LICENSE,
    check_offline,
    expected_hashes,
    fetch_all,
    main,
)
from serve.edge.download import EXIT_UNREACHABLE, EXIT_WRONG_BYTES, FetchError, RetryPolicy

PATH = "/2Noise/ChatTTS/resolve/main/"
FILE = "asset/Vocos.safetensors"
CONTENTS = {file: hashlib.shake_256(file.encode()).digest(20_000 + 1_000 * index) for index, file in enumerate(FILES)}
HASHES = {file: hashlib.sha256(content).hexdigest() for file, content in CONTENTS.items()}
RETRIES = RetryPolicy(attempts=3, connect_timeout_s=60.0, silence_timeout_s=60.0)


@dataclass
class Hub:
    """A hub with bad habits."""

    endpoint: str = ""
    contents: dict[str, bytes] = field(default_factory=lambda: dict(CONTENTS))
    cut_after: dict[str, int] = field(default_factory=dict)
    """bytes of a file after which each connection breaks"""
    ignores_range: bool = False
    wrong_range: bool = False
    says_no_length: bool = False
    busy: int = 0
    """requests still to be answered with 503"""
    silent_after: int | None = None
    """bytes after which the first connection says nothing more"""
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """(file, Range header) of each"""

    def fetched(self, file: str) -> list[str | None]:
        return [range_header for name, range_header in self.requests if name == file]


class Handler(http.server.BaseHTTPRequestHandler):
    hub: Hub

    def do_GET(self) -> None:
        hub, file = self.hub, self.path.removeprefix(PATH)
        range_header = self.headers.get("Range")
        hub.requests.append((file, range_header))
        if hub.busy:
            hub.busy -= 1
            self.send_error(503)
            return
        if file not in hub.contents:
            self.send_error(404)
            return
        whole = hub.contents[file]
        start = int(range_header.removeprefix("bytes=").rstrip("-")) if range_header and not hub.ignores_range else 0
        if start >= len(whole):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(whole)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = whole[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start + hub.wrong_range}-{len(whole) - 1}/{len(whole)}")
        if not hub.says_no_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if hub.silent_after is not None:
            self.wfile.write(body[: hub.silent_after])
            hub.silent_after = None
            self.connection.recv(1)  # until the client has had enough and leaves
            return
        self.wfile.write(body[: hub.cut_after.get(file)])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield hub
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def nobody() -> str:
    """An endpoint at which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def fetch(folder: Path, endpoint: str, retries: RetryPolicy = RETRIES) -> list[float]:
    """Returns the pauses that would have been slept."""
    pauses: list[float] = []
    fetch_all(folder, HASHES, endpoint=endpoint, retries=retries, sleep=pauses.append)
    return pauses


def assert_complete(folder: Path) -> None:
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {*FILES, MANIFEST_FILE}
    assert all((folder / file).read_bytes() == content for file, content in CONTENTS.items())
    assert read_manifest(folder) == HASHES
    assert set(verify_files(folder)) == set(FILES)


def test_everything_arrives_and_is_listed(hub: Hub, tmp_path: Path) -> None:
    assert fetch(tmp_path, hub.endpoint + "/") == []
    assert_complete(tmp_path)
    assert hub.requests == [(file, None) for file in FILES]


def test_complete_files_are_not_fetched_again(hub: Hub, tmp_path: Path) -> None:
    fetch(tmp_path, hub.endpoint)
    hub.requests.clear()
    (tmp_path / MANIFEST_FILE).unlink()
    fetch(tmp_path, hub.endpoint)
    assert hub.requests == []
    assert_complete(tmp_path)


def test_damaged_file_is_fetched_again(hub: Hub, tmp_path: Path) -> None:
    fetch(tmp_path, hub.endpoint)
    hub.requests.clear()
    (tmp_path / FILE).write_bytes(b"damaged")
    fetch(tmp_path, hub.endpoint)
    assert hub.requests == [(FILE, None)]
    assert_complete(tmp_path)


def test_cut_connections_are_resumed_where_they_broke(hub: Hub, tmp_path: Path) -> None:
    hub.cut_after[FILE] = 7_000
    pauses = fetch(tmp_path, hub.endpoint)
    size = len(CONTENTS[FILE])
    assert hub.fetched(FILE) == [None, *(f"bytes={start}-" for start in range(7_000, size, 7_000))]
    assert pauses == [1.0] * (len(hub.fetched(FILE)) - 1)  # each brought something, so retries starts anew
    assert_complete(tmp_path)


def leave_part(folder: Path, content: bytes) -> None:
    """Leaves what an earlier run has fetched of the file."""
    part = folder / f"{FILE}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(content)


def test_part_of_an_earlier_run_is_resumed(hub: Hub, tmp_path: Path) -> None:
    leave_part(tmp_path, CONTENTS[FILE][:12_345])
    fetch(tmp_path, hub.endpoint)
    assert hub.fetched(FILE) == ["bytes=12345-"]
    assert_complete(tmp_path)


def test_whole_part_of_an_earlier_run_needs_no_further_byte(hub: Hub, tmp_path: Path) -> None:
    leave_part(tmp_path, CONTENTS[FILE])
    fetch(tmp_path, hub.endpoint)
    assert_complete(tmp_path)


def test_part_longer_than_the_file_is_started_over(hub: Hub, tmp_path: Path) -> None:
    leave_part(tmp_path, CONTENTS[FILE] + b"more")
    fetch(tmp_path, hub.endpoint)
    assert hub.fetched(FILE) == [f"bytes={len(CONTENTS[FILE]) + 4}-", None]
    assert_complete(tmp_path)


def test_server_that_ignores_ranges_is_read_from_the_start(hub: Hub, tmp_path: Path) -> None:
    hub.ignores_range = True
    leave_part(tmp_path, CONTENTS[FILE][:12_345])
    fetch(tmp_path, hub.endpoint)
    assert hub.fetched(FILE) == ["bytes=12345-"]
    assert_complete(tmp_path)


def test_server_that_ignores_ranges_and_always_breaks_is_given_up(hub: Hub, tmp_path: Path) -> None:
    hub.ignores_range = True
    hub.cut_after[FILE] = 7_000
    with pytest.raises(FetchError, match=r"3 connections in a row brought nothing; .*7000 bytes read") as raised:
        fetch(tmp_path, hub.endpoint)
    assert raised.value.status == EXIT_UNREACHABLE
    assert not (tmp_path / FILE).exists()


def test_answer_with_another_range_is_not_glued_on(hub: Hub, tmp_path: Path) -> None:
    hub.wrong_range = True
    leave_part(tmp_path, CONTENTS[FILE][:12_345])
    fetch(tmp_path, hub.endpoint)
    assert hub.fetched(FILE) == ["bytes=12345-", None]
    assert_complete(tmp_path)


def test_wrong_byte_deletes_the_part_and_says_expected_and_found(hub: Hub, tmp_path: Path) -> None:
    wrong = bytearray(CONTENTS[FILE])
    wrong[500] ^= 1
    hub.contents[FILE] = bytes(wrong)
    digest = hashlib.sha256(wrong).hexdigest()
    with pytest.raises(FetchError, match=f"expected SHA-256 {HASHES[FILE]}, found {digest}") as raised:
        fetch(tmp_path, hub.endpoint)
    assert raised.value.status == EXIT_WRONG_BYTES
    assert not (tmp_path / FILE).exists()
    assert not (tmp_path / f"{FILE}.part").exists()
    assert not (tmp_path / MANIFEST_FILE).exists()
    hub.contents[FILE] = CONTENTS[FILE]
    fetch(tmp_path, hub.endpoint)
    assert_complete(tmp_path)


def test_cut_short_file_of_unknown_length_is_seen_by_its_hash(hub: Hub, tmp_path: Path) -> None:
    hub.says_no_length = True
    hub.cut_after[FILE] = 7_000
    with pytest.raises(FetchError, match="expected SHA-256"):
        fetch(tmp_path, hub.endpoint)
    assert not (tmp_path / FILE).exists()


def test_file_of_unknown_length_arrives(hub: Hub, tmp_path: Path) -> None:
    hub.says_no_length = True
    fetch(tmp_path, hub.endpoint)
    assert_complete(tmp_path)


def test_absent_server_is_given_up_after_pauses_that_double(nobody: str, tmp_path: Path) -> None:
    pauses: list[float] = []
    with pytest.raises(FetchError, match=r"5 connections in a row brought nothing; .* --endpoint") as raised:
        fetch_all(tmp_path, HASHES, endpoint=nobody, retries=RetryPolicy(attempts=5, longest_pause_s=3.0), sleep=pauses.append)
    assert raised.value.status == EXIT_UNREACHABLE
    assert pauses == [1.0, 2.0, 3.0, 3.0]


def test_every_pause_is_announced(nobody: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    assert main(["--accept-license", LICENSE, "--endpoint", nobody, "--out", str(tmp_path)]) == EXIT_UNREACHABLE
    assert capsys.readouterr().err.count("trying again in") == len(pauses) > 0


def test_absent_file_is_not_asked_for_twice(hub: Hub, tmp_path: Path) -> None:
    del hub.contents[FILE]
    with pytest.raises(FetchError, match=r"HTTP 404 .* check --endpoint") as raised:
        fetch(tmp_path, hub.endpoint)
    assert raised.value.status == EXIT_UNREACHABLE
    assert hub.fetched(FILE) == [None]


def test_busy_server_is_asked_again(hub: Hub, tmp_path: Path) -> None:
    hub.busy = 2
    assert fetch(tmp_path, hub.endpoint) == [1.0, 2.0]
    assert_complete(tmp_path)


def test_silent_connection_is_left_and_resumed(hub: Hub, tmp_path: Path) -> None:
    hub.silent_after = 5_000
    fetch(tmp_path, hub.endpoint, replace(RETRIES, attempts=100, silence_timeout_s=0.5))
    assert hub.fetched(FILES[0])[:2] == [None, "bytes=5000-"]
    assert_complete(tmp_path)


def test_progress_goes_forward_to_the_whole(hub: Hub, tmp_path: Path) -> None:
    steps: list[tuple[int, int | None]] = []
    fetch_all(
        tmp_path,
        {FILE: HASHES[FILE]},
        endpoint=hub.endpoint,
        on_progress=lambda file, done, total: steps.append((done, total)),
    )
    assert steps[-1] == (len(CONTENTS[FILE]), len(CONTENTS[FILE]))
    assert steps == sorted(steps)


def test_offline_names_every_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FetchError) as raised:
        check_offline(tmp_path, HASHES)
    assert raised.value.status == EXIT_INCOMPLETE
    assert all(file in str(raised.value) for file in FILES)


def test_offline_refuses_a_wrong_file_and_accepts_the_right_ones(hub: Hub, tmp_path: Path) -> None:
    fetch(tmp_path, hub.endpoint)
    (tmp_path / MANIFEST_FILE).unlink()
    check_offline(tmp_path, HASHES)
    assert_complete(tmp_path)
    (tmp_path / FILE).write_bytes(b"damaged")
    with pytest.raises(FetchError, match=f"expected SHA-256 {HASHES[FILE]}, found") as raised:
        check_offline(tmp_path, HASHES)
    assert raised.value.status == EXIT_WRONG_BYTES
    with pytest.raises(CheckpointError):
        verify_files(tmp_path)


def test_hashes_are_the_packages_own_and_load_no_torch() -> None:
    hashes = expected_hashes()
    assert set(hashes) == set(FILES)
    assert hashes["asset/Vocos.safetensors"] == "07e5561491cce41f7f90cfdb94b2ff263ff5742c3d89339db99b17ad82cc3f44"
    assert hashes["asset/gpt/config.json"] == "0aaa1ecd96c49ad4f473459eb1982fa7ad79fa5de08cde2781bf6ad1f9a0c236"


class TestCommand:
    @pytest.fixture(autouse=True)
    def small_checkpoint(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(fetch_weights, "expected_hashes", lambda: dict(HASHES))
        monkeypatch.setenv("CHATTTS_HOME", str(tmp_path / "home"))

    @pytest.mark.parametrize("arguments", [[], ["--accept-license", "mit"]])
    def test_refuses_without_the_licence(
        self, arguments: list[str], hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([*arguments, "--endpoint", hub.endpoint]) == EXIT_REFUSED
        output = capsys.readouterr().err
        assert "not for any commercial purpose" in output
        assert "--accept-license cc-by-nc-4.0" in output
        assert hub.requests == []
        assert not (tmp_path / "home").exists()

    def test_fetches_to_where_the_hub_name_resolves(self, hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--accept-license", LICENSE, "--endpoint", hub.endpoint]) == EXIT_OK
        assert_complete(hub_folder(tmp_path / "home"))
        assert capsys.readouterr() == (f"{hub_folder(tmp_path / 'home')}\n", "")  # quiet off a terminal

    def test_offline_touches_no_network(self, hub: Hub, tmp_path: Path) -> None:
        arguments = ["--endpoint", hub.endpoint, "--out", str(tmp_path / "out")]
        assert main(["--offline", *arguments]) == EXIT_INCOMPLETE
        assert hub.requests == []
        assert main(["--accept-license", LICENSE, *arguments]) == EXIT_OK
        hub.requests.clear()
        assert main(["--offline", *arguments]) == EXIT_OK
        assert hub.requests == []

    def test_says_why_it_failed(self, hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        hub.contents[FILE] = b"other"
        arguments = ["--accept-license", LICENSE, "--endpoint", hub.endpoint]
        assert main(arguments) == EXIT_WRONG_BYTES
        assert f"expected SHA-256 {HASHES[FILE]}" in capsys.readouterr().err
        (tmp_path / "file").touch()
        assert main([*arguments, "--out", str(tmp_path / "file" / "below")]) == fetch_weights.EXIT_DISK
        assert "could not be written" in capsys.readouterr().err


# Speaker files of others: converted when they are what they claim to be, and never run.

WIDTH = 768
EMBEDDING = draw_embedding(7, WIDTH)


@pytest.mark.parametrize(
    "content",
    [
        torch.from_numpy(EMBEDDING.copy()),
        torch.from_numpy(EMBEDDING.astype(np.float32)),
        torch.from_numpy(EMBEDDING.astype(np.float32)).reshape(1, WIDTH),
        torch.nn.Parameter(torch.from_numpy(EMBEDDING.astype(np.float32))),
        encode_embedding(EMBEDDING),
    ],
    ids=["half", "float", "row", "parameter", "string"],
)
def test_every_way_a_speaker_is_saved(tmp_path: Path, content: object, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "voice.pt"
    torch.save(content, file)
    assert np.array_equal(read_speaker(file, WIDTH), EMBEDDING)
    assert convert([str(file)]) == 0
    assert np.array_equal(decode_embedding(capsys.readouterr().out.strip(), WIDTH), EMBEDDING)


def test_the_entry_stands_in_a_catalogue_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "voice.pt"
    torch.save(torch.from_numpy(EMBEDDING.copy()), file)
    assert convert([str(file), "--name", "anna"]) == 0
    catalogue = tmp_path / "voices.yaml"
    catalogue.write_text(f"voices:\n{capsys.readouterr().out}", encoding="utf-8")
    voice = VoiceCatalogue.load(catalogue, WIDTH).get("anna")
    assert voice.embedding is not None
    assert np.array_equal(voice.embedding, EMBEDDING)


class Trap:
    """What a pickle can do to whoever opens it."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("save", [torch.save, lambda trap, file: file.write_bytes(pickle.dumps(trap))], ids=["torch", "pickle"])
def test_a_file_with_code_is_refused_and_nothing_runs(tmp_path: Path, save, capsys: pytest.CaptureFixture[str]):
    sprung = tmp_path / "sprung"
    file = tmp_path / "voice.pt"
    save(Trap(sprung), file)
    assert convert([str(file)]) == 1
    assert "no code in it was run" in capsys.readouterr().err
    assert not sprung.exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (torch.zeros(WIDTH), "all zeros"),
        (torch.full((WIDTH,), float("nan")), "undefined"),
        (torch.zeros(5), "shape"),
        (torch.zeros(WIDTH, dtype=torch.int64), "int64"),
        ({"spk": torch.zeros(WIDTH)}, "dict"),
        ("hello", "base16384"),
    ],
)
def test_what_is_no_speaker_says_what_it_is(tmp_path: Path, content: object, reason: str):
    file = tmp_path / "voice.pt"
    torch.save(content, file)
    with pytest.raises(NoSpeaker, match=reason):
        read_speaker(file, WIDTH)


def test_missing_and_huge_files(tmp_path: Path):
    with pytest.raises(NoSpeaker, match="cannot be read"):
        read_speaker(tmp_path / "none.pt", WIDTH)
    (tmp_path / "huge.pt").write_bytes(bytes(2 << 20))
    with pytest.raises(NoSpeaker, match="limit"):
        read_speaker(tmp_path / "huge.pt", WIDTH)
