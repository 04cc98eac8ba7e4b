"""Documents to pack, rows by a slow oracle, and what must hold of rows by any packer."""

from __future__ import annotations

import grain
import numpy as np

LAYOUTS = ("maxtext", "torchtitan", "levanter")
METHODS = ("first_fit", "best_fit", "concat_then_split")


def documents_of(sizes):
    """Documents whose tokens count on and on, so that each pair of neighbors occurs once."""
    starts = np.cumsum([1, *sizes]).tolist()
    return [
        {"tokens": np.arange(start, start + size), "component_id": np.int32(n % 3)}
        for n, (start, size) in enumerate(zip(starts, sizes, strict=False))
    ]


# Records are in memory: Grain's threads would cost more than all the rest.
UNTHREADED = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


def dataset_of(documents):
    return grain.MapDataset.source(documents).to_iter_dataset(UNTHREADED)


def oracle(sizes, length, num_bins, method, max_segments=None):
    """Rows as lists of pieces (document, first token, size), token by token and row by row.

    Best fit tries every number of documents from the largest down, the others go one by one.
    """
    most = max_segments or 10**9
    if method == "concat_then_split":
        rows, row, room = [], [], length
        for n, size in enumerate(sizes):
            for token in range(size):
                if not room or (len(row) == most and row[-1][0] != n):
                    rows.append(row)
                    row, room = [], length
                if row and row[-1][0] == n:
                    row[-1][2] += 1
                else:
                    row.append([n, token, 1])
                room -= 1
        return [*rows, row] if row else rows
    pieces = []
    for n, size in enumerate(sizes):
        pieces += [[n, at, min(length, size - at)] for at in range(0, size, length)]
    rows = []
    while pieces:
        if method == "first_fit":
            window = [[] for _ in range(num_bins)]
            while pieces:
                fits = [
                    row
                    for row in window
                    if sum(p[2] for p in row) + pieces[0][2] <= length and len(row) < most
                ]
                if not fits:
                    break
                fits[0].append(pieces.pop(0))
        else:
            window, num = best_window(pieces, length, num_bins, most)
            del pieces[:num]
        rows += [row for row in window if row]
    return rows


def best_window(pieces, length, num_bins, most):
    """The window of best fit: the documents whose sizes sum up to its rows, less what is over."""
    num = 0
    while num < min(len(pieces), num_bins * most):
        if sum(p[2] for p in pieces[: num + 1]) > num_bins * length:
            break
        num += 1
    while True:
        window = []
        for piece in sorted(pieces[:num], key=lambda p: -p[2]):
            rooms = [length - sum(p[2] for p in row) for row in window]
            fits = [
                (room, r)
                for r, room in enumerate(rooms)
                if room >= piece[2] and len(window[r]) < most
            ]
            if fits:
                window[min(fits)[1]].append(piece)
            else:
                window.append([piece])
        over = sum(p[2] for row in window[num_bins:] for p in row)
        if not over:
            return sorted(sorted(row) for row in window), num
        while over > 0:
            num -= 1
            over -= pieces[num][2]


def expected_rows(documents, length, *, num_bins, method, layout, max_segments=None, pad_id=0):
    """The columns of all rows, place by place."""
    shift = 0 if layout == "levanter" else 1
    sizes = [max(0, len(d["tokens"]) - shift) for d in documents]
    found = []
    for row in oracle(sizes, length, num_bins, method, max_segments):
        places = []
        for segment, (n, first, size) in enumerate(row):
            tokens, component = documents[n]["tokens"].tolist(), int(documents[n]["component_id"])
            for k in range(size):
                target = tokens[first + k + 1] if shift else None
                places.append((tokens[first + k], target, segment, k, component, k < size - 1))
        found.append(_columns(places, length - len(places), layout, pad_id))
    return found


def _columns(places, room, layout, pad_id):
    tokens, targets, segments, positions, components, weights = zip(*places, strict=True)

    def padded(values, padding):
        return [*values, *[padding] * room]

    if layout == "levanter":
        return {
            "tokens": padded(tokens, pad_id),
            "loss_weight": padded(map(float, weights), 0.0),
            "segment_ids": padded(segments, -1),
            "component_ids": padded(components, -1),
        }
    if layout == "torchtitan":
        return {
            "input": padded(tokens, pad_id),
            "positions": padded(positions, 0),
            "labels": padded(targets, -100),
            "component_ids": padded(components, -1),
        }
    numbers = padded([segment + 1 for segment in segments], 0)
    return {
        "inputs": padded(tokens, pad_id),
        "targets": padded(targets, pad_id),
        "inputs_segmentation": numbers,
        "targets_segmentation": numbers,
        "inputs_position": padded(positions, 0),
        "targets_position": padded(positions, 0),
        "component_ids": padded(components, -1),
    }


def as_lists(rows):
    return [{name: column.tolist() for name, column in row.items()} for row in rows]
