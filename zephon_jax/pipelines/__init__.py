"""Sources as Grain datasets, and transforms that keep a lane's place and mixture.

`lane_dataset` has `LaneIterDataset`, one lane of a source, and `lane_group` reads many lanes of a
process together; `map_dataset` has `MixtureMapDataset`, the whole run by index; `tokenize` makes
texts tokens, many at once by `map_batch`; `packing` packs documents into rows (`packers` where they
go, `layouts` the columns); `ensure_mixture` puts records back into the order of a mixture after
filters; `flush` empties packers at the ends of chunks; `mark_exhausted` marks components without
samples; `lane_lengths` counts the samples of each lane.

Knows one lane at a time: hosts, processes and checkpoints belong to `elastic`.
"""

__all__: list[str] = []
