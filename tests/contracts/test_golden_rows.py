"""Golden rows: nobody's packed rows change unseen.

`golden_rows.json` holds the SHA-256 of all rows of 2,000 drawn documents, column by column in the
order of their names, little-endian. A digest that changes is a breaking change: it needs an entry
"Order changes" in CHANGELOG.md. Run this file as a script to write digests for settings that have
none; it never replaces one.
"""

from __future__ import annotations

import hashlib
import pathlib

import numpy as np
import pytest
from support.golden import Golden
from support.packing import LAYOUTS, METHODS, dataset_of, documents_of

import zephon_jax as zx

SETTINGS = {
    f"{method}, {layout}{more and f', {more}'}": (method, layout, settings)
    for method in METHODS
    for layout in LAYOUTS
    for more, settings in {
        "": {},
        "bins of 3, segments of 4": {"num_bins": 3, "max_segments": 4, "pad_id": 9},
    }.items()
}


def digest(name):
    method, layout, settings = SETTINGS[name]
    rng = np.random.default_rng(7)
    sizes = np.where(rng.random(2000) < 0.1, 0, rng.geometric(1 / 90, 2000)).tolist()
    found = hashlib.sha256()
    for row in zx.pack(
        dataset_of(documents_of(sizes)), 256, method=method, layout=layout, **settings
    ):
        for column in sorted(row):
            kind = "<f4" if column == "loss_weight" else "<i4"
            found.update(column.encode() + row[column].astype(kind).tobytes())
    return found.hexdigest()


GOLDEN = Golden(pathlib.Path(__file__).with_name("golden_rows.json"), SETTINGS, digest)


@pytest.mark.parametrize("name", SETTINGS)
def test_rows_are_the_golden_ones(name):
    GOLDEN.check(name)


def test_golden_file_and_settings_agree():
    GOLDEN.check_names()


if __name__ == "__main__":
    GOLDEN.add_missing()
