#!/bin/bash
# title: quotas of a real filesystem, and one that is full: programs hear it, once, and go on when there is room (RFC 8881 15.1.4.2)
# runs: 4.1-xfs 4.2-xfs
# timeout: 500
# serves: no
#
# The server runs in the guest, whose kernel keeps quotas (of XFS: it has no QFMT_V2, which ext4 wants).
export LAB_SERVER=inside
. /share/scenario-lib.sh
own
m=/mnt/data served=$SERVED/fs
disks() {
    mkdir -p "$served" "$SERVED/small" "$SERVED/state"
    mkfs.xfs -q -K -f -m reflink=1 /dev/lab1; mount -o uquota,gquota /dev/lab1 "$served"
    mkdir -m 777 "$served/data"
    mount -t tmpfs -o size=8M,mode=777 tmpfs "$SERVED/small"
}
need "a filesystem with quotas, and a small one" disks
need "the server" dhow_start 2049 "$SERVED/state" --export "/data=$served/data,no_root_squash" --export "/small=$SERVED/small,no_root_squash"
need "mount" mnt /data $m
need "mount the small one" mnt /small /mnt/small
# limit OPTION...: of user or group 1000, as in `-u bhard=2m`.
limit() { xfs_quota -x -c "limit $* 1000" "$served"; }
cat >/tmp/fill.py <<'PY'
# fill.py FILE MB [ROUNDS]: writes that much and syncs, so often; then syncs once more. Prints what failed.
import os, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644); told = []
def attempt(what, call, *args):
    try: call(*args)
    except OSError as e: told.append(what + ": " + e.strerror)
for _ in range(int(sys.argv[3]) if len(sys.argv) > 3 else 1):
    for n in range(4 * int(sys.argv[2])):
        attempt("write", os.pwrite, f, bytes([n % 251]) * (1 << 18), n << 18)
        if told: break
    attempt("sync", os.fsync, f)
    first, told = told, []
    attempt("again", os.fsync, f)
    print(sorted(set(t.split(": ")[1] for t in first)), told)
PY
fill() { user "$1" python3 /tmp/fill.py "${@:2}"; }
blocks() {
    limit -u bhard=2m
    same "['Disk quota exceeded'] []" "$(fill 1000 $m/f 4)" "what the program heard"
    same "[] []" "$(fill 1001 $m/other 4)" "what another user heard"
    limit -u bhard=20m
    same "[] []" "$(fill 1000 $m/f 4)" "what the program heard then"
    again $m /data
    cmp $m/f $m/other
    rm $m/f $m/other; limit -u bhard=0
}
check "blocks of a user are used up; when the quota is raised work goes on" blocks
group() {
    limit -g bhard=1m
    same "['Disk quota exceeded'] []" "$(setpriv --reuid 1001 --regid 1000 --clear-groups python3 /tmp/fill.py $m/g 3)" "what the program heard"
    limit -g bhard=0; rm $m/g
}
check "blocks of a group" group
inodes() {
    mkdir -m 777 $m/many; limit -u bhard=0 ihard=5
    user 1000 sh -c "cd $m/many && touch 1 2 3 && mkdir 4 && ln -s x 5 && ln 1 link"
    must_fail "Disk quota exceeded" user 1000 touch $m/many/6
    must_fail "Disk quota exceeded" user 1000 mkdir $m/many/6
    must_fail "Disk quota exceeded" user 1000 ln -s x $m/many/6
    user 1000 rm $m/many/5; user 1000 touch $m/many/6
    limit -u ihard=0; user 1000 touch $m/many/7
    same "1 2 3 4 6 7 link" "$(find $m/many -mindepth 1 -printf '%f\n' | sort | xargs)"; rm -r $m/many
}
check "files of a user are used up" inodes
allocated() {
    if [ "$LAB_VERS" = 4.1 ]; then must_fail "not supported" fallocate -l 4M $m/a; return; fi
    limit -u bhard=2m
    must_fail "Disk quota exceeded" user 1000 fallocate -l 4M $m/a
    user 1000 fallocate -l 1M $m/a; limit -u bhard=0; user 1000 fallocate -l 4M $m/a; rm $m/a
}
check "allocation asks for quota" allocated
full() {
    same "['No space left on device'] []" "$(fill 1000 /mnt/small/f 10)" "what the program heard"
    must_fail "No space left on device" user 1001 dd if=/dev/zero of=/mnt/small/g bs=64k count=4 conv=fsync
    rm /mnt/small/f
    same "[] []" "$(fill 1000 /mnt/small/h 4)" "what the program heard then"
    rm /mnt/small/g /mnt/small/h
}
check "a filesystem is full, and has room again" full
check "unmount" umount $m /mnt/small
finish
