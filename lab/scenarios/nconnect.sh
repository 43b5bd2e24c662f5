#!/bin/bash
# title: sixteen connections, many processes at once
# runs: 4.1 4.2
# timeout: 500
# mem: 2G
. /share/scenario-lib.sh
begin
m=/mnt/data
need "mount with nconnect=16" mnt /data $m nconnect=16,rsize=262144,wsize=262144

for n in 1 2 3 4 5 6 7 8; do head -c 12M /dev/urandom >/tmp/f$n; done
write() { local n p=(); for n in 1 2 3 4 5 6 7 8; do dd if=/tmp/f$n of=$m/f$n bs=1M conv=fsync status=none & p+=($!); done; for n in "${p[@]}"; do wait "$n"; done; }
read_() { local n p=(); drop; for n in 1 2 3 4 5 6 7 8; do cmp /tmp/f$n $m/f$n & p+=($!); done; for n in "${p[@]}"; do wait "$n"; done; }
check "eight files written at once" write
check "and read back at once" read_
connections() { at_least 16 "$(ss -Htn state established dport = :2049 | wc -l)" connections; }
check "sixteen connections are open" connections
spread() { local used; used=$(awk -v m=$m '$1=="device" {on = ($5==m)} on && $1=="xprt:" && $8+$9 > 0 {n++} END {print n+0}' /proc/self/mountstats); grep -A20 " $m " /proc/self/mountstats | grep xprt; at_least 8 "$used" "connections used"; }
check "and used" spread
hammer() {
    cat >/tmp/hammer.py <<'PY'
import os, random, sys
me, top = sys.argv[1], sys.argv[2]; r = random.Random(me); d = "%s/h%s" % (top, me); os.mkdir(d)
for i in range(60):
    p = "%s/%d" % (d, i); data = r.randbytes(r.randrange(1, 30000))
    with open(p, "wb") as f: f.write(data)
    q = p + ".moved"; os.rename(p, q)
    assert open(q, "rb").read() == data, q
    if i % 3 == 0: os.unlink(q)
    elif i % 3 == 1: os.link(q, p)
assert len(os.listdir(d)) == 60, os.listdir(d)
PY
    local n p=(); for n in 1 2 3 4 5 6 7 8; do python3 /tmp/hammer.py $n $m & p+=($!); done; for n in "${p[@]}"; do wait "$n"; done
}
check "eight processes make, rename, link and remove" hammer
check "unmount" umount $m
finish
