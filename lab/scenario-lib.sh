# shellcheck shell=bash disable=SC2034
# Sourced in the guest by the scenarios (`cargo xtask lab`). A line that begins with "@@" is
# a report: `ok NAME (S s)`, `FAIL NAME: WHY`, `skip NAME: WHY`, `note TEXT`, `announce TEXT`, and `end` as the
# last one; all else is shown only when something fails.
#
#   LAB_SERVER  dhow (beside the guest), inside, knfsd
#   LAB_VERS    the version to mount with
#   LAB_FS      what the served files lie on
#   LAB_LONG    not empty: much work (`cargo xtask lab --long`)
#
# Nothing here may depend on how fast the machine is: a scenario waits for states (`soon`, `busy`), and what bounds a
# wait, LAB_PATIENCE seconds for programs, is a bound against hangs.
. /share/guest-lib.sh
. /share/server-lib.sh

say() { echo "@@ $*"; }
note() { say "note $*"; }
skip() { say "skip $1: $2"; }
# announce TEXT: errors that a server logs with TEXT in their line are what the scenario is about. Any other error, and a
# panic always, fails the run, whatever the checks say.
announce() { say "announce $*"; }

# Seconds since the guest's start: a scenario may set its clock.
since_start() { cut -d' ' -f1 /proc/uptime; }
# check NAME COMMAND...: runs it, under set -e where it is a function, and reports.
failures=0
check() {
    local name=$1 t0 rc; shift
    t0=$(since_start)
    ( set -e; "$@" ) >/tmp/check.log 2>&1
    rc=$?
    if [ "$rc" = 0 ]; then
        say "ok $name ($(awk -v a="$t0" -v b="$(since_start)" 'BEGIN {printf "%.1f", b-a}') s)"
    else
        failures=$((failures + 1))
        say "FAIL $name: status $rc: $(tail -n 3 /tmp/check.log | tr '\n' ' ' | cut -c1-400)"
        sed 's/^/| /' /tmp/check.log
        dmesg | tail -40 | sed 's/^/| kernel: /'
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
        tail -n 40 "$LOGS"/server.*.log | sed 's/^/| server: /'
    fi
    [ -z "$deaths" ] || { say "FAIL server: it ended by itself, $deaths times"; failures=$((failures + 1)); }
    dmesg | grep -iE 'BUG|WARNING:|NFS: |blocked for more' | tail -5 | sed 's/^/| kernel: /'
    echo "@@ end"
    [ "$failures" = 0 ]
    exit
}
# amount SHORT LONG: the first in the gate, the second with --long.
amount() { if [ "${LAB_LONG:-}" ]; then echo "$2"; else echo "$1"; fi; }
LAB_PATIENCE=$(amount 250 2000)
export LAB_PATIENCE
# soon COMMAND...: it succeeds sooner or later. (Names and attributes are cached for up to a minute.)
soon() {
    local end=$((SECONDS + LAB_PATIENCE))
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || { echo "not in $LAB_PATIENCE s: $*"; return 1; }
        sleep 0.2
    done
}
exists() { [ -e "$1" ]; }
absent() { [ ! -e "$1" ]; }
# tidy DIR: nothing is left of files that were removed while open. Their last close does not wait for the removal.
no_silly() { [ -z "$(find "$1" -name '.nfs*' 2>/dev/null)" ]; }
tidy() { soon no_silly "$1"; }
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

# own: the scenario starts its servers by itself, in the guest, by dhow_start.
own() { HOST=10.99.0.2 TOP='' CONTROL=/out; }

begin_inside() {
    local n name=${0##*/}
    export LAB_SERVER LAB_FS
    CONTROL=/tmp/control
    mkdir -p $CONTROL
    LAB_BASE=$SERVED LAB_OUT=$CONTROL LAB_LOGS=/out LAB_SHARE=/share LAB_SCENARIO=${name%.sh} \
        bash /share/beside serve >$CONTROL/log 2>&1 &
    for ((n = 0; n < 1800; n++)); do
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
    for ((n = 0; n < 6000; n++)); do
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
# asked: how many requests all mounts have sent. busy PID AT: the process has had some more answered than AT, and goes on.
asked() { awk '$1 == "device" {on = 0} /per-op statistics/ {on = 1} on && $1 ~ /:$/ {n += $2} END {print n + 0}' /proc/self/mountstats; }
busy() {
    local n more
    for ((n = 0; n < 10 * LAB_PATIENCE; n++)); do
        kill -0 "$1" 2>/dev/null || return
        more=$(($(asked) - $2))     # less than before: it has unmounted
        [ "${more#-}" -lt 40 ] || return 0
        sleep 0.1
    done
}
# shaken N COMMAND...: runs it, under set -e where it is a function, while the server is killed and ended by
# SIGTERM in turns and started again, N times or until the work is done; each time in the middle of work. Work that was
# over before the first time has shown nothing: it is done again, with less time until then, and fails in the end.
#
# There are no persistent sessions (RFC 8881 section 2.10.6.5): what the killed server did last and did not answer is
# asked again after its restart, and then finds itself done: a removal or a rename finds no such name (NOENT), a new folder
# or link finds its name taken (EXIST). (An exclusive create does not: its verifier is kept with the file, section 18.16.3.)
# Work looks whether that is what happened, or takes a step as a whole once more (`redo`).
shaken() {
    local times=$1 n rc work signal at first; shift
    for first in 1 0.5 0.2 0.1; do
        n=0 rc=0 at=$(asked)
        echo 0 >/tmp/shakes
        ( set -e; "$@" ) 7<&- 8<&- & work=$!
        sleep $first
        while [ "$n" -lt "$times" ] && busy $work "$at"; do
            n=$((n + 1)) signal=KILL; [ $((n % 2)) = 1 ] || signal=TERM
            echo $((2 * n - 1)) >/tmp/shakes
            restart $signal || { echo "the server did not come back"; kill $work; return 1; }
            echo $((2 * n)) >/tmp/shakes
            at=$(asked)
            sleep 1
        done
        wait $work || rc=$?
        rm /tmp/shakes
        echo "restarted $n times"
        [ $rc = 0 ] && [ $n = 0 ] || break
        echo "it was over within $first s: once more"
    done
    [ $rc = 0 ] && at_least 1 $n "restarts while it ran"
}
# redo COMMAND...: runs it once more where it failed and the server went while it ran (in /tmp/shakes: how often it went
# and came; odd while it is away). It must be good for running twice, and what it made is checked afterwards.
redo() {
    local before rc
    while :; do
        before=$(cat /tmp/shakes 2>/dev/null || echo 0) rc=0
        "$@" || rc=$?
        [ $rc != 0 ] || return 0
        [ $((before % 2)) = 1 ] || [ "$(cat /tmp/shakes 2>/dev/null || echo 0)" != "$before" ] || return $rc
        echo "once more, the server went meanwhile: $*"
        drop        # Linux goes on believing that there is no such name after it was told EXIST
    done
}

# mnt EXPORT DIR [OPTIONS]
mnt() {
    mkdir -p "$2"
    mount -t nfs -o "vers=$LAB_VERS,proto=tcp,port=2049${3:+,$3}" "$HOST:${TOP}$1" "$2"
}
# again DIR EXPORT: unmounts, forgets all that is cached, mounts.
again() { umount "$1" && drop && mnt "$2" "$1"; }
# client NAME N [OPTIONS]: a second NFS client (own address, own host name) with /data at /mnt/NAME.
client() {
    netclient "$1" "$2"
    mkdir -p "/mnt/$1"
    as "$1" mount -t nfs -o "vers=$LAB_VERS,proto=tcp,port=2049${3:+,$3}" "$HOST:${TOP}/data" "/mnt/$1"
}
# sent DIR OP: how many requests of one kind that mount has sent.
sent() { mstat "$1" "$2" | sed 's/.*=//; s/ //g'; }
# user UID COMMAND...: as that user, in no group but its own.
user() { local id=$1; shift; setpriv --reuid "$id" --regid "$id" --clear-groups "$@"; }

# counted HOW N PAUSE: clients a and b count in one file, N times each, each time under a lock (HOW: lockf or flock)
# that is held for PAUSE seconds at least; no update is lost.
counted() {
    local how=$1 n=$2 pause=$3 one two
    cat >/tmp/count.py <<'PY'
import fcntl, os, sys, time
how, n, pause = getattr(fcntl, sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
for i in range(n):
    with open(sys.argv[1], "r+") as f:
        how(f, fcntl.LOCK_EX)
        n = int(f.read()); f.seek(0); f.write("%d\n" % (n + 1)); f.truncate(); f.flush()
        if i % 2: os.fsync(f.fileno())      # letting the lock go must do
        if pause: time.sleep(pause)
        how(f, fcntl.LOCK_UN)
PY
    as a sh -c 'echo 0 >/mnt/a/counter'
    as a python3 /tmp/count.py /mnt/a/counter "$how" "$n" "$pause" & one=$!
    as b python3 /tmp/count.py /mnt/b/counter "$how" "$n" "$pause" & two=$!
    wait $one; wait $two
    same $((2 * n)) "$(as b cat /mnt/b/counter)"
}
