# shellcheck shell=bash
# The server of a scenario, whichever it is. Sourced by `beside` on this machine and by
# scenario-lib.sh in the guest.
#
#   LAB_SERVER  dhow or inside: `dhow serve`; knfsd: the kernel's server
#   LAB_FS      what the served files lie on: tmpfs, dir, ext4, xfs, btrfs
#
# Three exports: data (nobody squashed), squash (root squashed), ro (read-only).

SERVED=${LAB_BASE:-/srv}
DHOW=${LAB_SHARE:-/share}/dhow
SERVER_LOG=${SERVER_LOG:-/dev/stdout}
EXPORT_OPTIONS=()
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
    mkdir -p "$where"/{data,squash,ro} "$SERVED/state"
    chmod 777 "$where/squash"
    echo "read me" >"$where/ro/file"
}

server_undisk() { [ "$LAB_FS" = dir ] || umount -l "$SERVED/fs" 2>/dev/null; }

# server_start: returns once it accepts connections.
server_start() {
    if [ "$LAB_SERVER" = knfsd ]; then
        knfsd_start "$SERVED/fs/data" >/dev/null || return
        local o=rw,sync,no_subtree_check,insecure
        {
            echo "$SERVED/fs/data *($o,no_root_squash,fsid=1)"
            echo "$SERVED/fs/squash *($o,root_squash,fsid=2)"
            echo "$SERVED/fs/ro *(ro,sync,no_subtree_check,insecure,no_root_squash,fsid=3)"
        } >/etc/exports
        exportfs -ra
        # LOCK waits for lockd's grace period too.
        [ ! -e /proc/fs/lockd/nlm_end_grace ] || echo Y >/proc/fs/lockd/nlm_end_grace
        return
    fi
    local listen=10.99.0.1:2049 d=$SERVED/fs
    [ "$LAB_SERVER" = inside ] && listen=0.0.0.0:2049
    if [ "$LAB_FS" = tmpfs ]; then export TMPDIR=/tmp; fi
    "$DHOW" serve --listen "$listen" --state-dir "$SERVED/state" "${EXPORT_OPTIONS[@]}" \
        --export "/data=$d/data,squash=none" --export "/squash=$d/squash,squash=root" \
        --export "/ro=$d/ro,ro,squash=none" >>"$SERVER_LOG" 2>&1 &
    server_pid=$!
    local n host=${listen%:*}
    [ "$host" = 0.0.0.0 ] && host=127.0.0.1
    for ((n = 0; n < 200; n++)); do
        (exec 3<>"/dev/tcp/$host/2049") 2>/dev/null && return
        kill -0 "$server_pid" 2>/dev/null || { echo "dhow serve ended before it accepted connections"; return 1; }
        sleep 0.05
    done
    echo "dhow serve accepts no connection after 10 s"; return 1
}

# server_stop [SIGNAL]: returns once it is gone.
server_stop() {
    if [ "$LAB_SERVER" = knfsd ]; then rpc.nfsd 0; pkill -x rpc.mountd; pkill -x nfsdcld; sleep 0.5; return; fi
    local pid=$server_pid
    server_pid=''                       # told to end: not a death
    kill "-${1:-TERM}" "$pid"
    wait "$pid" 2>/dev/null
    echo "server ended: status $?"
}
