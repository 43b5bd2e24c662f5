#!/bin/bash
# title: ten clients 200 ms away create in one directory
# runs: 4.1 4.2
# timeout: 900
# idle: yes
# mem: 2G
. /share/scenario-lib.sh
begin
clients=10 seconds=15 rtt=200

# Each client has a link of its own: half of the round trip on the way there, half on the way back.
far() {
    local n
    for ((n = 1; n <= clients; n++)); do
        as c$n tc qdisc add dev eth0 root netem delay $((rtt / 2))ms limit 20000
        tc qdisc add dev vc$n root netem delay $((rtt / 2))ms limit 20000
    done
}
near() {
    local n
    for ((n = 1; n <= clients; n++)); do as c$n tc qdisc del dev eth0 root; tc qdisc del dev vc$n root; done
}
round_trip() { # as ping sees it, in whole ms
    local got; got=$(as c1 ping -c 3 -i 0.3 -q "$HOST" | awk -F/ '/^rtt/ {printf "%d", $5}'); echo "round trip $got ms"
    at_least $rtt "$got" "ms of round trip"
}
cat >/tmp/creator.py <<'PY'
# creator.py DIR WHO SECONDS: says that it is there, waits for the others, then creates.
import os, sys, time
where, who, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
open("/tmp/there." + who, "w").close()
while not os.path.exists("/tmp/go"): time.sleep(0.02)
n, end = 0, time.monotonic() + seconds
while time.monotonic() < end:
    os.close(os.open("%s/%s-%d" % (where, who, n), os.O_CREAT | os.O_EXCL | os.O_WRONLY)); n += 1
print(n)
PY
# creators N DIR: N clients create in /mnt/cX/DIR at once; how many files in all.
all_there() { [ "$(find /tmp -maxdepth 1 -name 'there.*' | wc -l)" = "$1" ]; }
creators() {
    local n pids=()
    rm -f /tmp/go /tmp/there.* /tmp/made.*
    for ((n = 1; n <= $1; n++)); do
        as c$n python3 /tmp/creator.py "/mnt/c$n/$2" c$n $seconds >/tmp/made.$n & pids+=($!)
    done
    soon all_there "$1" || return
    touch /tmp/go
    for n in "${pids[@]}"; do wait "$n" || return; done
    cat /tmp/made.* | awk '{n += $1} END {print n}'
}
# there DIR: how many files the server has in it; a client may show what it had listed before.
there() {
    if [ "$HOST" = 10.99.0.1 ]; then server "find data/$1 -type f | wc -l"; else find "$SERVED/fs/data/$1" -type f | wc -l; fi
}
# rises WHO N...: creates by so many clients, the last ten; notes the rates, and leaves the last divided by the first in /tmp/rise.
rises() {
    local n made first='' text='' who=$1; shift
    for n in "$@"; do
        mkdir "/mnt/c1/n$n"
        made=$(creators $n n$n)
        [ "$made" -gt 0 ]
        same "$made" "$(there n$n)" "files of $n clients"
        text="$text $n clients $(awk -v n="$made" -v s=$seconds 'BEGIN {printf "%.1f/s", n/s}'),"
        first=${first:-$made}
        awk -v a="$made" -v b="$first" 'BEGIN {printf "%.2f\n", a/b}' >/tmp/rise
    done
    echo "$who:$text 10 clients make $(cat /tmp/rise) times what one makes" >>/tmp/notes
}
eightfold() { awk -v r="$(cat /tmp/rise)" 'BEGIN {if (r < 8) {print "only " r " times"; exit 1}}'; }
tell() { while read -r line; do note "$line"; done </tmp/notes; : >/tmp/notes; }
mounts() { local n; for ((n = 1; n <= clients; n++)); do client c$n $((n + 2)); done; }
remounts() {
    local n
    for ((n = 1; n <= clients; n++)); do
        as c$n mount -t nfs -o "vers=$LAB_VERS,proto=tcp,port=2049" "$HOST:${TOP}/data" "/mnt/c$n"
    done
}
unmounts() { local n; for ((n = 1; n <= clients; n++)); do umount "/mnt/c$n"; done; }

need "ten clients mount" mounts
need "their links get long" far
check "the round trip is what it should be" round_trip
# In the gate, one version goes by all the steps and beside knfsd.
steps="1 2 5 10"
[ "$LAB_VERS" = 4.2 ] || steps=$(amount "1 10" "$steps")
# shellcheck disable=SC2086
check "creates by ${steps// /, } clients" rises "$LAB_SERVER" $steps
tell
check "ten clients create at least eight times as fast as one" eightfold
need "their links get short" near
need "unmount" unmounts

if [ "$LAB_SERVER" = dhow ] && [ "$LAB_VERS${LAB_LONG:-}" != 4.1 ]; then
    # The kernel's server, in the same guest, for the same clients.
    HOST=10.99.0.2 TOP=/srv/fs
    knfsd() { export LAB_SERVER=knfsd LAB_FS=ext4; server_disk && server_start; }
    need "knfsd starts" knfsd
    need "ten clients mount knfsd" remounts
    need "their links get long again" far
    steps=$(amount "1 10" "$steps")
    # shellcheck disable=SC2086
    check "creates by ${steps// /, } clients of knfsd" rises knfsd $steps
    tell
    near
    check "unmount knfsd" unmounts
fi
finish
