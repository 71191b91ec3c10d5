"""Stage timings: the Server-Timing header."""

import re

import pytest

from tests.support.live_server import Live


@pytest.mark.parametrize("stream", [True, False])
def test_the_header_times_every_stage_before_the_first_audio(live: Live, stream: bool):
    timing = live.speak(stream=stream).headers["Server-Timing"]
    stages = dict(re.findall(r"(\w+);dur=([\d.]+)", timing))
    assert list(stages) == ["text", "queue", "gpt", "vocoder", "audio", "encode", "total"]
    assert float(stages["queue"]) == 250.0
    assert float(stages["audio"]) <= float(stages["total"])
