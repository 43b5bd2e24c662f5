#!/bin/bash
# title: the server is killed and started again: the same handles, the same files
# runs: 4.1-dir 4.2-dir 4.2-ext4 4.2-xfs 4.2-btrfs
# timeout: 500
. /share/scenario-lib.sh
begin
m=/mnt/data
need "mount" mnt /data $m

mkdir -p $m/a/b/c; for ((n = 0; n < 50; n++)); do echo "file $n" >$m/a/b/c/$n; done
head -c 8M /dev/urandom >/tmp/big; cp /tmp/big $m/big; sync
listed() { find $m -printf '%P %i %y %n %m %U:%G %s %T@\n' | sort; }
need "unmount and mount again" again $m /data
listed >/tmp/before
inside() { cd $m/a/b/c || return; restart; drop; same "file 7" "$(cat 7)"; same 50 "$(ls | wc -l)"; cd /; }
check "killed: the working folder is still there" inside
listing() { listed >/tmp/after; diff /tmp/before /tmp/after; cmp /tmp/big $m/big; }
check "every inode number and time is as it was" listing
renamed() {
    exec 7<$m/a/b/c/9; mv $m/a/b $m/a/renamed; restart; drop
    same "file 8" "$(cat $m/a/renamed/c/8)"; echo more >>$m/a/renamed/c/8; same 2 "$(wc -l <$m/a/renamed/c/8)"; exec 7<&-
}
check "a handle survives its folder's rename and a restart" renamed
terminated() { restart TERM; drop; same "file 10" "$(cat $m/a/renamed/c/10)"; }
check "ended by SIGTERM" terminated
written() {     # data under way while the server dies is sent again
    ( dd if=/tmp/big of=$m/during bs=64k conv=fsync status=none; echo $? >/tmp/dd.rc ) &
    server 'until [ -s data/during ]; do sleep 0.02; done'; restart; wait; same 0 "$(cat /tmp/dd.rc)" "dd's status"
    again $m /data; cmp /tmp/big $m/during
}
check "a write under way comes through" written
removed() { rm -rf $m/a $m/big; restart; drop; same "" "$(find $m -mindepth 1 ! -name during)"; }
check "what was removed stays removed" removed
newmount() { umount $m; mnt /data $m; touch $m/new; }
check "a new mount needs no waiting" newmount
check "unmount" umount $m
finish
