"""A mixture: weights are exact, and a rare dataset comes as often as it should, not more."""

import numpy as np

import zephon_jax as zx

# Counts are enough to look at a schedule: no files are needed.
web = zx.Dataset.from_counts("web", [50_000] * 20)
code = zx.Dataset.from_counts("code", [30_000] * 10)
rare = zx.Dataset.from_counts("rare", [400])

source = zx.StaticMixtureWorkSource(
    datasets=[web, code, rare],
    mixture={"web": 0.7, "code": 0.2997, "rare": 0.0003},  # only the ratios matter
    chunk_size=1000,
    seed=42,
    exhausted_policy="repeat",
)

state = source.init()
drawn = np.zeros(3, dtype=int)
for _ in range(10):
    chunk, state = source.next_chunk(state)
    drawn += chunk.counts
    print(f"chunk {chunk.chunk_index}: {chunk.counts.tolist()}, in all {drawn.tolist()}")

for name, count, share in zip(chunk.names, drawn, chunk.target_mixture.values(), strict=True):
    print(f"{name}: {count} samples drawn, {10 * 1000 * share:g} wanted")
component, sample_ids = chunk.order()
print("read in this order:", " ".join(chunk.names[d] for d in component[:10]))
