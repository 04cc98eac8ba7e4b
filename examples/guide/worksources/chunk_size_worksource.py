"""Chunk size: how coarsely a run is dealt to lanes, and where it can end."""

import zephon_jax as zx

web = zx.Dataset.from_counts("web", [1_000] * 60)
toy = zx.Dataset.from_counts("toy", [1_000] * 5)

print("chunk_size  samples  chunks  chunks of each of 8 lanes  web's passes")
for chunk_size in (100, 1_000, 10_000, 50_000):
    source = zx.StaticMixtureWorkSource(
        datasets=[web, toy],
        mixture={"web": 0.9, "toy": 0.1},
        chunk_size=chunk_size,
        seed=42,
    )
    num_chunks = -(-len(source) // chunk_size)
    each = [0] * 8
    for lane in range(8):
        state = source.init(lane, num_lanes=8)
        while (step := source.next_chunk(state))[0] is not None:
            each[lane] += 1
            state = step[1]
    passes = len(source) * 0.9 / web.num_samples
    dealt = f"{min(each)} to {max(each)}"
    print(f"{chunk_size:10,}  {len(source):7,}  {num_chunks:6}  {dealt:>25}  {passes:12.2f}")
