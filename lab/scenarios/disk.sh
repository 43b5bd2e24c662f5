#!/bin/bash
# title: a disk fails, hangs and comes back: fsync tells it, the verifier changes, other exports go on (case K25)
# runs: 4.1-xfs 4.2-ext4
# timeout: 500
# serves: no
#
# The server runs in the guest, over a disk that is a program (NBD; the guest's kernel has no device mapper) and does as
# it is told.
export LAB_SERVER=inside
. /share/scenario-lib.sh
own
m=/mnt/data served=$SERVED/fs disk=/dev/nbd0
cat >/tmp/disk.py <<'PY'
# disk.py DEVICE FILE BYTES MODE: a disk over a file. MODE holds how it does: well; data (writes with POISON in them fail),
# dead (everything fails), hung (nothing is answered while it says so).
import fcntl, os, socket, struct, sys, threading, time
dev, path, size, mode = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
ours, theirs = socket.socketpair()
d, store = os.open(dev, os.O_RDWR), os.open(path, os.O_RDWR | os.O_CREAT)
os.truncate(store, size)
def told(): return open(mode).read().strip()
def ask(n, value=0): fcntl.ioctl(d, 0xab00 + n, value)
ask(4); ask(1, 4096); ask(7, size // 4096); ask(10, 1 | 4); ask(0, theirs.fileno())    # it has flags, it has FLUSH
def kernel():
    try: ask(3)
    finally: os._exit(0)
threading.Thread(target=kernel, daemon=True).start()
def take(n):
    data = b""
    while len(data) < n:
        more = ours.recv(n - len(data))
        if not more: os._exit(0)
        data += more
    return data
while True:
    magic, kind, handle, offset, n = struct.unpack(">II8sQI", take(28))
    kind &= 0xffff
    data = take(n) if kind == 1 else b""
    while told() == "hung": time.sleep(0.05)
    bad = told() == "dead" or told() == "data" and b"POISON" in data
    answer = b""
    if not bad and kind == 0: answer = os.pread(store, n, offset)
    elif not bad and kind == 1: os.pwrite(store, data, offset)
    elif kind == 2: os._exit(0)
    ours.sendall(struct.pack(">II8s", 0x67446698, 5 if bad else 0, handle) + answer)
PY
as_told() { echo "$1" >/tmp/mode.new; mv /tmp/mode.new /tmp/mode; }
sized() { [ "$(blockdev --getsize64 $disk)" = $((320 << 20)) ]; }
disks() {
    as_told well
    mkdir -p "$served" "$SERVED/other" "$SERVED/state"
    python3 /tmp/disk.py $disk /tmp/store $((320 << 20)) /tmp/mode >/tmp/disk.log 2>&1 &
    soon sized
    mkvol "$LAB_FS" $disk "$served"
    mkdir "$served/data"; mount -t tmpfs tmpfs "$SERVED/other"
}
serve() {
    printf 'lease = "20s"\ngrace = "20s"\n' >/tmp/dhow.toml
    dhow_start 2049 "$SERVED/state" --config /tmp/dhow.toml --export "/data=$served/data,no_root_squash" --export "/other=$SERVED/other,no_root_squash"
}
echo 360000 >/proc/sys/vm/dirty_expire_centisecs        # what is written stays where it is until somebody asks
need "a disk that does as it is told" disks
serve; server_pid=$!
need "the server" kill -0 $server_pid
# (By write=eager Linux sends what is written before it has to commit it.)
need "a second client" client b 4 write=eager
need "mount" mnt /data $m
need "mount what lies elsewhere" mnt /other /mnt/other

cat >/tmp/write.py <<'PY'
# write.py FILE: obeys lines: `write TEXT` fills 64 KiB, `send` starts what is written on its way, `sync`; says how each went.
import ctypes, os, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644); libc = ctypes.CDLL(None, use_errno=True)
def send():
    # SYNC_FILE_RANGE_WRITE and WAIT_AFTER: unstable WRITEs, and no COMMIT.
    if libc.sync_file_range(f, ctypes.c_long(0), ctypes.c_long(0), 6): e = ctypes.get_errno(); raise OSError(e, os.strerror(e))
for line in sys.stdin:
    what, _, text = line.strip().partition(" ")
    try:
        if what == "write": os.pwrite(f, (text.encode() + b" ") * (65536 // (len(text) + 1)), 0)
        elif what == "send": send()
        else: os.fsync(f)
        print("ok", flush=True)
    except OSError as e: print(e.strerror, flush=True)
PY
# Two programs on two clients.
mkfifo /tmp/one.to /tmp/one.from /tmp/two.to /tmp/two.from
python3 /tmp/write.py $m/one </tmp/one.to >/tmp/one.from &
as b python3 /tmp/write.py /mnt/b/two </tmp/two.to >/tmp/two.from &
exec 3>/tmp/one.to 4</tmp/one.from 5>/tmp/two.to 6</tmp/two.from
one() { local said; echo "$*" >&3; read -r -t "$LAB_PATIENCE" said <&4; echo "$said"; }
two() { local said; echo "$*" >&5; read -r -t "$LAB_PATIENCE" said <&6; echo "$said"; }
elsewhere() { echo "$1" >/mnt/other/f; sync -d /mnt/other/f; same "$1" "$(cat /mnt/other/f)"; rm /mnt/other/f; }

announce "an fsync failed"
poison() {
    local n
    same ok "$(two write kept)"; same ok "$(two send)"          # taken, not stable
    same ok "$(one write fine)"; same ok "$(one sync)"
    as_told data
    same ok "$(one write POISON)"
    n=$(sent /mnt/b WRITE)
    same "Input/output error" "$(one sync)" "fsync of what the disk did not take"
    same ok "$(one sync)" "the next"
    # The other client has its own data once more to send: the verifier is another (RFC 8881 18.3).
    same ok "$(two sync)"
    at_least $((n + 1)) "$(sent /mnt/b WRITE)" "WRITEs of client b"
    elsewhere while
    as_told well
    same ok "$(one write healed)"; same ok "$(one sync)"
    again /mnt/other /other
    echo 3 >/proc/sys/vm/drop_caches
    same healed "$(head -c 6 "$served/data/one")"; same kept "$(head -c 4 "$served/data/two")"
    same healed "$(as b head -c 6 /mnt/b/one)"
}
check "a write does not reach the disk: fsync says so, once, and other clients send again" poison
hang() {
    same ok "$(one write waits)"
    as_told hung
    one sync >/tmp/synced & local waits=$!
    sleep 1
    elsewhere meanwhile
    server_alive
    [ ! -s /tmp/synced ] || { echo "fsync came back: $(cat /tmp/synced)"; return 1; }
    as_told well
    wait $waits; same ok "$(cat /tmp/synced)"
}
server_alive() { "$DHOW" admin status --state-dir "$SERVED/state"; }
check "the disk hangs: other exports are served meanwhile" hang

announce "backend failed"
dead() {
    dd if=/dev/zero of=$m/cold bs=64k count=4 conv=fsync status=none
    same ok "$(one write last)"
    as_told dead
    echo 3 >/proc/sys/vm/drop_caches
    same "Input/output error" "$(one sync)" "fsync"
    must_fail "Input/output error" cat $m/cold
    elsewhere while
    server_alive
}
check "the disk dies: errors there, and only there" dead
exec 3>&- 5>&-
gone() { ! kill -0 $server_pid; }
revived() {
    kill -TERM $server_pid; soon gone
    as_told well
    umount "$served"; mount -t "$LAB_FS" $disk "$served"
    serve
    as b ls /mnt/b & ls $m     # both are back, which ends the time of grace
    echo 3 >/proc/sys/vm/drop_caches
    # "last" was never said to be stable; it may have got there all the same.
    head -c 6 $m/one | grep -qxE 'waits |last l'
    same kept "$(as b head -c 4 /mnt/b/two)"
    same 262144 "$(wc -c <$m/cold)"
    echo new >$m/new; sync $m/new; same new "$(as b cat /mnt/b/new)"
}
check "the disk is back: the same handles, what was stable is there" revived
check "unmount" umount $m /mnt/b /mnt/other
finish
