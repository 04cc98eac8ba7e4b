"""Hosts that meet over one thing, by the key-value store of `jax.distributed`.

Each host lays a note of how far it is where all can see it, and the first process waits until the
notes of all are about the same thing. So a host that stays away costs the others that one meeting,
and the next one does not depend on how many there were before. A note and the answer to it have
keys of their own, so an answer to a note that was taken back reaches nobody; who comes again takes
away what is left of the time before, so keys do not pile up.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import deque
from typing import Any, NoReturn

from zephon_jax import _compat

__all__ = ["meet"]

_PAUSES = 0.002, 0.25  # seconds between looks, at first and at most
_AT_ONCE = 60_000  # milliseconds to read what is there
_KEPT_TEXTS = 8  # of the last meetings of all places
_Note = dict[str, Any]
_texts: deque[str] = deque()  # keys that the first process wrote


def meet(
    place: str, order: tuple[int, ...] | None, what: str, text: str, timeout: float
) -> list[str]:
    """Exchanges a text with all other hosts.

    Args:
      place: Where the hosts meet, the same on all: meetings of other places do not matter here.
      order: What they meet over; things of one place follow each other in this order. None where
        this host cannot tell: it joins the others, whatever they meet over.
      what: The same in words, for errors.
      text: What this host has to say.
      timeout: Seconds to wait for the others.

    Returns:
      The texts of all hosts, by process.

    Raises:
      TimeoutError: If a host does not come, naming those that did not.
      RuntimeError: If a host is at something earlier or later, naming it.
    """
    hosts = _compat.distributed_hosts()
    if hosts.client is None or hosts.process_count == 1:
        return [text]
    note = {
        "id": uuid.uuid4().hex, "order": None if order is None else list(order), "what": what,
        "text": text, "waits": True,
    }  # fmt: skip
    visit = _Visit(hosts, f"zephon_jax/{place}", note, timeout)
    return visit.follow() if hosts.process_index else visit.lead()


class _Visit:
    """One host at one meeting."""

    def __init__(self, hosts: _compat.Hosts, root: str, note: _Note, timeout: float):
        self._hosts, self._client, self._root = hosts, hosts.client, root
        self._note, self._timeout = note, timeout
        for kind in ("came", "answer"):
            self._client.key_value_delete(f"{root}/{kind}/{hosts.process_index}")
        self._lay(note)

    def _key(self, kind: str, process: int, note: _Note) -> str:
        return f"{self._root}/{kind}/{process}/{note['id']}"

    def _set(self, key: str, value: object) -> None:
        self._client.key_value_set(key, json.dumps(value), allow_overwrite=True)

    def _lay(self, note: _Note) -> None:
        self._set(self._key("came", self._hosts.process_index, note), note)

    def _notes(self) -> dict[int, _Note]:
        found = self._client.key_value_dir_get(f"{self._root}/came")
        return {int(key.rsplit("/", 2)[1]): json.loads(value) for key, value in found}

    def lead(self) -> list[str]:
        """The first process: waits for the notes of all and answers them."""
        end, (pause, longest) = time.monotonic() + self._timeout, _PAUSES
        while True:
            notes = {p: note for p, note in self._notes().items() if note["waits"]}
            for process in [p for p in notes if _before(notes[p], self._note)]:
                late = notes.pop(process)
                self._answer(process, late, {"refused": _left_out([0], late, self._note)})
            ahead = [p for p in sorted(notes) if _before(self._note, notes[p])]
            if ahead:
                words = _left_out(ahead, self._note, notes[ahead[0]])
                self._give_up(notes, {"refused": words})
            if len(notes) == self._hosts.process_count:
                return self._answer_all(notes)
            if time.monotonic() >= end:
                self._give_up(notes, {"late": self._who_did_not_come()})
            time.sleep(max(0.0, min(pause, end - time.monotonic())))
            pause = min(2 * pause, longest)

    def _answer(self, process: int, note: _Note, answer: dict[str, str]) -> None:
        """Answers a host; takes its note away first, so that nobody answers it twice."""
        self._client.key_value_delete(self._key("came", process, note))
        self._set(self._key("answer", process, note), answer)

    def _answer_all(self, notes: dict[int, _Note]) -> list[str]:
        texts = [notes[process]["text"] for process in sorted(notes)]
        key = f"{self._root}/texts/{self._note['id']}"
        self._set(key, texts)
        del notes[0]
        for process, note in notes.items():
            self._answer(process, note, {"texts": key})
        self._client.key_value_delete(self._key("came", 0, self._note))
        _texts.append(key)
        while len(_texts) > _KEPT_TEXTS:  # all have come again since, and so have read them
            self._client.key_value_delete(_texts.popleft())
        return texts

    def _give_up(self, notes: dict[int, _Note], answer: dict[str, str]) -> NoReturn:
        """Sends those home who wait for the same."""
        self._lay({**self._note, "waits": False})
        for process, note in notes.items():
            if process and not _before(self._note, note):
                self._answer(process, note, answer)
        self._raise(answer)

    def follow(self) -> list[str]:
        """Any other process: waits for the answer."""
        key = self._key("answer", self._hosts.process_index, self._note)
        limit = max(1, int(1000 * self._timeout))
        try:
            answer = json.loads(self._client.blocking_key_value_get(key, limit))
        except BaseException as error:
            self._lay({**self._note, "waits": False})
            if not isinstance(error, Exception):
                raise
            raise TimeoutError(self._who_did_not_come()) from error
        self._client.key_value_delete(key)
        if "texts" not in answer:
            self._raise(answer)
        return json.loads(self._client.blocking_key_value_get(answer["texts"], _AT_ONCE))

    def _raise(self, answer: dict[str, str]) -> NoReturn:
        if "late" in answer:
            raise TimeoutError(answer["late"])
        raise RuntimeError(answer["refused"])

    def _who_did_not_come(self) -> str:
        notes = {p: note for p, note in self._notes().items() if self._is_of_this(note)}
        away = [p for p in range(self._hosts.process_count) if p not in notes]
        gone = [p for p, note in sorted(notes.items()) if not note["waits"]]
        gone = [p for p in gone if p != self._hosts.process_index]
        words = [f"processes {away} did not come to {self._note['what']}"] if away else []
        words += [f"processes {gone} had given up {self._note['what']}"] if gone else []
        said = ", and ".join(words) or f"not all came to {self._note['what']} in time"
        return f"{said}: waited for {self._timeout:g} s. Later calls do not depend on this one."

    def _is_of_this(self, note: _Note) -> bool:
        return None in (note["order"], self._note["order"]) or note["order"] == self._note["order"]


def _before(a: _Note, b: _Note) -> bool:
    """True where one host is at something earlier than another."""
    return None not in (a["order"], b["order"]) and a["order"] < b["order"]


def _left_out(processes: list[int], note: _Note, later: _Note) -> str:
    return f"processes {processes} left out {note['what']}: they are at {later['what']} already."
