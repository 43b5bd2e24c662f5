#!/bin/bash
# title: two clients see what the other did
# runs: 4.1 4.2
# timeout: 500
. /share/scenario-lib.sh
begin
need "client a mounts" client a 3
need "client b mounts" client b 4
a=/mnt/a b=/mnt/b

opened() { local n; for n in 1 2 3 4 5; do echo "$n $RANDOM" >$a/f; cmp $a/f $b/f; echo "b$n" >$b/f; same "b$n" "$(cat $a/f)"; done; }
check "what one wrote the other reads after its open" opened
# Names are cached for a while (acdirmin 30 s) unless the directory is seen to change.
names() {
    mkdir $a/dir; ls $b/dir; echo x >$a/dir/new; ls $b >/dev/null
    mv $a/dir $a/moved; rm -f $b/nothing; ls -la $b; sleep 1
    local n; for ((n = 0; n < 70; n++)); do [ -e $b/moved/new ] && [ ! -e $b/dir ] && return; sleep 1; done
    echo "b does not see the rename"; return 1
}
check "a rename is seen" names
exclusive() {
    cat >/tmp/excl.py <<'PY'
import os, sys
won = 0
for i in range(60):
    try: os.close(os.open("%s/excl%d" % (sys.argv[1], i), os.O_CREAT | os.O_EXCL | os.O_WRONLY)); won += 1
    except FileExistsError: pass
print(won)
PY
    as a python3 /tmp/excl.py $a >/tmp/won.a & one=$!
    as b python3 /tmp/excl.py $b >/tmp/won.b & two=$!
    wait $one; wait $two
    echo "a $(cat /tmp/won.a) b $(cat /tmp/won.b)"
    same 60 $(($(cat /tmp/won.a) + $(cat /tmp/won.b)))
}
check "O_EXCL has one winner" exclusive
dirs() {
    cat >/tmp/mkdirs.py <<'PY'
import os, sys
won = 0
for i in range(60):
    try: os.mkdir("%s/dir%d" % (sys.argv[1], i)); won += 1
    except FileExistsError: pass
print(won)
PY
    as a python3 /tmp/mkdirs.py $a >/tmp/won.a & one=$!
    as b python3 /tmp/mkdirs.py $b >/tmp/won.b & two=$!
    wait $one; wait $two
    same 60 $(($(cat /tmp/won.a) + $(cat /tmp/won.b)))
}
check "mkdir has one winner" dirs
unlinked() {    # what the other removed is stale, not something else
    echo old >$a/victim; cat $b/victim
    exec 7<$b/victim
    rm $a/victim; echo other >$a/other; drop
    if got=$(cat <&7 2>&1); then same old "$got"; else case $got in *"Stale file handle"*) ;; *) echo "$got"; return 1 ;; esac; fi
    exec 7<&-
}
check "a file the other removed is stale or still what it was" unlinked
check "appending in turns" eval '
    : >$a/log; for n in 1 2 3 4 5; do echo "a$n" >>$a/log; echo "b$n" >>$b/log; done
    same "a1 b1 a2 b2 a3 b3 a4 b4 a5 b5" "$(tr "\n" " " <$a/log | sed "s/ $//")"'
check "unmount" umount $a $b
finish
