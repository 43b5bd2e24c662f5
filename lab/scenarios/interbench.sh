#!/bin/bash
# title: copies between servers over slow links: Linux cp, copy_file_range, dhow cp
# runs: 4.2
# timeout: 600
# mem: 3G
# serves: no
# client: yes
#
# Two dhow servers, a client, each behind a link of its own (token buckets in both directions, and half of the round trip
# behind each of them on the way to a host). For each size in turns:
#   cp    `cp` between two mounts, of version 4.1, since with 4.2 the kernel would have the servers copy; close included
#   cfr   copy_file_range(2), fsync and close between two mounts of version 4.2
#   dhow  `dhow cp --method inter`, with all that a process costs: its start is slow in this guest, and it has no mount
#   own   the same copies by its own clock, from the first OPEN to the last CLOSE
# The first copy of each kind is not counted: mounts, connections between the servers. "gain": time saved against cp, as
# part of cp's time. Figures are judged in the long run alone; a gate runs beside other work.
export LAB_SERVER=none
. /share/scenario-lib.sh
long=''
# Rates: what a guest's two processors carry, all links busy, with the servers in it.
near="50 0" far="100 40"        # rate in Mbit/s, round trip in ms
sizes="4" runs=3 large=16
if [ -n "$LAB_LONG" ]; then long=yes sizes="4 8 16 32 64 128" runs=3 large=''; fi

# The hosts are joined by a router: a qdisc that delays what a local sender owns would have TCP's small queues hold it up.
hosts() {
    local n=1 ns
    sysctl -qw net.ipv4.ip_forward=1
    for ns in a b c; do
        ip netns add $ns
        ip link add v$ns type veth peer name eth0 netns $ns
        ip addr add 10.98.$n.254/24 dev v$ns; ip link set v$ns up
        ip -n $ns addr add 10.98.$n.1/24 dev eth0; ip -n $ns link set eth0 up; ip -n $ns link set lo up
        ip -n $ns route add default via 10.98.$n.254
        n=$((n + 1))
    done
}
need "network" hosts

# speed RATE RTT: of all links.
speed() {
    local ns
    for ns in a b c; do
        tc qdisc del dev v$ns root 2>/dev/null || true
        tc -n $ns qdisc replace dev eth0 root tbf rate "$1"mbit burst 128kb latency 100ms
        tc qdisc add dev v$ns root handle 1: tbf rate "$1"mbit burst 128kb latency 100ms
        [ "$2" = 0 ] || tc qdisc add dev v$ns parent 1: netem delay $((500 * $2))us limit 10000
    done
}
# carried RATE: all links busy, both directions: what they carry of their rate, in per cent, once TCP has found it.
carried() {
    local ns n=1 first=1 time=2
    [ -z "$long" ] || first=5 time=8
    for ns in a b c; do nsenter --net=/run/netns/$ns iperf3 -s -D -1 -p 5201; done
    sleep 0.5
    # a to b, b to c, c to a.
    for ns in a b c; do
        nsenter --net=/run/netns/$ns iperf3 -c 10.98.$((n % 3 + 1)).1 -p 5201 -P 4 -O $first -t $time -f m >/tmp/iperf.$ns &
        n=$((n + 1))
    done
    wait
    # Of data: headers of TCP, IP and Ethernet are 4.4 % of a frame.
    awk -v rate="$1" '/SUM.*receiver/ { for (i = 1; i <= NF; i++) if ($i == "Mbits/sec") { x = $(i-1) * 1514 / 1448 / rate * 100
        if (!n++ || x < least) least = x } } END { printf "%.0f\n", least }' /tmp/iperf.*
}
links() {
    speed "$@"
    carried "$1" >/tmp/carried
    cat /tmp/iperf.*
    # On a busy machine they do not, which says nothing of the copies; then the figures count for nothing.
    at_least "$(if [ -n "$long" ]; then echo 95; else echo 1; fi)" "$(cat /tmp/carried)" "per cent of the rate"
}

files() {
    mount -t tmpfs -o size=2g tmpfs /export 2>/dev/null || { mkdir -p /export; mount -t tmpfs -o size=2g tmpfs /export; }
    mkdir -p /export/a /export/b
    local mb
    # Sizes of the published tables: decimal.
    for mb in 1 $sizes $large; do head -c ${mb}000000 /dev/urandom >/export/a/f$mb; done
}
need "files" files
# Of a file that the guest has to fetch from outside each time, the start would count.
dhow=/export/dhow
need "program" cp /share/dhow $dhow

need "dhow a" dhow_within a
need "dhow b" dhow_within b

c() { nsenter --net=/run/netns/c unshare --uts sh -c 'echo client-c >/proc/sys/kernel/hostname; exec "$@"' sh "$@"; }
mounts() {
    mkdir -p /mnt/{a,b}{1,2}
    local v
    for v in 1 2; do
        # One client for both versions would share what is cached.
        c mount -t nfs -o vers=4.$v,proto=tcp,nosharecache 10.98.1.1:/data /mnt/a$v
        c mount -t nfs -o vers=4.$v,proto=tcp,nosharecache 10.98.2.1:/data /mnt/b$v
    done
}
need "mounts" mounts

# once KIND MB: one copy; "MB KIND SECONDS" on standard output. What was copied must be right.
cat >/tmp/once.py <<'PY'
import json, os, subprocess, sys, time
kind, mb, dhow = sys.argv[1], sys.argv[2], sys.argv[3]
name = "f" + mb
t = time.perf_counter()
if kind == "cp":
    subprocess.run(["cp", "/mnt/a1/" + name, "/mnt/b1/y"], check=True)
elif kind == "dhow":
    done = subprocess.run([dhow, "cp", "--json", "--method", "inter", "nfs://10.98.1.1/data/" + name,
                           "nfs://10.98.2.1/data/y"], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
else:
    s = os.open("/mnt/a2/" + name, os.O_RDONLY)
    d = os.open("/mnt/b2/y", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    left = os.fstat(s).st_size
    while left:
        n = os.copy_file_range(s, d, left)
        if n == 0: sys.exit("copy_file_range returned 0 early")
        left -= n
    os.fsync(d); os.close(d); os.close(s)
print(mb, kind, "%.4f" % (time.perf_counter() - t))
if kind == "dhow":
    report = json.loads(done.stdout)
    print(mb, "own", "%.4f" % report["seconds"])
    assert not {"READ", "READ_PLUS", "WRITE"} & set(report["ops"]), report
PY
once() {
    rm -f /export/b/y; drop
    c python3 /tmp/once.py "$1" "$2" $dhow && cmp /export/a/f"$2" /export/b/y >&2
}
# size MB RUNS: copies in turns, into the table.
size() {
    local n kind
    for ((n = 0; n < $2; n++)); do
        for kind in cp cfr dhow; do
            once $kind "$1" >>/tmp/table || return
        done
    done
}
calls() {
    local r w; r=$(sent /mnt/a2 READ) w=$(sent /mnt/b2 WRITE)
    size "$1" "$2"
    same "$r" "$(sent /mnt/a2 READ)" "READs of copy_file_range"
    same "$w" "$(sent /mnt/b2 WRITE)" "WRITEs of copy_file_range"
    at_least 1 "$(sent /mnt/b2 COPY)" COPY
}
# Mean, deviation of the sample, gain; and whether the targets are met (at 4 MB 30 %, from 128 MB 50 %).
report() {
    awk '
    { k = $1 " " $2; n[k]++; s[k] += $3; q[k] += $3 * $3; if (!seen[$1]++) order[++sizes] = $1 }
    END { for (i = 1; i <= sizes; i++) { mb = order[i]; base = s[mb " cp"] / n[mb " cp"]
        split("cp cfr dhow own", kinds, " ")
        for (j = 1; j <= 4; j++) { k = mb " " kinds[j]; m = s[k] / n[k]
            d = n[k] > 1 ? sqrt((q[k] - n[k] * m * m > 0 ? q[k] - n[k] * m * m : 0) / (n[k] - 1)) : 0
            line = sprintf("%4d MB %-4s %d runs: mean %7.3f s, deviation %6.3f", mb, kinds[j], n[k], m, d)
            if (j > 1) { gain = (base - m) / base * 100; line = line sprintf(", gain %5.1f %%", gain)
                want = j == 4 ? 0 : mb == 4 ? 30 : mb >= 128 ? 50 : 0
                if (want) line = line sprintf(" (%d: %s)", want, gain >= want ? "pass" : "MISSED") }
            print line } } }' /tmp/table >/tmp/report
    local line
    while read -r line; do note "$line"; done </tmp/report
}
judged() { cat /tmp/report; ! grep MISSED /tmp/report; }

# measure RATE RTT
measure() {
    local at="$1 Mbit/s, $2 ms" mb
    check "links of $at" links "$@"
    note "links of $at; the least that one carries, all busy: $(cat /tmp/carried) % (figures count from 95 %)"
    : >/tmp/table; check "first copies, $at" size 1 1; : >/tmp/table
    for mb in $sizes; do check "$mb MB, $at" calls "$mb" $runs; done
    for mb in $large; do check "$mb MB, $at" calls "$mb" 1; done
    report
    [ -z "$long" ] || check "targets, $at" judged
}
# shellcheck disable=SC2086  # two words
measure $near
# shellcheck disable=SC2086
[ -z "$long" ] || measure $far
for s in a b; do kill -0 "$(pgrep -f "state-dir /run/dhow.$s")" || note "server $s ended"; done
finish
