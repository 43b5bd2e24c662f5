# shellcheck shell=bash
# The server of a scenario, whichever it is. Sourced by `beside` on this machine and by
# scenario-lib.sh in the guest.
#
#   LAB_SERVER  dhow or inside: `dhow serve`; knfsd: the kernel's server
#   LAB_FS      what the served files lie on: tmpfs, dir, ext4, xfs, btrfs
#
# Exports: data (nobody squashed), squash (root squashed), all (everybody squashed to 1234:5678),
# ro (read-only), closed (for a network that no client is in).

SERVED=${LAB_BASE:-/srv}
# What servers print goes where it outlives the guest: `cargo xtask lab` looks for faults in every *.log there.
LOGS=${LAB_LOGS:-${LAB_OUT:-/out}}
[ -d "$LOGS" ] || LOGS=/tmp
DHOW=${LAB_SHARE:-/share}/dhow
server_pid=''

# server_disk: a fresh file system at $SERVED/fs with the exported folders in it.
server_disk() {
    local where=$SERVED/fs image=$SERVED/image
    mkdir -p "$where"
    case $LAB_FS in
        dir) ;;
        tmpfs) mount -t tmpfs -o size=1500M tmpfs "$where" ;;
        *)
            # In the guest a scratch disk, on this machine a loop device.
            if [ -b /dev/lab1 ]; then image=/dev/lab1; else truncate -s 4G "$image"; fi
            case $LAB_FS in
                btrfs) mkfs.btrfs -q -K -f "$image" ;;
                xfs) mkfs.xfs -q -K -f -m reflink=1 "$image" ;;
                ext4) mkfs.ext4 -q -E nodiscard -F "$image" ;;
            esac >/dev/null 2>&1 || return
            if [ -b "$image" ]; then mount -t "$LAB_FS" "$image" "$where"
            else mount -t "$LAB_FS" -o loop "$image" "$where"; fi ;;
    esac || return
    mkdir -p "$where"/{data,squash,all,ro,closed} "$SERVED/state"
    chmod 777 "$where/squash" "$where/all"
    echo "read me" >"$where/ro/file"
}

server_undisk() { [ "$LAB_FS" = dir ] || umount -l "$SERVED/fs" 2>/dev/null; }

# server_start: returns once it accepts connections.
server_start() {
    if [ "$LAB_SERVER" = knfsd ]; then
        # No delegations: with them times set just after a write are now and then lost (Linux 7.2).
        echo 0 >/proc/sys/fs/leases-enable
        knfsd_start "$SERVED/fs/data" >/dev/null || return
        local o=rw,sync,no_subtree_check,insecure
        {
            echo "$SERVED/fs/data *($o,no_root_squash,fsid=1)"
            echo "$SERVED/fs/squash *($o,root_squash,fsid=2)"
            echo "$SERVED/fs/all *($o,all_squash,anonuid=1234,anongid=5678,fsid=4)"
            echo "$SERVED/fs/closed 192.0.2.0/24($o,no_root_squash,fsid=5)"
            echo "$SERVED/fs/ro *(ro,sync,no_subtree_check,insecure,no_root_squash,fsid=3)"
        } >/etc/exports
        exportfs -ra
        # LOCK waits for lockd's grace period too.
        [ ! -e /proc/fs/lockd/nlm_end_grace ] || echo Y >/proc/fs/lockd/nlm_end_grace
        return
    fi
    local d=$SERVED/fs script=${LAB_SHARE:-/share}/scenarios/${LAB_SCENARIO:-none}.sh lease
    lease=$(sed -n 's/^# lease: //p' "$script" 2>/dev/null)
    printf 'lease = "%ss"\ngrace = "%ss"\n' "${lease:-90}" "${lease:-90}" >"$SERVED/dhow.toml"
    # DATA_OPTIONS: further options of the export data, each with a comma before it. A scenario sets it by `server`.
    dhow_start 2049 "$SERVED/state" --config "$SERVED/dhow.toml" --export "/data=$d/data,no_root_squash${DATA_OPTIONS:-}" --export "/squash=$d/squash,root_squash" \
        --export "/all=$d/all,all_squash,anonuid=1234,anongid=5678" --export "/ro=$d/ro,ro,no_root_squash" \
        --export "/closed=$d/closed,no_root_squash,clients=192.0.2.0/24" || return
    server_pid=$!
}

# dhow_run LOG COMMAND...: `dhow serve` in the background ($!); returns once LOG, to which it adds, says that it is ready.
dhow_run() {
    local log=$1 n pid from; shift
    echo "== $(date -u +%T) start" >>"$log"
    from=$(($(stat -c %s "$log") + 1))
    "$@" >>"$log" 2>&1 &
    pid=$!
    for ((n = 0; n < 1200; n++)); do
        tail -c "+$from" "$log" | grep -qw ready && return
        kill -0 "$pid" 2>/dev/null || { tail -n 20 "$log"; echo "dhow serve ended before it was ready"; return 1; }
        sleep 0.05
    done
    tail -n 20 "$log"; echo "dhow serve is not ready after 60 s"; return 1
}
# dhow_start PORT STATEDIR ARG...: of the server under test, or one more beside it.
dhow_start() {
    local port=$1 state=$2 host=10.99.0.1; shift 2
    [ "$LAB_SERVER" = inside ] && host='[::]'
    dhow_run "$LOGS/server.$port.log" "$DHOW" serve --listen "$host:$port" --state-dir "$state" "$@"
}
# dhow_within NS ARG...: in a network namespace of the guest, over /export/NS as /data; it takes part in copies between
# servers. Its log is $LOGS/dhow.NS.log.
dhow_within() {
    local ns=$1; shift
    printf '[copy]\ninter_server = "on"\nsources = ["10.98.0.0/16"]\ndestinations = ["10.98.0.0/16"]\n' >/tmp/dhow.toml
    dhow_run "$LOGS/dhow.$ns.log" nsenter --net="/run/netns/$ns" "$DHOW" serve --config /tmp/dhow.toml \
        --listen 0.0.0.0:2049 --state-dir "/run/dhow.$ns" --export "/data=/export/$ns,no_root_squash" "$@"
}

# server_stop [SIGNAL]: returns once it is gone.
server_stop() {
    if [ "$LAB_SERVER" = knfsd ]; then rpc.nfsd 0; pkill -x rpc.mountd; pkill -x nfsdcld; sleep 0.5; return; fi
    local pid=$server_pid
    server_pid=''                       # told to end: not a death
    kill "-${1:-TERM}" "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null
    echo "server ended: status $?"
}
