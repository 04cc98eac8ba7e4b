"""The quickstart's corpus: three kinds of real text that come with every Python.

Written once as ArrayRecord shards, one folder for each dataset.
"""

import sys
import sysconfig
import unicodedata

from array_record.python.array_record_module import ArrayRecordWriter
from texts import module_texts, reference_texts, whole
from tqdm import tqdm


def code_texts():
    """The standard library's source files."""
    return module_texts(sysconfig.get_path("stdlib"))


def characters_texts():
    """Unicode's characters and their names, but for characters named by number or sound."""
    named = ((chr(code), unicodedata.name(chr(code), "")) for code in range(sys.maxunicode + 1))
    yield "".join(
        f"{char} {name}\n"
        for char, name in named
        if name and not name.endswith(f"{ord(char):X}") and "HANGUL SYLLABLE" not in name
    )


TEXTS = {"code": code_texts, "docs": reference_texts, "characters": characters_texts}


def passages(texts, size=512):
    """Cuts texts between lines into pieces of at least `size` bytes; the last may be shorter."""
    for text in texts:
        piece = b""
        for line in text.splitlines(keepends=True):
            piece += line.encode()
            if len(piece) >= size:
                yield piece
                piece = b""
        if piece:
            yield piece


def write_shards(folder, name, records, records_per_shard=512):
    """Writes records to shards of a dataset's folder."""
    folder.mkdir()
    for start in tqdm(range(0, len(records), records_per_shard), name, unit=" shards"):
        path = folder / f"{start // records_per_shard:05}.array_record"
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for record in records[start : start + records_per_shard]:
            writer.write(record)
        writer.close()


def write_corpus(folder):
    """Writes all three datasets into a folder that appears when it is whole, or finds it there."""
    if folder.exists():
        return
    with whole(folder) as unfinished:
        for name, texts in TEXTS.items():
            records = list(passages(texts()))
            if not records:
                sys.exit(f"this Python has no text for {name!r}: its .py files are missing")
            write_shards(unfinished / name, name, records)
