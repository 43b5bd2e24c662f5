#!/bin/bash
# title: access control lists, umask and default lists, users of many groups, locks of local programs
# runs: 4.2-ext4 4.1-ext4 4.2-tmpfs 4.2-xfs
# timeout: 500
. /share/scenario-lib.sh
begin
if [ "$LAB_SERVER" = knfsd ]; then skip "all" "written for dhow's keys"; finish; fi
m=/mnt/data
need "mount" mnt /data $m
touch $m/f; chown 1000:1000 $m/f; chmod 640 $m/f; echo text >$m/f

shown() {
    nfs4_getfacl $m/f | tee /tmp/acl
    grep -q '^A::OWNER@:rw' /tmp/acl && grep -q '^A::GROUP@:r' /tmp/acl && grep -q '^A::EVERYONE@:' /tmp/acl
    same "" "$(grep '^D' /tmp/acl)"
}
check "a mode is shown as a list" shown
granted() {
    must_fail "Permission denied" user 1001 cat $m/f
    user 1000 nfs4_setfacl -a A::1001:RW $m/f
    user 1001 sh -c "echo more >>$m/f"
    same "text more" "$(user 1001 cat $m/f | tr '\n' ' ' | sed 's/ $//')"
    must_fail "Permission denied" user 1002 cat $m/f
    same 660 "$(stat -c %a $m/f)" "the mask in the mode"
    nfs4_getfacl $m/f | grep -q '^A::1001:rw'
    server 'python3 -c "import os; assert len(os.getxattr(\"data/f\", \"system.posix_acl_access\")) == 44"'
}
check "nfs4_setfacl grants to one user" granted
masked() {
    chmod 600 $m/f; must_fail "Permission denied" user 1001 cat $m/f
    chmod 640 $m/f; user 1001 cat $m/f; must_fail "Permission denied" user 1001 sh -c "echo x >>$m/f"
}
check "chmod sets the mask" masked
local_list() {
    # user::rw- user:1003:r-- group::--- mask::r-- other::---
    server 'python3 -c "
import os, struct
e = [(1, 6, -1), (2, 4, 1003), (4, 0, -1), (16, 4, -1), (32, 0, -1)]
os.setxattr(\"data/f\", \"system.posix_acl_access\", struct.pack(\"<I\", 2) + b\"\".join(struct.pack(\"<HHi\", *x) for x in e))"'
    drop
    user 1003 cat $m/f; must_fail "Permission denied" user 1001 cat $m/f
    nfs4_getfacl $m/f | grep -q '^A::1003:r'
}
check "a list set on the server is shown and honoured" local_list
refused() {
    before=$(nfs4_getfacl $m/f); mkdir -p $m/r
    # Linux has no errno for ATTRNOTSUPP and says EIO.
    no="not supported|Invalid|Input/output error"
    must_fail "$no" nfs4_setfacl -s A:f:EVERYONE@:R $m/r
    must_fail "$no" nfs4_setfacl -s D:g:1001:w,A::1001:W,A::EVERYONE@:R $m/f
    must_fail "not permitted|denied" user 1002 nfs4_setfacl -a A::1002:RW $m/f
    same "$before" "$(nfs4_getfacl $m/f)"
}
check "what cannot be kept is refused" refused
plain() { rm -rf $m/p; mkdir $m/p; ( umask 027; touch $m/p/f; mkdir $m/p/d ); same "640 750" "$(stat -c %a $m/p/f $m/p/d | tr '\n' ' ' | sed 's/ $//')"; }
check "a umask counts where there is no default list" plain
inherit() {
    mkdir $m/d; chown 1000:1000 $m/d
    user 1000 nfs4_setfacl -s A::OWNER@:RWX,A::GROUP@:RX,A::EVERYONE@:X,A:fdi:OWNER@:RWX,A:fdi:1001:RWX,A:fdi:GROUP@:RX,A:fdi:EVERYONE@:X $m/d
    user 1000 sh -c "umask 077; echo inherited >$m/d/f; mkdir $m/d/sub; echo deep >$m/d/sub/f"
    nfs4_getfacl $m/d/sub | grep -q '^A:fdi\?:1001:rw'
    # Without mode_umask (4.2) the client takes its umask off itself, and the mask with it.
    if [ "$LAB_VERS" = 4.2 ]; then
        same inherited "$(user 1001 cat $m/d/f)"; user 1001 sh -c "echo x >>$m/d/sub/f"
        same "660 771" "$(stat -c %a $m/d/f $m/d/sub | tr '\n' ' ' | sed 's/ $//')"
    else
        must_fail "Permission denied" user 1001 cat $m/d/f
    fi
    must_fail "Permission denied" user 1002 cat $m/d/f
}
check "new files inherit the default list" inherit
xattrs() { [ "$LAB_VERS" = 4.1 ] || { setfattr -n user.a -v 1 $m/f; same user.a "$(getfattr --absolute-names $m/f | grep -v '^#' | grep .)"; }; }
check "lists are no extended attributes of users" xattrs

# A user data base of its own for a second server: user 1000 is in groups 120 to 159.
many() {
    server '
mkdir -p people team && echo secret >team/f && chgrp 150 team team/f && chmod 070 team && chmod 040 team/f
{ cat /etc/passwd | grep -v :1000:; echo "ada:x:1000:1000::/:/bin/sh"; } >people/passwd
{ grep -vE ":(1000|1[2-5][0-9]):" /etc/group; for g in $(seq 120 159); do echo "team$g:x:$g:ada"; done; } >people/group
printf "[ids]\nlookup_groups = true\n[[export]]\nname = \"/team\"\ndir = \"%s\"\n" "$PWD/team" >people/conf
cat >people/dhow <<SCRIPT
#!/bin/bash
exec unshare -m --propagation private bash -c "mount --bind $PWD/people/passwd /etc/passwd && mount --bind $PWD/people/group /etc/group && exec \"\\\$0\" \"\\\$@\"" $DHOW "\$@"
SCRIPT
chmod +x people/dhow
real=$DHOW; DHOW=$PWD/people/dhow; dhow_start 2051 "$SERVED/state5" --config people/conf; rc=$?; many=$!; DHOW=$real; [ $rc = 0 ]
dhow_start 2052 "$SERVED/state6" --export "/team=$PWD/team"; few=$!'
    mkdir -p /mnt/many /mnt/few
    mount -t nfs -o "vers=$LAB_VERS,proto=tcp,port=2051" "$HOST:/team" /mnt/many
    mount -t nfs -o "vers=$LAB_VERS,proto=tcp,port=2052" "$HOST:/team" /mnt/few
    groups=$(seq -s, 120 151)
    in_groups() { setpriv --reuid 1000 --regid 1000 --groups "$groups" "$@"; }
    same secret "$(in_groups cat /mnt/many/f)" "the 31st group, looked up"
    same secret "$(user 1000 cat /mnt/many/f)" "no group in the request at all"
    must_fail "Permission denied" in_groups cat /mnt/few/f
    must_fail "Permission denied" user 1001 cat /mnt/many/f
    umount /mnt/many /mnt/few
    server 'kill -TERM $many $few; wait $many $few; true'
}
check "users of more than 16 groups" many

cat >/tmp/lock.py <<'PY'
# lock.py FILE try | FILE hold UNTIL | FILE get
import fcntl, os, struct, sys, time
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o666)
if sys.argv[2] == "get":
    kind, _, s, n, _ = struct.unpack("hhqqi4x", fcntl.fcntl(f, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)))
    print("free" if kind == fcntl.F_UNLCK else "%d %d" % (s, n)); sys.exit()
try: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 5)
except OSError: print("refused", flush=True); sys.exit()
print("locked", flush=True)
if sys.argv[2] == "hold":
    open(sys.argv[3] + ".held", "w").close()
    end = time.monotonic() + 240
    while not os.path.exists(sys.argv[3]) and time.monotonic() < end: time.sleep(0.05)
PY
locks() {
    server 'mkdir -p locks && chmod 777 locks && dhow_start 2053 "$SERVED/state7" --export "/locks=$PWD/locks,no_root_squash,local_locks" && locks=$!'
    mkdir -p /mnt/locks; mount -t nfs -o "vers=$LAB_VERS,proto=tcp,port=2053" "$HOST:/locks" /mnt/locks
    cp /tmp/lock.py /mnt/locks/lock.py
    python3 /tmp/lock.py /mnt/locks/f hold /tmp/let-go & holder=$!
    soon exists /tmp/let-go.held
    same refused "$(server 'python3 locks/lock.py locks/f try')" "a local program while a client holds"
    same "5 10" "$(server 'python3 locks/lock.py locks/f get')"
    touch /tmp/let-go; wait $holder
    same locked "$(server 'python3 locks/lock.py locks/f try')" "a local program when the client let go"
    server 'python3 locks/lock.py locks/f hold "$PWD/let-go" >/dev/null 2>&1 & for n in $(seq 600); do [ -e let-go.held ] && break; sleep 0.1; done; [ -e let-go.held ]'
    same refused "$(python3 /tmp/lock.py /mnt/locks/f try)" "a client while a local program holds"
    same "5 10" "$(python3 /tmp/lock.py /mnt/locks/f get)"
    server 'touch let-go'
    for _ in $(seq 100); do [ "$(python3 /tmp/lock.py /mnt/locks/f try)" = locked ] && break; sleep 0.2; done
    same locked "$(python3 /tmp/lock.py /mnt/locks/f try)" "a client when the program let go"
    umount /mnt/locks; server 'kill -TERM $locks; wait $locks; true'
}
check "locks of clients and of programs on the server keep each other out" locks
check "unmount" umount $m
finish
