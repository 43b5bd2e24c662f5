#!/bin/bash
# title: one folder served alone; two servers on one host are two; a pseudo-root
# runs: 4.1 4.2
# timeout: 500
. /share/scenario-lib.sh
begin
if [ "$LAB_SERVER" = knfsd ]; then skip "all" "of dhow serve alone"; finish; fi
m=/mnt/data
need "mount" mnt /data $m
echo first >$m/name

second() {
    server 'mkdir -p other && dhow_start 2050 "$SERVED/state2" other && second=$! && echo second >other/name'
    mkdir -p /mnt/second
    mount -t nfs -o "vers=$LAB_VERS,proto=tcp,port=2050" "$HOST:/" /mnt/second
    # One folder alone is exported at /, root squashed.
    same second "$(cat /mnt/second/name)"
    must_fail "Permission denied" touch /mnt/second/new
}
check "dhow serve DIR serves it at /" second
two() {     # a client that takes two servers for one sends the requests of both to either
    drop; same first "$(cat $m/name)"; same second "$(cat /mnt/second/name)"
    same "2049 2050" "$(ss -Htn state established dst "$HOST" | awk '{print $NF}' | sed 's/.*://' | grep -xE '2049|2050' | sort -u | tr '\n' ' ' | sed 's/ $//')"
}
check "two servers on one host are two" two
moves() {
    server 'kill -TERM $second; wait $second; mkdir -p third; dhow_start 2050 "$SERVED/state3" third; second=$!; echo third >third/name'
    umount -f -l /mnt/second; mkdir -p /mnt/third
    mount -t nfs -o "vers=$LAB_VERS,proto=tcp,port=2050" "$HOST:/" /mnt/third
    same third "$(cat /mnt/third/name)"; umount /mnt/third
    server 'kill -TERM $second; wait $second'
}
check "another server takes the port" moves
sub() { mkdir -p $m/x/y; echo deep >$m/x/y/f; mnt /data/x/y /mnt/sub; same deep "$(cat /mnt/sub/f)"; umount /mnt/sub; }
check "a folder below an export is mounted" sub
top() { mnt / /mnt/top; same first "$(cat /mnt/top/data/name)"; must_fail "Read-only|not permitted|denied" touch /mnt/top/new; same "deep" "$(cat /mnt/top/data/x/y/f)"; umount -R /mnt/top; }
check "exports are entered from the pseudo-root" top
check "unmount" umount $m
finish
