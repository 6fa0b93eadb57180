"""Writes vectors.json beside itself, with the C reference implementation of XXH3.

    python3 -m venv venv && venv/bin/pip install xxhash==4.1.0
    venv/bin/python vectors.py

Nothing here is shared with the Go code: it is a second implementation of doc.go.
64-bit values are written as hexadecimal strings because JSON numbers are doubles.
"""

import json
import pathlib
import struct

import xxhash

SEED = 1337
SCHEME = "xxh3-64/1337"


def h(data):
    return xxhash.xxh3_64_intdigest(data, seed=SEED)


def tokens(n, salt):
    """Token ids over the whole range of 32 bits: a linear congruence, so that readers can regenerate them."""
    out, x = [], salt
    for _ in range(n):
        x = (x * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(x >> 32)
    return out


def local(ids):
    return h(struct.pack("<%dI" % len(ids), *ids))


def string(s):
    raw = s.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def keyspace(model="", size=0, lora="", revision="", salt="", secret=""):
    return h(string(SCHEME) + string(model) + struct.pack("<Q", size) + string(lora) + string(revision)
             + string(salt) + string(secret))


def pair(a, b):
    return h(struct.pack("<QQ", a, b))


def chain(space, locals_):
    out, parent = [], space
    for l in locals_:
        parent = pair(parent, l)
        out.append(parent)
    return out


def mixed(local_, at, size, items):
    """The local hash of the block of size tokens that begins at a position, with the items of the whole prompt."""
    inside = {(i["first"] - at, h(bytes.fromhex(i["digest"]))) for i in items
              if i["first"] < at + size and i["first"] + i["count"] > at}
    if not inside:
        return local_
    return h(struct.pack("<Q", local_) + b"".join(struct.pack("<qQ", *i) for i in sorted(inside)) + b"mm")


def hexed(v):
    return "%016x" % v


IDENTITIES = [
    dict(),
    dict(model="llama-3.1-8b", size=16),
    dict(model="llama-3.1-8b", size=64),
    dict(model="llama-3.1-8b", size=65536),
    dict(model="llama-3.1-8b", size=16, lora="sql"),
    dict(model="llama-3.1-8b", size=16, lora="sql", revision="2"),
    dict(model="llama-3.1-8b", size=16, salt="tenant-1"),
    dict(model="llama-3.1-8b", size=16, secret="s3cret"),
    dict(model="llama-3.1-8b", size=16, lora="sql", revision="2", salt="tenant-1", secret="s3cret"),
    # The same letters cut in different places, and one word in each field.
    dict(model="m", size=16, lora="ab", revision="c"),
    dict(model="m", size=16, lora="a", revision="bc"),
    dict(model="m", size=16, lora="abc"),
    dict(model="m", size=16, revision="abc"),
    dict(model="m", size=16, salt="abc"),
    dict(model="m", size=16, secret="abc"),
    dict(model="m", size=16, salt="ab", secret="c"),
    dict(model="m", size=16, salt="a", secret="bc"),
    dict(model="m", size=16, revision="ab", salt="c"),
    dict(model="m\0", size=16, lora="a"),
    dict(model="m", size=16, lora="\0a"),
    dict(model="modèle-日本", size=16),
    dict(model="long/" + "x" * 1000, size=16, salt="y" * 300),
]

CHAINS = [
    dict(identity=1, size=16, count=16 * 5),
    dict(identity=1, size=16, count=16 * 5 + 7),
    dict(identity=2, size=64, count=64 * 3),
    dict(identity=8, size=1, count=9),
    dict(identity=6, size=256, count=256 * 2 + 255),
    dict(identity=4, size=512, count=512 * 4),
    dict(identity=1, size=16, count=15),
]


IMAGE, OTHER, LONG = "0011223344556677", "ffeeddccbbaa9988", "ab" * 64

MULTIMODAL = [
    # One item inside a block, over two, over whole blocks, up to the end, and in the rest behind the last block.
    dict(size=16, count=64, items=[dict(first=3, count=5, digest=IMAGE)]),
    dict(size=16, count=64, items=[dict(first=12, count=8, digest=LONG)]),
    dict(size=16, count=80, items=[dict(first=16, count=48, digest=IMAGE)]),
    dict(size=4, count=40, items=[dict(first=39, count=1, digest=IMAGE)]),
    dict(size=16, count=40, items=[dict(first=33, count=7, digest=IMAGE)]),
    dict(size=1, count=6, items=[dict(first=2, count=3, digest=IMAGE)]),
    # The same tokens with another image, or the image somewhere else.
    dict(size=16, count=64, items=[dict(first=3, count=5, digest=OTHER)]),
    dict(size=16, count=64, items=[dict(first=4, count=5, digest=IMAGE)]),
    # Several in one block, side by side, one within the other, one twice, with a gap between them.
    dict(size=16, count=64, items=[dict(first=3, count=5, digest=IMAGE), dict(first=8, count=20, digest=OTHER)]),
    dict(size=16, count=64, items=[dict(first=8, count=20, digest=OTHER), dict(first=8, count=2, digest=IMAGE)]),
    dict(size=16, count=64, items=[dict(first=3, count=5, digest=IMAGE), dict(first=3, count=40, digest=IMAGE)]),
    dict(size=8, count=80, items=[dict(first=1, count=1, digest=IMAGE), dict(first=60, count=9, digest=LONG)]),
    dict(size=64, count=64, items=[dict(first=n, count=1, digest=OTHER) for n in range(40)]),
]


def main():
    out = {"seed": SEED, "scheme": SCHEME, "locals": [], "keyspaces": [], "chains": [], "multimodal": []}
    for n in (0, 1, 2, 4, 16, 17, 60, 61, 64, 256, 512):
        ids = tokens(n, n)
        out["locals"].append({"tokens": ids, "hash": hexed(local(ids))})
    for i in IDENTITIES:
        out["keyspaces"].append({**i, "hash": hexed(keyspace(**i))})
    for c in CHAINS:
        ids, size = tokens(c["count"], 77), c["size"]
        locals_ = [local(ids[at:at + size]) for at in range(0, len(ids) - size + 1, size)]
        out["chains"].append({
            "identity": c["identity"],
            "size": size,
            "tokens": ids,
            "locals": [hexed(v) for v in locals_],
            "ids": [hexed(v) for v in chain(keyspace(**IDENTITIES[c["identity"]]), locals_)],
        })
    for m in MULTIMODAL:
        ids, size = tokens(m["count"], 99), m["size"]
        out["multimodal"].append({
            "size": size,
            "tokens": ids,
            "items": m["items"],
            "locals": [hexed(mixed(local(ids[at:at + size]), at, size, m["items"]))
                       for at in range(0, len(ids) - size + 1, size)],
        })
    with open(pathlib.Path(__file__).with_name("vectors.json"), "w", encoding="utf-8") as f:
        # One case a line: diffs stay readable.
        f.write('{\n"seed": %d,\n"scheme": "%s"' % (out["seed"], out["scheme"]))
        for key in ("locals", "keyspaces", "chains", "multimodal"):
            rows = ",\n".join(json.dumps(row) for row in out[key])
            f.write(',\n"%s": [\n%s\n]' % (key, rows))
        f.write("\n}\n")


main()
