"""What one streamed request passes on its way: fewer files and relays are welcome, more of them need a reason."""

import asyncio

from scripts.generate.trace_request import names, trace_request

MOST_FILES, MOST_FUNCTIONS, MOST_RELAYS = 125, 620, 16


def test_a_streamed_request_passes_no_more_code_than_today():
    recorder, ((first_s, last_s, audio),) = asyncio.run(trace_request(times=1))
    functions, relays = names(recorder.functions), names(recorder.relays)
    assert 0 < first_s < last_s
    assert audio[:3] == b"ID3"
    assert "serve/http/speech_response.py write_reply" in relays, "a task's own coroutine is one"
    assert "pipeline/engine/loop.py EngineLoop._deliver" in functions, "the engine's thread is recorded"
    figures = len({name.split()[0] for name in functions}), len(functions), len(relays)
    assert all(have <= most for have, most in zip(figures, (MOST_FILES, MOST_FUNCTIONS, MOST_RELAYS), strict=True)), figures
