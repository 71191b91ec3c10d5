"""Main: `python -m serve.commands` is `chattts-serve`, for a checkout that is not installed.

In:    the words of the command line
Out:   the command's exit code
Never: a command of its own
"""

from serve.commands.app import app

if __name__ == "__main__":
    app()
