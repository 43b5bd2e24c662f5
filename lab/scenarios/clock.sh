#!/bin/bash
# title: the wall clock of the server and its clients steps by a day and by years: locks and opens are kept, leases end
# runs: 4.1 4.2-ext4
# timeout: 500
# serves: no
# lease: 20
# idle: yes
#
# The server is in the guest, whose clock is the server's and the clients'; this machine's is not touched. Leases and
# grace are times that pass (RFC 8881 section 8.3), not times of day.
[ "$LAB_SERVER" = knfsd ] || export LAB_SERVER=inside
. /share/scenario-lib.sh
begin
need "client a mounts" client a 3
need "client b mounts" client b 4
cat >/tmp/hold.py <<'PY'
# hold.py FILE OTHER: holds a write lock on FILE and has OTHER open; each number in /tmp/write is written to both once.
import fcntl, os, sys, time
f, g = [os.open(p, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644) for p in sys.argv[1:3]]
fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
open("/tmp/held", "w").close()
done, end = "", time.monotonic() + float(os.environ["LAB_PATIENCE"])
while done != "end" and time.monotonic() < end:
    time.sleep(0.1)
    try: word = open("/tmp/write").read().strip()
    except FileNotFoundError: continue
    if word and word != done:
        for x in (f, g): os.write(x, (word + "\n").encode()); os.fsync(x)
        done = word; open("/tmp/wrote." + word, "w").close()
PY
cat >/tmp/try.py <<'PY'
import fcntl, os, sys
f = os.open(sys.argv[1], os.O_RDWR)
try: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print("ok")
except OSError: print("refused")
PY
try() { as b python3 /tmp/try.py /mnt/b/locked; }
hold() { rm -f /tmp/held; as a python3 /tmp/hold.py /mnt/a/locked /mnt/a/open & holder=$!; soon exists /tmp/held; }
written='' words=0
# kept: a still has what it had: it writes to both files, and b gets no lock, for longer than a lease.
kept() {
    local n
    for n in 1 2 3; do
        words=$((words + 1)) written="$written$words "
        echo $words >/tmp/write.new; mv /tmp/write.new /tmp/write
        soon exists /tmp/wrote.$words
        same refused "$(try)" "b's try"
        [ $n = 3 ] || sleep 11
    done
    same "$written" "$(as b cat /mnt/b/locked | tr '\n' ' ')" "written under the lock"
    same "$written" "$(as b cat /mnt/b/open | tr '\n' ' ')" "written to the open file"
}
# Functions of `check` run in a shell of their own; what a holds must outlive them.
hold
step() { echo "from $(date -u +%F)"; date -us "$1" +%F; }
onward() { step "+1 day"; kept; }
back() { step "-11 years"; kept; }
check "a day onward" onward
written="1 2 3 " words=3
check "11 years back" back
written="1 2 3 4 5 6 " words=6
# The clock steps while the server is away: what it kept on disk is of the future, then of the past.
away() { server 'server_stop KILL'; step "$1"; server server_start; kept; }
check "the server is killed and comes back 5 years earlier" away "-5 years"
written="1 2 3 4 5 6 7 8 9 " words=9
check "the server is killed and comes back 20 years later" away "+20 years"
times() { as b touch /mnt/b/touched; at_least $(($(date +%s) - 600)) "$(as a stat -c %Y /mnt/a/touched)" "time of a file"; }
check "files get the time of the new clock" times
# A lease ends all the same when its client is gone, though the clock steps back.
gone() {
    ip link set va down
    step "-3 years"
    local end=$((SECONDS + 200))
    until [ "$(try)" = ok ]; do
        [ "$SECONDS" -lt "$end" ] || { echo "the lock of a client that is gone is not let go"; return 1; }
        sleep 1
    done
    ip link set va up
}
check "the lease of a client that is gone ends" gone
echo end >/tmp/write
wait $holder
check "client b unmounts" umount /mnt/b
check "client a unmounts" umount /mnt/a
finish
