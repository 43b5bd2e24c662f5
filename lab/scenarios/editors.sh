#!/bin/bash
# title: how editors save: rename over, backup by rename or link, exclusive create, open files that are removed
# runs: 4.1-dir 4.2-dir
# timeout: 500
# lease: 20
. /share/scenario-lib.sh
begin
need "client a mounts" client a 3
need "client b mounts" client b 4
a=/mnt/a b=/mnt/b

vim() {     # vim.tiny itself, each of its ways to save
    local how n=0
    for how in "backup backupcopy=yes" "backup backupcopy=no" "nobackup writebackup backupcopy=no" "nobackup nowritebackup" "nobackup writebackup backupcopy=auto fsync"; do
        n=$((n + 1))
        seq 1 300 >$a/doc$n; chmod 640 $a/doc$n; ln $a/doc$n $a/doc$n.hard
        # shellcheck disable=SC2086
        as a vim.tiny -u NONE -N -es -c "set $how directory=. swapfile" -c '%s/^7$/seven/' -c wq $a/doc$n
        seq 1 300 | sed 's/^7$/seven/' | cmp - $b/doc$n
        same 640 "$(stat -c %a $b/doc$n)" mode
    done
    same "" "$(find $a -name '.*.sw?')" "swap files"
    seq 1 300 | cmp - $b/doc1~; seq 1 300 | cmp - $b/doc2~
    seq 1 300 | cmp - $b/doc2.hard      # the backup is the old file: its other name keeps the old text
    sed 's/^7$/seven/' $b/doc1.hard | cmp - $b/doc1.hard
}
check "vim saves in five ways" vim
# (The other one may go on opening the old file by what it has cached of the folder, for half a minute.)
changed() { seq 1 100 | sed 's/^50$/fifty/' | cmp - "$1/s"; }
sed_i() { seq 1 100 >$a/s; as b sed -i.orig 's/^50$/fifty/' $b/s; changed $b; soon changed $a; seq 1 100 | cmp - $a/s.orig; }
check "sed -i with a backup, by the other client" sed_i

cat >/tmp/saves.py <<'PY'
# saves.py DIR: the steps of other editors, one after the other, with what must hold.
import errno, os, stat, sys, time
top = sys.argv[1]; os.chdir(top)
def put(name, text, flags=os.O_CREAT | os.O_WRONLY | os.O_TRUNC, sync=True):
    f = os.open(name, flags, 0o644); os.write(f, text)
    if sync: os.fsync(f)
    os.close(f)
def get(name):
    with open(name, "rb") as f: return f.read()
def silly(wanted=0):     # (the last close does not wait for the removal)
    for _ in range(600):
        names = [n for n in os.listdir(".") if n.startswith(".nfs")]
        if len(names) == wanted: break
        time.sleep(0.1)
    return names
# Rename over: who has the old file open goes on reading it, and can write to it.
put("r", b"old\n"); old = os.open("r", os.O_RDWR); ino = os.stat("r").st_ino
put("r.tmp", b"new\n"); os.rename("r.tmp", "r")
assert get("r") == b"new\n" and os.pread(old, 10, 0) == b"old\n" and os.stat("r").st_ino != ino
os.pwrite(old, b"OLD", 0); os.fsync(old); assert os.pread(old, 10, 0) == b"OLD\n" and get("r") == b"new\n"
os.close(old); assert silly() == [], silly()
# Backup by a hard link, then rename over: the backup is the old file.
put("l", b"one"); os.link("l", "l~"); put("l.new", b"two"); os.rename("l.new", "l")
assert (get("l"), get("l~"), os.stat("l~").st_nlink) == (b"two", b"one", 1)
# Backup by a rename, and a new file by exclusive create with the old one's mode.
put("m", b"one"); os.chmod("m", 0o604); os.rename("m", "m~"); put("m", b"two", os.O_CREAT | os.O_EXCL | os.O_WRONLY); os.chmod("m", 0o604)
assert (get("m"), get("m~"), stat.S_IMODE(os.stat("m").st_mode)) == (b"two", b"one", 0o604)
try: put("m", b"three", os.O_CREAT | os.O_EXCL | os.O_WRONLY); sys.exit("exclusive create of what exists")
except FileExistsError: pass
# Lock files: by exclusive create, by a link of two names, by a symbolic link that says who.
put("x.lock", b"", os.O_CREAT | os.O_EXCL | os.O_WRONLY); os.unlink("x.lock")
put("unique.123", b""); os.link("unique.123", "mbox.lock"); assert os.stat("unique.123").st_nlink == 2
try: os.link("unique.123", "mbox.lock"); sys.exit("link over what exists")
except FileExistsError: pass
os.unlink("mbox.lock"); assert os.stat("unique.123").st_nlink == 1
os.symlink("me@host.4711:1", ".#x"); assert os.readlink(".#x") == "me@host.4711:1"
try: os.symlink("you@host.1:1", ".#x"); sys.exit("symlink over what exists")
except FileExistsError: pass
os.unlink(".#x")
# Written in place: truncated, shorter, appended to.
put("p", b"0123456789"); put("p", b"abc"); assert get("p") == b"abc"
put("p", b"def", os.O_WRONLY | os.O_APPEND); assert get("p") == b"abcdef"
# Removed while open: it is read, written, grown, cut, mapped; gone once closed.
import mmap
f = os.open("u", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600); os.write(f, b"x" * 9000); os.unlink("u")
assert not os.path.exists("u") and len(silly(1)) == 1
os.pwrite(f, b"end", 20000); os.fsync(f); assert os.fstat(f).st_size == 20003 and os.pread(f, 3, 20000) == b"end"
os.ftruncate(f, 5000); os.fchmod(f, 0o644)
with mmap.mmap(f, 5000) as p: assert p[4999:5000] == b"x"; p[0:1] = b"y"; p.flush()
put("u", b"another"); assert os.pread(f, 1, 0) == b"y" and get("u") == b"another"
os.close(f); assert silly() == [], silly()
# A folder that holds such a file cannot go before it is closed.
os.mkdir("d"); f = os.open("d/f", os.O_RDWR | os.O_CREAT); os.unlink("d/f")
try: os.rmdir("d"); sys.exit("rmdir of a folder with a silly name")
except OSError as e: assert e.errno in (errno.ENOTEMPTY, errno.EBUSY), e
os.close(f); os.rmdir("d")
# Renamed over while open for writing, without fsync before; O_TMPFILE is not there and says so.
g = os.open("v", os.O_WRONLY | os.O_CREAT); os.write(g, b"unsynced"); put("v.new", b"v"); os.rename("v.new", "v"); os.close(g)
assert get("v") == b"v" and silly() == [], silly()
try: os.close(os.open(".", os.O_TMPFILE | os.O_RDWR)); sys.exit("O_TMPFILE")
except OSError as e: assert e.errno in (errno.EOPNOTSUPP, errno.EISDIR), e
for n in os.listdir("."): os.unlink(n)
PY
steps() { mkdir "$2"; as "$1" python3 /tmp/saves.py "$2"; rmdir "$2"; }
check "the steps of other editors" steps a $a/steps

cat >/tmp/saver.py <<'PY'
# saver.py FILE N: saves N versions, each in one of four ways; a version says what it is and how long.
import os, random, sys, time
name, n, r = sys.argv[1], int(sys.argv[2]), random.Random(5)
def text(i): body = ("%d\n" % i).encode() * r.randrange(1, 3000); return b"%d %d\n" % (i, len(body)) + body
# While the server is killed: what was done already when it was asked again is there, as it should be.
def step(done, call, *names):
    try: call(*names)
    except (FileNotFoundError, FileExistsError) as e:
        if not os.path.exists("/tmp/shakes") or not done(): raise
        print(call.__name__, names, "asked again:", e)
for i in range(n):
    way = i % 3; tmp = name + ".new%d" % i
    f = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    data = memoryview(text(i))
    while data: data = data[os.write(f, data):]
    os.fsync(f)
    ino = os.fstat(f).st_ino
    os.close(f)
    if way == 1:
        if os.path.exists(name + "~"): step(lambda: not os.path.lexists(name + "~"), os.unlink, name + "~")
        if os.path.exists(name): step(lambda: os.path.samefile(name, name + "~"), os.link, name, name + "~")
    old = os.open(name, os.O_RDONLY) if way == 2 and os.path.exists(name) else None
    step(lambda: os.stat(name).st_ino == ino and not os.path.lexists(tmp), os.rename, tmp, name)
    if old is not None:
        first = os.read(old, 100).split()[0]; assert first == b"%d" % (i - 1), (first, i)
        os.close(old)
open("/tmp/saved", "w").close()
PY
cat >/tmp/reader.py <<'PY'
# reader.py FILE: until the saver is done: every version read is whole, and none is older than the one before.
import errno, os, sys, time
name, last, seen, stale, end = sys.argv[1], -1, 0, 0, time.monotonic() + float(os.environ["LAB_PATIENCE"])
while True:
    over = os.path.exists("/tmp/saved")
    try:
        with open(name, "rb") as f: data = f.read()
    except OSError as e:
        # Replaced by the other client between open and read: its file is gone. Or absent for a moment: over a file that it
        # has open, Linux renames in two steps, of which the first gives that one a silly name.
        if e.errno not in (errno.ESTALE, errno.ENOENT): raise
        stale += 1; data = None
    if data is not None:
        head, body = data.split(b"\n", 1); i, n = map(int, head.split())
        assert len(body) == n and body == b"%d\n" % i * (n // len(b"%d\n" % i)), ("torn", i, n, len(body))
        assert i >= last, (i, last); last = i; seen += 1
    if over and data is not None: break
    if time.monotonic() > end: sys.exit("the saver is not done")
print("read", seen, "times,", stale, "stale, the last is", last)
PY
saves() {
    local reader; rm -f /tmp/saved; printf '0 2\n0\n' >$a/file
    as b python3 /tmp/reader.py $b/file & reader=$!
    as a python3 /tmp/saver.py $a/file "$1"
    wait $reader
    redo rm -f $a/file $a/file~; tidy $a; same "" "$(find $a -name 'file*')"
}
check "a reader on the other client sees whole versions in order" saves "$(amount 100 600)"
check "the same while the server is killed and ended" shaken "$(amount 2 8)" saves "$(amount 300 2000)"
held() {        # a file removed while open stays usable over restarts, and is gone in the end
    exec 9<>$a/held; echo first >&9; rm $a/held
    restart KILL; echo second >&9; restart TERM
    same "first second" "$(tr '\n' ' ' </proc/self/fd/9 | sed 's/ $//')"
    exec 9>&-; tidy $a
}
check "a removed open file outlives restarts" held
check "client a unmounts" umount $a
check "client b unmounts" umount $b
finish
