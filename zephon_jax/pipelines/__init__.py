"""Sources as Grain datasets, and transforms that keep a lane's place and mixture.

`lane_dataset` has `LaneIterDataset`, one lane of a source; `map_dataset` has `MixtureMapDataset`,
the whole run by index; `packing` packs documents into rows; `ensure_mixture` puts records back into
the order of a mixture after filters; `lane_transforms` flushes what packers hold back and marks
exhausted components; `lane_lengths` says how many samples each lane gives.

Knows one lane at a time: hosts, processes and checkpoints belong to `elastic`.
"""

__all__: list[str] = []
