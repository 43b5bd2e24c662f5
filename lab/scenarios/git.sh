#!/bin/bash
# title: git works on the mount: init, add, commit, clone, merge, gc
# runs: 4.1-dir 4.2-dir
# timeout: 1200
# mem: 1500M
. /share/scenario-lib.sh
begin
m=/mnt/data
need "mount" mnt /data $m
export PATH=/share/git:$PATH GIT_EXEC_PATH=/share/git
git --version || { skip "git" "the guest has no git"; finish; }
export HOME=/tmp GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git config --global safe.directory '*'
files=$(amount 2000 3000)
cat >/tmp/fill.py <<'PY'
import os, sys
top, n, word = sys.argv[1], int(sys.argv[2]), sys.argv[3]
for i in range(n):
    d = os.path.join(top, "d%d" % (i % 31), "e%d" % (i % 5)); os.makedirs(d, exist_ok=True)
    with open(os.path.join(d, "f%d" % i), "w") as f: f.write(("%s %d\n" % (word, i)) * (i % 40 + 1))
PY
init() { git init -q $m/repo; python3 /tmp/fill.py $m/repo "$files" first; cd $m/repo || return; git add .; git commit -qm first; same "" "$(git status --porcelain)"; same "$files" "$(git ls-files | wc -l)"; }
check "init, add and commit of $files files" init
clone() { git clone -q $m/repo $m/clone; diff -r -x .git $m/repo $m/clone; git -C $m/clone fsck --strict; }
check "clone, fsck" clone
work() {
    cd $m/clone || return; git checkout -qb branch; echo new >d1/new; git rm -q d2/e2/f2; git add d1/new; git commit -qm second
    git checkout -q -; [ ! -e d1/new ] && [ -e d2/e2/f2 ]; git merge -q branch
    [ -e d1/new ] && [ ! -e d2/e2/f2 ]; same "" "$(git status --porcelain)"
}
check "branch, merge" work
gc() { cd $m/repo || return; git gc -q; git fsck; same 0 "$(git count-objects -v | sed -n 's/^count: //p')" "loose objects"; cd /; again $m /data; git -C $m/repo fsck --strict; }
check "gc, fsck after a new mount" gc
# Commit after commit, a clone and a gc in a repository of its own, while the server goes and comes. The rename of a lock
# file that was asked again fails, and git with it: once more, where it has not committed yet.
fresh() { rm -rf $m/small && git init -q $m/small; }
commit() { [ "$(git log -1 --format=%s 2>/dev/null)" = "$1" ] || git commit -qm "$1"; }
anew() { rm -rf $m/again && git clone -q $m/small $m/again; }
rounds() {
    local n; redo fresh; cd $m/small || return
    for n in 1 2 3; do redo python3 /tmp/fill.py $m/small "$(amount 40 300)" "round$n"; redo git add .; redo commit "round $n"; done
    redo anew; redo git gc -q
    git fsck --strict; git -C $m/again fsck --strict; diff -r -x .git $m/small $m/again
    same 3 "$(git rev-list --count HEAD)" commits; same "" "$(git status --porcelain)"
}
check "commits, clone and gc while the server is killed and ended" shaken "$(amount 2 8)" rounds
check "unmount" umount $m
finish
