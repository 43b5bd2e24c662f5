#!/bin/bash
# title: allocation, holes, SEEK_DATA and SEEK_HOLE
# runs: 4.2-dir 4.2-ext4 4.2-xfs 4.2-btrfs 4.1
# timeout: 500
. /share/scenario-lib.sh
begin
m=/mnt/data
need "mount" mnt /data $m
head -c 4M /dev/urandom >/tmp/f
blocks() { drop; stat -c %b "$m/$1"; }

if [ "$LAB_VERS" = 4.1 ]; then
    none() { cp /tmp/f $m/f; must_fail "supported" fallocate -l 1M $m/g; must_fail "supported" fallocate -p -o 0 -l 4096 $m/f; cmp /tmp/f $m/f; }
    check "4.1 has none of it" none
    finish
fi
alloc() {
    local n; n=$(sent $m ALLOCATE)
    fallocate -l 8M $m/alloc
    same $((n + 1)) "$(sent $m ALLOCATE)" ALLOCATE; same $((8 << 20)) "$(stat -c %s $m/alloc)"
    at_least 16384 "$(blocks alloc)" blocks; same 0 "$(tr -d '\0' <$m/alloc | wc -c)"
}
check "fallocate allocates and reads as zeros" alloc
keeps() { cp /tmp/f $m/k; fallocate -o 1M -l 2M $m/k; again $m /data; cmp /tmp/f $m/k; }
check "allocating where data is keeps it" keeps
punch() {
    cp /tmp/f $m/p; cp /tmp/f /tmp/p; sync; local n b; n=$(sent $m DEALLOCATE) b=$(blocks p)
    for range in "1048576 1048576" "3000001 4097" "0 4096"; do
        # shellcheck disable=SC2086
        set -- $range
        fallocate -p -o $1 -l $2 $m/p;
        python3 -c "f = open('/tmp/p', 'r+b'); f.seek($1); f.write(bytes($2))"
    done
    same $((n + 3)) "$(sent $m DEALLOCATE)" DEALLOCATE
    again $m /data; cmp /tmp/p $m/p; same $((4 << 20)) "$(stat -c %s $m/p)"
    [ "$(blocks p)" -lt "$b" ] || { echo "blocks before $b, after $(blocks p)"; return 1; }
}
check "punching holes frees them and leaves the rest" punch
seek() {
    python3 - $m/s <<'PY'
import errno, os, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.pwrite(f, b"x" * 65536, 0); os.pwrite(f, b"y" * 65536, 4 << 20); os.truncate(f, 8 << 20); os.fsync(f)
def go(o, w): return os.lseek(f, o, w)
assert go(0, os.SEEK_DATA) == 0
h = go(0, os.SEEK_HOLE); assert 65536 <= h < 4 << 20, h
d = go(h, os.SEEK_DATA); assert h < d <= 4 << 20, d
h = go(4 << 20, os.SEEK_HOLE); assert (4 << 20) + 65536 <= h < 8 << 20, h
assert go((8 << 20) - 1, os.SEEK_HOLE) == (8 << 20) - 1
for whence in (os.SEEK_DATA, os.SEEK_HOLE):
    try: go(8 << 20, whence); sys.exit("beyond the end")
    except OSError as e: assert e.errno == errno.ENXIO, e
try: go(h, os.SEEK_DATA); sys.exit("data in the last hole")
except OSError as e: assert e.errno == errno.ENXIO, e
PY
    at_least 7 "$(sent $m SEEK)" SEEK
}
check "SEEK_DATA and SEEK_HOLE" seek
sparse() { truncate -s 100M /tmp/sp; echo middle | dd of=/tmp/sp bs=1 seek=50000000 conv=notrunc status=none; cp --sparse=always /tmp/sp $m/sp; again $m /data; cmp /tmp/sp $m/sp; [ "$(blocks sp)" -lt 100000 ]; cp $m/sp /tmp/sp2; cmp /tmp/sp /tmp/sp2; }
check "a sparse file stays sparse" sparse
noroom() { must_fail "No space left|too large" fallocate -l 1P $m/huge; }
check "allocating more than there is" noroom
# Holes are punched, files copied with theirs, while the server goes and comes; a twin on this machine says what must be there.
punching() {
    python3 - $m/shaken /tmp/shaken "$1" <<'PY'
import ctypes, os, random, sys
libc = ctypes.CDLL(None, use_errno=True); libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
r, size = random.Random(9), 4 << 20
files = [os.open(p, os.O_RDWR | os.O_CREAT | os.O_TRUNC) for p in sys.argv[1:3]]
for n in range(int(sys.argv[3])):
    at, length, data = r.randrange(size), r.randrange(1, 300000), r.randbytes(50000)
    for f in files:
        os.pwrite(f, data, at)
        if libc.fallocate(f, 3, at // 2, length): sys.exit(os.strerror(ctypes.get_errno()))
        if n % 5 == 4: os.fsync(f)
for f in files: os.fsync(f); os.close(f)
PY
    cmp /tmp/shaken $m/shaken; cp --sparse=always $m/shaken $m/shaken2; cp --reflink=never $m/shaken $m/shaken3
    again $m /data; cmp /tmp/shaken $m/shaken; cmp /tmp/shaken $m/shaken2; cmp /tmp/shaken $m/shaken3
}
check "holes and sparse copies while the server is killed and ended" shaken "$(amount 2 8)" punching "$(amount 500 1500)"
check "unmount" umount $m
finish
