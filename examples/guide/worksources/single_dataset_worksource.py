"""One dataset: a source gives chunks, and any sample of the run by its index."""

import zephon_jax as zx

words = ["the", "order", "of", "the", "data", "is", "a", "pure", "function"]
dataset = zx.Dataset.from_source("words", words, shard_size=3)

source = zx.StaticMixtureWorkSource(
    datasets=[dataset],
    mixture={"words": 1.0},
    chunk_size=4,
    seed=42,
)

# A state goes in; a chunk and the next state come out. Nothing is read yet.
state = source.init()
while True:
    chunk, state = source.next_chunk(state)
    if chunk is None:
        break
    print(f"chunk {chunk.chunk_index} has {len(chunk)} samples:")
    for sample_id, component in chunk:
        print(f"  {component}, shard {sample_id.shard_id}, sample {sample_id.sample_index}")

# The same run by index, with the records.
run = zx.MixtureMapDataset(source)
print(f"{len(run)} samples: each of {len(words)} once, and a second pass that fills the last chunk")
print("the first pass:", " ".join(run[i]["data"] for i in range(len(words))))
