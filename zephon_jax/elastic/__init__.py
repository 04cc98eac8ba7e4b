"""Many lanes on many hosts: the same global batches for any number of them.

`dataset` has `ElasticIterDataset`, the lanes that one host owns, `iterator` goes through its steps,
`steps` says how many rows a step takes and when all lanes end, `process_engine` runs lanes in
worker processes, `global_batch` places rows on devices, `relane` goes on with another number of
lanes, `checkpoint` saves lanes so that any number of hosts restores them.

Hosts never talk to each other to decide what to read, only to save and to end together.
"""

__all__: list[str] = []
