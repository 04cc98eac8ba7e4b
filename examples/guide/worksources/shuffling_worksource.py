"""Shuffling: three levels, and what each costs in reads. Four shards of four samples."""

import zephon_jax as zx

text = zx.Dataset.from_counts("text", [4, 4, 4, 4])
settings = {
    "nothing": {"shuffle_shards": False},
    "shards (the default)": {},
    "shards, within": {"shuffle_within_shard": True},
    "shards, blocks of 8": {"shuffle_block_size": 8},
    "global": {"shuffle_block_size": "global"},
}
for name, knobs in settings.items():
    source = zx.StaticMixtureWorkSource(
        datasets=[text],
        mixture={"text": 1.0},
        chunk_size=16,
        seed=42,
        **knobs,
    )
    ids = source.sample_ids_at(range(16))  # int64 (16, 3): dataset, shard, sample
    order = " ".join("abcd"[shard] + str(sample) for _, shard, sample in ids.tolist())
    changes = (ids[1:, 1] != ids[:-1, 1]).sum()
    print(f"{name:20}  {order}  {changes:2} changes of shard")

# Every pass has an order of its own. Places are computed, not stored: the millionth pass costs
# as much as the first.
endless = zx.StaticMixtureWorkSource(
    datasets=[text],
    mixture={"text": 1.0},
    chunk_size=16,
    seed=42,
    shuffle_block_size="global",
    exhausted_policy="repeat",
)
for epoch in (0, 1, 999_999):
    ids = endless.sample_ids_at([16 * epoch + i for i in range(4)])
    start = " ".join("abcd"[shard] + str(sample) for _, shard, sample in ids.tolist())
    print(f"pass {epoch} starts with {start}")
