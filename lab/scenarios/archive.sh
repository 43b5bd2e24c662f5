#!/bin/bash
# title: tar and rsync, compared
# runs: 4.1-dir 4.2-dir
# timeout: 500
. /share/scenario-lib.sh
begin
m=/mnt/data
need "mount" mnt /data $m
cat >/tmp/make.py <<'PY'
import os, random, sys
top, n, r = sys.argv[1], int(sys.argv[2]), random.Random(3)
for i in range(n):
    folder = os.path.join(top, "d%d" % (i % 13), "e%d" % (i % 13)); os.makedirs(folder, exist_ok=True)
    name = os.path.join(folder, "file %d" % i)
    with open(name, "wb") as f: f.write(r.randbytes(r.choice([0, 10, 1000, 4096, 9000])))
    os.chmod(name, r.choice([0o600, 0o644, 0o755, 0o444, 0o000]))
    os.chown(name, r.randrange(3000), r.randrange(3000))
    os.utime(name, ns=(10**18 + i, 10**18 + 123456789 * i))
    if i % 11 == 0: os.link(name, name + ".hard")
    if i % 13 == 0: os.symlink("file %d" % i, name + ".soft")
os.mkfifo(top + "/fifo")
with open(top + "/big", "wb") as f: f.write(r.randbytes(3 << 20))
with open(top + "/sparse", "wb") as f: f.seek(5 << 20); f.write(b"end")
for folder, _, _ in os.walk(top, topdown=False): os.utime(folder, ns=(10**18, 10**18 + 5))
PY
python3 /tmp/make.py /tmp/tree "$(amount 160 1500)"
tar -C /tmp -cf /tmp/tree.tar tree
# (tar by itself takes what is there already for done, or removes it and makes it anew.)
untar() { redo rm -rf "$m/tree"; redo tar -C $m -xpf /tmp/tree.tar; tar -C $m --compare -f /tmp/tree.tar; again $m /data; tar -C $m --compare -f /tmp/tree.tar; }
check "tar unpacks, and compares before and after a new mount" untar
pack() { tar -C $m -cf $m/back.tar tree; again $m /data; tar -C /tmp --compare -f $m/back.tar; rm $m/back.tar; }
check "tar packs on the mount what is there" pack
check "tar unpacks while the server is killed and ended" shaken "$(amount 2 6)" untar

# nothing [OPTION...]: a run of rsync that finds nothing to do.
nothing() { same "" "$(rsync -aHS --itemize-changes "$@" /tmp/tree/ $m/sync/)" "what rsync would do"; }
sync_first() { rsync -aHS /tmp/tree/ $m/sync/; nothing; again $m /data; nothing --checksum; diff -r --no-dereference -x fifo /tmp/tree $m/sync; }
check "rsync -a; a second run finds nothing by times, nor by checksums" sync_first
change() {
    rm -rf /tmp/tree/d3; echo changed >"/tmp/tree/d4/e4/file 4"; echo new >/tmp/tree/new; truncate -s 1M /tmp/tree/big
    chmod 701 "/tmp/tree/d5/e5/file 5"; touch -d 2001-02-03 "/tmp/tree/d6/e6/file 6"; mv /tmp/tree/d7 /tmp/tree/moved
    rsync -aHS --delete /tmp/tree/ $m/sync/; nothing --checksum --delete
    diff -r --no-dereference -x fifo /tmp/tree $m/sync
}
check "rsync --delete brings over what changed" change
# By its content (-I): rsync compares times in whole seconds, and the step before may have been in the same one.
inplace() { head -c 300000 /dev/urandom | dd of=/tmp/tree/big bs=100000 seek=1 conv=notrunc iflag=fullblock status=none; rsync -aI --inplace --no-whole-file /tmp/tree/big $m/sync/; cmp /tmp/tree/big $m/sync/big; }
check "rsync --inplace with differences" inplace
# A rename or link that was asked again fails, and rsync goes on and ends with an error: its next run brings the rest.
over() {
    redo rm -rf $m/sync; redo rsync -aHS /tmp/tree/ $m/sync/
    nothing --checksum; diff -r --no-dereference -x fifo /tmp/tree $m/sync
}
check "rsync while the server is killed and ended" shaken "$(amount 2 6)" over
gone() { rm -rf $m/tree $m/sync; same "" "$(ls -A $m)"; }
check "all is removed" gone
check "unmount" umount $m
finish
