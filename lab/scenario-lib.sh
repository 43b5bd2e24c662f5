# shellcheck shell=bash disable=SC2034
# Sourced in the guest by the scenarios (`cargo xtask lab`). A line that begins with "@@" is
# a report: `ok NAME (S s)`, `FAIL NAME: WHY`, `skip NAME: WHY`, `note TEXT`, and `end` as the
# last one; all else is shown only when something fails.
#
#   LAB_SERVER  dhow (beside the guest), inside, knfsd
#   LAB_VERS    the version to mount with
#   LAB_FS      what the served files lie on
#   LAB_LONG    not empty: much work (`cargo xtask lab --long`)
. /share/guest-lib.sh
. /share/server-lib.sh

say() { echo "@@ $*"; }
note() { say "note $*"; }
skip() { say "skip $1: $2"; }

# check NAME COMMAND...: runs it, under set -e where it is a function, and reports.
failures=0
check() {
    local name=$1 t0 rc; shift
    t0=$(date +%s%N)
    ( set -e; "$@" ) >/tmp/check.log 2>&1
    rc=$?
    if [ "$rc" = 0 ]; then
        say "ok $name ($(awk -v a="$t0" -v b="$(date +%s%N)" 'BEGIN {printf "%.1f", (b-a)/1e9}') s)"
    else
        failures=$((failures + 1))
        say "FAIL $name: status $rc: $(tail -n 3 /tmp/check.log | tr '\n' ' ' | cut -c1-400)"
        sed 's/^/| /' /tmp/check.log
        dmesg | tail -5 | sed 's/^/| kernel: /'
    fi
    return 0
}

# must_fail ERROR[|ERROR] COMMAND...: the command fails, and says so.
must_fail() {
    local want=$1 text; shift
    if text=$(LC_ALL=C "$@" 2>&1); then echo "succeeded: $*"; return 1; fi
    grep -qE -- "$want" <<<"$text" || { echo "wanted '$want', got: $text"; return 1; }
}
# same WANTED GOT [WHAT]
same() { [ "$1" = "$2" ] || { echo "${3:-value}: wanted '$1', got '$2'"; return 1; }; }
# at_least N GOT [WHAT]
at_least() { [ "${2:-0}" -ge "$1" ] || { echo "${3:-count}: wanted at least $1, got '$2'"; return 1; }; }

# Ends the scenario. A server that ended by itself fails it, whatever the checks said.
finish() {
    local deaths
    deaths=$(cat "$CONTROL/deaths" 2>/dev/null)
    if [ "$LAB_SERVER" = inside ] && [ "$failures$deaths" != 0 ]; then
        tail -n 40 "$SERVED"/server.*.log | sed 's/^/| server: /'
    fi
    [ -z "$deaths" ] || { say "FAIL server: it ended by itself, $deaths times"; failures=$((failures + 1)); }
    dmesg | grep -iE 'BUG|WARNING:|NFS: ' | tail -5 | sed 's/^/| kernel: /'
    echo "@@ end"
    [ "$failures" = 0 ]
    exit
}
# amount SHORT LONG: the first in the gate, the second with --long.
amount() { if [ "${LAB_LONG:-}" ]; then echo "$2"; else echo "$1"; fi; }
# without NAME COMMAND...: a step without which the rest makes no sense.
need() { local before=$failures; check "$@"; [ "$failures" = "$before" ] || finish; }

# ------------------------------------------------------------------ the server
# begin: starts the server, where it runs in the guest. Sets HOST and TOP (what stands
# before an export's name).
begin() {
    HOST=10.99.0.1 TOP='' CONTROL=/out
    [ "$LAB_SERVER" = dhow ] && return
    HOST=10.99.0.2
    [ "$LAB_SERVER" = knfsd ] && TOP=/srv/fs
    # knfsd does not export tmpfs files by handles that outlive a restart: same rules, on ext4.
    if [ "$LAB_SERVER" = knfsd ] && [ "$LAB_FS" = tmpfs ]; then LAB_FS=ext4; fi
    [ "$LAB_FS" = dir ] && LAB_FS=ext4
    if [ "$LAB_SERVER" = inside ]; then begin_inside; return; fi
    server_disk || { say "FAIL begin: no disk with $LAB_FS"; finish; }
    if grep -q '^# prepares: yes' "$0"; then ( cd "$SERVED/fs" && bash "$0" prepare ); fi
    server_start >/tmp/start.log 2>&1 || {
        cat /tmp/start.log
        say "FAIL begin: no server"
        finish
    }
}

begin_inside() {
    local n name=${0##*/}
    export LAB_SERVER LAB_FS
    CONTROL=/tmp/control
    mkdir -p $CONTROL
    LAB_BASE=$SERVED LAB_OUT=$CONTROL LAB_SHARE=/share LAB_SCENARIO=${name%.sh} \
        bash /share/beside serve >$CONTROL/log 2>&1 &
    for ((n = 0; n < 300; n++)); do
        grep -qx ready $CONTROL/log && return
        sleep 0.1
    done
    cat $CONTROL/log; say "FAIL begin: no server"; finish
}

# server LINE: runs a line for bash where the server is, in the folder that holds the
# exported folders. Functions of server-lib.sh may be called.
server() {
    local n rc
    if [ "$LAB_SERVER" = knfsd ]; then
        cd "$SERVED/fs" || return
        eval "$1" 7<&- 8<&-; rc=$?      # a server started here must not hold a scenario's files
        cd - >/dev/null || return
        return "$rc"
    fi
    rm -f "$CONTROL/answer"
    printf '%s\n' "$1" >"$CONTROL/ask.new"
    mv "$CONTROL/ask.new" "$CONTROL/ask"
    for ((n = 0; n < 600; n++)); do
        if [ -e "$CONTROL/answer" ]; then
            rc=$(tail -n 1 "$CONTROL/answer")
            head -n -1 "$CONTROL/answer"
            return "$rc"
        fi
        sleep 0.05
    done
    echo "no answer from the server's side"; return 1
}

# restart [SIGNAL]: ends the server and starts it again.
restart() { server "server_stop ${1:-KILL}; server_start"; }
# shaken N COMMAND...: runs it, under set -e where it is a function, while the server is killed and ended by
# SIGTERM in turns and started again, N times or until the work is done. Work that was over before the first
# time has shown nothing and fails.
shaken() {
    local times=$1 n=0 rc=0 work signal; shift
    ( set -e; "$@" ) 7<&- 8<&- & work=$!
    sleep 1
    while [ "$n" -lt "$times" ] && kill -0 $work 2>/dev/null; do
        n=$((n + 1)) signal=KILL; [ $((n % 2)) = 1 ] || signal=TERM
        restart $signal || { echo "the server did not come back"; return 1; }
        sleep 2
    done
    wait $work || rc=$?
    echo "restarted $n times"
    [ $rc = 0 ] && at_least 1 $n "restarts while it ran"
}

# mnt EXPORT DIR [OPTIONS]
mnt() {
    mkdir -p "$2"
    mount -t nfs -o "vers=$LAB_VERS,proto=tcp,port=2049${3:+,$3}" "$HOST:${TOP}$1" "$2"
}
# again DIR EXPORT: unmounts, forgets all that is cached, mounts.
again() { umount "$1" && drop && mnt "$2" "$1"; }
# client NAME N: a second NFS client (own address, own host name) with /data at /mnt/NAME.
client() {
    netclient "$1" "$2"
    mkdir -p "/mnt/$1"
    as "$1" mount -t nfs -o "vers=$LAB_VERS,proto=tcp,port=2049" "$HOST:${TOP}/data" "/mnt/$1"
}
# sent DIR OP: how many requests of one kind that mount has sent.
sent() { mstat "$1" "$2" | sed 's/.*=//; s/ //g'; }
# user UID COMMAND...: as that user, in no group but its own.
user() { local id=$1; shift; setpriv --reuid "$id" --regid "$id" --clear-groups "$@"; }
