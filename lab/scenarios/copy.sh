#!/bin/bash
# title: copy_file_range arrives as COPY, cp --reflink=always as CLONE, and the bytes are right
# runs: 4.2-ext4 4.2-btrfs 4.2-xfs 4.2 4.1-btrfs
# timeout: 500
# mem: 2G
. /share/scenario-lib.sh
begin
m=/mnt/data
need "mount" mnt /data $m

# cfrpart SRC DST SRCOFF DSTOFF LEN: one range by copy_file_range(2).
cat >/tmp/part.py <<'PY'
import os, sys
src, dst = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_RDWR)
so, do, left = map(int, sys.argv[3:6])
while left:
    n = os.copy_file_range(src, dst, left, so, do)
    if n == 0: break
    so, do, left = so + n, do + n, left - n
print(left, "left")
os.close(dst)
PY
# FICLONERANGE: clonerange SRC DST SRCOFF LEN DSTOFF
cat >/tmp/clonerange.py <<'PY'
import fcntl, os, struct, sys
src, dst = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_RDWR)
so, n, do = map(int, sys.argv[3:6])
fcntl.ioctl(dst, 0x4020940d, struct.pack("qQQQ", src, so, n, do))
PY
sum() { sha256sum <"$1" | cut -c1-64; }
delta() { echo $(($(sent $m "$1") - ${2:-0})); }

head -c 64M /dev/urandom >/tmp/src
head -c 3000001 /dev/urandom >/tmp/base
cp /tmp/src $m/src && drop

whole() {
    local c r w; c=$(sent $m COPY) r=$(sent $m READ) w=$(sent $m WRITE)
    cfr $m/src $m/cfr
    again $m /data      # counts begin anew with a mount
    cmp /tmp/src $m/cfr
}
counts() {
    local c r w rp; c=$(sent $m COPY) r=$(sent $m READ) w=$(sent $m WRITE) rp=$(sent $m READ_PLUS)
    cfr $m/src $m/counted
    echo "COPY $(delta COPY "$c") READ $(delta READ "$r") READ_PLUS $(delta READ_PLUS "$rp") WRITE $(delta WRITE "$w")"
    if [ "$LAB_VERS" = 4.1 ]; then same 0 "$(delta COPY "$c")" COPY; at_least 1 "$(delta WRITE "$w")" WRITE; return; fi
    at_least 1 "$(delta COPY "$c")" COPY
    same 0 "$(delta READ "$r")" READ
    same 0 "$(delta READ_PLUS "$rp")" READ_PLUS
    same 0 "$(delta WRITE "$w")" WRITE
}
part() {
    cp /tmp/base /tmp/part; cp /tmp/base $m/part
    python3 /tmp/part.py /tmp/src /tmp/part 777 100001 2000003
    python3 /tmp/part.py $m/src $m/part 777 100001 2000003
    python3 /tmp/part.py /tmp/src /tmp/part 67108000 5000000 864
    python3 /tmp/part.py $m/src $m/part 67108000 5000000 864
    again $m /data; cmp /tmp/part $m/part
}
dirty() {   # the client's unwritten data is in the copy
    cp /tmp/base $m/dirty; printf 'changed' | dd of=$m/dirty bs=1 seek=1000 conv=notrunc status=none
    cfr $m/dirty $m/dirty.copy; cmp $m/dirty $m/dirty.copy
    same changed "$(dd if=$m/dirty.copy bs=1 skip=1000 count=7 status=none)"
}
pastend() {  # beyond the end of the source there is nothing to copy
    cp /tmp/base $m/short; : >$m/short.copy
    same "0 left" "$(python3 /tmp/part.py $m/short $m/short.copy 0 0 3000001)"
    same "100 left" "$(python3 /tmp/part.py $m/short $m/short.copy 3000001 0 100)"
    same 3000001 "$(stat -c %s $m/short.copy)"
}
check "copy_file_range of 64 MB, content" whole
check "copy_file_range is sent as what the version has" counts
check "copy_file_range of parts at odd offsets" part
check "copy_file_range of data not yet written back" dirty
check "copy_file_range at the end of the source" pastend
empty() { : >$m/none; cfr $m/none $m/none.copy; same 0 "$(stat -c %s $m/none.copy)"; }
check "copy_file_range of an empty file" empty
readonly_dst() { must_fail "Bad file descriptor" python3 -c '
import os; s = os.open("'$m'/src", os.O_RDONLY); d = os.open("'$m'/cfr", os.O_RDONLY); os.copy_file_range(s, d, 5)'; }
check "copy_file_range to a file not open for writing" readonly_dst
within() {  # two ranges of one file
    cp /tmp/base $m/within; cp /tmp/base /tmp/within
    python3 /tmp/part.py /tmp/within /tmp/within 0 2000000 999999
    python3 /tmp/part.py $m/within $m/within 0 2000000 999999
    cmp /tmp/within $m/within
}
check "copy_file_range within one file" within

clones() {
    local c r w; c=$(sent $m CLONE) r=$(sent $m READ) w=$(sent $m WRITE)
    cp --reflink=always $m/src $m/clone
    echo "CLONE $(delta CLONE "$c") READ $(delta READ "$r") WRITE $(delta WRITE "$w")"
    same 1 "$(delta CLONE "$c")" CLONE
    same 0 "$(delta WRITE "$w")" WRITE
    again $m /data; cmp /tmp/src $m/clone
}
apart() {   # a clone is a file of its own
    cp --reflink=always $m/src $m/apart
    printf 'mine' | dd of=$m/apart bs=1 seek=5000 conv=notrunc status=none
    again $m /data; cmp /tmp/src $m/src; same mine "$(dd if=$m/apart bs=1 skip=5000 count=4 status=none)"
}
range() {
    cp /tmp/base /tmp/range; cp /tmp/base $m/range
    dd if=/tmp/src of=/tmp/range bs=4096 skip=100 seek=50 count=200 conv=notrunc status=none
    python3 /tmp/clonerange.py $m/src $m/range $((100 * 4096)) $((200 * 4096)) $((50 * 4096))
    again $m /data; cmp /tmp/range $m/range
}
unaligned() { cp /tmp/base $m/un; must_fail "Invalid argument" python3 /tmp/clonerange.py $m/src $m/un 1 4096 0; cmp /tmp/base $m/un; }
case $LAB_FS-$LAB_VERS in
    btrfs-4.2|xfs-4.2)
        check "cp --reflink=always is sent as CLONE" clones
        check "a clone changes alone" apart
        check "a clone of a part" range
        check "a clone at an unaligned offset is refused" unaligned ;;
    *)
        norefl() { must_fail "not supported" cp --reflink=always $m/src $m/clone; }
        check "cp --reflink=always is refused" norefl
        auto() { cp --reflink=auto $m/src $m/auto; again $m /data; cmp /tmp/src $m/auto; }
        check "cp --reflink=auto copies" auto ;;
esac
onserver() { same "$(sum /tmp/src)" "$(server 'sha256sum <data/cfr' | cut -c1-64)"; }
check "the server's copy has the same bytes" onserver
check "unmount" umount $m
finish
