"""The `phalanx` shell, which needs the `cli` extra: typer and rich.

May import every other layer; no layer imports it. Begin with `app`, which defines the basic
commands and registers those in `commands`; `console` has what they share.
"""

import sys


def main() -> None:
    """Run the shell with the arguments of the process."""
    try:
        from phalanx.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        sys.exit(
            f"error: The phalanx shell needs {error.name}, which is not installed. "
            "Install it: pip install 'phalanx-lance[cli]'"
        )
    app(prog_name="phalanx")
