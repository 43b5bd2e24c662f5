#!/bin/bash
# title: a tree is written, compared after everything cached is forgotten, and removed
# runs: 4.1 4.2 4.2-ext4 4.2-xfs
# timeout: 500
. /share/scenario-lib.sh
begin

# An export for others may be shown or not.
roots() { mnt / /mnt/top; same "all data ro squash" "$(ls -I closed /mnt/top | tr '\n' ' ' | sed 's/ $//')"; umount /mnt/top; }
need "mount" mnt /data /mnt/data
# Case B41: the root and a named export can both be mounted.
check "the pseudo-root lists the exports" roots
check "the version is the one asked for" grep -q " /mnt/data nfs4 .*vers=$LAB_VERS" /proc/mounts

# A tree with every kind of entry, the same in /tmp/tree and on the mount.
cat >/tmp/make.py <<'PY'
import os, random, sys
top, r = sys.argv[1], random.Random(7)
os.mkdir(top)
for d in range(12):
    path = os.path.join(top, "d%02d" % d, "deep", "deeper")
    os.makedirs(path)
    for f in range(25):
        name = os.path.join(top, "d%02d" % d, "f%d" % f)
        with open(name, "wb") as file:
            file.write(r.randbytes(r.choice([0, 1, 3, 511, 4096, 4097, 70000])))
        os.chmod(name, r.choice([0o600, 0o644, 0o755, 0o4755, 0o2711, 0o1777, 0o000]))
        os.utime(name, ns=(10**9 * (1000000000 + f) + 123456789, 10**9 * (1500000000 + d) + 987654321))
    os.symlink("../d%02d/f1" % d, os.path.join(path, "link"))
    os.symlink("x" * 900, os.path.join(path, "long"))
    os.link(os.path.join(top, "d%02d" % d, "f2"), os.path.join(path, "hard"))
    os.mkfifo(os.path.join(path, "fifo"))
for name in ["with space", "caf\u00e9", "-dash", "new\nline", "a" * 255, "quote'\"", "\u65e5\u672c"]:
    with open(os.path.join(top, name), "w") as file: file.write(name)
    os.utime(os.path.join(top, name), ns=(0, 1))
os.mkdir(os.path.join(top, "empty"), 0o711)
os.utime(os.path.join(top, "empty"), ns=(5, 1 << 33))
PY
cat >/tmp/list.py <<'PY'
import hashlib, os, stat, sys
top, links = sys.argv[1], {}
for folder, dirs, files in sorted(os.walk(top)):
    for name in sorted(dirs + files):
        path = os.path.join(folder, name); s = os.lstat(path); rest = ""
        if stat.S_ISLNK(s.st_mode): rest = os.readlink(path)
        elif stat.S_ISREG(s.st_mode): rest = "%d %d %s" % (s.st_size, s.st_mtime_ns, hashlib.sha1(open(path, "rb").read()).hexdigest())
        inode = links.setdefault(s.st_ino, len(links)) if s.st_nlink > 1 and not stat.S_ISDIR(s.st_mode) else ""
        print(repr(os.path.relpath(path, top)), oct(s.st_mode), s.st_uid, s.st_gid, s.st_nlink if not stat.S_ISDIR(s.st_mode) else "", inode, rest)
e = os.stat(os.path.join(top, "empty")); print(e.st_mtime_ns)
PY
python3 /tmp/make.py /tmp/tree
python3 /tmp/list.py /tmp/tree >/tmp/wanted
compare() { python3 /tmp/list.py /mnt/data/tree >/tmp/got; diff /tmp/wanted /tmp/got; }
check "a tree of 400 entries is written" python3 /tmp/make.py /mnt/data/tree
check "it reads back the same" compare
check "unmount and mount again" again /mnt/data /data
check "it reads back the same after that" compare

head -c 96M /dev/urandom >/tmp/big
big() { cp /tmp/big /mnt/data/big; again /mnt/data /data; cmp /tmp/big /mnt/data/big; }
check "96 MB are written and read back" big
odd() {     # unaligned pieces in the middle of a file, and beyond its end
    cp /tmp/big /tmp/odd; cp /tmp/big /mnt/data/odd
    for f in /tmp/odd /mnt/data/odd; do
        dd if=/tmp/big of=$f bs=1013 skip=5 seek=777 count=999 conv=notrunc status=none
        dd if=/tmp/big of=$f bs=1 skip=5 seek=100700000 count=77 conv=notrunc status=none
        truncate -s 101000001 $f
        truncate -s 55555555 $f
        truncate -s 55555999 $f
    done
    again /mnt/data /data; cmp /tmp/odd /mnt/data/odd
}
check "overwriting, extending and truncating in odd pieces" odd
space() { at_least 1 "$(stat -f -c %b /mnt/data)" blocks; at_least 1 "$(stat -f -c %a /mnt/data)" available; df /mnt/data; }
check "the file system's size is told" space
onserver() { same "$(sha256sum </tmp/big | cut -c1-64)" "$(server 'sha256sum <data/big' | cut -c1-64)"; }
check "the server's file has the same bytes" onserver
gone() { rm -rf /mnt/data/tree /mnt/data/big /mnt/data/odd; same "" "$(server 'ls -A data')"; }
check "all is removed" gone
check "unmount" umount /mnt/data
finish
