"""Encoding: every container decodes back to what went in, and its bytes depend on the samples alone."""

import gc
import io
import struct
import weakref

import av
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.audio.encode import CONTAINERS, UNKNOWN_SIZE, Encoder, content_type, encode_whole, to_int16
from pipeline.errors import EngineFault, NonFiniteOutput, UnsupportedFormat

RATE = 24_000
FRAME = {"mp3": 576, "opus": 480, "aac": 1024, "flac": 2304, "wav": 1, "pcm": 1}  # samples
PRIMING = {"mp3": 1105, "opus": 0, "aac": 1024, "flac": 0, "wav": 0, "pcm": 0}  # samples before the first one
LOSSLESS = ("flac", "wav", "pcm")


def speech_like(samples: int) -> np.ndarray:
    """Noise through a slow envelope, nothing periodic: its place can be found again."""
    noise = np.convolve(np.random.default_rng(0).normal(size=samples + 9), np.ones(9) / 9, "valid")[:samples]
    return (0.5 * noise * (1 + np.sin(np.arange(samples) / 900)) / 2).astype(np.float32)


def encode(samples, container, cuts=(), **how) -> bytes:
    with Encoder(container, **how) as encoder:
        return b"".join(encoder.feed(piece) for piece in np.split(samples, sorted(cuts))) + encoder.finish()


def decode(data: bytes, container: str, rate: int = RATE) -> np.ndarray:
    """(m,) float64 at the stream's own rate, by FFmpeg."""
    if container == "pcm":
        return np.frombuffer(data, "<i2") / 32768
    with av.open(io.BytesIO(data)) as file:
        resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
        frames = [out for frame in file.decode(audio=0) for out in resampler.resample(frame)]
        frames += resampler.resample(None)
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames]).astype(np.float64)


def decoded_length(data: bytes, container: str) -> int:
    """Samples at 24 kHz."""
    if container == "pcm":
        return len(data) // 2
    with av.open(io.BytesIO(data)) as file:
        return sum(frame.samples * RATE // frame.sample_rate for frame in file.decode(audio=0))


def test_content_types():
    assert [content_type(container) for container in CONTAINERS] == [
        "audio/mpeg",
        "audio/ogg; codecs=opus",
        "audio/aac",
        "audio/flac",
        "audio/wav",
        "audio/pcm; rate=24000; channels=1",
    ]
    assert content_type("pcm", 8000) == "audio/pcm; rate=8000; channels=1"


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("length", [1, 479, 2304, 24_001])
def test_every_container_decodes_back_to_its_length(container, streamed, length):
    data = encode(speech_like(length), container, streamed=streamed)
    extra = decoded_length(data, container) - length - PRIMING[container]
    assert 0 <= extra < (1 if container in (*LOSSLESS, "opus") else 2 * FRAME[container])


@pytest.mark.parametrize("container", CONTAINERS)
def test_sound_is_where_it_was_to_the_last_sample(container):
    samples = speech_like(24_001)
    decoded = decode(encode(samples, container), container)[PRIMING[container] :][: len(samples)]
    if container in LOSSLESS:
        assert np.abs(decoded - samples).max() < 1e-4
        return
    lags = np.arange(-30, 31)
    fits = [np.corrcoef(samples[100:-100], decoded[100 + lag : len(samples) - 100 + lag])[0, 1] for lag in lags]
    assert lags[int(np.argmax(fits))] == 0
    assert max(fits) > 0.9
    tail = slice(-400, None)
    assert np.corrcoef(samples[tail], decoded[tail])[0, 1] > 0.8, "the end is missing"


@pytest.mark.parametrize("container", ["mp3", "opus", "flac", "wav"])
def test_libsndfile_reads_the_same_length(container):
    data = encode_whole(speech_like(24_001), container)
    samples, rate = soundfile.read(io.BytesIO(data))
    assert rate == (48_000 if container == "opus" and rate == 48_000 else RATE)
    assert len(samples) * RATE / rate == pytest.approx(24_001 + PRIMING[container], abs=FRAME[container])


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 9000), max_size=30), container=st.sampled_from(CONTAINERS), streamed=st.booleans())
def test_bytes_do_not_depend_on_the_cuts(cuts, container, streamed):
    samples = speech_like(9000)
    assert encode(samples, container, cuts, streamed=streamed) == encode(samples, container, streamed=streamed)


@pytest.mark.parametrize("container", CONTAINERS)
def test_encoding_twice_gives_the_same_bytes_with_no_version_in_them(container):
    data = encode(speech_like(30_000), container)
    assert data == encode(speech_like(30_000), container)
    assert b"Lavf" not in data
    assert b"Lavc" not in data


@pytest.mark.parametrize("container", CONTAINERS)
def test_streams_flow(container):
    """Most of the bytes leave before the end: nothing is held back for a second."""
    samples = speech_like(48_000)
    with Encoder(container) as encoder:
        early = sum(len(encoder.feed(piece)) for piece in np.split(samples, 20))
        late = len(encoder.finish())
    assert late < 0.2 * early


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_whole_file_comes_at_the_end(container):
    with Encoder(container, streamed=False) as encoder:
        assert encoder.feed(speech_like(5000)) == b""
        assert encoder.finish() == encode_whole(speech_like(5000), container)


def test_wav_headers_tell_the_size_or_that_it_is_unknown():
    def sizes(data):
        return struct.unpack("<I", data[4:8])[0], struct.unpack("<I", data[40:44])[0]

    samples = speech_like(100)
    assert sizes(encode(samples, "wav")) == (UNKNOWN_SIZE, UNKNOWN_SIZE)
    assert sizes(encode_whole(samples, "wav")) == (236, 200)
    assert encode(samples, "wav")[44:] == encode_whole(samples, "wav")[44:] == encode(samples, "pcm")
    assert len(encode_whole(samples, "wav")) == 244


def test_flac_headers_tell_the_length_of_a_whole_file_only():
    def total_samples(data):
        assert data[:4] == b"fLaC"
        return int.from_bytes(data[21:26], "big") & (2**36 - 1)

    assert total_samples(encode_whole(speech_like(5000), "flac")) == 5000
    assert total_samples(encode(speech_like(5000), "flac")) == 0


@pytest.mark.parametrize("container", CONTAINERS)
def test_silence_of_no_length_is_a_stream_too(container):
    assert len(encode(np.zeros(0, np.float32), container)) < 200
    assert len(encode_whole(np.zeros(0, np.float32), container)) < 200


def test_samples_are_clipped_and_rounded_to_the_nearest():
    samples = np.array([0, 1, -1, 1.01, -7, 0.5 / 32767, 0.51 / 32767, -0.51 / 32767, 1.5 / 32767], np.float32)
    assert to_int16(samples).tolist() == [0, 32767, -32767, 32767, -32767, 0, 1, -1, 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("container", CONTAINERS)
def test_numbers_that_are_none_never_reach_an_encoder(container, bad):
    samples = speech_like(5000)
    with Encoder(container) as encoder:
        begun = encoder.feed(samples)
        with pytest.raises(NonFiniteOutput) as raised:
            encoder.feed(np.array([0, bad, 0], np.float32))
        assert isinstance(raised.value, EngineFault)
        assert begun + encoder.finish() == encode(samples, container)


@pytest.mark.parametrize(
    ("container", "rate", "param"),
    [
        ("ogg", 24_000, "response_format"),
        ("", 24_000, "response_format"),
        ("opus", 22_050, "sample_rate"),
        ("mp3", 7, "sample_rate"),
    ],
)
def test_unknown_formats_are_refused_by_name(container, rate, param):
    with pytest.raises(UnsupportedFormat) as refused:
        Encoder(container, rate)
    assert refused.value.param == param


@pytest.mark.parametrize("rate", [8_000, 16_000, 48_000])
@pytest.mark.parametrize("container", CONTAINERS)
def test_other_rates(container, rate):
    decoded = decode(encode(speech_like(rate), container, sample_rate=rate), container, rate)
    assert rate <= len(decoded) <= rate + 4000


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("fed", [0, 10, 9000])
def test_an_abandoned_encoder_is_closed(container, fed):
    encoder = Encoder(container)
    encoder.feed(speech_like(fed))
    encoder.close()
    encoder.close()
    with pytest.raises(AssertionError):
        encoder.feed(speech_like(1))
    forgotten = Encoder(container)
    forgotten.feed(speech_like(fed))
    watched = weakref.ref(forgotten._writer)
    del forgotten
    gc.collect()
    assert watched() is None


def test_a_finished_encoder_takes_no_more():
    with Encoder("mp3") as encoder:
        encoder.finish()
        with pytest.raises(AssertionError):
            encoder.finish()
