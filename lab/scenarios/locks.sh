#!/bin/bash
# title: fcntl and flock locks between two clients (case B42)
# runs: 4.1 4.2
# timeout: 500
. /share/scenario-lib.sh
begin

need "client a mounts" client a 3
need "client b mounts" client b 4
cat >/tmp/lock.py <<'PY'
# lock.py FILE COMMAND...: each prints one line when done.
#   lock|try|read KIND START LEN, unlock START LEN, get START LEN, sleep S, touch FILE, await FILE
import fcntl, os, struct, sys, time
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
args = iter(sys.argv[2:])
def flock(kind, start, n): return struct.pack("hhqqi4x", kind, 0, start, n, 0)
for word in args:
    if word in ("sleep", "touch", "await"):
        value = next(args)
        if word == "sleep": time.sleep(float(value))
        elif word == "touch": open(value, "w").close()
        else:
            end = time.monotonic() + float(os.environ["LAB_PATIENCE"])
            while not os.path.exists(value):
                if time.monotonic() > end: sys.exit("no " + value)
                time.sleep(0.05)
        continue
    start, n = int(next(args)), int(next(args))
    if word == "get":
        kind, _, s, l, _ = struct.unpack("hhqqi4x", fcntl.fcntl(f, fcntl.F_GETLK, flock(fcntl.F_WRLCK, start, n)))
        print({fcntl.F_UNLCK: "free", fcntl.F_RDLCK: "read %d %d" % (s, l), fcntl.F_WRLCK: "write %d %d" % (s, l)}[kind])
        continue
    kind = {"read": fcntl.F_RDLCK, "tryread": fcntl.F_RDLCK, "unlock": fcntl.F_UNLCK}.get(word, fcntl.F_WRLCK)
    how = fcntl.F_SETLK if word.startswith("try") else fcntl.F_SETLKW
    try: fcntl.fcntl(f, how, flock(kind, start, n)); print(word, "ok", flush=True)
    except OSError as e: print(word, "refused", flush=True)
PY
# hold CLIENT FILE COMMAND...: in the background until /tmp/release is there.
hold() {
    local c=$1 f=$2; shift 2
    rm -f /tmp/held /tmp/release
    as "$c" python3 /tmp/lock.py "/mnt/$c/$f" "$@" touch /tmp/held await /tmp/release & holder=$!
    soon exists /tmp/held
}
release() { touch /tmp/release; wait "$holder"; }
on() { local c=$1 f=$2; shift 2; as "$c" python3 /tmp/lock.py "/mnt/$c/$f" "$@"; }

conflict() {
    hold a one lock 0 0
    same "try refused" "$(on b one try 0 0)"
    same "tryread refused" "$(on b one tryread 5 1)"
    same "write 0 0" "$(on b one get 0 0)"
    release
    same "try ok" "$(on b one try 0 0)"
}
check "a write lock keeps others out until it is let go" conflict
shared() {
    hold a two read 0 100
    same "tryread ok" "$(on b two tryread 50 100)"
    same "try refused" "$(on b two try 99 1)"
    same "try ok" "$(on b two try 100 1)"
    same "read 0 100" "$(on b two get 10 1)"
    release
}
check "read locks share, write locks do not" shared
ranges() {
    hold a three lock 0 1000 unlock 400 200 lock 9223372036854775000 0
    same "write 0 400" "$(on b three get 0 1)"
    same "free" "$(on b three get 400 200)"
    same "write 600 400" "$(on b three get 500 200)"
    same "try refused" "$(on b three try 399 2)"
    same "try ok" "$(on b three try 400 200)"
    same "try refused" "$(on b three try 9223372036854775807 0)"
    release
}
check "unlocking the middle splits a lock" ranges
change() {
    hold a four read 0 10 lock 0 10 read 5 5
    same "tryread ok" "$(on b four tryread 5 5)"
    same "tryread refused" "$(on b four tryread 4 1)"
    release
}
check "upgrade and downgrade" change
waits() {
    hold a five lock 0 10
    as b python3 /tmp/lock.py /mnt/b/five lock 0 10 touch /tmp/b.has & waiter=$!
    sleep 2
    [ ! -e /tmp/b.has ] || { echo "b has the lock while a holds it"; return 1; }
    release
    wait $waiter; [ -e /tmp/b.has ]
}
check "a waiter gets the lock when it is let go" waits
killed() {
    hold a six lock 0 10
    pkill -KILL -f 'lock.py /mnt/a/six'
    wait "$holder" || true
    same "lock ok" "$(on b six lock 0 10)"
}
check "the lock of a killed process is let go" killed
closed() {  # POSIX: closing any descriptor of the file drops the process's locks
    rm -f /tmp/release /tmp/held
    as a python3 - <<'PY' &
import fcntl, os, time
f = os.open("/mnt/a/seven", os.O_RDWR | os.O_CREAT); fcntl.lockf(f, fcntl.LOCK_EX)
os.close(os.open("/mnt/a/seven", os.O_RDONLY)); open("/tmp/held", "w")
while not os.path.exists("/tmp/release"): time.sleep(0.05)
PY
    holder=$!
    soon exists /tmp/held
    same "try ok" "$(on b seven try 0 0)"
    release
}
check "closing any descriptor lets the locks go" closed
check "a counter under a lock loses no update" counted lockf 40 0
check "a counter under flock loses no update" counted flock 20 0
whole() {
    as a flock -n /mnt/a/eight sh -c 'touch /tmp/in; until [ -e /tmp/out ]; do sleep 0.1; done' & local pid=$!
    soon exists /tmp/in
    if as b flock -n /mnt/b/eight true; then touch /tmp/out; echo "b has it too"; return 1; fi
    touch /tmp/out; wait $pid; as b flock -n /mnt/b/eight true
}
check "flock between clients" whole
check "unmount" umount /mnt/a /mnt/b
finish
