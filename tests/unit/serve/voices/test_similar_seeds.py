"""Similar seeds, over HTTP."""

from tests.support.live_server import Live
from tests.support.voice_routes import refused, voices


def test_random_voices_are_seeds_and_follow_wishes(live: Live):
    plain = voices(live, "POST", "/random", json={"count": 3, "seed": 100}).json()["voices"]
    assert [voice["id"] for voice in plain] == ["seed:100", "seed:101", "seed:102"]
    near = voices(live, "POST", "/random", json={"count": 4, "seed": 5, "filter": {"like": "alloy"}}).json()["voices"]
    far = voices(live, "POST", "/random", json={"count": 4, "seed": 5, "filter": {"unlike": "alloy"}}).json()["voices"]
    assert min(voice["similarity"] for voice in near) > max(voice["similarity"] for voice in far)
    assert voices(live, "POST", "/random", json={"count": 4, "seed": 5, "filter": {"like": "alloy"}}).json()["voices"] == near
    assert live.speak(voice=near[0]["id"]).status_code == 200
    refused(voices(live, "POST", "/random", json={"count": 51}), 400, "out_of_range")
    refused(voices(live, "POST", "/random", json={"filter": {"like": "alloy", "unlike": "ash"}}), 400, "conflicting_fields")
