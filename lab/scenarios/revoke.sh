#!/bin/bash
# title: an administrator takes state away from Linux clients: programs hear EIO, others go on, the mounts work (RFC 8881 8.5)
# runs: 4.1-dir 4.2-dir
# timeout: 500
# lease: 20
# idle: yes
. /share/scenario-lib.sh
begin
if [ "$LAB_SERVER" = knfsd ]; then skip "revoke" "these are orders of dhow"; finish; fi
a=/mnt/a b=/mnt/b
need "the server gives delegations" server 'DATA_OPTIONS=,delegations=all,local_writers=no; server_stop TERM; server_start'
need "client a mounts" client a 3 actimeo=1
need "client b mounts" client b 4 actimeo=1

# shellcheck disable=SC2016  # it is expanded where the server is
admin() { server '"$DHOW" admin '"$*"' --state-dir "$SERVED/state"'; }
# of CLIENT KEY: what the server says of the client at that address.
of() {
    local n=3; [ "$1" = a ] || n=4
    admin clients --json | python3 -c '
import json, sys
for c in json.load(sys.stdin)["clients"]:
    if any("10.99.0." + sys.argv[1] + ":" in p + ":" for p in c["addresses"]): print(c[sys.argv[2]])' "$n" "$2"
}
# A client learns by its next request what was taken (RFC 8881 18.46.3), tests what it has (18.48) and frees it (18.38).
freed() { as "$1" stat -f "/mnt/$1" >/dev/null; [ "$(of "$1" revoked)" = 0 ]; }
works() {   # CLIENT: what a mount is for
    local dir=/mnt/$1/works.$1
    as "$1" sh -c "mkdir -p $dir && echo new >$dir/f && cat $dir/f && flock $dir/f echo locked && rm -r $dir"
}
after() { soon freed a; soon freed b; same "new locked" "$(works a | xargs)"; same "new locked" "$(works b | xargs)"; }

cat >/tmp/hold.py <<'PY'
# hold.py FILE: locks it, says so in /tmp/held, and once /tmp/release is there reads and writes: says how each went.
import fcntl, os, sys, time
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
fcntl.lockf(f, fcntl.LOCK_EX)
os.pwrite(f, b"before", 0); os.fsync(f)
open("/tmp/held", "w").close()
end = time.monotonic() + float(os.environ["LAB_PATIENCE"])
while not os.path.exists("/tmp/release") and time.monotonic() < end: time.sleep(0.05)
def write(): os.pwrite(f, b"silent", 0); os.fsync(f)
def read(): os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED); os.pread(f, 6, 0)
for what in read, write:
    try: what(); print(what.__name__, "went on")
    except OSError as e: print(what.__name__, e.strerror)
PY
hold() { rm -f /tmp/held /tmp/release; as a python3 /tmp/hold.py "$a/$1" >/tmp/told & holder=$!; soon exists /tmp/held; }
# told: the program with the lock goes on, and hears that it has none; what it wrote without one is not there.
told() { touch /tmp/release; wait "$holder"; same "read Input/output error write Input/output error" "$(xargs </tmp/told)" "what the program heard"; }
locks() { same locked "$(as b flock -n "$b/$1" echo locked)"; as b sh -c "echo -n others >$b/$1"; }
# lost FILE ORDER...: a program of a's loses its lock by an order; b has it at once.
lost() {
    local file=$1; shift
    "$@"
    soon locks "$file"
    told
    same others "$(as b cat "$b/$file")"; same others "$(as a cat "$a/$file")"
    after
}

# While b has it open, a gets no delegation and its lock is the server's affair.
shared() {
    as b sh -c "echo >$b/one"; exec 8<"$b/one"
    hold one
    must_fail "" as b flock -n $b/one true
    at_least 1 "$(of a locks)" "locks of client a"
    exec 8<&-
    lost one admin revoke --file /data/one
}
check "an open and its lock are revoked: the program hears EIO, another client has the lock" shared
# Alone with it, a has a write delegation, and locks without asking.
alone() {
    local n
    # None is given for a while after others wanted the file, so each try is with a file of its own.
    for ((n = 0; n < 100; n++)); do
        hold "two$n"
        [ "$(of a delegations)" = 0 ] || break
        touch /tmp/release; wait "$holder"; sleep 1
    done
    at_least 1 "$(of a delegations)" "delegations of client a"
    lost "two$n" admin revoke --file "/data/two$n"
}
check "a write delegation is revoked under a lock" alone
# opens COMMAND...: how many OPENs it costs client a.
opened() { local n; n=$(sent $a OPEN); echo $((n + $(sent $a OPEN_NOATTR))); }
opens() { local n; n=$(opened); "$@" >/dev/null; echo $(($(opened) - n)); }
reader() {
    local n
    server 'echo one >data/three'
    as a cat $a/three >/dev/null
    for ((n = 0; n < 100; n++)); do [ "$(opens as a cat $a/three)" != 0 ] || break; sleep 1; done
    at_least 1 "$(of a delegations)" "delegations of client a"
    admin revoke --file /data/three
    same 0 "$(of a delegations)" "delegations of client a"
    as b sh -c "echo two >$b/three"
    soon freed a
    same two "$(as a cat $a/three)"
    after
}
check "a delegation is revoked that no open goes with" reader
whole() {
    local id
    server 'echo one >data/five'; as a cat $a/five >/dev/null
    hold four
    id=$(of a client)
    lost four admin expire "$id"
    [ "$(of a client)" != "$id" ] || { echo "it is the same client still"; return 1; }
    as b sh -c "echo two >$b/five"; same two "$(as a cat $a/five)"
}
check "a client is ended: its program hears EIO, it comes back as another" whole
check "unmount" umount $a $b
finish
