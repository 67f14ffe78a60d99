"""The `phalanx` shell. It needs the `cli` extra: typer and rich."""

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
