"""Main: `python -m scripts.cli` is `chattts-serve`, for a checkout that is not installed.

In:    the words of the command line
Out:   the command's exit code
Never: a command of its own
"""

from scripts.cli.app import app

if __name__ == "__main__":
    app()
