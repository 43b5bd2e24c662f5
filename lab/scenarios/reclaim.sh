#!/bin/bash
# title: the server is killed and started again: opens and locks are still their holder's (case B31)
# runs: 4.1-dir 4.2-dir
# timeout: 500
# lease: 20
# idle: yes
. /share/scenario-lib.sh
begin

need "client a mounts" client a 3
need "client b mounts" client b 4
cat >/tmp/lock.py <<'PY'
# lock.py FILE hold|try: takes a write lock on the whole file; "hold" keeps it until /tmp/release is there, and writes.
import fcntl, os, sys, time
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
try: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError: print("refused"); sys.exit()
if sys.argv[2] == "hold":
    open("/tmp/held", "w").close()
    end = time.monotonic() + float(os.environ["LAB_PATIENCE"])
    while not os.path.exists("/tmp/release") and time.monotonic() < end: time.sleep(0.05)
    os.write(f, b"written under the lock\n"); os.fsync(f)
print("ok")
PY
held_over() {
    rm -f /tmp/held /tmp/release
    as a python3 /tmp/lock.py /mnt/a/one hold >/tmp/holder & local holder=$!
    soon exists /tmp/held
    same "refused" "$(as b python3 /tmp/lock.py /mnt/b/one try)" || return
    restart
    # Answered once the grace period is over: a reclaims first. By itself it would when it next renews its lease, 14 s after
    # its last request, which on a loaded machine is near the 20 s of grace; who does not come in time has lost its lock.
    as a ls /mnt/a >/dev/null &
    same "refused" "$(as b python3 /tmp/lock.py /mnt/b/one try)" "b's try after the restart" || return
    touch /tmp/release; wait $holder
    same "ok" "$(cat /tmp/holder)" "the holder's write" || return
    same "ok" "$(as b python3 /tmp/lock.py /mnt/b/one try)" "b's try after the release" || return
    same "written under the lock" "$(tail -1 /mnt/b/one)"
}
check "a lock is its holder's after the server was killed" held_over
open_over() {
    exec 8>>/mnt/a/two; echo before >&8
    restart
    echo after >&8; exec 8>&-
    same "before after" "$(as b cat /mnt/b/two | tr '\n' ' ' | sed 's/ $//')"
}
check "an open file can be written to after a restart" open_over
check "a counter under fcntl locks loses nothing while the server is killed and ended" shaken "$(amount 2 8)" counted lockf "$(amount 30 200)" 0.05
check "a counter under flock loses nothing while the server is killed and ended" shaken "$(amount 2 8)" counted flock "$(amount 30 200)" 0.05
check "client a unmounts" umount /mnt/a
check "client b unmounts" umount /mnt/b
fresh() { restart TERM; mkdir -p /mnt/c; mnt /data /mnt/c && touch /mnt/c/three && umount /mnt/c; }
check "nobody is waited for when all have unmounted" fresh
finish
