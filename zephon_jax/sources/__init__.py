"""The contract of a source, and what every source gets from it.

A source is a pair of pure functions: `init` gives a state, `next_chunk` takes one and returns a
chunk and the next state. `work_source` has the base class `WorkSource`, `chunk` the samples of a
`WorkChunk`, `chunk_windows` windows of many chunks at once, `chunk_spans` what sources can say of
many chunks at once, `read_order` the orders in which a chunk is read, `codec` states as bytes,
`restore` bytes as states again, `find_sample` where a run holds a sample, `stateful_lane` a small
mutable shell for other interfaces, `checks` what lanes and chunks must keep to, `combine` sources
made of sources, `from_stateful` sources made of objects with a place, `testing` the laws that all
of them obey.

Knows nothing of datasets beyond their ids, and imports neither JAX nor Grain at its top level.
"""

__all__: list[str] = []
