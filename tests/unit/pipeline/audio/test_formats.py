"""Formats: every name of a format selects that format; others are refused, with the field at fault."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audio.formats import CONTAINERS, SAMPLE_RATES, AudioFormat, audio_format, named_format
from pipeline.errors import UnsupportedFormat


def test_content_types_are_exact():
    assert {container: audio_format(container).content_type for container in CONTAINERS} == {
        "mp3": "audio/mpeg",
        "opus": "audio/ogg; codecs=opus",
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
    "mp3_22050_32",
    "mp3_24000_48",
    "mp3_44100_32",
    "mp3_44100_64",
    "mp3_44100_96",
    "mp3_44100_128",
    "mp3_44100_192",
    "pcm_8000",
    "pcm_16000",
    "pcm_22050",
    "pcm_24000",
    "pcm_32000",
    "pcm_44100",
    "pcm_48000",
    "ulaw_8000",
    "alaw_8000",
    "opus_48000_32",
    "opus_48000_64",
    "opus_48000_96",
    "opus_48000_128",
    "opus_48000_192",
    "wav_8000",
    "wav_16000",
    "wav_22050",
    "wav_24000",
    "wav_32000",
    "wav_44100",
    "wav_48000",
]


@pytest.mark.parametrize("name", ELEVENLABS)
def test_elevenlabs_names_are_known(name):
    found = named_format(name)
    parts = [found.container, found.sample_rate, *([] if found.kbps is None else [found.kbps])]
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


@pytest.mark.parametrize(
    ("container", "rate", "kbps", "param"),
    [
        ("ogg", None, None, "response_format"),
        ("", None, None, "response_format"),
        ("opus", 44_100, None, "sample_rate"),
        ("mp3", 7, None, "sample_rate"),
        ("wav", 96_000, None, "sample_rate"),
        ("mp3", 24_000, 192, "bitrate"),
        ("mp3", 44_100, 100, "bitrate"),
        ("mp3", 8_000, 128, "bitrate"),
        ("aac", 8_000, 64, "bitrate"),
        ("opus", 48_000, 5, "bitrate"),
        ("flac", None, 64, "bitrate"),
    ],
)
def test_what_there_is_not_is_refused_by_its_field(container, rate, kbps, param):
    with pytest.raises(UnsupportedFormat) as refused:
        audio_format(container, rate, kbps)
    assert refused.value.param == param
