#!/bin/bash
# title: SQLite in rollback mode, with writers on two clients
# runs: 4.1-dir 4.2-dir
# timeout: 500
# lease: 20
. /share/scenario-lib.sh
begin
need "client a mounts" client a 3
need "client b mounts" client b 4
cat >/tmp/bank.py <<'PY'
# bank.py DATABASE NAME N LOG: N transactions, each of which moves something between accounts and writes a row; what
# was committed is logged. Journal in a file that is deleted, fsync at every step.
import os, random, sqlite3, sys, time
path, name, n, log = sys.argv[1], sys.argv[2], int(sys.argv[3]), open(sys.argv[4], "w")
r = random.Random(name)
def opened():
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    assert db.execute("PRAGMA journal_mode=DELETE").fetchone()[0] == "delete"
    db.execute("PRAGMA synchronous=FULL")
    return db
db = opened()
end = time.monotonic() + float(os.environ["LAB_PATIENCE"])
# A transaction ends with the removal of the journal. One that was asked again, since the killed server's reply was lost,
# finds no journal and is an error to SQLite: whether the transaction is there tells another connection.
def over(how, i):
    global db
    try: db.execute(how); return how == "COMMIT"
    except sqlite3.OperationalError as e:
        if "disk I/O error" not in str(e) or not os.path.exists("/tmp/shakes"): raise
        db.close(); db = opened(); print(how, i, e)
        while True:
            try: return db.execute("SELECT count(*) FROM done WHERE who = ? AND n = ?", (name, i)).fetchone()[0] == 1
            except sqlite3.OperationalError as e:
                if "locked" not in str(e) or time.monotonic() > end: raise
                time.sleep(0.02)
for i in range(n):
    while True:
        try:
            db.execute("BEGIN IMMEDIATE"); break
        except sqlite3.OperationalError as e:       # the other one has it
            if "locked" not in str(e) or time.monotonic() > end: raise
            time.sleep(0.02)
    a, b, sum = r.randrange(20), r.randrange(20), r.randrange(100)
    db.execute("UPDATE account SET has = has - ? WHERE id = ?", (sum, a))
    db.execute("UPDATE account SET has = has + ? WHERE id = ?", (sum, b))
    db.execute("INSERT INTO done VALUES (?, ?, ?)", (name, i, "x" * r.randrange(2000)))
    if i % 10 == 9:
        # (It may come back rolled back, never committed.)
        if over("ROLLBACK", i): sys.exit("%d was rolled back and is there" % i)
    elif over("COMMIT", i): print(i, file=log, flush=True)
    else: sys.exit("%d was committed and is not there" % i)
PY
cat >/tmp/audit.py <<'PY'
# audit.py DATABASE LOG:NAME...: the database is whole, money is kept, what was committed is there and nothing else is.
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=60)
assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)], db.execute("PRAGMA integrity_check").fetchall()
assert db.execute("SELECT sum(has), count(*) FROM account").fetchone() == (20000, 20)
for word in sys.argv[2:]:
    log, name = word.rsplit(":", 1)
    wanted = [int(line) for line in open(log)]
    got = [row[0] for row in db.execute("SELECT n FROM done WHERE who = ? ORDER BY n", (name,))]
    assert got == wanted, (name, "missing", sorted(set(wanted) - set(got)), "too many", sorted(set(got) - set(wanted)))
    print(name, len(got), "rows")
PY
new() {
    rm -f "$1" "$1-journal"
    python3 - "$1" <<'PY'
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, has INTEGER)"); db.execute("CREATE TABLE done (who TEXT, n INTEGER, data TEXT, PRIMARY KEY (who, n))")
db.executemany("INSERT INTO account VALUES (?, 1000)", [(i,) for i in range(20)]); db.commit()
PY
}
bank() {
    local one two
    as a python3 /tmp/bank.py "/mnt/a/$1" a "$2" /tmp/log.a & one=$!
    as b python3 /tmp/bank.py "/mnt/b/$1" b "$2" /tmp/log.b & two=$!
    wait $one; wait $two
    as b python3 /tmp/audit.py "/mnt/b/$1" /tmp/log.a:a /tmp/log.b:b
    as a python3 /tmp/audit.py "/mnt/a/$1" /tmp/log.a:a /tmp/log.b:b
    [ ! -e "/mnt/a/$1-journal" ]
}
check "a new database" new /mnt/a/one.db
check "two writers: whole, and every commit is there" bank one.db "$(amount 30 300)"
check "another new database" new /mnt/b/two.db
check "two writers while the server is killed and ended" shaken "$(amount 2 8)" bank two.db "$(amount 60 500)"
onserver() { server 'cp data/one.db data/two.db "$LAB_OUT/"' && for d in one two; do same ok "$(python3 -c 'import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute("PRAGMA integrity_check").fetchone()[0])' $CONTROL/$d.db)"; done; }
if [ "$LAB_SERVER" = dhow ]; then check "the server's own files are whole" onserver; fi
check "client a unmounts" umount /mnt/a
check "client b unmounts" umount /mnt/b
finish
