#!/bin/bash
# title: every call of the client library against knfsd in the guest
# runs: 4.2-btrfs
# timeout: 600
# serves: no
# client: yes
export LAB_SERVER=knfsd
. /share/scenario-lib.sh
begin
[ -x /share/conformance ] || { skip "conformance" "the round is not built"; finish; }
log=/tmp/round.log
# One report for each check of the round; what knfsd does not offer counts as failed (KNOWN_FAILURES lists it).
/share/conformance nfs://127.0.0.1/srv/fs/data >$log 2>&1
while IFS= read -r line; do
    read -r name <<<"${line:5:22}"
    read -r took _ <<<"${line:27}"
    case $line in
        ok*) say "ok $name ($took ms)" ;;
        n/a*) say "FAIL $name: not offered" ;;
        FAIL*) failures=$((failures + 1)); say "FAIL $name: ${line##* ms}" ;;
    esac
done < <(grep -E '^(ok  |n/a |FAIL) ' $log)
round() { grep -E '^[0-9]+ passed, 0 failed' $log; }
check "the round ends without a failure" round
sed 's/^/| /' $log
finish
