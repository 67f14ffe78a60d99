"""How the shell fails: exit 1, and one line on stderr that says why."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import typer
from typer.core import TyperGroup

from phalanx.errors import PhalanxError, without_secrets
from phalanx.storage.lance.failures import is_lances, plain_reason

# Lance raises plain ValueError and RuntimeError, too.
_EXPECTED = (PhalanxError, OSError, pa.ArrowException, ValueError, RuntimeError)


class OneLineFailures(TyperGroup):
    """A group of commands whose failures are one line; usage errors stay typer's."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the arguments name."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            # Typer ends quietly when the reader of a pipe is gone.
            raise
        except _EXPECTED as error:
            typer.echo(f"error: {one_line(error)}", err=True)
            raise typer.Exit(1) from None


def one_line(error: BaseException) -> str:
    """The message without line breaks, and without places in foreign source code."""
    if is_lances(error):
        return plain_reason(error)
    text = without_secrets(str(error).strip()) or type(error).__name__
    return re.sub(r"\s*[\r\n]\s*", " ", text)


def warn(message: str) -> None:
    """Tell something on stderr that does not stop the command."""
    typer.echo(f"warning: {message}", err=True)


def note(message: str) -> None:
    """Tell something on stderr about the output."""
    typer.echo(message, err=True)
