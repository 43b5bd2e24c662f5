#!/bin/bash
# title: names: large directories, renames, files removed while open, errors
# runs: 4.1 4.2 4.2-xfs
# timeout: 500
# prepares: yes
if [ "${1:-}" = prepare ]; then
    mkdir data/many && cd data/many || exit
    seq -f 'entry-%05.0f-with-a-name-of-some-length' 10000 | xargs touch
    exit
fi
. /share/scenario-lib.sh
begin
m=/mnt/data
need "mount" mnt /data $m

many() { same 10000 "$(find $m/many -name 'entry-*' | sort -u | wc -l)"; same 10002 "$(ls -fa $m/many | wc -l)"; }
check "10,000 entries are listed, each once" many
long() { ls -l $m/many >/tmp/long; same 10001 "$(wc -l </tmp/long)"; }
check "and with their attributes" long
while_removing() {
    python3 - $m/many <<'PY'
import os, sys
top, seen = sys.argv[1], []
for e in os.scandir(top):
    seen.append(e.name)
    if len(seen) % 3 == 0: os.unlink(e.path)
assert len(seen) == len(set(seen)) == 10000, (len(seen), len(set(seen)))
assert len(os.listdir(top)) == 10000 - 10000 // 3
PY
}
check "listing while a third of them are removed" while_removing
emptied() { rm -rf $m/many; [ ! -e $m/many ]; same 0 "$(server 'ls data' | wc -l)"; }
check "rm -rf of the rest" emptied

renames() {
    mkdir $m/d1 $m/d2; echo a >$m/d1/f; i=$(stat -c %i $m/d1/f)
    mv $m/d1/f $m/d1/g; mv $m/d1/g $m/d2/h; same "$i" "$(stat -c %i $m/d2/h)" inode; same a "$(cat $m/d2/h)"
    echo b >$m/over; mv -f $m/d2/h $m/over; same a "$(cat $m/over)"
    mkdir $m/d1/sub; echo c >$m/d1/sub/x; mv $m/d1/sub $m/d2/moved; same c "$(cat $m/d2/moved/x)"
    same 2 "$(stat -c %h $m/d1)" links; same 3 "$(stat -c %h $m/d2)" links
    mkdir $m/e1 $m/e2; mv -T $m/e1 $m/e2; [ -d $m/e2 ] && [ ! -e $m/e1 ]
}
check "renames of files and folders, over others" renames
refused() {
    mkdir $m/full; touch $m/full/x $m/file
    py() { python3 -c "import os; $1"; }
    must_fail "not empty" rmdir $m/full
    mkdir $m/empty
    must_fail "not empty|File exists" mv -T $m/empty $m/full
    must_fail "Not a directory" py "os.rename('$m/empty', '$m/file')"
    must_fail "Is a directory" py "os.rename('$m/file', '$m/empty')"
    must_fail "Invalid argument" py "os.rename('$m/full', '$m/full/sub')"
    must_fail "Not a directory" py "os.open('$m/file/x', os.O_RDONLY)"
    must_fail "Is a directory" py "os.unlink('$m/full')"
    must_fail "Not a directory" rmdir $m/file
    must_fail "No such file" cat $m/absent
    must_fail "File exists" mkdir $m/full
    must_fail "File exists" ln $m/file $m/full/x
    must_fail "File name too long" touch "$m/$(printf 'n%.0s' {1..256})"
    must_fail "not permitted" py "os.link('$m/full', '$m/hard')"
    ln -s file $m/slink
    must_fail "Too many levels" py "os.open('$m/slink', os.O_RDONLY | os.O_NOFOLLOW)"
    same file "$(readlink $m/slink)"
}
check "what must be refused is, with the right error" refused
silly() {
    echo still here >$m/open
    exec 7<$m/open; exec 8>>$m/open
    rm $m/open
    [ ! -e $m/open ]; echo more >&8; drop
    same "still here more" "$(tr '\n' ' ' <&7 | sed 's/ $//')"
    exec 7<&- 8>&-
    tidy $m
}
check "a file removed while open lives until its close" silly
replaced() {
    echo first >$m/r; exec 7<$m/r; echo second >$m/r2; mv $m/r2 $m/r; drop
    same first "$(cat <&7)"; same second "$(cat $m/r)"; exec 7<&-
}
check "a file replaced while open lives until its close" replaced
gonedir() { mkdir $m/gone; ( cd $m/gone || exit; rmdir $m/gone; if ls . && touch x; then exit 1; fi ); [ ! -e $m/gone ]; }
check "nothing is made in a removed folder" gonedir
special() {
    mknod $m/null c 1 3; mknod $m/disk b 7 99; mkfifo $m/pipe
    python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('$m/sock')"
    again $m /data
    same "1,3" "$(stat -c %t,%T $m/null)"; same "7,63" "$(stat -c %t,%T $m/disk)"
    same fifo "$(stat -c %F $m/pipe)"; same socket "$(stat -c %F $m/sock)"
    echo x >$m/null
    (echo through >$m/pipe) & same through "$(cat $m/pipe)"
}
check "devices, a FIFO and a socket" special
links() {
    echo l >$m/l0; local n; for ((n = 1; n <= 50; n++)); do ln $m/l0 $m/l$n; done
    same 51 "$(stat -c %h $m/l0)"; rm $m/l0; echo changed >>$m/l1; drop; same 50 "$(stat -c %h $m/l50)"
    cmp $m/l1 $m/l50
}
check "fifty hard links" links
deep() { d=$m; for ((n = 0; n < 60; n++)); do d=$d/level$n; done; mkdir -p $d; echo deep >$d/f; again $m /data; same deep "$(cat $d/f)"; ( cd $d && cd ../../.. || exit; same "$m/$(printf '%s/' $(seq -f level%g 0 56) | sed 's:/$::')" "$(pwd -P)" ); }
check "sixty levels of folders" deep
bytes() { python3 - $m <<'PY'
import os, sys
top = os.fsencode(sys.argv[1])
names = [b"\xff\xfe", b"\x01\x02", "e\u0301".encode(), "\u00e9".encode(), b"tab\there", b"back\\slash", b"*?[", b" "]
made = []
for n in names:
    try: os.close(os.open(top + b"/" + n, os.O_CREAT | os.O_EXCL)); made.append(n)
    except OSError as e: print(n, e)     # a server may want UTF-8 (RFC 8881, 14.4)
listed = os.listdir(top)
for n in made: assert n in listed, n; os.unlink(top + b"/" + n)
assert len(made) >= 7, made
PY
}
check "names are kept byte by byte" bytes
check "unmount" umount $m
finish
