"""The entry point: `python -m recap_cli` is `recap`."""

import sys
from typing import NoReturn

_BY_CTRL_C = 130


def main() -> NoReturn:
    """Import the command line, which takes a moment that a Ctrl-C may end, and run it."""
    try:
        from recap_cli import app  # noqa: PLC0415
    except KeyboardInterrupt:
        sys.exit(_BY_CTRL_C)
    app.main()


if __name__ == "__main__":
    main()
