"""The mixture source: datasets drawn by weights, as a pure function of settings and seed.

`static` has `StaticMixtureWorkSource`, on `base`. Its chunks come about in this order: `settings`
checks the arguments, `positions` and `eras` say how much of each dataset was drawn before any chunk
and when datasets are exhausted, `allocation` how many samples a chunk draws, `dataset_order` the
shuffled order of a dataset, `sample_lookup` which samples given draws are, `chunk_planner` a lane's
next chunks, `lane_states` positions as states, `fingerprint` what a state must share with its
source. `random_access` and `locate` answer by index, `relane` goes on with another number of lanes,
`config` reads settings from a file.

Imports neither JAX nor Grain at its top level.
"""

__all__: list[str] = []
