#!/bin/bash
# title: the server's whole machine is killed again and again: nothing acknowledged is lost, no lock is had twice (case B31)
# runs: 4.2-ext4 4.2-btrfs
# timeout: 500
# serves: no
# client: yes
# outside: yes
#
# The server runs in the guest, on a disk that outlives it; the clients, of our library, outside. They keep a book
# of what was acknowledged (crates/client/examples/ledger.rs). A guest that is killed loses its page cache.

if [ "${1:-}" = outside ]; then
    # shellcheck source=lab/scenario-lib.sh
    . "$LAB_SHARE/scenario-lib.sh"
    report() { mv "$LAB_OUT/book" "$LAB_OUT/report"; exec sleep infinity; }
    : >"$LAB_OUT/book"
    echo ready
    last=$(amount 3 25)
    for ((boot = 0; boot <= last; boot++)); do
        for ((n = 0; n < 900; n++)); do [ -e "$LAB_OUT/up.$boot" ] && break; sleep 0.1; done
        [ -e "$LAB_OUT/up.$boot" ] || { echo "FAIL boot $boot: the server is not up" >>"$LAB_OUT/book"; report; }
        if [ $boot = 0 ]; then "$LAB_SHARE/ledger" nfs://10.99.0.2/data "$LAB_OUT/stop" >>"$LAB_OUT/book" 2>&1 & book=$!; fi
        # Now and then in the time of grace, mostly after it.
        sleep "$((1 + RANDOM % 4)).$((RANDOM % 10))"
        if [ $boot = "$last" ]; then break; fi
        kill -0 $book || report
        touch "$LAB_GUEST.again"
        kill -KILL "$(cat "$LAB_GUEST")"
        echo "killed $boot"
    done
    sleep 2
    touch "$LAB_OUT/stop"
    wait $book; echo "ledger: status $?"
    echo "$last" >"$LAB_OUT/kills.new"; mv "$LAB_OUT/kills.new" "$LAB_OUT/kills"
    report
fi

export LAB_SERVER=inside
. /share/scenario-lib.sh
[ -x /share/ledger ] || { skip "power" "the client is not built"; finish; }
for ((boot = 0; ; boot++)); do [ -e /out/up.$boot ] || break; done
mkdir -p $SERVED/fs
if [ $boot = 0 ]; then
    mkvol "$LAB_FS" /dev/lab1 $SERVED/fs && mkdir $SERVED/fs/data $SERVED/fs/state && sync -f $SERVED/fs
else
    mount -t "$LAB_FS" /dev/lab1 $SERVED/fs
fi || { say "FAIL disk: boot $boot: no $LAB_FS"; finish; }
printf 'lease = "30s"\ngrace = "30s"\n' >/tmp/dhow.toml
dhow_start 2049 $SERVED/fs/state --config /tmp/dhow.toml --export "/data=$SERVED/fs/data,no_root_squash" >/tmp/start.log || {
    cat /tmp/start.log; say "FAIL server: boot $boot"; finish; }
touch /out/up.$boot
while [ ! -e /out/report ]; do sleep 0.2; done
sed 's/^/| /' /out/report
killed() { at_least 3 "$(cat /out/kills)" "times the guest was killed"; }
check "the guest was killed" killed
[ -e /out/kills ] && note "killed $(cat /out/kills) times"
line() { grep -E "^(ok  |FAIL) $1" /out/report; grep -q "^ok   $1: " /out/report; }
for what in "data 1" "data 2" "data 3" "names 1" "names 2" "lock 1" "lock 2"; do check "what was acknowledged: $what" line "$what"; done
finish
