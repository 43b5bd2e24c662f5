#!/bin/bash
# title: dhow's client commands against knfsd in the guest
# runs: 4.2-btrfs 4.2-xfs 4.2-ext4
# timeout: 500
# serves: no
# client: yes
export LAB_SERVER=knfsd
. /share/scenario-lib.sh
begin
dhow=/share/dhow u=nfs://127.0.0.1/srv/fs/data d=/srv/fs/data
head -c 40M /dev/urandom >/tmp/src
printf 'small\n' >/tmp/small
# served NUMBER: how many operations of that number knfsd has answered.
served() { awk -v op="$1" '$1 == "proc4ops" {print $(op + 3)}' /proc/net/rpc/nfsd; }
READ=25 COPY=60 CLONE=71

check "probe" $dhow probe $u
put() { $dhow put /tmp/src $u/put; cmp /tmp/src $d/put; $dhow put - $u/stdin </tmp/small; cmp /tmp/small $d/stdin; }
check "put" put
cat_() { $dhow cat $u/put | cmp - /tmp/src; same small "$($dhow cat $u/stdin)"; }
check "cat" cat_
ls_() { touch $d/.hidden "$d/with space"; mkdir -p $d/folder; $dhow ls $u; $dhow ls -l $u; same "folder put stdin with space" "$($dhow ls $u | tr '\n' ' ' | sed 's/ $//')"; $dhow ls --json $u | python3 -m json.tool; }
check "ls" ls_
stat_() { $dhow stat $u/put; $dhow stat --json $u/put | python3 -c 'import json, sys; v = json.load(sys.stdin); assert v["entries"][0]["size"] == 40 << 20, v'; }
check "stat" stat_
mkdir_() { $dhow mkdir $u/made; [ -d $d/made ]; $dhow mkdir -p $u/made/deep/er; [ -d $d/made/deep/er ]; if $dhow mkdir $u/made; then return 1; fi; }
check "mkdir" mkdir_
mv_() { cp /tmp/small $d/m1; $dhow mv $u/m1 $u/made/m2; [ ! -e $d/m1 ]; cmp /tmp/small $d/made/m2; }
check "mv" mv_
ln_() { $dhow ln $u/made/m2 $u/hard; same 2 "$(stat -c %h $d/hard)"; $dhow ln -s made/m2 $u/soft; same made/m2 "$(readlink $d/soft)"; }
check "ln" ln_
rm_() { $dhow rm $u/hard; [ ! -e $d/hard ]; $dhow rm -r $u/made; [ ! -e $d/made ]; if $dhow rm $u/absent; then return 1; fi; }
check "rm" rm_
down() { $dhow cp $u/put /tmp/down; cmp /tmp/src /tmp/down; }
check "cp from the server" down
up() { $dhow cp /tmp/src $u/up; cmp /tmp/src $d/up; }
check "cp to the server" up
copied() {
    local n r; n=$(served $COPY) r=$(served $READ)
    $dhow cp --method copy --json $u/put $u/copied | tee /tmp/copied.json
    cmp /tmp/src $d/copied; [ "$(served $COPY)" -gt "$n" ] || { echo "no COPY arrived ($n)"; return 1; }
    same "$r" "$(served $READ)" READ
    python3 -c 'import json; v = json.load(open("/tmp/copied.json")); assert v["method"] == "copy" and v["bytes"] == 40 << 20 and v["ops"].get("COPY", 0) >= 1, v'
}
check "cp within the server is COPY" copied
rw() { $dhow cp --method readwrite $u/put $u/rw; cmp /tmp/src $d/rw; }
check "cp by reading and writing" rw
cloned() {
    local n; n=$(served $CLONE)
    $dhow cp --method clone --json $u/put $u/cloned; cmp /tmp/src $d/cloned
    [ "$(served $CLONE)" -gt "$n" ] || { echo "no CLONE arrived ($n)"; return 1; }
}
noclone() { if $dhow cp --method clone $u/put $u/cloned; then return 1; fi; [ ! -e $d/cloned ]; }
if [ "$LAB_FS" = ext4 ]; then check "cp as a clone is refused, nothing is left" noclone
else check "cp as a clone is CLONE" cloned; fi
auto() { $dhow cp --json $u/put $u/auto; cmp /tmp/src $d/auto; }
check "cp chooses by itself" auto
tree() { mkdir -p /tmp/tree/x/y; for ((n = 0; n < 150; n++)); do head -c $((n * 37)) /tmp/src >/tmp/tree/x/$n; done; ln -s x/5 /tmp/tree/link; $dhow cp -r /tmp/tree $u/tree; diff -r /tmp/tree $d/tree; $dhow cp -r $u/tree $u/tree2; diff -r /tmp/tree $d/tree2; $dhow cp -r $u/tree /tmp/back; diff -r /tmp/tree /tmp/back; }
check "cp -r up, within, down" tree
kept() { touch -d '2001-02-03 04:05:06' $d/put; chmod 640 $d/put; $dhow cp -p $u/put $u/kept; same "640 981173106" "$(stat -c '%a %Y' $d/kept)"; }
check "cp -p keeps mode and times" kept
errors() { for a in "cat $u/absent" "ls $u/absent" "cat nfs://127.0.0.1:9/x" "stat nope" "cp $u/absent /tmp/x"; do
    # shellcheck disable=SC2086
    if $dhow $a >/tmp/o 2>/tmp/e; then echo "succeeded: $a"; return 1; fi
    [ -s /tmp/e ] || { echo "silent: $a"; return 1; }; cat /tmp/e; done; [ ! -e /tmp/x ]; }
check "mistakes are told" errors
finish
