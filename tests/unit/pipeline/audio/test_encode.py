"""Encoding: every container decodes back to what went in, and its bytes depend on the samples alone."""

import gc
import io
import itertools
import json
import re
import struct
import subprocess
import weakref
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.audio import encode as encoding
from pipeline.audio.encode import MARK, UNKNOWN_SIZE, Encoder, to_int16, wav_header, wav_trailer
from pipeline.audio.formats import CONTAINERS, SAMPLE_RATES, AudioFormat, audio_format, named_format
from pipeline.audio.labels import FileLabels
from pipeline.errors import AudioFault, NonFiniteOutput, UnsupportedFormat
from tests.support.effort import examples
from tests.support.services import needed_program

RATE = 24_000
FRAME = {"mp3": 576, "opus": 480, "webm": 480, "aac": 1024}  # samples
PRIMING = {"mp3": 1105, "aac": 1024}  # samples before the first one, in a stream
LOSSLESS = ("flac", "wav", "pcm")
RAW = {"pcm": "s16le", "ulaw": "mulaw", "alaw": "alaw"}
"""FFmpeg's names: there is no header that would say"""
OPUS = ("opus", "webm")
EVERY = [(container, rate) for container in CONTAINERS for rate in SAMPLE_RATES
         if container not in OPUS or rate in (8_000, 16_000, 24_000, 48_000)]  # fmt: skip


def speech_like(samples: int) -> np.ndarray:
    """Noise through a slow envelope, nothing periodic: its place can be found again."""
    noise = np.convolve(np.random.default_rng(0).normal(size=samples + 9), np.ones(9) / 9, "valid")[:samples]
    return (0.5 * noise * (1 + np.sin(np.arange(samples) / 900)) / 2).astype(np.float32)


def encode(samples, container, cuts=(), *, sample_rate=RATE, kbps=None, streamed=True) -> bytes:
    with Encoder(audio_format(container, sample_rate, kbps), streamed=streamed) as encoder:
        return b"".join(encoder.feed(piece) for piece in np.split(samples, sorted(cuts))) + encoder.finish()


def encode_whole(samples, container, sample_rate=RATE) -> bytes:
    return encoding.encode_whole(samples, audio_format(container, sample_rate))


def opened(data: bytes, container: str, rate: int):
    if container in RAW:
        return av.open(io.BytesIO(data), format=RAW[container], options={"sample_rate": str(rate)})
    if container == "aac":
        return av.open(io.BytesIO(data), format="aac")  # as in the Content-Type: two frames are too few to detect it
    return av.open(io.BytesIO(data))


def decode(data: bytes, container: str, rate: int = RATE) -> np.ndarray:
    """(m,) float64 at the stream's own rate, by FFmpeg."""
    with opened(data, container, rate) as file:
        resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
        frames = [out for frame in file.decode(audio=0) for out in resampler.resample(frame)]
        frames += resampler.resample(None)
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames]).astype(np.float64)


def priming(container: str, *, streamed: bool) -> int:
    """Samples before the first one: the LAME tag of a whole mp3 has their number, and the decoder drops them."""
    return PRIMING.get(container, 0) if streamed or container != "mp3" else 0


@pytest.mark.parametrize(("container", "rate"), EVERY)
def test_every_format_decodes_back_to_its_length(container, rate):
    """256 samples are the shortest utterance there is: one step."""
    for length, streamed in itertools.product((256, 479, 2304, 24_001), (True, False)):
        data = encode(speech_like(length), container, sample_rate=rate, streamed=streamed)
        with opened(data, container, rate) as file:
            frames = list(file.decode(audio=0))
            assert file.streams.audio[0].channels == 1
            # Opus always decodes at 48 kHz.
            assert {frame.sample_rate for frame in frames} == {48_000 if container in OPUS else rate}
        decoded = sum(frame.samples for frame in frames) * rate / frames[0].sample_rate
        extra = decoded - length - priming(container, streamed=streamed)
        padded = container in ("aac", "webm") or (container == "mp3" and streamed)
        assert 0 <= extra < (2 * FRAME[container] if padded else 1), (length, streamed)


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(("container", "rate"), EVERY)
def test_sound_is_where_it_was_to_the_last_sample(container, rate, streamed):
    samples = speech_like(24_001)
    data = encode(samples, container, sample_rate=rate, streamed=streamed)
    decoded = decode(data, container, rate)[priming(container, streamed=streamed) :][: len(samples)]
    if container in LOSSLESS:
        assert np.abs(decoded - samples).max() < 1e-4
        return
    lags = np.arange(-30, 31)
    fits = [np.corrcoef(samples[100:-100], decoded[100 + lag : len(samples) - 100 + lag])[0, 1] for lag in lags]
    assert lags[int(np.argmax(fits))] == 0
    assert max(fits) > (0.85 if container in OPUS else 0.9)
    tail = slice(-400, None)
    assert np.corrcoef(samples[tail], decoded[tail])[0, 1] > 0.8, "the end is missing"


@pytest.mark.parametrize("container", ["mp3", "opus", "flac", "wav"])
def test_libsndfile_reads_the_same_length(container):
    data = encode_whole(speech_like(24_001), container)
    samples, rate = soundfile.read(io.BytesIO(data))
    assert rate == (48_000 if container == "opus" and rate == 48_000 else RATE)
    assert len(samples) * RATE / rate == pytest.approx(24_001, abs=2 * FRAME.get(container, 0) + 1)


@settings(max_examples=examples(25))
@given(cuts=st.lists(st.integers(0, 9000), max_size=30), container=st.sampled_from(CONTAINERS), streamed=st.booleans())
def test_bytes_do_not_depend_on_the_cuts(cuts, container, streamed):
    samples = speech_like(9000)
    assert encode(samples, container, cuts, streamed=streamed) == encode(samples, container, streamed=streamed)


@pytest.mark.parametrize("container", CONTAINERS)
def test_encoding_twice_gives_the_same_bytes_with_no_version_in_them(container):
    data = encode(speech_like(30_000), container)
    assert data == encode(speech_like(30_000), container)
    assert not re.search(rb"Lav[fc]\d", data)


@pytest.mark.parametrize("container", CONTAINERS)
def test_streams_flow(container):
    """Most of the bytes leave before the end: nothing is held back for a second."""
    samples = speech_like(48_000)
    with Encoder(audio_format(container, RATE)) as encoder:
        early = sum(len(encoder.feed(piece)) for piece in np.split(samples, 20))
        late = len(encoder.finish())
    assert late < 0.2 * early


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_whole_file_comes_at_the_end(container):
    with Encoder(audio_format(container, RATE), streamed=False) as encoder:
        assert encoder.feed(speech_like(5000)) == b""
        assert encoder.finish() == encode_whole(speech_like(5000), container)


def test_wav_headers_tell_the_size_or_that_it_is_unknown():
    def sizes(data):
        return struct.unpack("<I", data[4:8])[0], struct.unpack("<I", data[head - 4 : head])[0]

    head = len(wav_header(RATE, 0))
    assert head == 44, "where small players expect the samples"

    samples = speech_like(100)
    assert sizes(encode(samples, "wav")) == (UNKNOWN_SIZE, UNKNOWN_SIZE)
    whole = encode_whole(samples, "wav")
    assert sizes(whole) == (head + 200 - 8, 200)
    assert encode(samples, "wav")[head:] == whole[head:] == encode(samples, "pcm"), "small players play all to the end"
    marked = wav_header(RATE, 201, marked=True) + bytes(201) + wav_trailer(201)
    assert sizes(marked) == (len(marked) - 8, 201)


@pytest.mark.parametrize("code", ["ulaw", "alaw"])
@pytest.mark.parametrize("length", [256, 257])
def test_codes_of_the_telephone_have_a_header_too(code, length):
    samples = speech_like(length)
    for data in (encode(samples, f"{code}_wav", sample_rate=8000), encode_whole(samples, f"{code}_wav", 8000)):
        assert data[44 : 44 + length] == encode(samples, code, sample_rate=8000)
        with av.open(io.BytesIO(data)) as file:
            assert file.streams.audio[0].codec_context.name == f"pcm_{'mulaw' if code == 'ulaw' else code}"
            assert sum(frame.samples for frame in file.decode(audio=0)) == length


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("container", ["flac", "opus", "mp3"])
def test_a_file_says_that_it_was_made(container, streamed, tmp_path):
    """As ffprobe reads it; where no words have a place (aac in ADTS, pcm, ulaw, alaw, and wav, whose samples
    last to its end), there is the header X-AI-Generated alone."""
    path = tmp_path / f"sound.{container}"
    path.write_bytes(encode(speech_like(9000), container, streamed=streamed))
    program = needed_program("ffprobe", "ffmpeg")
    command = [program, "-v", "error", "-show_entries", "format_tags:stream_tags", "-of", "json", str(path)]
    probe = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    tags = probe["format"].get("tags", {}) | probe["streams"][0].get("tags", {})
    assert {name.lower(): value for name, value in tags.items()}["comment"] == MARK


def test_flac_headers_tell_the_length_of_a_whole_file_only():
    def total_samples(data):
        assert data[:4] == b"fLaC"
        return int.from_bytes(data[21:26], "big") & (2**36 - 1)

    assert total_samples(encode_whole(speech_like(5000), "flac")) == 5000
    assert total_samples(encode(speech_like(5000), "flac")) == 0


@pytest.mark.parametrize("container", CONTAINERS)
def test_silence_of_no_length_is_a_stream_too(container):
    assert len(encode(np.zeros(0, np.float32), container)) < 500, "a header, and in it that no human speaks"
    assert len(encode_whole(np.zeros(0, np.float32), container)) < 500


def test_samples_are_clipped_and_rounded_to_the_nearest():
    samples = np.array([0, 1, -1, 1.01, -7, 0.5 / 32767, 0.51 / 32767, -0.51 / 32767, 1.5 / 32767], np.float32)
    assert to_int16(samples).tolist() == [0, 32767, -32767, 32767, -32767, 0, 1, -1, 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("container", CONTAINERS)
def test_numbers_that_are_none_never_reach_an_encoder(container, bad):
    samples = speech_like(5000)
    with Encoder(audio_format(container, RATE)) as encoder:
        begun = encoder.feed(samples)
        with pytest.raises(NonFiniteOutput):
            encoder.feed(np.array([0, bad, 0], np.float32))
        assert begun + encoder.finish() == encode(samples, container)


def test_an_encoder_that_cannot_write_is_a_fault_of_the_audio():
    def write() -> None:
        with Encoder(audio_format("mp3", RATE), streamed=False, file=Path("/dev/full")) as encoder:
            encoder.feed(speech_like(50_000))
            encoder.finish()

    with pytest.raises(AudioFault, match="encoder"):
        write()


@pytest.mark.parametrize(("container", "rate", "kbps"), [("mp3", 44_100, 192), ("mp3", 22_050, 32), ("opus", 48_000, 64),
                                                         ("aac", 24_000, 32), ("mp3", 8_000, 16)])  # fmt: skip
def test_bit_rates_are_met(container, rate, kbps):
    data = encode(speech_like(4 * rate), container, sample_rate=rate, kbps=kbps)
    assert len(data) * 8 / 4 / 1000 == pytest.approx(kbps, rel=0.35 if container == "opus" else 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("container", ["ulaw", "alaw"])
def test_companded_bytes_are_the_nearest_there_are(container):
    """FFmpeg's decoder is the judge: no other byte would have been nearer, and silence is the positive zero."""
    samples = np.arange(-32_767, 32_768, dtype=np.int64)
    data = encode((samples / np.float32(32_767)).astype(np.float32), container, sample_rate=8_000)
    levels = np.round(decode(bytes(range(256)), container, 8_000) * 32_768)
    decoded = np.round(decode(data, container, 8_000) * 32_768)
    assert np.array_equal(np.abs(decoded - samples), np.abs(levels[:, None] - samples).min(axis=0))
    assert encode(np.zeros(3, np.float32), container, sample_rate=8_000) == {"ulaw": b"\xff", "alaw": b"\xd5"}[container] * 3


def test_a_whole_mp3_says_its_exact_length():
    data = encode_whole(speech_like(24_001), "mp3")
    with av.open(io.BytesIO(data)) as file:
        assert file.duration / av.time_base == pytest.approx(24_001 / RATE, abs=1e-3)
    assert len(decode(data, "mp3")) == 24_001


@pytest.mark.slow
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("fed", [0, 10, 9000])
def test_an_abandoned_encoder_is_closed(container, fed):
    encoder = Encoder(audio_format(container, RATE))
    encoder.feed(speech_like(fed))
    encoder.close()
    encoder.close()
    with pytest.raises(AssertionError):
        encoder.feed(speech_like(1))
    forgotten = Encoder(audio_format(container, RATE))
    forgotten.feed(speech_like(fed))
    watched = weakref.ref(forgotten._writer)
    del forgotten
    gc.collect()
    assert watched() is None


def test_a_finished_encoder_takes_no_more():
    with Encoder(audio_format("mp3")) as encoder:
        encoder.finish()
        with pytest.raises(AssertionError):
            encoder.finish()


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + b"\x08\x02\0\0\0" + bytes(4)


def jpeg(width: int, height: int) -> bytes:
    return b"\xff\xd8\xff\xc0\x00\x11\x08" + struct.pack(">HH", height, width) + b"\x03\x01\x22\x00\x02\x11\x01\x03\x11\x01"


SIZES = [(0, 0), (0, 9), (9, 0), (9, 9), (16_000, 16_000), (16_384, 16_384), (65_535, 65_535)]
COVERS = [picture(*size) for picture in (png, jpeg) for size in SIZES]
COVERS += [png(1 << 31, 1 << 31), png(70_000, 9), png(9, 9)[:20], jpeg(9, 9)[:7], b"GIF89a"]


@pytest.mark.parametrize("container", ["mp3", "flac", "m4b"])
def test_a_book_is_a_file_whatever_its_cover_is(tmp_path, container):
    kbps = None if container == "flac" else 64
    for cover in COVERS:
        labels = FileLabels("Title", "Author", (), cover)
        with Encoder(AudioFormat(container, RATE, kbps), streamed=False, file=tmp_path / "book", labels=labels) as encoder:
            encoder.feed(np.zeros(RATE, np.float32))
            encoder.finish()
        with av.open(str(tmp_path / "book")) as read:
            assert read.streams.audio, cover


@pytest.mark.parametrize("container", ["opus", "flac", "mp3", "m4b"])
def test_chapters_begin_where_they_begin(tmp_path, container):
    """To the millisecond; every fraction of a second, and the last hour that two digits hold."""
    starts_ms = [0, 1, 499, 500, 501, 999, 1000, 1500, 2900, 59_999, 60_000, 3_599_999, 359_999_999]
    stops = [*starts_ms[1:], 360_000_000]
    chapters = tuple(
        (f"Part {at}: a = b\n", first * 24, stop * 24) for at, (first, stop) in enumerate(zip(starts_ms, stops, strict=True))
    )
    kbps = None if container == "flac" else 32
    with Encoder(
        AudioFormat(container, RATE, kbps), streamed=False, file=tmp_path / "book", labels=FileLabels("T", "A", chapters)
    ) as encoder:
        encoder.feed(np.zeros(RATE, np.float32))
        encoder.finish()
    with av.open(str(tmp_path / "book")) as read:
        entries = [
            (float(chapter["start"] * chapter["time_base"]), chapter["metadata"]["title"]) for chapter in read.chapters()
        ]
    assert [round(1000 * start) for start, _ in entries] == starts_ms
    assert [title.strip() for _, title in entries] == [f"Part {at}: a = b" for at in range(len(starts_ms))]


# Formats: every name of a format selects that format; others are refused, with the field at fault.


def test_content_types_are_exact():
    assert {container: audio_format(container).content_type for container in CONTAINERS} == {
        "mp3": "audio/mpeg",
        "opus": "audio/ogg; codecs=opus",
        "webm": 'audio/webm; codecs="opus"',
        "aac": "audio/aac",
        "flac": "audio/flac",
        "wav": "audio/wav",
        "pcm": "audio/pcm; rate=24000; channels=1",
        "ulaw": "audio/basic",
        "alaw": "audio/x-alaw-basic",
    }
    assert audio_format("pcm", 8_000).content_type == "audio/pcm; rate=8000; channels=1"
    assert audio_format("ulaw", 16_000).content_type == "audio/PCMU; rate=16000; channels=1"
    assert audio_format("alaw", 48_000).content_type == "audio/PCMA; rate=48000; channels=1"


def test_a_field_that_is_left_out_has_its_usual_value():
    assert audio_format("mp3") == AudioFormat("mp3", 24_000, 64)
    assert audio_format("opus") == AudioFormat("opus", 24_000, 32)
    assert audio_format("aac") == AudioFormat("aac", 24_000, 64)
    assert audio_format("aac", 8_000) == AudioFormat("aac", 8_000, 48), "as much as AAC can take at that rate"
    assert audio_format("wav") == AudioFormat("wav", 24_000, None)
    assert audio_format("ulaw") == audio_format("ulaw", 8_000)


# ElevenLabs' own list.
ELEVENLABS = [
    "mp3_22050_32", "mp3_24000_48", "mp3_44100_32", "mp3_44100_64", "mp3_44100_96", "mp3_44100_128", "mp3_44100_192",
    "pcm_8000", "pcm_16000", "pcm_22050", "pcm_24000", "pcm_32000", "pcm_44100", "pcm_48000", "ulaw_8000",
    "alaw_8000", "opus_48000_32", "opus_48000_64", "opus_48000_96", "opus_48000_128", "opus_48000_192", "wav_8000",
    "wav_16000", "wav_22050", "wav_24000", "wav_32000", "wav_44100", "wav_48000",
]  # fmt: skip


@pytest.mark.parametrize("name", ELEVENLABS)
def test_elevenlabs_names_are_known(name):
    parsed = named_format(name)
    parts = [parsed.container, parsed.sample_rate, *([] if parsed.kbps is None else [parsed.kbps])]
    assert "_".join(map(str, parts)) == name


@given(container=st.sampled_from(CONTAINERS), rate=st.sampled_from(SAMPLE_RATES), kbps=st.none() | st.integers(0, 400))
def test_names_and_fields_agree(container, rate, kbps):
    name = f"{container}_{rate}" + ("" if kbps is None else f"_{kbps}")
    try:
        expected = audio_format(container, rate, kbps)
    except UnsupportedFormat:
        with pytest.raises(UnsupportedFormat) as refused:
            named_format(name)
        assert refused.value.param == "output_format"
    else:
        assert named_format(name) == expected


@given(st.text(max_size=32))
def test_any_other_name_is_refused(name):
    with pytest.raises(UnsupportedFormat):
        named_format(f"{name}!")


@pytest.mark.parametrize(("container", "rate", "kbps", "param"), [
    ("m4a", None, None, "response_format"), ("", None, None, "response_format"), ("opus", 44_100, None, "sample_rate"),
    ("mp3", 7, None, "sample_rate"), ("wav", 96_000, None, "sample_rate"), ("mp3", 24_000, 192, "bitrate"),
    ("mp3", 44_100, 100, "bitrate"), ("mp3", 8_000, 128, "bitrate"), ("aac", 8_000, 64, "bitrate"),
    ("opus", 48_000, 5, "bitrate"), ("flac", None, 64, "bitrate"),
])  # fmt: skip
def test_what_there_is_not_is_refused_by_its_field(container, rate, kbps, param):
    with pytest.raises(UnsupportedFormat) as refused:
        audio_format(container, rate, kbps)
    assert refused.value.param == param
