"""Speaker files of others: converted when they are what they claim to be, and never run."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.voices.catalogue import VoiceCatalogue
from pipeline.voices.seeds import draw_embedding
from pipeline.voices.strings import decode_embedding, encode_embedding
from serve.commands.weights.convert_voice import NoSpeaker, main, read_speaker

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
    assert main([str(file)]) == 0
    assert np.array_equal(decode_embedding(capsys.readouterr().out.strip(), WIDTH), EMBEDDING)


def test_the_entry_stands_in_a_catalogue_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "voice.pt"
    torch.save(torch.from_numpy(EMBEDDING.copy()), file)
    assert main([str(file), "--name", "anna"]) == 0
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
    assert main([str(file)]) == 1
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
