"""The page's modules by themselves, in the browser that runs them: the ring, the recording, the files' names."""

import pytest

from tests.support.browser import Page
from tests.support.fakes import Speaker, make_services
from tests.support.live_server import serving
from tests.support.studio import visit

pytestmark = pytest.mark.slow

IMPORT = "const at = document.querySelector('script[type=module]').src;"


@pytest.fixture
def run_in(browser):
    """Runs the body of an async function in the page, with `load(name)` for its modules; returns what it returns."""

    def run(script: str):
        found = []

        async def see(page: Page) -> None:
            load = f"{IMPORT} const load = name => import(new URL(name, at));"
            found.append(await page.run(f"(async () => {{ {load} {script} }})()"))

        with serving(make_services(Speaker())) as live:
            visit(browser, live.url, see)
        return found[0]

    return run


def test_the_ring_gives_back_what_it_got_in_any_pieces(run_in):
    script = """
      const {Ring} = await load("ring.js"), ring = new Ring(1000, 0), out = [];
      let next = 1, state = 7;
      const random = most => (state = state * 16807 % 2147483647) % most;
      while (next < 20000 || ring.waiting) {
        if (next < 20000) ring.push(Float32Array.from({length: Math.min(random(400), 1000 - ring.waiting)}, () => next++));
        else ring.end();
        const before = ring.played, block = ring.pull(new Float32Array(1 + random(300)));
        out.push(...block.subarray(0, ring.played - before));
        if (block.subarray(ring.played - before).some(one => one !== 0)) return "noise";
      }
      return [out.length === next - 1, out.every((one, at) => one === at + 1), ring.isOver];
    """
    assert run_in(script) == [True, True, True]


def test_the_ring_counts_each_time_it_runs_dry_and_waits_for_a_lead(run_in):
    script = """
      const {Ring} = await load("ring.js"), ring = new Ring(1000, 20), ones = count => new Float32Array(count).fill(1);
      const told = [], pull = count => { ring.pull(new Float32Array(count)); told.push([ring.played, ring.underruns]); };
      ring.push(ones(10)); pull(8); ring.push(ones(10)); pull(8); pull(30); pull(8);
      ring.push(ones(5)); ring.end(); pull(8); pull(8);
      let error = null;
      try { ring.push(ones(1001)); } catch (thrown) { error = thrown.name; }
      return [told, error];
    """
    assert run_in(script) == [[[0, 0], [8, 0], [20, 1], [20, 1], [25, 1], [25, 1]], "RangeError"]


def test_a_word_is_found_by_its_first_sample(run_in):
    script = """
      const {Recording, RATE} = await load("recording.js"), recording = new Recording({title: ""});
      recording.addWords([{start: 0.1}, {start: 0.666667}, {start: 1.2}]);
      return [0, 0.1, 0.6, 16000 / RATE, 9].map(time => recording.wordAt(time));
    """
    assert run_in(script) == [-1, 0, 0, 1, 2]


def test_a_file_is_named_after_what_it_is(run_in):
    script = """
      const {fileName} = await load("share.js");
      const name = (input, facts) => fileName({title: input, body: {input}, facts}, "mp3");
      return [name("Héllo, wörld 5!", {voice: "anna@2", seed: "7"}), name("你好。 <b>/../x</b>", {}), name("...", {})];
    """
    assert run_in(script) == ["anna-héllo-wörld-5-7.mp3", "你好-x.mp3", "speech.mp3"]
