"""The command `zephon-jax`: arguments to calls of the package, and answers to text or JSON.

`commands` has the commands, `data_commands` those that look at data before a run, `output` how
answers are written, `output_files` tables as files.

Decides nothing itself: what a command can do, a function of another room does.
"""

__all__: list[str] = []
