#!/bin/bash
# title: the server is killed again and again: nothing acknowledged is lost, no lock is had twice (case B31)
# runs: 4.1-dir 4.2-dir
# timeout: 500
# lease: 20
. /share/scenario-lib.sh
begin
need "client a mounts" client a 3
need "client b mounts" client b 4
cat >/tmp/book.py <<'PY'
# book.py data|names|lock DIR SEED: works until /tmp/enough is there, then compares with what it noted.
import errno, fcntl, os, random, struct, sys, time
what, top, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
r, end = random.Random(seed), time.monotonic() + float(os.environ["LAB_PATIENCE"])
def over(): return done > 2 and os.path.exists("/tmp/enough") or time.monotonic() > end
done = 0
if what == "data":
    # A block holds a version not older than the last that was synced, nor newer than the last that was written.
    B, N = 4096, 64; written, synced = [0] * N, [0] * N
    f = os.open(top + "/data%d" % seed, os.O_RDWR | os.O_CREAT, 0o644); g = os.open(top + "/data%d" % seed, os.O_WRONLY | os.O_DSYNC)
    os.ftruncate(f, B * N); os.fsync(f)
    def text(n): written[n] += 1; return struct.pack(">QQ", n, written[n]) * (B // 16)
    def audit(n, data):
        for k in range(0, B, 16):
            m, v = struct.unpack(">QQ", data[k:k + 16])
            if (m, v) == (0, 0) and synced[n] == 0: continue
            if m != n or not synced[n] <= v <= written[n]: sys.exit("block %d: found %d of %d, synced %d, written %d" % (n, v, m, synced[n], written[n]))
    while not over():
        if r.random() < 0.3:
            n = r.randrange(N); os.pwrite(g, text(n), n * B); synced[n] = written[n]
        else:
            some = [r.randrange(N) for _ in range(6)]
            for n in some: os.pwrite(f, text(n), n * B)
            os.fsync(f)
            for n in some: synced[n] = written[n]
        if r.random() < 0.1:
            os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED); n = r.randrange(N); audit(n, os.pread(f, B, n * B))
        done += 1
    os.close(f); os.close(g); open("/proc/sys/vm/drop_caches", "w").write("3")
    with open(top + "/data%d" % seed, "rb") as f:
        for n in range(N): audit(n, f.read(B))
elif what == "names":
    top += "/names%d" % seed
    try: os.mkdir(top)
    except FileExistsError: pass        # asked again, see below; the folder is this one's alone
    os.chdir(top); book = {}
    # A request whose answer was lost with the session is sent again by the kernel: then it finds itself done.
    def perform(call, *args, fine):
        try: call(*args); return
        except OSError as e:
            if e.errno != fine: raise
            found = observe()
            if found != after: sys.exit("%s%s: %s, but the folder is %s, wanted %s" % (call.__name__, args, e, found, after))
    def observe():
        seen = {}
        for e in os.scandir("."):
            if e.is_symlink(): seen[e.name] = "-> " + os.readlink(e.name)
            elif e.is_dir(): seen[e.name] = "/"
            else: seen[e.name] = open(e.name).read()
        return seen
    def put(name, t):
        with open(name, "x") as f: f.write(t); f.flush(); os.fsync(f.fileno())
    while not over():
        names, after, new = sorted(book), dict(book), "n%d" % done
        files = [n for n in names if book[n] not in ("/",) and not book[n].startswith("->")]
        k = r.randrange(6) if len(files) > 2 and len(names) < 25 else 5 if len(names) < 25 else 0
        if k == 0:
            n = r.choice(names); del after[n]
            perform(os.rmdir if book[n] == "/" else os.unlink, n, fine=errno.ENOENT)
        elif k == 1: n = r.choice(names); after[new] = after.pop(n); perform(os.rename, n, new, fine=errno.ENOENT)
        elif k == 2:
            a, b = r.sample(files, 2); after[b] = after.pop(a); perform(os.rename, a, b, fine=errno.ENOENT)
        elif k == 3: after[new] = "/"; perform(os.mkdir, new, fine=errno.EEXIST)
        elif k == 4: after[new] = "-> %d" % done; perform(os.symlink, str(done), new, fine=errno.EEXIST)
        else: after[new] = t = str(done) * r.randrange(1, 500); perform(put, new, t, fine=errno.EEXIST)
        book = after; done += 1
    found = observe()
    if found != book: sys.exit("missing or wrong: %s; too many: %s" % ([n for n in book if found.get(n) != book[n]][:5], [n for n in found if n not in book][:5]))
else:
    # Who has the lock has also, on this machine, the file that only one can make.
    f = os.open(top + "/count", os.O_RDWR | os.O_CREAT, 0o644)
    while not over():
        fcntl.lockf(f, fcntl.LOCK_EX)
        try: os.close(os.open("/tmp/holder", os.O_CREAT | os.O_EXCL))
        except FileExistsError: sys.exit("two have the lock")
        count = int(os.pread(f, 20, 0) or b"0"); acked = int(open("/tmp/counted").read() or "0")
        if count != acked: sys.exit("the count is %d, acknowledged were %d" % (count, acked))
        os.pwrite(f, b"%d" % (count + 1), 0); os.fsync(f)
        with open("/tmp/counted", "w") as c: c.write(str(count + 1))
        time.sleep(r.random() / 20); os.unlink("/tmp/holder")
        fcntl.lockf(f, fcntl.LOCK_UN); time.sleep(r.random() / 100); done += 1
if done < 3: sys.exit("only %d rounds" % done)
print(what, seed, done, "rounds")
PY
echo 0 >/tmp/counted
pids=() names=()
start() { as "$1" python3 /tmp/book.py "$2" "/mnt/$1" "$3" >"/tmp/$2$3.log" 2>&1 & pids+=($!); names+=("$2 $3, client $1"); }
start a data 1; start b data 2; start a names 1; start b names 2; start a lock 1; start b lock 2
kills() {
    local n p
    for ((n = 1; n <= $1; n++)); do
        sleep "$((RANDOM % 3)).$((RANDOM % 10))"
        for p in "${pids[@]}"; do kill -0 "$p" || { cat /tmp/{data,names,lock}?.log; return 1; }; done
        restart KILL
    done
    sleep 3
}
check "the server is killed $(amount 6 48) times" kills "$(amount 6 48)"
touch /tmp/enough
for n in "${!pids[@]}"; do
    # Its status is known to this shell alone.
    status=0; wait "${pids[n]}" || status=$?
    ended() { cat "/tmp/$(tr -d ' ' <<<"${names[n]%%,*}").log"; [ "$status" = 0 ]; }
    check "what was acknowledged: ${names[n]}" ended
done
check "client a unmounts" umount /mnt/a
check "client b unmounts" umount /mnt/b
finish
