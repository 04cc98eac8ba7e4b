"""Slow oracles: the rules of the order, written once more from their description.

Everything here is pure Python on exact fractions (NumPy only measures). It is slow and plain on
purpose, shares no code with the package, and follows other roads where there are any: shares are
fractions of a sample and not integers, positions are looked up and not computed.
"""

import bisect
import math
import random
from fractions import Fraction

import numpy as np

MOST_UNITS = 2**29
GOLDEN = 0x9E3779B97F4A7C15


# Weights


def typed(value):
    """The number that was typed: a float is its shortest decimal."""
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def fractions(weights):
    """Weights as exact shares of one."""
    exact = [typed(weight) for weight in weights]
    total = sum(exact)
    return [weight / total for weight in exact]


def round_to(total, amounts):
    """Largest remainder: rounds amounts that sum to `total` down, then gives out what is left."""
    floors = [math.floor(amount) for amount in amounts]
    by_remainder = sorted(range(len(amounts)), key=lambda d: (floors[d] - amounts[d], d))
    for d in by_remainder[: total - sum(floors)]:
        floors[d] += 1
    return floors


def units(weights):
    """Integer weights and the common denominator, 2^29 at most."""
    shares = fractions(weights)
    denominator = 1
    for share in shares:
        denominator = math.lcm(denominator, share.denominator)
    if denominator <= MOST_UNITS:
        return [int(share * denominator) for share in shares], denominator
    rounded = round_to(MOST_UNITS, [share * MOST_UNITS for share in shares])
    rounded = [
        max(1, unit) if share > 0 else 0 for share, unit in zip(shares, rounded, strict=True)
    ]
    for _ in range(sum(rounded) - MOST_UNITS):
        rounded[rounded.index(max(rounded))] -= 1
    return rounded, MOST_UNITS


def effective(weights):
    """The shares that a schedule uses, as fractions: exact, or rounded to 2^29 units."""
    numerators, denominator = units(weights)
    return [Fraction(numerator, denominator) for numerator in numerators]


# Quotas


def quota_step(shares, chunk_size, carry):
    """One chunk: quotas, and what is carried on, in samples."""
    carry = [c + share * chunk_size for c, share in zip(carry, shares, strict=True)]
    quotas = [math.trunc(c) for c in carry]
    carry = [c - q for c, q in zip(carry, quotas, strict=True)]
    missing = chunk_size - sum(quotas)
    places = range(len(shares))
    if missing > 0:
        change = sorted(places, key=lambda d: (-carry[d], d))[:missing]
        sign = 1
    else:
        change = [d for d in sorted(places, key=lambda d: (carry[d], d)) if quotas[d] > 0]
        change = change[:-missing] if missing else []
        sign = -1
    for d in change:
        quotas[d] += sign
        carry[d] -= sign
    assert sum(quotas) == chunk_size, "one slot each was not enough"
    return quotas, carry


def quota_run(shares, chunk_size, num_chunks, carry=None):
    """Quotas of each chunk, and the last carry, in samples."""
    carry = [Fraction(0)] * len(shares) if carry is None else carry
    rows = []
    for _ in range(num_chunks):
        quotas, carry = quota_step(shares, chunk_size, carry)
        rows.append(quotas)
    return rows, carry


def fixed_quotas(shares, chunk_size):
    """One slot for each active component, the others by largest remainder."""
    active = [d for d, share in enumerate(shares) if share > 0]
    spare = chunk_size - len(active)
    extra = round_to(spare, [share * spare for share in shares])
    return [extra[d] + (d in active) for d in range(len(shares))]


# Reading orders


def round_robin(counts):
    """Smooth weighted round robin by its definition, with deficits in samples."""
    total = sum(counts)
    emitted = [0] * len(counts)
    order = []
    for t in range(total):
        best = None
        for d, count in enumerate(counts):
            if emitted[d] < count:
                deficit = Fraction(count * max(1, t), total) - emitted[d]
                if best is None or deficit > best[0]:
                    best = deficit, d
        order.append(best[1])
        emitted[best[1]] += 1
    return order


def first_broken_slot(order, counts):
    """The first slot of a round robin that breaks the rule, or None. For chunks of any size."""
    counts = np.asarray(counts, np.int64)
    total, k = int(counts.sum()), len(counts)
    if len(order) != total:
        return min(len(order), total)
    rows = max(1, 2_000_000 // k)
    emitted = np.zeros(k, np.int64)
    for start in range(0, total, rows):
        part = np.asarray(order[start : start + rows], np.int64)
        hot = np.zeros((len(part), k), np.int64)
        hot[np.arange(len(part)), part] = 1
        before = emitted + np.cumsum(hot, axis=0) - hot
        t = np.maximum(1, np.arange(start, start + len(part)))[:, None]
        deficit = counts * t - before * total
        deficit[before >= counts] = np.iinfo(np.int64).min
        broken = np.flatnonzero(deficit.argmax(axis=1) != part)  # argmax takes the earlier
        if len(broken):
            return start + int(broken[0])
        emitted = before[-1] + hot[-1]
    return None


def lattice(counts, slot, num_lanes):
    """Lattice reading: where each slot falls among the cumulative counts."""
    total = sum(counts)
    ends, end = [], 0
    for count in counts:
        end += count
        ends.append(end)
    points = [j * GOLDEN % 2**64 for j in range(total)]
    in_order = sorted(points)
    shift = slot * total // num_lanes
    ranks = (bisect.bisect_left(in_order, point) for point in points)
    return [bisect.bisect_right(ends, (rank + shift) % total) for rank in ranks]


# Measures


def prefix_deviation(order, shares):
    """How far any prefix is from its share, in slots, at worst: exact at the jumps.

    Between two of its own slots a component only falls behind, so the extremes lie right before
    and right after each of its slots, and at the end.
    """
    order = np.asarray(order)
    shares = np.asarray(shares, np.float64)
    size, k = len(order), len(shares)
    place = np.argsort(order, kind="stable")
    component = order[place]
    counts = np.bincount(order, minlength=k)
    had = np.arange(size) - (np.cumsum(counts) - counts)[component]
    before = had - shares[component] * place
    after = had + 1 - shares[component] * (place + 1)
    end = counts - shares * size
    return max(np.abs(before).max(), np.abs(after).max(), np.abs(end).max())


def batch_deviation(orders, shares):
    """How far any batch of one row a lane is from its mixture, in rows. `orders` is (L, C)."""
    num_lanes, size = orders.shape
    k = len(shares)
    flat = orders.astype(np.int64) + np.arange(size) * k
    counts = np.bincount(flat.ravel(), minlength=size * k).reshape(size, k)
    return float(np.abs(counts - num_lanes * np.asarray(shares, np.float64)).max())


# Drawn configurations


KINDS = ("decimal", "wide", "small", "equal", "pareto", "fraction", "harmonic")


def draw_weights(kind, k, seed, zeros=False):
    """Weights of one kind, at least one of them positive."""
    rng = random.Random(f"{kind} {k} {seed}")
    if kind == "decimal":
        weights = [round(rng.uniform(0.001, 1), rng.randint(1, 6)) or 0.1 for _ in range(k)]
    elif kind == "wide":
        weights = [10 ** rng.uniform(-9, 9) for _ in range(k)]
    elif kind == "small":
        weights = [rng.randint(1, 12) for _ in range(k)]
    elif kind == "equal":
        weights = [rng.choice([1, 1, 1, 1, 1, 7])] * k
    elif kind == "pareto":
        weights = [rng.paretovariate(0.7) for _ in range(k)]
    elif kind == "fraction":
        weights = [Fraction(rng.randint(1, 9), rng.randint(1, 9)) for _ in range(k)]
    else:
        weights = [Fraction(1, d + 1) for d in range(k)]
    if zeros:
        weights = [0 if rng.random() < 0.3 else weight for weight in weights]
    return weights if any(weights) else [1, *weights[1:]]


def draw_counts(kind, k, total, seed):
    """Counts of `total` samples of k components, some of them perhaps 0."""
    shares = fractions(draw_weights(kind, k, seed))
    return round_to(total, [share * total for share in shares])


# Virtual time


def phases(weights):
    """Golden-ratio fractions by rank of weight, the heaviest first; 0 where there is none."""
    ranked = sorted((d for d, w in enumerate(weights) if w), key=lambda d: (-weights[d], d))
    return [
        Fraction((ranked.index(d) + 1) * GOLDEN % 2**64, 2**64) if w else Fraction(0)
        for d, w in enumerate(weights)
    ]


def fair_queue(weights, num_draws, cost=lambda d, j: 1):
    """Weighted fair queueing draw by draw: who is drawn, with dues as fractions."""
    phase, k = phases(weights), len(weights)
    had, spent = [0] * k, [Fraction(0)] * k
    order = []
    for _ in range(num_draws):
        first = min(
            (d for d in range(k) if weights[d]),
            key=lambda d: ((spent[d] + phase[d] * cost(d, had[d])) / Fraction(weights[d]), d),
        )
        spent[first] += cost(first, had[first])
        had[first] += 1
        order.append(first)
    return order


def piece_costs(lengths, total_costs, block):
    """Cost of each position of a pass: runs of shards in order, each with the cost of all of it.

    A cost is shared evenly, rounding its running sum down; with blocks, the block's cost is.
    """
    flat = []
    for length, cost in zip(lengths, total_costs, strict=True):
        flat += [cost * (q + 1) // length - cost * q // length for q in range(length)]
    if not block:
        return flat
    shared = []
    for start in range(0, len(flat), block):
        piece = flat[start : start + block]
        total, length = sum(piece), len(piece)
        shared += [total * (q + 1) // length - total * q // length for q in range(length)]
    return shared


# Schedules


def ramp_weights(one, other, kind, part, parts):
    """The weights at one of the parts of a ramp, as shares of one."""
    way = Fraction(part, parts)
    if kind == "cosine":
        way = Fraction(round((1 - math.cos(math.pi * part / parts)) / 2 * 2**16), 2**16)
    pairs = zip(fractions(one), fractions(other), strict=True)
    return [a + (b - a) * way for a, b in pairs]


def schedule_weights(stages):
    """The weights of a schedule by the chunk from which on they hold, as (first chunk, shares).

    Stages are (chunk at which it ends or None, weights, kind of ramp).
    """
    found, start = {}, 0
    for n, (end, weights, kind) in enumerate(stages):
        parts = 1
        if kind != "step" and end is not None:
            while 2 * parts <= min(64, end - start):
                parts *= 2
        for part in range(parts if end is None or end > start else 0):
            length = 0 if end is None else end - start
            found[start + part * length // parts] = (
                fractions(weights)
                if parts == 1
                else ramp_weights(weights, stages[n + 1][1], kind, part, parts)
            )
        start = end
    changes = []
    for chunk, shares in sorted(found.items()):
        if not changes or changes[-1][1] != shares:
            changes.append((chunk, shares))
    return changes


def carry_over(carry, shares):
    """What the components are owed at a change of weights: for the new weights, and held back."""
    denominator = units(shares)[1]
    fine = denominator * max(1, 2**27 // denominator)
    moved = round_to(0, [c * fine for c in carry])
    places = [d for d, share in enumerate(shares) if share > 0]
    each, more = divmod(sum(moved[d] for d in places), len(places))
    held = list(moved)
    for n, d in enumerate(places):
        held[d] = each + (n < more)
    inner = [Fraction(m - h, fine) for m, h in zip(moved, held, strict=True)]
    assert all(-1 < c <= 1 for c in inner), "a schedule that is made to break the bound"
    return inner, [Fraction(h, fine) for h in held]


def scheduled_run(changes, chunk_size, totals, num_chunks, leaving=(), caps=None, passes=None):
    """Counts of each chunk of a schedule: samples by dataset, up to the end of the run.

    Changes are as `schedule_weights` gives them. Leaving are the datasets that are redistributed,
    caps the samples after which a dataset ends the run, passes those that all are to have.
    """
    k = len(totals)
    drawn, carry, held = [0] * k, [Fraction(0)] * k, [Fraction(0)] * k
    rows, weights, before = [], None, set()
    for g in range(num_chunks):
        here = [c for c in changes if c[0] <= g]
        left = {d for d in leaving if drawn[d] >= totals[d]}
        now = [Fraction(0) if d in left else w for d, w in enumerate(here[-1][1])]
        if not any(now):
            break
        if weights is None or left != before:
            carry, held = [Fraction(0)] * k, [Fraction(0)] * k
        elif here[-1][0] == g:
            carry, held = carry_over([c + h for c, h in zip(carry, held, strict=True)], now)
        weights, before = effective(now), left
        quotas, after = quota_step(weights, chunk_size, carry)
        if any(
            weights[d] and cap is not None and drawn[d] + quotas[d] > cap
            for d, cap in enumerate(caps or [])
        ):
            break
        later = [c[1] for c in changes if c[0] > g] + [here[-1][1]]
        counted = [d for d in range(k) if any(shares[d] for shares in later)]
        if passes is not None and all(drawn[d] >= passes * totals[d] for d in counted):
            break
        carry = after
        for d in leaving:
            quotas[d] = min(quotas[d], max(0, totals[d] - drawn[d]))
        drawn = [a + b for a, b in zip(drawn, quotas, strict=True)]
        rows.append(quotas)
    return rows


def scheduled_queue(changes, chunk_size, num_chunks, cost=lambda d, j: 1):
    """Counts of each chunk of a schedule by virtual time, draw by draw, in fractions.

    Returns the counts, and before each chunk how much each component has cost beyond the integral
    of its shares over the costs of all.
    """
    k = len(changes[0][1])
    ranks = sorted(range(k), key=lambda d: (-changes[0][1][d], d))
    first = [Fraction((ranks.index(d) + 1) * GOLDEN % 2**64, 2**64) for d in range(k)]
    ahead, had = [Fraction(0)] * k, [0] * k
    rows, beyond, shares, late = [], [], None, ahead
    for g in range(num_chunks):
        now = [c[1] for c in changes if c[0] <= g][-1]
        if now != shares:
            shares, places = now, [d for d in range(k) if now[d]]
            wait = sum(ahead[d] for d in places) / len(places)
            late, spent = [a - wait for a in ahead], [0] * k
        row = [0] * k
        for _ in range(chunk_size):
            one = min(
                places,
                key=lambda d: ((late[d] + spent[d] + first[d] * cost(d, had[d])) / shares[d], d),
            )
            paid = cost(one, had[one])
            spent[one] += paid
            ahead = [a + paid * ((d == one) - shares[d]) for d, a in enumerate(ahead)]
            had[one] += 1
            row[one] += 1
        rows.append(row)
        beyond.append(ahead)
    return rows, beyond
