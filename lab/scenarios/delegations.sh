#!/bin/bash
# title: delegations are given, recalled by other clients and local programs, and survive a restart of the server
# runs: 4.1-dir 4.2-dir
# timeout: 600
# lease: 20
# idle: yes
. /share/scenario-lib.sh
begin
if [ "$LAB_SERVER" = knfsd ]; then skip "delegations" "knfsd gives none in the lab"; finish; fi
a=/mnt/a b=/mnt/b

# serve OPTIONS [SIGNAL]: the server anew, with these options of the export.
serve() { server "DATA_OPTIONS=$1; server_stop ${2:-TERM}; server_start"; }
# opened DIR: OPENs that this mount has sent; opens DIR COMMAND...: how many a command costs there.
opened() { local n; n=$(sent "$1" OPEN); echo $((n + $(sent "$1" OPEN_NOATTR))); }
opens() { local dir=$1 n; shift; n=$(opened "$dir"); "$@" >/dev/null; echo $(($(opened "$dir") - n)); }
returned() { sent $a DELEGRETURN; }
# held CLIENT FILE: it reads the file, and again without asking the server.
held() {
    local n=0
    as "$1" cat "/mnt/$1/$2" >/dev/null
    while [ "$(opens "/mnt/$1" as "$1" cat "/mnt/$1/$2")" != 0 ]; do
        n=$((n + 1)); [ $n -lt 120 ] || { echo "no delegation of $2"; return 1; }; sleep 1
    done
}

need "the server gives read delegations" serve ,delegations=read
# What is cached without a delegation is asked for anew after 3 s, not after up to a minute.
need "client a mounts" client a 3 actimeo=3
need "client b mounts" client b 4 actimeo=3

read_deleg() { server 'echo one >data/f'; held a f; held b f; same one "$(cat $a/f)"; }
check "readers open without asking" read_deleg
other_writes() {
    local n; n=$(returned)
    as b sh -c "echo two >$b/f"
    at_least $((n + 1)) "$(returned)" "delegations returned"
    same two "$(as a cat $a/f)"; same two "$(as b cat $b/f)"
}
check "another client's write recalls, and both read what it wrote" other_writes
own_writes() { server 'echo one >data/own'; held a own; as a sh -c "echo two >>$a/own"; same "one two" "$(as b cat $b/own | tr '\n' ' ' | sed 's/ $//')"; }
check "the holder writes itself" own_writes
local_writes() {
    local n; server 'echo here >data/g'; held a g; n=$(returned)
    # (A delegation that is not returned in a lease time, 20 s, is revoked, and not counted below.)
    server "timeout $LAB_PATIENCE sh -c 'echo there >data/g'" || { echo "the local program waited too long"; return 1; }
    at_least $((n + 1)) "$(returned)" "delegations returned"
    same there "$(as a cat $a/g)"
}
check "a local program's write recalls" local_writes
private() { [ "$(as a stat -c %a $a/n4)" = 600 ]; }
links() { [ "$(as a stat -c %h $a/n3)" = 2 ]; }
names() {
    local n; for n in 1 2 3 4; do server "echo $n >data/n$n"; held a n$n; done
    n=$(returned)
    as b rm $b/n1; as b mv $b/n2 $b/n2new; as b ln $b/n3 $b/n3link; as b chmod 600 $b/n4
    at_least $((n + 4)) "$(returned)" "delegations returned"
    # (a's cache of names is another matter: it asks for them after a while.)
    must_fail "No such file|Stale" as a cat $a/n1
    same 2 "$(as a cat $a/n2new)"; soon links; soon private; soon absent $a/n1
}
check "removals, renames, links and modes of the other are seen" names
over() {    # SIGNAL FILE: with delegations held and files open
    local n; server "echo before >data/$2"; held a "$2"
    exec 8<"$a/$2"
    serve ,delegations=read "$1"
    same before "$(cat <&8)"; exec 8<&-
    same before "$(as a cat "$a/$2")"
    as b sh -c "echo after >$b/$2"
    same after "$(as a cat "$a/$2")"
}
check "the server is killed while delegations are held" over KILL r1
check "the server is restarted while delegations are held" over TERM r2
gone() {    # given up by the server's options: marked as recalled when it is reclaimed
    server "echo before >data/r3"; held a r3
    exec 8<$a/r3
    serve ,delegations=off KILL
    same before "$(cat <&8)"; exec 8<&-
    as b sh -c "echo after >$b/r3"; same after "$(as a cat $a/r3)"
    same 1 "$(opens $a as a cat $a/r3)" "opens where none is given"
}
check "a server that gives none any more" gone

need "the server gives write delegations" serve ,delegations=all,local_writers=no
write_deleg() {
    local n; n=$(returned)
    as a sh -c "echo one >$a/w"
    n=0; while [ "$(opens $a as a sh -c "echo more >>$a/w")" != 0 ]; do n=$((n + 1)); [ $n -lt 120 ] || { echo "no write delegation"; return 1; }; sleep 1; done
    n=$(returned)
    same "$(cat $a/w | sha256sum)" "$(as b cat $b/w | sha256sum)"
    at_least $((n + 1)) "$(returned)" "delegations returned"
}
check "a writer opens without asking, until another reads" write_deleg
size() {    # b looks at a file that a holds changed
    cat >/tmp/hold.py <<'PY'
import os, sys, time
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
os.write(f, b"x" * 5000); open("/tmp/wrote", "w").close()
end = time.monotonic() + float(os.environ["LAB_PATIENCE"])
while not os.path.exists("/tmp/release") and time.monotonic() < end: time.sleep(0.05)
os.write(f, b"y" * 5000)
PY
    rm -f /tmp/wrote /tmp/release
    as a python3 /tmp/hold.py $a/s & local holder=$!
    soon exists /tmp/wrote
    same 5000 "$(as b stat -c %s $b/s)" "size seen by b"
    touch /tmp/release; wait $holder
    same 10000 "$(as b sh -c "cat $b/s | wc -c")"
}
check "who looks at a file that is changed elsewhere sees its size" size
check "a counter under locks loses no update" counted lockf 25 0
written_over() {
    as a python3 - $a/wr <<'PY' &
import os, sys, time
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
os.write(f, b"before\n"); os.fsync(f); open("/tmp/wrote2", "w").close()
while not os.path.exists("/tmp/release2"): time.sleep(0.05)
os.write(f, b"after\n"); os.fsync(f)
PY
    local holder=$!
    soon exists /tmp/wrote2
    serve ,delegations=all,local_writers=no KILL
    touch /tmp/release2; wait $holder
    same "before after" "$(as b cat $b/wr | tr '\n' ' ' | sed 's/ $//')"
}
check "the server is killed while a write delegation is held" written_over
tree() {
    mkdir $a/tree; ( cd $a/tree || exit; for d in 1 2 3; do mkdir $d; for f in 1 2 3 4 5; do echo "$d/$f $RANDOM" >$d/$f; done; done; tar cf ../tree.tar . )
    mkdir $b/again; as b tar xf $b/tree.tar -C $b/again --warning=no-timestamp
    as b diff -r $b/tree $b/again; as a diff -r $a/tree $a/again
    as b rm -r $b/tree; soon absent $a/tree; as a rm -r $a/again $a/tree.tar; soon absent $b/again
}
check "a tree made by one, unpacked and removed by the other" tree
export PATH=/share/git:$PATH GIT_EXEC_PATH=/share/git
if git --version >/dev/null 2>&1; then
    export HOME=/tmp GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
    git config --global safe.directory '*'
    clean() { [ -z "$(as a git -C $a/repo status --porcelain)" ]; }
    repo() {
        as a git init -q $a/repo; cd $a/repo || return; for n in 1 2 3 4 5 6 7 8; do echo "$n" >f$n; done
        as a git -C $a/repo add .; as a git -C $a/repo commit -qm first
        as b git -C $b/repo status --porcelain; as b sh -c "echo more >>$b/repo/f1"; as b git -C $b/repo commit -qam second
        same 2 "$(as a git -C $a/repo log --oneline | wc -l)"; soon clean; as a git -C $a/repo fsck --strict
    }
    check "two clients work on one git repository in turns" repo
else
    skip "git" "the guest has no git"
fi
cd /
check "unmount" umount $a $b
finish
