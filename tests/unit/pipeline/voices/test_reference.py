"""Recordings from strangers: what is taken, what is refused, and that nothing gets through by claiming to be something else."""

import contextlib
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ReferenceRejected, UnsupportedFormat
from pipeline.spec import SAMPLE_RATE
from pipeline.voices.measure import loudness_lufs, median_pitch_hz, stability, static_gain_db
from pipeline.voices.reference import read_reference, sniff
from tests.support.effort import examples
from tests.support.recordings import SAID, spoken, written

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, int]:
    return spoken(SAID, tmp_path_factory.mktemp("flite"))


@pytest.mark.parametrize("container", ["WAV", "FLAC", "OGG", "MP3"])
@pytest.mark.parametrize("channels", [1, 2])
def test_speech_is_taken_in_every_container(speech: tuple[np.ndarray, int], container: str, channels: int):
    samples, rate = speech
    sound = samples if channels == 1 else np.stack([samples, samples], axis=1)
    reference = read_reference(written(sound, rate, container))
    report = reference.report
    assert report.container == container
    assert len(reference.samples) / SAMPLE_RATE == pytest.approx(len(samples) / rate, abs=0.1)
    assert report.speech_s > 3
    assert report.snr_db > 20
    assert np.isfinite(reference.samples).all()


def test_every_reason_is_given(speech: tuple[np.ndarray, int]):
    samples, rate = speech
    random = np.random.default_rng(1)
    noise = random.standard_normal(len(samples)).astype(np.float32)
    hour = written(np.zeros(16_000 * 600, np.float32), 16_000, "FLAC")
    nan = written(np.where(np.arange(len(samples)) == 9, np.nan, samples), rate, subtype="FLOAT")
    for content, reason in [
        (written(samples[:rate], rate), "1.0 s long"),
        (hour, "longer than 30 s"),
        (written(0 * samples, rate), "0.0 s of speech"),
        (written(0.1 * noise, rate), "0.0 s of speech"),
        (written(samples + 0.6 * samples.std() * noise, rate), "above the noise"),
        (written(np.clip(30 * samples, -1, 1), rate), "clipped"),
        (written(np.concatenate([samples, np.zeros(8 * rate, np.float32)]), rate), "cut the pauses"),
        (written(samples / 1000, rate, subtype="FLOAT"), "too quiet"),
        (nan, "not finite"),
        (written(np.repeat(samples[:, None], 3, axis=1), rate), "3 channels"),
        (written(samples, 4_000), "4000 Hz"),
        (written(samples, rate)[:60], "long, allowed"),
        (b"RIFF" + bytes(100), "damaged"),
    ]:
        with pytest.raises(ReferenceRejected) as refused:
            read_reference(content)
        assert reason in refused.value.message, refused.value.message
    with pytest.raises(ReferenceRejected, match=r"speech found.*too quiet"):
        read_reference(written(0 * samples, rate))


def test_other_files_are_recognised_by_their_first_bytes(speech: tuple[np.ndarray, int]):
    for content in (
        b"ffconcat version 1.0\nfile 'secret.wav'",
        b"",
        b"R",
        b"MThd",
        written(*speech, "AIFF"),
        written(*speech, "AU"),
    ):
        with pytest.raises(UnsupportedFormat):
            read_reference(content)


@given(st.sampled_from([b"RIFF", b"fLaC", b"OggS", b"ID3", b"\xff\xfb", b""]), st.binary(max_size=400))
@settings(max_examples=examples(150))
def test_any_bytes_are_read_or_refused(beginning: bytes, rest: bytes):
    with pytest.raises((ReferenceRejected, UnsupportedFormat)):
        read_reference(beginning + rest)


@given(st.data())
@settings(max_examples=examples(30))
def test_damage_is_read_or_refused(speech: tuple[np.ndarray, int], data: st.DataObject):
    container = data.draw(st.sampled_from(["WAV", "FLAC", "OGG", "MP3"]))
    content = bytearray(written(*speech, container))
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ReferenceRejected, UnsupportedFormat):
        assert np.isfinite(read_reference(bytes(content)).samples).all()


@pytest.mark.slow
def test_a_file_that_unpacks_to_hours_is_stopped_early():
    content = written(np.zeros(48_000 * 1200, np.float32), 48_000, "FLAC")
    assert len(content) < 1 << 20
    tracemalloc.start()
    with pytest.raises(ReferenceRejected, match="longer than 30 s"):
        read_reference(content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20


def wav(samples: bytes, rate: int, *, channels: int = 1, bits: int = 16, kind: int = 1, size: int | None = None) -> bytes:
    """A header with any content, before 16-bit samples."""
    frame = channels * bits // 8
    head = struct.pack("<IHHIIHH", 16, kind, channels, rate, rate * frame & 0xFFFFFFFF, frame & 0xFFFF, bits)
    size = len(samples) if size is None else size
    body = b"WAVEfmt " + head + b"data" + struct.pack("<I", size) + samples
    return b"RIFF" + struct.pack("<I", min(size + 36, 0xFFFFFFFF)) + body


def id3(size: int, content: bytes) -> bytes:
    """A tag with a stated size of `size` bytes."""
    return b"ID3\x04\0\0" + bytes(size >> shift & 127 for shift in (21, 14, 7, 0)) + content


def flac_blocks(kind: int, size: int, number: int = 1) -> bytes:
    """Returns `number` metadata blocks of a FLAC file, `size` bytes each."""
    return (bytes([kind]) + size.to_bytes(3, "big") + bytes(size)) * number


def bombs(samples: np.ndarray, rate: int) -> dict[str, bytes]:
    pcm = (samples * 32767).astype("<i2").tobytes()
    mp3, flac = written(samples, rate, "MP3"), written(samples, rate, "FLAC")
    hour = written(np.zeros(8000 * 3600, np.int16), 8000, "FLAC")
    return {
        "claims 4 GB": wav(pcm, rate, size=0xFFFFFFF0),
        "claims nothing": wav(pcm, rate, size=0),
        **{f"{hz} Hz": wav(pcm, hz) for hz in (0, 1, 2**31, 2**32 - 1)},
        **{f"{channels} channels": wav(pcm, rate, channels=channels) for channels in (0, 3, 1000, 65_535)},
        "huge floats": wav(np.full(4 * rate, 1e30, "<f4").tobytes(), rate, bits=32, kind=3),
        "not finite": wav(np.full(4 * rate, np.nan, "<f8").tobytes(), rate, bits=64, kind=3),
        "an hour of silence": hour,
        "a tag of 9 MB": id3(9_000_000, bytes(9_000_000)) + mp3,
        "a tag that claims 256 MB": id3(2**28 - 1, bytes(100)) + mp3,
        "900,000 tags": id3(0, b"") * 900_000 + mp3,
        "a block of 9 MB": flac[:42] + flac_blocks(1, 9_000_000) + flac[42:],
        "two million blocks": flac[:42] + flac_blocks(1, 0, 2_000_000) + flac[42:],
        "a picture of 9 MB": flac[:42] + flac_blocks(6, 9_000_000) + flac[42:],
        "millions of chunks": wav(pcm, rate)[:12] + (b"junk" + bytes(4)) * 1_000_000 + wav(pcm, rate)[12:],
        "frames of nothing": b"\xff\xfb\x90\x64" * 2_500_000,
        "sync without end": b"\xff" * 10_000_000,
        "noise": b"OggS" + np.random.default_rng(1).bytes(9_000_000),
    }


LIMITED = """
import resource, sys
from pipeline.voices import reference

resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
for size in map(int, sys.argv[1:]):
    try:
        reference.read_reference(sys.stdin.buffer.read(size))
    except (reference.ReferenceRejected, reference.UnsupportedFormat):
        pass
"""


@pytest.mark.slow
def test_bombs_are_read_or_refused_in_half_the_memory_and_time_of_the_process(speech: tuple[np.ndarray, int]):
    """All of them one after the other; a crash or a limit that is reached ends the process."""
    files = bombs(*speech)
    command = [sys.executable, "-c", LIMITED, *(str(len(content)) for content in files.values())]
    done = subprocess.run(command, cwd=ROOT, input=b"".join(files.values()), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("work", ["bytearray(reference.MEMORY_LIMIT)", "all(iter(lambda: 1, 0))"], ids=["memory", "time"])
def test_the_process_ends_at_its_limits(work: str):
    code = f"""
import sys
from pipeline.voices import reference

reference.CPU_LIMIT_S = 1
reference.read_reference = lambda content: {work}
print("not ended", reference.main())
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, input=b"", capture_output=True, check=False)
    assert done.returncode != 0
    assert b"not ended" not in done.stdout


@pytest.mark.slow
def test_the_process_answers_in_one_line_and_samples(speech: tuple[np.ndarray, int]):
    content = written(*speech)
    done = subprocess.run([sys.executable, "-m", "pipeline.voices.reference"], cwd=ROOT, input=content, capture_output=True)
    assert done.returncode == 0
    head, _, samples = done.stdout.partition(b"\n")
    assert b'"container": "WAV"' in head
    assert np.array_equal(np.frombuffer(samples, "<f4"), read_reference(content).samples)
    assert sniff(content) == "WAV"


def tone(hz: float, level: float, seconds: float = 1.0) -> np.ndarray:
    at = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return (level * sum(np.sin(2 * np.pi * k * hz * at) / k for k in range(1, 8))).astype(np.float32)


@given(st.floats(0.001, 0.4), st.floats(-40, -10))
@settings(max_examples=examples(30))
def test_the_gain_brings_a_voice_to_the_target(level: float, target: float):
    lufs = loudness_lufs(tone(200, level))
    assert lufs is not None
    gain_db = static_gain_db(lufs, target)
    assert abs(gain_db) <= 12
    if abs(target - lufs) <= 12:
        assert loudness_lufs(tone(200, level * 10 ** (gain_db / 20))) == pytest.approx(target, abs=0.1)


def test_silence_and_moments_have_no_loudness():
    assert loudness_lufs(np.zeros(SAMPLE_RATE, np.float32)) is None
    assert loudness_lufs(tone(200, 0.3, 0.2)) is None
    assert static_gain_db(None, -20.0) == static_gain_db(-30.0, None) == 0.0


@pytest.mark.parametrize("hz", [80.0, 120.0, 220.0, 400.0])
def test_pitch_is_found(hz: float):
    assert median_pitch_hz(tone(hz, 0.3)) == pytest.approx(hz, rel=0.02)
    assert median_pitch_hz(np.zeros(5000, np.float32)) is None


def test_a_voice_that_stays_itself_scores_higher():
    noise = np.random.default_rng(1).standard_normal(SAMPLE_RATE).astype(np.float32) * 0.1
    same = stability([tone(120, 0.3), tone(121, 0.2), tone(119, 0.4)])
    wandering = stability([tone(120, 0.3), tone(240, 0.3), tone(90, 0.3)])
    mixed = stability([tone(120, 0.3), noise, tone(400, 0.3)])
    assert 0.9 < same["stability"] <= 1
    assert wandering["stability"] < same["stability"]
    assert 0 <= mixed["stability"] < same["stability"]
    assert stability([np.zeros(100, np.float32)] * 2)["stability"] >= 0
