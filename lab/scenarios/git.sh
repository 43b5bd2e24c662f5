#!/bin/bash
# title: git works on the mount
# timeout: 300
. /share/scenario-lib.sh
begin
m=/mnt/data
need "mount" mnt /data $m
export PATH=/share/git:$PATH GIT_EXEC_PATH=/share/git
git --version || { skip "git" "the guest has no git"; finish; }
export HOME=/tmp GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git config --global safe.directory '*'
init() { git init -q $m/repo; cd $m/repo || return; for ((n = 0; n < 80; n++)); do mkdir -p d$((n % 7)); echo "$n" >d$((n % 7))/f$n; done; git add .; git commit -qm first; git status --porcelain; same "" "$(git status --porcelain)"; }
check "init, add, commit" init
clone() { git clone -q $m/repo $m/clone; diff -r -x .git $m/repo $m/clone; git -C $m/clone fsck --strict; }
check "clone, fsck" clone
work() { cd $m/clone || return; git checkout -qb branch; echo new >d1/new; git rm -q d2/f2; git add d1/new; git commit -qm second; git checkout -q -; [ ! -e d1/new ] && [ -e d2/f2 ]; git merge -q branch; git gc -q; git fsck; }
check "branch, merge, gc" work
check "unmount" umount $m
finish
