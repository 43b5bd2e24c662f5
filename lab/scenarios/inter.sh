#!/bin/bash
# title: copies between servers: the kernel's client between dhow and dhow, dhow and knfsd, knfsd and dhow; dhow cp between two knfsd
# runs: 4.2
# timeout: 500
# mem: 3G
# serves: no
# client: yes
export LAB_SERVER=none
. /share/scenario-lib.sh
dhow=/share/dhow
mb=64

# One network of six hosts: a and b serve with dhow, k and l with knfsd, c is the client; knfsd's own
# client, when it is a destination, sits in the first namespace, which is the bridge.
hosts() {
    ip link add br0 type bridge; ip addr add 10.98.0.254/24 dev br0; ip link set br0 up
    local n=1 ns
    for ns in a b k c l; do
        ip netns add $ns
        ip link add v$ns type veth peer name eth0 netns $ns
        ip link set v$ns master br0 up
        ip -n $ns addr add 10.98.0.$n/24 dev eth0; ip -n $ns link set eth0 up; ip -n $ns link set lo up
        n=$((n + 1))
    done
}
need "network" hosts

disks() {
    mkvol ext4 /dev/lab1 /export; mkdir -p /export/{a,b,k}
    mkvol btrfs /dev/lab2 /export/k
    mkdir -p /export/l; mount -t tmpfs -o size=1g tmpfs /export/l
    head -c ${mb}M /dev/urandom >/tmp/src
    for d in a k; do
        cp /tmp/src /export/$d/src
        # Data, a hole, data, a hole.
        truncate -s 40M /export/$d/sparse; dd if=/tmp/src of=/export/$d/sparse bs=1M count=1 seek=20 conv=notrunc status=none
        sync -f /export/$d
    done
}
need "file systems" disks

need "dhow a" dhow_within a --log info
need "dhow b" dhow_within b --log info

knfsd() { # NS FSID
    modprobe -q nfsd 2>/dev/null || true
    echo Y >/sys/module/nfsd/parameters/inter_copy_offload_enable
    touch /etc/exports
    # `insecure`: dhow's client takes any port.
    # shellcheck disable=SC2016
    ns=$1 fsid=$2 nsenter --net=/run/netns/$1 unshare --mount --uts bash -c '
        echo server-$ns >/proc/sys/kernel/hostname
        mkdir -p /run/state.$ns; cp -a /var/lib/nfs/. /run/state.$ns/ 2>/dev/null; mount --bind /run/state.$ns /var/lib/nfs
        mount -t tmpfs tmpfs /run/nfs 2>/dev/null; umount -l /proc/fs/nfsd 2>/dev/null; mount -t nfsd nfsd /proc/fs/nfsd
        mkdir -p /var/lib/nfs/nfsdcld /run/rpc_pipefs; mount -t rpc_pipefs sunrpc /run/rpc_pipefs; rm -f /run/nfsdcld.pid; nfsdcld
        echo "/export/$ns *(rw,sync,no_root_squash,no_subtree_check,insecure,fsid=$fsid)" >/run/exports.$ns
        mount --bind /run/exports.$ns /etc/exports
        echo 10 >/proc/fs/nfsd/nfsv4gracetime; echo 10 >/proc/fs/nfsd/nfsv4leasetime
        exportfs -ra; rpc.mountd -N 3; rpc.nfsd -N 3 -V 4 -V 4.1 -V 4.2 8
        echo Y >/proc/fs/nfsd/v4_end_grace; [ "$(cat /proc/fs/nfsd/threads)" -gt 0 ]'
}
check "knfsd" knfsd k 1
check "second knfsd" knfsd l 2

# The client has a host name of its own: a destination that is a client of the source under the
# same name would be taken for this one, restarted.
c() { nsenter --net=/run/netns/c unshare --uts sh -c 'echo client-c >/proc/sys/kernel/hostname; exec "$@"' sh "$@"; }
mounts() {
    mkdir -p /mnt/{a,b,k}
    c mount -t nfs -o vers=4.2,proto=tcp 10.98.0.1:/data /mnt/a
    c mount -t nfs -o vers=4.2,proto=tcp 10.98.0.2:/data /mnt/b
    c mount -t nfs -o vers=4.2,proto=tcp 10.98.0.3:/export/k /mnt/k
}
need "mounts" mounts

# between FROM TO: copies by copy_file_range; equal, and no READ or WRITE by the client.
between() {
    local r w n; r=$(sent /mnt/"$1" READ) w=$(sent /mnt/"$2" WRITE) n=$(sent /mnt/"$2" COPY)
    ( . /share/guest-lib.sh; c bash -c '. /share/guest-lib.sh; cfr /mnt/'"$1"'/src /mnt/'"$2"'/from-'"$1" )
    echo "COPY_NOTIFY $(sent /mnt/"$1" COPY_NOTIFY) COPY $(($(sent /mnt/"$2" COPY) - n)) READ $(($(sent /mnt/"$1" READ) - r)) WRITE $(($(sent /mnt/"$2" WRITE) - w))"
    cmp /tmp/src /export/"$2"/from-"$1"
    at_least 1 $(($(sent /mnt/"$2" COPY) - n)) COPY
    same 0 $(($(sent /mnt/"$1" READ) - r)) READ
    same 0 $(($(sent /mnt/"$2" WRITE) - w)) WRITE
}
sparse() {
    ( c bash -c '. /share/guest-lib.sh; cfr /mnt/'"$1"'/sparse /mnt/'"$2"'/sparse-from-'"$1" )
    cmp /export/"$1"/sparse /export/"$2"/sparse-from-"$1"
    [ "$(stat -c %b /export/"$2"/sparse-from-"$1")" -lt 20000 ] || { echo "the holes are gone"; return 1; }
}
check "dhow to dhow" between a b
check "dhow to dhow, holes" sparse a b
check "dhow to knfsd" between a k
check "knfsd to dhow" between k b
check "knfsd to dhow, holes" sparse k b
# The second time nothing is set up.
again() {
    local n; n=$(grep -c . "$LOGS/dhow.a.log")
    rm /export/b/from-a; between a b
    echo "log of a grew by $(($(grep -c . "$LOGS/dhow.a.log") - n)) lines"
}
check "dhow to dhow again" again
# dhow cp FROM TO, by the servers; calls of the client as it counts them.
cli() { # FROM-URL TO-URL LOCAL-FROM LOCAL-TO
    rm -f "$4"
    c "$dhow" cp --json --method inter "$1" "$2" >/tmp/cp.json || { cat /tmp/cp.json; return 1; }
    cat /tmp/cp.json
    cmp "$3" "$4"
    grep -q '"method":"inter"' /tmp/cp.json
    grep -q '"COPY":' /tmp/cp.json && grep -q '"COPY_NOTIFY":' /tmp/cp.json
    if grep -qE '"(READ|READ_PLUS|WRITE)":' /tmp/cp.json; then echo "data went through the client"; return 1; fi
}
# What a knfsd has been asked to WRITE (RFC 8881 operation 38): of its namespace.
written() { nsenter --net=/run/netns/"$1" awk '$1 == "proc4ops" { print $(38 + 3) }' /proc/net/rpc/nfsd; }
two_knfsd() {
    local before; before=$(written l); [ -n "$before" ]
    cli nfs://10.98.0.3/export/k/src nfs://10.98.0.5/export/l/y /tmp/src /export/l/y
    same "$before" "$(written l)" "WRITEs to the destination"
}
check "dhow cp, knfsd to knfsd" two_knfsd
check "dhow cp, knfsd to knfsd again" two_knfsd
check "dhow cp, dhow to knfsd" cli nfs://10.98.0.1/data/src nfs://10.98.0.5/export/l/z /tmp/src /export/l/z
check "dhow cp, knfsd to dhow" cli nfs://10.98.0.3/export/k/src nfs://10.98.0.2/data/z /tmp/src /export/b/z
# Where a server will not, `auto` reads and writes, and says why.
refused() {
    echo N >/sys/module/nfsd/parameters/inter_copy_offload_enable
    rm -f /export/l/w
    c env XDG_CACHE_HOME=/tmp/none "$dhow" cp --json --inter-min-size 0 nfs://10.98.0.3/export/k/src nfs://10.98.0.5/export/l/w >/tmp/cp.json
    echo Y >/sys/module/nfsd/parameters/inter_copy_offload_enable
    cat /tmp/cp.json
    cmp /tmp/src /export/l/w
    grep -q '"method":"readwrite"' /tmp/cp.json
    grep -qE '"refused":.*"inter":"[^"]+"' /tmp/cp.json
}
check "dhow cp, knfsd that will not" refused
for s in a b; do kill -0 "$(pgrep -f "state-dir /run/dhow.$s")" || note "server $s ended"; done
tail -n 20 "$LOGS/dhow.a.log" "$LOGS/dhow.b.log" | sed 's/^/| server: /'
finish
