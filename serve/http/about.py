"""About: the program's name and version, as replies and documents state them.

In:    the metadata of the installed package
Out:   NAME, version()
Never: configuration
"""

import importlib.metadata

NAME = "chattts-serve"


def version() -> str:
    """Returns the version of the installed package, 0.0.0 in a checkout that is not installed."""
    try:
        return importlib.metadata.version(NAME)
    except importlib.metadata.PackageNotFoundError:
        return "0.0.0"
