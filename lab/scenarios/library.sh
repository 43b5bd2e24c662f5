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
round() { /share/conformance nfs://127.0.0.1/srv/fs/data >$log 2>&1 || { grep -v '^ok' $log; return 1; }; }
check "conformance round" round
sed 's/^/| /' $log
note "$(grep -c '^ok' $log) checks passed, $(grep -c 'n/a' $log) not offered by knfsd"
finish
