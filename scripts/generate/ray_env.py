"""Ray env: the environment of Ray's pods, from the table of scripts/launch/ray_environment.py.

In:    that table
Out:   k8s/base/ray-env.yaml, written by `python -m scripts.generate`
Owns:  that file
Never: a value of its own
"""

from collections.abc import Iterator
from pathlib import Path

from scripts.launch.ray_environment import Place, variables

ROOT = Path(__file__).resolve().parents[2]
HEAD = """\
# Written by `python -m scripts.generate` from scripts/launch/ray_environment.py: the environment of every Ray process, on the
# head and on all workers alike.
apiVersion: v1
kind: ConfigMap
metadata:
  name: chattts-ray-env
data:
"""


def files() -> dict[Path, str]:
    """Returns path -> text of the generated file."""
    return {ROOT / "k8s/base/ray-env.yaml": HEAD + "".join(lines())}


def lines() -> Iterator[str]:
    """Yields a line of the map for each variable."""
    for row in variables(Place.PODS):
        value = f'"{row.value}"' if row.value.replace(".", "").isdigit() else row.value
        yield f"  {row.name}: {value}" + f"  # {row.why}" * bool(row.why) + "\n"
