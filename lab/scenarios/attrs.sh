#!/bin/bash
# title: modes, owners, times, truncation, appends, mappings
# runs: 4.1 4.2 4.2-ext4
# timeout: 500
. /share/scenario-lib.sh
begin
m=/mnt/data
need "mount" mnt /data $m

modes() { touch $m/f; for x in 0 7 70 700 1777 2755 4755 6711 644; do chmod $x $m/f; drop; same $x "$(stat -c %a $m/f)"; done; }
check "modes" modes
masks() { ( umask 027; touch $m/u1; mkdir $m/u2 ); same 640 "$(stat -c %a $m/u1)"; same 750 "$(stat -c %a $m/u2)"; }
check "the umask is the client's" masks
owners() { chown 1234:5678 $m/f; drop; same 1234:5678 "$(stat -c %u:%g $m/f)"; chown 4294967294 $m/f 2>/dev/null || true; chown -h 5:6 $m/f; same 5:6 "$(stat -c %u:%g $m/f)"; }
check "owners by number" owners
sgid() { mkdir $m/sg; chown 0:777 $m/sg; chmod 2775 $m/sg; touch $m/sg/f; mkdir $m/sg/d; same 777 "$(stat -c %g $m/sg/f)"; same 2777 "$(( $(stat -c %a $m/sg/d) | 22 ))" || same 2755 "$(stat -c %a $m/sg/d)"; }
check "a set-group-id folder hands its group on" sgid
times() {
    touch -d '1999-12-31 23:59:59.123456789 UTC' $m/f; drop; same 946684799.123456789 "$(stat -c %.9Y $m/f)"
    touch -a -d '@86400.000000001' $m/f; drop; same "86400.000000001 946684799.123456789" "$(stat -c '%.9X %.9Y' $m/f)"
    local before; before=$(date +%s); touch $m/f; at_least $((before - 5)) "$(stat -c %Y $m/f)"
}
check "times to the nanosecond" times
ctimes() { c=$(stat -c %.9Z $m/f); sleep 0.1; chmod 600 $m/f; drop; [ "$c" != "$(stat -c %.9Z $m/f)" ]; c=$(stat -c %.9Y $m); sleep 0.1; touch $m/newname; drop; [ "$c" != "$(stat -c %.9Y $m)" ]; }
check "the change time moves, a folder's modify time too" ctimes
setid() { cp /bin/true $m/suid; chmod 6755 $m/suid; chown 0:0 $m/suid; chmod 6755 $m/suid; chmod o+w $m/suid; user 1000 sh -c "echo x >>$m/suid"; drop; same 757 "$(stat -c %a $m/suid)"; }
check "a user's write takes the set-id bits away" setid
trunc() {
    head -c 100000 /dev/urandom >/tmp/t; cp /tmp/t $m/t
    for s in 50000 0 12345 70000; do truncate -s $s /tmp/t $m/t; drop; cmp /tmp/t $m/t; done
    echo x >$m/t; same 2 "$(stat -c %s $m/t)"
}
check "truncation up and down" trunc
large() { truncate -s 5T $m/large 2>/tmp/e || { grep -q "too large" /tmp/e; return; }; drop; same $((5 << 40)) "$(stat -c %s $m/large)"; echo end | dd of=$m/large bs=1 seek=$((5 << 40)) conv=notrunc status=none; same end "$(tail -c 4 $m/large)"; rm $m/large; }
check "a sparse file of 5 TB" large
append() { : >$m/app; for ((n = 0; n < 20; n++)); do echo $n >>$m/app; done; same "$(seq 0 19 | sha256sum)" "$(sha256sum <$m/app)"; }
check "appends" append
mapped() { python3 - $m/map <<'PY'
import mmap, os, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); os.truncate(f, 100000)
p = mmap.mmap(f, 100000); p[5000:5005] = b"hello"; p[99999:] = b"!"; p.flush(); p.close(); os.close(f)
PY
    again $m /data; same hello "$(dd if=$m/map bs=1 skip=5000 count=5 status=none)"; same '!' "$(tail -c 1 $m/map)"; }
check "writes through a mapping" mapped
access() {
    mkdir $m/priv; chmod 700 $m/priv; echo secret >$m/priv/s; echo other >$m/mine; chown 1000 $m/mine; chmod 600 $m/mine
    must_fail "Permission denied" user 1000 cat $m/priv/s
    must_fail "Permission denied" user 1001 cat $m/mine
    same other "$(user 1000 cat $m/mine)"
    must_fail "Permission denied" user 1000 touch $m/priv/new
    user 1000 test -r $m/mine; if user 1001 test -r $m/mine; then return 1; fi
    must_fail "not permitted" user 1001 chmod 666 $m/mine
    must_fail "not permitted" user 1000 chown 1001 $m/mine
}
check "permissions are checked for each user" access
sticky() { mkdir $m/st; chmod 1777 $m/st; user 1000 touch $m/st/f; must_fail "not permitted" user 1001 rm -f $m/st/f; user 1000 rm $m/st/f; }
check "a sticky folder" sticky
readonly_open() { user 1000 sh -c "umask 0; exec 8<>/dev/null; cd $m; : >st/w; chmod 444 st/w"; user 1000 python3 - $m/st/ro <<'PY'
import os, sys
f = os.open(sys.argv[1], os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o444)     # open stays writable
os.write(f, b"data"); os.fsync(f); os.close(f)
PY
    same data "$(cat $m/st/ro)"; must_fail "Permission denied" user 1001 sh -c "echo x >>$m/st/ro"; }
check "a file made read-only is writable through its first open" readonly_open
groups() { mkdir $m/grp; chown 0:4242 $m/grp; chmod 770 $m/grp; setpriv --reuid 1000 --regid 1000 --groups 4242 touch $m/grp/f; must_fail "Permission denied" user 1000 touch $m/grp/g; }
# knfsd as started here looks groups up itself (--manage-gids).
if [ "$LAB_SERVER" = knfsd ]; then skip "supplementary groups count" "knfsd has them from elsewhere"
else check "supplementary groups count" groups; fi
check "unmount" umount $m
finish
