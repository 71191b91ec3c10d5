"""A long text on the running service: in parts, in the background, with the bytes of requests for them."""

import requests

from tests.support.cluster import Cluster
from tests.support.waiting import wait_until

BOOK = "# One\n\nThe first words of a short book.\n\nMore of them.\n\n# Two\n\nThe end."


def test_a_job_is_spoken_beside_requests_and_has_their_bytes(cluster: Cluster):
    jobs = cluster.url("/v1/audio/jobs")
    body = {"input": BOOK, "input_type": "markdown", "seed": 3, "response_format": "flac"}
    made = requests.post(jobs, json=body, timeout=30)
    assert made.status_code == 202, made.text
    one = f"{jobs}/{made.json()['id']}"
    wait_until(lambda: requests.get(one, timeout=30).json()["status"] == "succeeded", 120.0)
    found = requests.get(one, timeout=30).json()
    assert found["progress"]["done"] == found["parts"] == 5
    pcm = requests.get(f"{one}/audio?format=pcm", timeout=30).content
    for part in requests.get(f"{one}/parts", timeout=30).json()["data"]:
        first = round(part["start_s"] * 24_000) * 2
        spoken = cluster.speak(input=part["text"], seed=3, response_format="pcm").content
        assert pcm[first : first + len(spoken)] == spoken
    shown = requests.get(f"{one}/subtitles?format=vtt", timeout=30).text
    assert [line for line in shown.splitlines() if line.startswith(("The", "More", "One", "Two"))] == [
        *("One", "The first words of a short book.", "More of them.", "Two", "The end.")
    ]
    assert requests.get(f"{one}/events", timeout=30).text.count("event: job.part\n") == 5
    piece = requests.get(f"{one}/audio", headers={"Range": "bytes=0-3"}, timeout=30)
    assert (piece.status_code, piece.content) == (206, b"fLaC")
    assert requests.delete(one, timeout=30).status_code == 204
    assert requests.get(one, timeout=30).status_code == 404
