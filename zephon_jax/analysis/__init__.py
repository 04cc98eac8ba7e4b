"""What a run does, did or will do, without training.

`simulate` goes through a schedule before it is run, `audit` says how far states have come, `diff`
where two sources part, `inspect_state` what saved bytes hold, `plot` draws all of these.

Reads no data, and needs neither JAX nor a host but for elastic states that it is given.
"""

__all__: list[str] = []
