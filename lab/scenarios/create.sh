#!/bin/bash
# title: ten clients 200 ms away create in one directory
# runs: 4.1 4.2
# timeout: 500
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
import os, sys, time
where, who, begin, end = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
time.sleep(max(0, begin - time.time()))
n = 0
while time.time() < end:
    os.close(os.open("%s/%s-%d" % (where, who, n), os.O_CREAT | os.O_EXCL | os.O_WRONLY)); n += 1
print(n)
PY
# creators N DIR: N clients create in /mnt/cX/DIR at once; how many files in all.
creators() {
    local n begin end pids=()
    begin=$(($(date +%s) + 4)) end=$(($(date +%s) + 4 + seconds))
    for ((n = 1; n <= $1; n++)); do
        as c$n python3 /tmp/creator.py "/mnt/c$n/$2" c$n $begin $end >/tmp/made.$n & pids+=($!)
    done
    for n in "${pids[@]}"; do wait "$n" || return; done
    cat /tmp/made.* | awk '{n += $1} END {print n}'; rm /tmp/made.*
}
# there DIR: how many files the server has in it; a client may show what it had listed before.
there() {
    if [ "$HOST" = 10.99.0.1 ]; then server "find data/$1 -type f | wc -l"; else find "$SERVED/fs/data/$1" -type f | wc -l; fi
}
# rises WHO: creates by 1, 2, 5 and 10 clients; notes the rates, and leaves the last divided by the first in /tmp/rise.
rises() {
    local n made first='' text=''
    for n in 1 2 5 10; do
        mkdir "/mnt/c1/n$n"
        made=$(creators $n n$n)
        [ "$made" -gt 0 ]
        same "$made" "$(there n$n)" "files of $n clients"
        text="$text $n clients $(awk -v n="$made" -v s=$seconds 'BEGIN {printf "%.1f/s", n/s}'),"
        first=${first:-$made}
        awk -v a="$made" -v b="$first" 'BEGIN {printf "%.2f\n", a/b}' >/tmp/rise
    done
    echo "$1:$text 10 clients make $(cat /tmp/rise) times what one makes" >>/tmp/notes
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
check "creates by 1, 2, 5 and 10 clients" rises "$LAB_SERVER"
tell
check "ten clients create at least eight times as fast as one" eightfold
need "their links get short" near
need "unmount" unmounts

if [ "$LAB_SERVER" = dhow ]; then
    # The kernel's server, in the same guest, for the same clients.
    HOST=10.99.0.2 TOP=/srv/fs
    knfsd() { export LAB_SERVER=knfsd LAB_FS=ext4; server_disk && server_start; }
    need "knfsd starts" knfsd
    need "ten clients mount knfsd" remounts
    need "their links get long again" far
    check "creates by 1, 2, 5 and 10 clients of knfsd" rises knfsd
    tell
    near
    check "unmount knfsd" unmounts
fi
finish
