"""Datasets: shards of records, and how they are found, counted, read and kept near.

`dataset` has `Dataset`, the named list of shards that everything else speaks of; `find_shards`
lists files, `shard_index` counts their records and keeps the counts, `formats` reads the records
of one file, `reader` reads many sample ids in the order of their places in the files, `cache` keeps
copies of remote shards on local disk. `token_estimation` says what is known of tokens per byte,
`measure_tokens` and `count_tokens` find it out.

Knows nothing of sources, mixtures or orders, and imports neither JAX nor Grain at its top level.
"""

__all__: list[str] = []
