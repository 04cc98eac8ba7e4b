"""The command `zephon-jax`, also as `python -m zephon_jax`."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command line."""
    # Schedules are worked out on the CPU; a command beside a run must not take its accelerator.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        from zephon_jax.cli.commands import cli
    except ImportError as error:
        if error.name != "click":
            raise
        print('zephon-jax needs click: pip install "zephon-jax[cli]".', file=sys.stderr)
        sys.exit(2)  # 1 would be an answer
    cli(prog_name="zephon-jax")


if __name__ == "__main__":
    main()
