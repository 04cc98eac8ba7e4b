"""Repeating: what happens when a dataset has been gone through."""

import numpy as np

import zephon_jax as zx

big = zx.Dataset.from_counts("big", [100] * 9)
small = zx.Dataset.from_counts("small", [90])

settings = {
    "the default: each once at least": {},
    "stop_after_passes=2": {"stop_after_passes": 2},
    "exhausted_policy='stop'": {"exhausted_policy": "stop"},
    "'redistribute'": {"exhausted_policy": "redistribute"},
    "max_repeats=2": {"max_repeats": 2},
    "big stops, small repeats": {"exhausted_policy": {"big": "stop", "small": "repeat"}},
}
for name, knobs in settings.items():
    source = zx.StaticMixtureWorkSource(
        datasets=[big, small],
        mixture={"big": 0.8, "small": 0.2},
        chunk_size=50,
        seed=42,
        **knobs,
    )
    ids = source.sample_ids_at(range(len(source)))
    passes = np.bincount(ids[:, 0]) / [900, 90]
    print(f"{name:31} {len(ids):5} samples: passes {passes.round(2).tolist()}")

endless = zx.StaticMixtureWorkSource(
    datasets=[big, small],
    mixture={"big": 0.8, "small": 0.2},
    chunk_size=50,
    seed=42,
    exhausted_policy="repeat",
)
print("'repeat' has no end, and any sample of it is found at once:", endless[10**12])
