"""Hosts that save side by side in threads of one process, and checkpoints that are torn."""

from __future__ import annotations

import threading

import zephon_jax as zx


class Together:
    """Hosts in threads of one process: everybody's texts, once all have come."""

    def __init__(self, count):
        self.count, self.texts = count, {}
        self.barrier = threading.Barrier(count)
        self.lock = threading.Lock()

    def of(self, host):
        rounds = iter(range(1 << 30))

        def gather(tag, text, timeout):
            turn = next(rounds)
            with self.lock:
                self.texts[turn, host] = text
            try:
                self.barrier.wait(timeout)
            except threading.BrokenBarrierError:
                raise TimeoutError(f"a host did not come to {tag!r}") from None
            return [self.texts[turn, h] for h in range(self.count)]

        return gather


def save_all(folder, iterators, **settings):
    """Saves hosts side by side and returns what each of them raised."""
    together, errors = Together(len(iterators)), [None] * len(iterators)

    def save(h):
        try:
            zx.save_checkpoint(folder, iterators[h], gather=together.of(h), timeout=20, **settings)
        except Exception as error:
            errors[h] = error

    threads = [threading.Thread(target=save, args=(h,)) for h in range(len(iterators))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def advanced(datasets, steps):
    iterators = [iter(dataset) for dataset in datasets]
    for _ in range(steps):
        for iterator in iterators:
            next(iterator)
    return iterators


def lane_files(folder):
    return sorted(path.name for path in folder.glob("lanes-*"))


def tear(fs, folder, what):
    """Leaves a file as a put that was cut off does; returns its name."""
    names = sorted(path.rsplit("/", 1)[-1] for path in fs.ls(folder, detail=False))
    name = names[-1] if what.startswith("manifest") else names[1]
    whole = fs.cat_file(f"{folder}/{name}")
    if what == "lanes gone":
        fs.rm_file(f"{folder}/{name}")
    else:
        end = {"empty": 0, "half": len(whole) // 2, "last": len(whole) - 2}[what.split()[1]]
        fs.pipe_file(f"{folder}/{name}", whole[:end])
    return name


TORN = [
    "manifest empty",
    "manifest half",
    "manifest last",
    "lanes empty",
    "lanes last",
    "lanes gone",
]
