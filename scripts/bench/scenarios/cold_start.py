"""B11, cold start: from the command to the first audio, with the demo checkpoint and with one of real dimensions.

In:    a Bench
Out:   a Report
Owns:  the services it starts
Never: a system that is already running
"""

from rich.table import Table

from scripts.bench.bench import Bench, Report
from scripts.bench.names import SERVICE
from scripts.bench.show import shown
from scripts.bench.systems import start_service
from scripts.bench.timeline import spread


def run(bench: Bench) -> Report:
    """Starts the service, sends one request and stops it, several times."""
    bench.systems.drop(SERVICE)
    kinds = {"demo": bench.options.demo_settings}
    if not bench.options.quick:
        kinds[bench.options.checkpoint] = bench.options.settings
    result = {}
    table = Table("", "ready (s)", "first audio of the first request (s)", title="B11  cold start")
    for kind, settings in kinds.items():
        ready, first = [], []
        for turn in range(1 if bench.options.quick else bench.options.repeats):
            bench.progress(f"{kind}, start {turn + 1}")
            bench.systems.freeze()
            served = start_service(settings)
            try:
                ready.append(served.start_s)
                first.append(bench.alone(served, bench.utterance(2.0, kind, turn)).ttfb_s)
            finally:
                served.close()
        result[kind] = {"ready_s": spread(ready), "first_request_ttfb_s": spread(first)}
        table.add_row(kind, shown(result[kind]["ready_s"]), shown(result[kind]["first_request_ttfb_s"]))
    return Report({"starts": result}, [table])
