"""Recovery: how long the service took until it was right again after a failure of docs/reliability.md; measured by its test.

CHATTTS_RECORD=1 writes the seconds down, for the page; without it they are printed.
"""

import json
import os
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "data/recovery.json"


def recovered(failure: str, seconds: float) -> None:
    """Say how long it took from the failure with this id until everything was right again."""
    print(f"\n  {failure}: right again after {seconds:.1f} s")
    if os.environ.get("CHATTTS_RECORD") == "1":
        known = json.loads(FILE.read_text()) if FILE.exists() else {}
        known[failure] = round(seconds, 1)
        FILE.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
