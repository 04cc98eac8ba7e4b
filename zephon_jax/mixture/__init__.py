"""The mixture sources: datasets drawn by weights, as a pure function of settings and seed.

`static` has `StaticMixtureWorkSource`, whose weights stay, and `scheduled` has
`ScheduledMixtureWorkSource`, whose weights change; both are a `configured` mixture, on `base`. What
differs is the run's `history`, a list of weights with the chunks from which on they hold, which
`schedule` makes of stages and `changes` goes on with in mid-run; `shard_manifest` records shards
that come while a run goes on. Chunks come about in this order:
`settings` checks the arguments, `rules`, `positions` and `eras` say how much of each dataset was
drawn before any chunk, when datasets are exhausted and where weights change, `allocation` how many
samples a chunk draws, `dataset_order` the shuffled order of a dataset, `sample_lookup` which
samples given draws are (`generations` where a dataset got shards in mid-run), `chunk_planner` a
lane's next chunks, `lane_states` positions as states, `fingerprint` what a state must share with
its source. `random_access` and `locate` answer by index, `relane` goes on with another number of
lanes, `config` reads settings from a file, and `traced` gives the same chunks under `jax.jit`.

Imports neither JAX nor Grain at its top level.
"""

__all__: list[str] = []
