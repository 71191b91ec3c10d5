"""docs/say_live.py: what it writes is the whole, although the server is killed while it speaks."""

import pytest

from tests.support.door_process import CHUNKS, say_live, start_door
from tests.support.fakes import CHUNK, close_to, pcm_of
from tests.support.ports import free_port

TEXT = "Hello there, how are you today? Then we go on with another sentence. And this one is the last of them."


@pytest.mark.slow
def test_who_listens_hears_the_whole_although_the_server_is_killed():
    port = free_port()
    door = start_door(port)
    with say_live(f"http://127.0.0.1:{port}", TEXT) as saying:
        heard = saying.stdout.read(3 * 2 * CHUNK)
        door.kill()
        door.wait()
        door = start_door(port)
        heard += saying.stdout.read()
        assert saying.wait(60) == 0, saying.stderr.read()
    door.kill()
    door.wait()
    whole = pcm_of(5, CHUNKS)
    assert len(heard) == 3 * 2 * len(whole)
    assert all(close_to(heard[part * 2 * len(whole) : (part + 1) * 2 * len(whole)], whole) for part in range(3))
