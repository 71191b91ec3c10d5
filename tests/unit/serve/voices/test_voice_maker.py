"""Voice maker: voices from blends, embeddings and recordings, over HTTP."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.voices.seeds import draw_embedding
from pipeline.voices.strings import decode_embedding, encode_embedding
from tests.support.live_server import Live, serving
from tests.support.recordings import SAID, written
from tests.support.voice_routes import WIDTH, clone, refused, services_with, voices


def test_embeddings_go_in_and_out_as_chattts_writes_them(live: Live):
    string = encode_embedding(draw_embedding(5, WIDTH))
    made = voices(live, "POST", json={"name": "mine", "embedding": string})
    assert made.status_code == 201, made.text
    assert voices(live, path="/mine").json()["embedding"] == string
    assert voices(live, path="/seed:5").json()["embedding"] == string
    inline = live.speak(voice=f"emb:{string}")
    assert inline.status_code == 200
    assert inline.headers["X-Voice-Id"].startswith("emb:")
    assert len(inline.headers["X-Voice-Id"]) == 20
    refused(voices(live, "POST", json={"name": "other", "embedding": "一二三"}), 400, "invalid_embedding")


def test_blends_are_frozen_when_they_are_made(live: Live):
    voices(live, "POST", json={"name": "anna", "seed": 7})
    made = voices(
        live,
        "POST",
        "/blend",
        json={"name": "both", "blend": [{"voice": "anna", "weight": 3}, {"voice": "alloy", "weight": 1}]},
    )
    assert made.status_code == 201, made.text
    embedding = decode_embedding(voices(live, path="/both").json()["embedding"], WIDTH).astype(np.float64)
    exact = 0.75 * draw_embedding(7, WIDTH).astype(np.float64) + 0.25 * draw_embedding(2, WIDTH).astype(np.float64)
    assert np.abs(embedding - exact).max() < 1e-2
    assert live.speak(voice="blend:anna(0.75)+alloy(0.25)").headers["X-Voice-Id"] == "blend:anna@1(0.75)+voice-2(0.25)"
    voices(live, "DELETE", "/anna")
    assert live.speak(voice="both").status_code == 200
    refused(live.speak(voice="blend:anna(1)+alloy(1)"), 400, "voice_not_found")
    refused(live.speak(voice="blend:default(1)"), 400, "invalid_request")


@pytest.mark.slow
@pytest.mark.parametrize("container", ["WAV", "FLAC", "OGG", "MP3"])
def test_a_recording_becomes_a_voice(live: Live, speech: tuple[np.ndarray, int], container: str):
    made = clone(live, written(*speech, container), languages="en, zh", ref_text=SAID.replace("from now on", "100 %"))
    assert made.status_code == 201, made.text
    card = made.json()
    assert (card["origin"], card["consent"], card["languages"]) == ("upload", True, ["en", "zh"])
    assert card["reference"]["seconds"] == pytest.approx(len(speech[0]) / speech[1], abs=0.1)
    assert live.speak(voice="me").headers["X-Voice-Id"] == "me@1"
    assert voices(live, path="/me").json()["embedding"] is None
    stored = live.services.voices.library.find("me")
    assert stored is not None
    assert "one hundred percent" in stored.voice.sample_text, "as the text front end writes it"
    assert stored.voice.sample_codes is not None
    assert len(stored.voice.sample_codes) == pytest.approx(card["reference"]["seconds"] * 46.875, abs=2)


@pytest.mark.slow
def test_recordings_that_cannot_be_a_voice_are_refused(live: Live, speech: tuple[np.ndarray, int]):
    samples, rate = speech
    error = refused(clone(live, written(0 * samples, rate)), 422, "reference_rejected")
    assert "0.0 s of speech found" in error["message"]
    assert "too quiet" in error["message"], "every reason at once"
    refused(clone(live, b"ffconcat version 1.0\nfile 'secret.wav'"), 400, "unsupported_format")
    error = refused(clone(live, written(samples, rate), ref_text="x" * 999), 422, "reference_rejected")
    assert error["param"] == "ref_text"
    refused(clone(live, written(samples, rate), ref_text="..."), 422, "reference_rejected")


def test_a_form_has_what_it_needs(live: Live, speech: tuple[np.ndarray, int]):
    content = written(*speech)
    assert refused(clone(live, content, consent="no"), 400, "missing_field")["param"] == "consent"
    assert refused(clone(live, content, ref_text=""), 400, "out_of_range")["param"] == "ref_text"
    data = {"name": "me", "ref_text": SAID, "consent": "true"}
    error = refused(voices(live, "POST", data=data, files={"wrong": ("a", content)}), 400, "missing_field")
    assert error["param"] == "audio_sample"
    refused(clone(live, content, unheard="of"), 400, "unknown_field")
    refused(clone(live, content, name="alloy"), 409, "voice_exists")
    head = {"Content-Type": "multipart/form-data"}
    refused(voices(live, "POST", data=b"nonsense", headers=head), 400, "invalid_form")
    refused(
        voices(live, "POST", data=b"--x\r\n", headers={"Content-Type": "multipart/form-data; boundary=x"}), 400, "missing_field"
    )


def test_uploads_are_counted_while_they_arrive(tmp_path: Path):
    with serving(services_with(str(tmp_path / "store.sqlite"), clone=True, max_upload_bytes=100_000)) as live:
        refused(clone(live, bytes(120_000)), 413, "body_too_large")
        refused(clone(live, bytes(1_000_000)), 413, "body_too_large")


def test_cloning_is_off_unless_it_is_switched_on(tmp_path: Path):
    with serving(services_with(str(tmp_path / "store.sqlite"))) as live:
        refused(clone(live, b"RIFF"), 403, "clone_disabled")
        refused(live.speak(voice="emb:一"), 400, "invalid_request")
