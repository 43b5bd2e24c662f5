#!/bin/bash
# title: random reads, writes, truncations, mappings, holes and copies against a local twin
# runs: 4.1 4.2 4.2-xfs
# timeout: 500
. /share/scenario-lib.sh
begin
m=/mnt/data
need "mount" mnt /data $m
cat >/tmp/twin.py <<'PY'
# twin.py SEED STEPS MOUNTED LOCAL VERSION: the same steps on both files; all that is read must agree.
import ctypes, mmap, os, random, sys
seed, steps, mounted, local, version = sys.argv[1:]
r, limit = random.Random(int(seed)), 3 << 20
files = [os.open(p, os.O_RDWR | os.O_CREAT | os.O_TRUNC) for p in (mounted, local)]
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
kinds = ["read", "read", "write", "write", "write", "truncate", "map", "mapread", "reopen", "sync", "drop"]
if version != "4.1": kinds += ["punch", "allocate", "copy"]
log = []
def fail(what):
    print("seed", seed, what); print("\n".join(log[-12:])); sys.exit(1)
for step in range(int(steps)):
    size = os.fstat(files[1]).st_size
    kind, at = r.choice(kinds), r.randrange(limit)
    n = r.choice([1, 7, 4096, 4097, 65536, r.randrange(1, 300000)])
    if r.random() < 0.3: at &= ~4095
    if r.random() < 0.3: n = (n + 4095) & ~4095
    log.append("%d %s %d %d (size %d)" % (step, kind, at, n, size))
    if kind == "read":
        a, b = [os.pread(f, n, at) for f in files]
        if a != b: fail("read differs at %d" % next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), -1))
    elif kind == "write":
        data = r.randbytes(n)
        for f in files: os.pwrite(f, data, at)
    elif kind == "truncate":
        for f in files: os.ftruncate(f, at)
    elif kind in ("map", "mapread") and size:
        at = r.randrange(size); n = min(n, size - at); data = r.randbytes(n); got = []
        for f in files:
            with mmap.mmap(f, size) as p:
                if kind == "map": p[at:at + n] = data; p.flush()
                got.append(p[at:at + n])
        if got[0] != got[1]: fail("mapping differs")
    elif kind == "reopen":
        for f in files: os.close(f)
        files = [os.open(p, os.O_RDWR) for p in (mounted, local)]
    elif kind == "sync": os.fsync(files[0])
    elif kind == "drop":
        os.fsync(files[0]); os.posix_fadvise(files[0], 0, 0, os.POSIX_FADV_DONTNEED)
    elif kind == "punch":
        for f in files:
            if libc.fallocate(f, 3, at, n): fail("punch: " + os.strerror(ctypes.get_errno()))
    elif kind == "allocate":
        for f in files:
            if libc.fallocate(f, 0, at, n): fail("allocate: " + os.strerror(ctypes.get_errno()))
    elif kind == "copy" and size:
        src = r.randrange(size); n = min(n, size - src)
        if src < at + n and at < src + n: continue
        for f in files:
            s, d, left = src, at, n
            while left:
                k = os.copy_file_range(f, f, left, s, d)
                if k == 0: fail("copy stopped")
                s, d, left = s + k, d + k, left - k
    if os.fstat(files[0]).st_size != os.fstat(files[1]).st_size: fail("size %d, wanted %d" % tuple(os.fstat(f).st_size for f in files))
for f in files: os.fsync(f); os.close(f)
PY
twin() {
    python3 /tmp/twin.py "$1" "${2:-250}" "$m/f$1" "/tmp/f$1" "$LAB_VERS"
    again $m /data; cmp "/tmp/f$1" "$m/f$1"
}
for seed in 1 2 3 4; do check "seed $seed" twin $seed; done
together() { local n p=(); for n in 11 12 13 14; do python3 /tmp/twin.py $n 150 $m/f$n /tmp/f$n "$LAB_VERS" & p+=($!); done; for n in "${p[@]}"; do wait "$n"; done; again $m /data; for n in 11 12 13 14; do cmp /tmp/f$n $m/f$n; done; }
check "four at once" together
check "unmount" umount $m
finish
