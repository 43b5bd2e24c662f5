#!/bin/bash
# title: a directory of 100,000 names is listed while it changes: what stays is shown exactly once (cases B03, B04, K28)
# runs: 4.1-dir 4.2-dir 4.2-btrfs
# timeout: 500
# prepares: yes
# lease: 20
if [ "${1:-}" = prepare ]; then
    python3 - <<'PY'
import os
os.makedirs("data/many")
for i in range(100000): os.close(os.open("data/many/stays-%06d" % i, os.O_CREAT | os.O_WRONLY))
for i in range(5000): os.symlink("x", "data/many/goes-%06d" % i)
PY
    exit
fi
. /share/scenario-lib.sh
begin
need "client a mounts" client a 3
need "client b mounts" client b 4
cat >/tmp/list.py <<'PY'
# list.py DIR: lists it once.
import collections, os, sys
seen = collections.Counter(e.name for e in os.scandir(sys.argv[1]))
stays = {"stays-%06d" % i for i in range(100000)}
twice = [n for n, k in seen.items() if k > 1]
missing = stays - seen.keys()
strange = [n for n in seen if not n.startswith(("stays-", "goes-", "comes-"))]
assert not missing and not strange and not [n for n in twice if n.startswith("stays-")], (len(missing), "missing", sorted(missing)[:3], "twice", twice[:3], "strange", strange[:3])
print(len(seen), "names;", len(twice), "that come and go were shown twice")
PY
cat >/tmp/change.py <<'PY'
# change.py DIR: creates, removes and renames other names until /tmp/listed is there, ten times at least.
import os, sys, time
os.chdir(sys.argv[1]); n = 0; end = time.monotonic() + float(os.environ["LAB_PATIENCE"])
while (n < 10 or not os.path.exists("/tmp/listed")) and time.monotonic() < end:
    os.close(os.open("comes-%06d" % n, os.O_CREAT | os.O_WRONLY))
    # What was done just before the server was killed is asked again after its restart, and is then done already: the reply
    # was lost with the server's memory (RFC 8881 2.10.6.5: no persistent sessions are offered).
    try:
        if n >= 20: os.unlink("comes-%06d" % (n - 20))
    except FileNotFoundError: pass
    try: os.rename("goes-%06d" % (n % 5000), "goes-%06d" % ((n * 7 + 1) % 5000))
    except FileNotFoundError: pass
    n += 1
print(n, "rounds of changes")
open("/tmp/changes", "w").write(str(n))
PY
once() { drop; as b python3 /tmp/list.py /mnt/b/many; }
check "all of it, nothing changing" once
changing() {
    rm -f /tmp/listed; local n other rc=0
    as a python3 /tmp/change.py /mnt/a/many & other=$!
    for ((n = 0; n < $1; n++)); do once || rc=1; done
    touch /tmp/listed; wait $other; at_least 10 "$(cat /tmp/changes)" "changes"
    return $rc
}
check "while the other client changes it" changing "$(amount 1 5)"
# On the server itself, which is much faster.
local_changes() {
    local rc=0
    server 'cat >/tmp/dhow-lab-change.$$.py <<EOS
import os, sys
os.chdir("data/many"); n = 0; top = os.getppid(); open("../changing", "w").close()
while not os.path.exists("../enough") and os.getppid() == top:
    os.close(os.open("comes-%06d" % n, os.O_CREAT | os.O_WRONLY))
    if n >= 200: os.unlink("comes-%06d" % (n - 200))
    try: os.unlink("goes-%06d" % (n % 5000))
    except FileNotFoundError: os.symlink("y", "goes-%06d" % (n % 5000))
    n += 1
EOS
python3 /tmp/dhow-lab-change.$$.py >"$LOGS/changer.log" 2>&1 & changer=$!
for n in $(seq 600); do [ -e data/changing ] && break; sleep 0.1; done; rm /tmp/dhow-lab-change.$$.py data/changing'
    once || rc=1
    server 'touch data/enough; wait $changer'
    return $rc
}
check "while a program on the server changes it" local_changes
check "while it changes, and the server is killed and ended" shaken "$(amount 2 6)" changing "$(amount 1 4)"
whole() { same 100000 "$(server 'ls -f data/many | grep -c stays')"; once; }
check "it is whole in the end" whole
check "client a unmounts" umount /mnt/a
check "client b unmounts" umount /mnt/b
finish
