#!/bin/bash
# title: root squashed, a read-only export, nothing outside an export
# runs: 4.1 4.2
# timeout: 500
# prepares: yes
if [ "${1:-}" = prepare ]; then
    mkdir squash/private && chmod 700 squash/private && echo secret >outside
    ln -s ../outside squash/escape; ln -s /etc/hostname squash/absolute
    exit
fi
. /share/scenario-lib.sh
begin
need "mount" mnt /squash /mnt/s
need "mount the read-only export" mnt /ro /mnt/ro

rooted() { touch /mnt/s/f; mkdir /mnt/s/d; same 65534:65534 "$(stat -c %u:%g /mnt/s/f)"; same 65534 "$(stat -c %u /mnt/s/d)"; }
check "what root makes belongs to nobody" rooted
denied() { must_fail "Permission denied" ls /mnt/s/private; must_fail "ermi" chown 0 /mnt/s/f; }
check "root has no rights there" denied
users() { user 1000 touch /mnt/s/u; same 1000:1000 "$(stat -c %u:%g /mnt/s/u)"; must_fail "Permission denied" sh -c 'echo x >>/mnt/s/u'; }
check "users are themselves" users
ro() {
    same "read me" "$(cat /mnt/ro/file)"
    for c in "touch /mnt/ro/new" "rm -f /mnt/ro/file" "mkdir /mnt/ro/d" "chmod 777 /mnt/ro/file" "truncate -s 0 /mnt/ro/file" "mv /mnt/ro/file /mnt/ro/x" "ln /mnt/ro/file /mnt/ro/x" "touch -d @5 /mnt/ro/file"; do
        # shellcheck disable=SC2086
        must_fail "Read-only file system" $c
    done
}
check "the read-only export can only be read" ro
everybody() {
    mnt /all /mnt/all; touch /mnt/all/r; user 1000 touch /mnt/all/u; user 1001 sh -c 'echo x >>/mnt/all/u'
    same "1234:5678 1234:5678" "$(stat -c %u:%g /mnt/all/r /mnt/all/u | tr '\n' ' ' | sed 's/ $//')"; umount /mnt/all
}
check "an export that squashes everybody" everybody
closed() { must_fail "No such file|denied|not permitted" mnt /closed /mnt/closed; }
check "an export for other networks is not mounted" closed
links() { same ../outside "$(readlink /mnt/s/escape)"; must_fail "No such file" cat /mnt/s/escape; cmp /etc/hostname /mnt/s/absolute || [ ! -e /etc/hostname ]; }
check "a link out of the export is the client's to follow" links
up() { ls -id /mnt/s/.. /mnt/s; mnt /squash/d /mnt/below 2>/dev/null && { ls /mnt/below/..; umount /mnt/below; }; true; }
check "a folder below an export is mounted" up
check "a path that is not exported is not mounted" must_fail "No such file|denied" mnt /outside /mnt/x
check "unmount" umount /mnt/s /mnt/ro
finish
