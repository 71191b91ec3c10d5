"""Config path: the way from a name on a command line to a configuration file.

In:    a path, or the name of a configuration that comes with the package (`dev`, `cpu`, ...)
Out:   a path
Never: reading the file
"""

from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "configs"
SHIPPED = {path.stem: path for path in FOLDER.glob("*.yaml") if path.stem != "voices"}
DEFAULT = FOLDER / ("dev.yaml" if find_spec("ray") else "box.yaml")
"""what is served where no file is named: on Ray, where it is installed"""
CONFIG_HELP = f"a configuration file, or one that comes with the package: {', '.join(sorted(SHIPPED))}"


def config_path(name: str) -> Path:
    """Returns the file of that path if there is one, else the configuration of that name that comes with the package.

    `dev`, `dev.yaml` and `configs/dev.yaml` all name configs/dev.yaml of the package, wherever the command runs.
    A name that fits neither is returned as a path, for the reader of the file to report.
    """
    path = Path(name)
    if path.is_file() or path.is_absolute():
        return path
    is_shipped = path.parent in (Path(), Path("configs")) and path.suffix in ("", ".yaml")
    return SHIPPED.get(path.stem, path) if is_shipped else path
