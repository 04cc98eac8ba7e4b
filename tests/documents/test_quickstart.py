"""The quickstart runs as a newcomer runs it, and what it claims about resuming is so."""

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import zephon_jax as zx

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def examples():
    """The example's modules, imported as the script imports them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        import quickstart
        import quickstart_corpus

        yield quickstart, quickstart_corpus
    for name in ("quickstart", "quickstart_corpus", "texts"):
        del sys.modules[name]


@pytest.fixture(scope="module")
def corpus(examples, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache") / "corpus"
    examples[1].write_corpus(folder)
    return folder


def test_script(tmp_path):
    cache = tmp_path / "cache"
    command = [sys.executable, str(EXAMPLES / "quickstart.py"), "--steps", "40"]
    done = subprocess.run(
        [*command, "--cache-dir", str(cache)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    after_stop, without_stop = re.findall(r"(?:after the stop|without a stop): +(\w+)", done.stdout)
    assert after_stop == without_stop
    assert done.stdout.endswith("resumed run equals uninterrupted run: True\n")
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", done.stdout)]
    assert losses[0] > 5  # guessing a byte costs log(256) = 5.5 nats
    assert losses[-1] < 3.6 < 0.7 * losses[0]
    shares = re.findall(r"code (\S+)%, docs (\S+)%, characters (\S+)%", done.stdout)[-1]
    assert [float(share) for share in shares] == pytest.approx([50, 30, 20], abs=5)
    (folder,) = cache.iterdir()  # nothing unfinished was left
    assert sorted(p.name for p in folder.iterdir()) == ["characters", "code", "docs"]


def test_places_resume_anywhere(examples, corpus):
    quickstart, _ = examples
    source = quickstart.make_source(corpus)

    def digest_of(lanes, num_batches):
        digest = hashlib.sha256()
        for _ in range(num_batches):
            quickstart.update_digest(digest, quickstart.next_batch(lanes))
        return digest.hexdigest()

    def new_lanes(places=None):
        lanes = [quickstart.open_lane(source, lane) for lane in range(quickstart.NUM_LANES)]
        if places is not None:
            for lane, place in zip(lanes, quickstart.parse_places(places), strict=True):
                lane.set_state(place)
        return lanes

    # Cut 0 stands where the packer holds no remainder, which is a case of its own.
    lanes, cuts, tails = new_lanes(), [], []
    for _ in range(6):
        cuts.append(json.dumps([lane.get_state() for lane in lanes]))
        quickstart.next_batch(lanes)
    for cut, places in enumerate(cuts):
        untouched = new_lanes()
        digest_of(untouched, cut)
        tails.append(digest_of(untouched, 5))
        assert digest_of(new_lanes(places), 5) == tails[-1]
        for place in json.loads(places):
            data = base64.b64decode(place["parent_state"]["state"])
            assert zx.encode_state(zx.decode_state(source, data)) == data
    assert len(set(tails)) == 6  # the digest tells one place from the next


def test_corpus_has_enough_text(examples, corpus):
    datasets = examples[0].make_source(corpus).datasets_by_id.values()
    assert [dataset.name for dataset in datasets] == ["code", "docs", "characters"]
    assert all(dataset.num_samples > 500 and dataset.num_shards > 1 for dataset in datasets)


def test_corpus_is_written_once(examples, corpus):
    before = {path: path.stat().st_mtime_ns for path in corpus.rglob("*")}
    examples[1].write_corpus(corpus)
    assert {path: path.stat().st_mtime_ns for path in corpus.rglob("*")} == before


def test_corpus_is_whole_or_absent(examples, tmp_path, monkeypatch):
    def broken(folder, name, records):
        folder.mkdir()
        (folder / "half.array_record").write_bytes(b"half")
        raise OSError("the disk is full")

    monkeypatch.setattr(examples[1], "write_shards", broken)
    with pytest.raises(OSError, match="disk is full"):
        examples[1].write_corpus(tmp_path / "corpus")
    assert not list(tmp_path.iterdir())


def test_passages_keep_every_byte(examples):
    _, corpus = examples
    text = "first\n" + "long " * 200 + "\nlast"
    pieces = list(corpus.passages([text, "", "other"], size=16))
    assert b"".join(pieces) == (text + "other").encode()
    assert pieces[-1] == b"other"
