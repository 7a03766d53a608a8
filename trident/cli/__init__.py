"""The command `trident`. Begin with `app.py`: it gathers the commands, the work of each is in the module of its name."""

__all__ = ["main"]


def main() -> None:
    """Run the command line; if its packages are missing, say which extra brings them."""
    import errno
    import os
    import sys
    from contextlib import suppress
    from importlib import import_module
    from io import TextIOWrapper

    from trident.errors import EnvironmentProblem
    from trident.extras import needs_package

    try:
        with needs_package("the command `trident`", "cli"):
            import_module("typer")
            import_module("rich")
        from trident.cli.app import app

        if isinstance(sys.stdout, TextIOWrapper):
            # An error that a dead letter keeps may say a lone surrogate, which no encoding has.
            sys.stdout.reconfigure(errors="backslashreplace")
        app(prog_name="trident")
    except EnvironmentProblem as problem:
        raise SystemExit(f"error: {problem}") from problem
    except KeyboardInterrupt:  # while modules are loaded, which takes longer than many a command
        raise SystemExit(130) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python tries once more at its end
        named = "" if error.filename is None else f" ({error.filename})"
        raise SystemExit(
            f"error: {error.strerror}: what the command writes{named} is not complete. Make room"
        ) from error
