//! How many round trips things take: each is a call that a far server makes expensive.

use crate::common::pair;
use bytes::Bytes;
use dhow_client::v4::ops::share;
use dhow_client::v4::{Attrs, StableHow, Status};
use dhow_client::{CopyOptions, Create, Error, OpenOptions, Pipeline, PutOptions, STAT};
use dhow_testkit::fault::{Action, Call};
use dhow_vfs::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

#[tokio::test]
async fn common_things_take_one_round_trip() {
    let (_place, _running, client) = pair().await;
    let fs = client.fs();
    for dir in ["a", "a/b", "a/b/c"] {
        fs.mkdir(dir, 0o755).await.unwrap();
    }
    let calls = || client.counters().snapshot().calls;
    let mut before = calls();
    let mut took = |what: &str, expected: u64| {
        let now = calls();
        assert_eq!(now - before, expected, "{what}");
        before = now;
    };
    fs.put("a/b/c/f", Bytes::from_static(b"hello"), &PutOptions::default()).await.unwrap();
    took("put", 1);
    let via = PutOptions { via: Some(Bytes::from_static(b".f")), ..PutOptions::default() };
    fs.put("a/b/c/f", Bytes::from_static(b"hello"), &via).await.unwrap();
    took("put by way of another name", 1);
    let with = PutOptions { attrs: Some(Attrs { mode: Some(0o640), ..Attrs::default() }), ..via };
    fs.put("a/b/c/f", Bytes::from_static(b"hello"), &with).await.unwrap();
    took("put with attributes", 1);
    assert_eq!(fs.stat("a/b/c/f").await.unwrap().attrs.mode, Some(0o640));
    took("stat", 1);
    fs.make_file("a/b/c/e", 0o640, true).await.unwrap();
    took("create and close", 1);
    let taken = fs.make_file("a/b/c/e", 0o640, true).await;
    assert!(taken.is_err_and(|e| e.is(Status::EXIST)));
    took("create of what is there", 1);
    fs.make_file("a/b/c/e", 0o600, false).await.unwrap();
    took("create or find", 1);
    assert_eq!(fs.stat("a/b/c/e").await.unwrap().attrs.mode, Some(0o640));
    took("stat", 1);
    fs.remove("a/b/c/e").await.unwrap();
    took("remove", 1);
    fs.mkdir("a/b/c/d", 0o755).await.unwrap();
    took("mkdir", 1);
    fs.remove("a/b/c/d").await.unwrap();
    took("remove of a directory", 1);
    assert_eq!(fs.get("a/b/c/f", 1000).await.unwrap().unwrap().1, "hello");
    took("get", 1);
    fs.stat("a/b/c/f").await.unwrap();
    took("stat", 1);
    let entries = fs.readdir("a/b/c", STAT).await.unwrap().collect().await.unwrap();
    assert_eq!(entries.len(), 1);
    took("readdir", 1);
    fs.rename("a/b/c/f", "a/b/g").await.unwrap();
    took("rename", 1);
    fs.link("a/b/g", "a/h").await.unwrap();
    took("link", 1);
    fs.remove("a/h").await.unwrap();
    took("remove", 1);
    let file = fs.open("a/b/g", &OpenOptions::read_write().truncate(true)).await.unwrap();
    took("open and truncate", 1);
    assert_eq!(file.size(), 0);
    file.close().await.unwrap();
    took("close", 1);
    let new = fs.open("a/new", &OpenOptions::write().create(Create::New, 0o600)).await.unwrap();
    took("create", 1);
    assert_eq!(new.attrs().mode, Some(0o600));
    new.commit_and_close().await.unwrap();
    took("commit and close", 1);
    let new = fs.open("a/b/.new", &OpenOptions::write().create(Create::New, 0o600)).await.unwrap();
    let dir = new.dir().expect("it comes with the file").clone();
    let attrs = dhow_client::v4::Attrs { mode: Some(0o640), ..Default::default() };
    took("create under another name", 1);
    new.close_as(Some(&attrs), &dir, ".new".into(), "new".into()).await.unwrap();
    took("close, set attributes and rename", 1);
    assert_eq!(fs.stat("a/b/new").await.unwrap().attrs.mode, Some(0o640));
    took("stat of the new name", 1);
    let (a, b) = (OpenOptions::read(), OpenOptions::write().create(Create::New, 0o600));
    let (a, b) = (fs.open("a/b/new", &a).await.unwrap(), fs.open("a/b/.both", &b).await.unwrap());
    took("two opens", 2);
    let (named, closed) = b.close_both_as(a, None, &dir, ".both".into(), "both".into()).await;
    named.unwrap();
    closed.unwrap();
    took("close both and rename", 1);
    // What fails in the middle leaves the other file to a CLOSE of its own.
    let (a, b) = (OpenOptions::read(), OpenOptions::write().create(Create::New, 0o600));
    let (a, b) = (fs.open("a/b/new", &a).await.unwrap(), fs.open("a/b/.both", &b).await.unwrap());
    took("two opens", 2);
    let (named, closed) = b.close_both_as(a, None, &dir, "absent".into(), "both".into()).await;
    assert!(named.unwrap_err().is(Status::NOENT));
    closed.unwrap();
    took("a rename that fails, and a close", 2);
    fs.remove("a/b/.both").await.unwrap();
    took("remove", 1);
    client.close().await.unwrap();
}

/// C1: COPY of any size takes at most 6 calls (2 OPEN, 2 CLOSE, 1 COPY, perhaps 1 ACCESS), COMMIT included.
#[tokio::test]
async fn a_copy_takes_at_most_six_calls() {
    let (_place, _running, client) = pair().await;
    let fs = client.fs();
    for size in [1_usize, 100_000, 20 << 20] {
        let source = Arc::new(
            fs.open("source", &OpenOptions::write().create(Create::IfMissing, 0o644).truncate(true)).await.unwrap(),
        );
        let mut stream = source.write_stream(Default::default(), StableHow::UNSTABLE).await.unwrap();
        stream.push(0, Bytes::from(vec![7; size])).await.unwrap();
        assert_eq!(stream.finish(true).await.unwrap(), size as u64);
        Arc::into_inner(source).unwrap().close().await.unwrap();
        for synchronous in [true, false] {
            let before = client.counters().snapshot();
            let a = fs.open("source", &OpenOptions::read()).await.unwrap();
            let b =
                fs.open("target", &OpenOptions::write().create(Create::IfMissing, 0o644).truncate(true)).await.unwrap();
            let options = CopyOptions { synchronous, durable: true };
            let copied = a.copy_to(0, &b, 0, 0, &options, |_| {}).await.unwrap();
            a.close().await.unwrap();
            b.close().await.unwrap();
            let spent = client.counters().snapshot().since(&before);
            assert_eq!(copied.bytes, size as u64);
            assert!(copied.is_durable());
            assert!(spent.calls <= 6, "{size} bytes, synchronous {synchronous}: {spent:?}");
        }
    }
    client.close().await.unwrap();
}

/// A WRITE that fails in the middle of a COMPOUND leaves the OPEN before it, which is owed a CLOSE (RFC 8881 section
/// 16.2.3: evaluation stops at the first error).
#[tokio::test]
async fn a_failed_write_after_open_still_closes() {
    let (place, _running, client) = pair().await;
    let fs = client.fs();
    for via in [None, Some(Bytes::from_static(b".part"))] {
        place.fault.once(Call::Write, Action::Fail(ErrorKind::NoSpace));
        let options = PutOptions { via, ..PutOptions::default() };
        let before = client.counters().snapshot();
        let refused = fs.put("f", Bytes::from(vec![1; 100]), &options).await;
        assert!(refused.as_ref().is_err_and(|e| e.is(Status::NOSPC)), "{refused:?}");
        let spent = client.counters().snapshot().since(&before);
        assert_eq!(spent.by_op.get("CLOSE"), Some(&1), "{spent:?}");
        assert!(fs.stat(".part").await.is_err(), "half a file is left under its passing name");
        assert_eq!(fs.stat("f").await.is_ok(), options.via.is_none());
        if options.via.is_none() {
            // Not open any more: it can be had for oneself.
            let alone = OpenOptions::write().deny(share::DENY_BOTH);
            fs.open("f", &alone).await.unwrap().close().await.unwrap();
            fs.remove("f").await.unwrap();
        }
    }
    client.close().await.unwrap();
}

/// Whatever part of a put fails, and whether anybody still waits for it or not, its passing name is gone.
#[tokio::test]
async fn a_put_that_fails_leaves_no_passing_name() {
    let (place, _running, client) = pair().await;
    let fs = client.fs();
    let gone = async |what: &str| {
        let names = fs.readdir("/", STAT).await.unwrap().collect().await.unwrap();
        assert!(names.is_empty(), "{what}: {names:?}");
    };
    let owner = Attrs { mode: Some(0o600), ..Attrs::default() };
    let options =
        || PutOptions { via: Some(Bytes::from_static(b".part")), attrs: Some(owner.clone()), ..PutOptions::default() };
    let failures = [
        (Call::Write, Action::Fail(ErrorKind::NoSpace)),
        (Call::Write, Action::FailAfter(ErrorKind::Io)),
        (Call::SetAttr, Action::Fail(ErrorKind::Perm)),
        (Call::Rename, Action::Fail(ErrorKind::Io)),
    ];
    for (call, action) in failures {
        place.fault.once(call, action);
        fs.put("f", Bytes::from_static(b"data"), &options()).await.unwrap_err();
        gone(&format!("{call:?}")).await;
    }
    // Nobody waits any more when it fails.
    let gate = place.fault.hold(Call::Write);
    let put = tokio::spawn({
        let (fs, options) = (fs.clone(), options());
        async move { fs.put("f", Bytes::from_static(b"data"), &options).await }
    });
    gate.arrived(1).await;
    put.abort();
    assert!(put.await.is_err());
    place.fault.once(Call::Rename, Action::Fail(ErrorKind::Io));
    let before = client.counters().snapshot();
    gate.open();
    while !client.counters().snapshot().since(&before).by_op.contains_key("REMOVE") {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    fs.remove(".part").await.unwrap_err();
    gone("a caller who left").await;
    client.close().await.unwrap();
}

/// A RENAME that is told to come again brings the whole request again. Its OPEN then finds the file of the first time,
/// which nobody may write by now.
#[tokio::test]
async fn a_put_that_is_delayed_does_not_stand_in_its_own_way() {
    let (place, _running, client) = pair().await;
    client.fs().mkdir("d", 0o777).await.unwrap();
    client.fs().setattr("d", &Attrs { mode: Some(0o777), ..Attrs::default() }).await.unwrap();
    let user = dhow_testkit::wire::sys(1000, 1000, &[]);
    let fs = client.fs_as(user);
    let options = PutOptions {
        via: Some(Bytes::from_static(b".f")),
        mode: 0o444,
        attrs: Some(Attrs { mode: Some(0o444), ..Attrs::default() }),
        ..PutOptions::default()
    };
    place.fault.once(Call::Rename, Action::Fail(ErrorKind::Delay));
    fs.put("d/f", Bytes::from_static(b"data"), &options).await.unwrap();
    assert_eq!(fs.get("d/f", 100).await.unwrap().unwrap().1, "data");
    // And one that is refused the second time, again and again, leaves nothing either.
    place.fault.rule(Call::Rename, None, Action::Fail(ErrorKind::Delay), 3);
    place.fault.rule(Call::Open, None, Action::Fail(ErrorKind::Io), 3);
    fs.put("d/g", Bytes::from_static(b"data"), &options).await.unwrap_err();
    let names = fs.readdir("d", STAT).await.unwrap().collect().await.unwrap();
    assert!(names.iter().all(|e| e.name != ".f"), "{names:?}");
    client.close().await.unwrap();
}

/// Case B50: an error reaches the caller once, at the write or at the end.
#[tokio::test]
async fn errors_of_pipelined_writes_reach_the_caller() {
    let (place, _running, client) = pair().await;
    let fs = client.fs();
    let file = fs.open("f", &OpenOptions::write().create(Create::IfMissing, 0o644)).await.unwrap();
    let file = Arc::new(file);
    let mut stream =
        file.write_stream(Pipeline { window: 1 << 20, chunk: 64 << 10 }, StableHow::UNSTABLE).await.unwrap();
    place.fault.rule(Call::Write, None, Action::Fail(ErrorKind::NoSpace), 1000);
    let write = async move {
        stream.push(0, Bytes::from(vec![1; 8 << 20])).await?;
        stream.finish(true).await
    };
    let e = write.await.unwrap_err();
    assert!(e.is(Status::NOSPC), "{e}");
    place.fault.clear(Call::Write);
    Arc::into_inner(file).map(|f| f.close()).unwrap().await.unwrap();
    client.close().await.unwrap();
}

/// Case B53: a COMMIT that the server sits on holds up its caller alone, who may give up; what was not committed when
/// the server restarts is reported, so that it is written again.
#[tokio::test]
async fn a_stalled_commit_can_be_left() {
    let (place, running, client) = pair().await;
    let fs = client.fs();
    let open = OpenOptions::read_write().create(Create::IfMissing, 0o644);
    let file = Arc::new(fs.open("f", &open).await.unwrap());
    let mut stream = file.write_stream(Pipeline::default(), StableHow::UNSTABLE).await.unwrap();
    stream.push(0, Bytes::from_static(b"not safe yet")).await.unwrap();
    while fs.stat("f").await.unwrap().attrs.size != Some(12) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let gate = place.fault.hold(Call::Commit);
    let left = {
        let file = file.clone();
        tokio::spawn(async move { file.commit(0, 0).await })
    };
    gate.arrived(1).await;
    left.abort();
    assert!(left.await.unwrap_err().is_cancelled());
    for _ in 0..10 {
        fs.stat("f").await.unwrap();
    }
    gate.open();
    place.fault.clear(Call::Commit);
    // The server that took the data goes away before it made it safe.
    let addr = running.addresses()[0];
    running.shutdown().await;
    place.fs.crash();
    let running = place.start_at(addr, |_| {}).await;
    let finished = stream.finish(true).await;
    assert!(matches!(finished, Err(Error::WritesLost)), "{finished:?}");
    let mut stream = file.write_stream(Pipeline::default(), StableHow::UNSTABLE).await.unwrap();
    stream.push(0, Bytes::from_static(b"not safe yet")).await.unwrap();
    stream.finish(true).await.unwrap();
    assert_eq!(file.read_at(0, 100).await.unwrap().data, "not safe yet");
    Arc::into_inner(file).map(|f| f.close()).unwrap().await.unwrap();
    client.close().await.unwrap();
    running.shutdown().await;
}

/// Case B44: a slow request delays only itself.
#[tokio::test]
async fn one_slow_request_delays_only_itself() {
    let (place, _running, client) = pair().await;
    let fs = client.fs();
    fs.put("slow", Bytes::from_static(b"x"), &PutOptions::default()).await.unwrap();
    let gate = place.fault.hold(Call::Read);
    let slow = {
        let fs = fs.clone();
        tokio::spawn(async move { fs.get("slow", 100).await })
    };
    gate.arrived(1).await;
    for _ in 0..100 {
        fs.stat("slow").await.unwrap();
    }
    assert!(!slow.is_finished());
    gate.open();
    assert_eq!(slow.await.unwrap().unwrap().unwrap().1, "x");
    client.close().await.unwrap();
}

/// C5: creates of different names in one directory wait for nothing in the client, each is one round trip.
#[tokio::test]
async fn creates_in_one_directory_are_in_flight_together() {
    const WRITERS: usize = 200;
    let (place, _running, client) = pair().await;
    let fs = client.fs();
    fs.mkdir("d", 0o755).await.unwrap();
    let before = client.counters().snapshot();
    let gate = place.fault.hold(Call::Create);
    let create = |n: usize| {
        let fs = fs.clone();
        async move { fs.put(&format!("d/{n}"), Bytes::from_static(b"x"), &PutOptions::default()).await }
    };
    let writers: Vec<_> = (0..WRITERS).map(|n| tokio::spawn(create(n))).collect();
    gate.arrived(WRITERS).await;
    gate.open();
    for writer in writers {
        writer.await.unwrap().unwrap();
    }
    assert_eq!(client.counters().snapshot().since(&before).calls, WRITERS as u64);
    client.close().await.unwrap();
}

/// At least 8 READs of 1 MiB are in flight at once.
#[tokio::test]
async fn bulk_reads_are_pipelined() {
    let (place, _running, client) = pair().await;
    let fs = client.fs();
    let file = Arc::new(fs.open("f", &OpenOptions::read_write().create(Create::IfMissing, 0o644)).await.unwrap());
    file.set_size(32 << 20).await.unwrap();
    let gate = place.fault.hold(Call::Read);
    let mut stream = file.read_stream(0..32 << 20, Pipeline::default()).await.unwrap();
    let reader = tokio::spawn(async move {
        let mut bytes = 0;
        while let Some((offset, data)) = stream.next().await.unwrap() {
            assert_eq!(offset, bytes);
            bytes += data.len() as u64;
        }
        bytes
    });
    gate.arrived(8).await;
    gate.open();
    assert_eq!(reader.await.unwrap(), 32 << 20);
    client.close().await.unwrap();
}

/// Futures are moved when they are spawned and boxed; large ones fill the stacks of worker threads in debug builds.
#[tokio::test]
async fn futures_are_small() {
    let (_place, _running, client) = pair().await;
    let fs = client.fs();
    let file = fs.open("f", &OpenOptions::read_write().create(Create::IfMissing, 0o644)).await.unwrap();
    let sizes = [
        ("stat", size_of_val(&fs.stat("f"))),
        ("open", size_of_val(&fs.open("f", &OpenOptions::read()))),
        ("put", size_of_val(&fs.put("f", Bytes::new(), &PutOptions::default()))),
        ("get", size_of_val(&fs.get("f", 1))),
        ("readdir", size_of_val(&fs.readdir("f", STAT))),
        ("rename", size_of_val(&fs.rename("f", "g"))),
        ("read", size_of_val(&file.read_at(0, 1))),
        ("write", size_of_val(&file.write_all_at(0, Bytes::new(), StableHow::UNSTABLE))),
        ("copy", size_of_val(&file.copy_to(0, &file, 0, 0, &CopyOptions::default(), |_| {}))),
    ];
    for (what, size) in sizes {
        assert!(size <= 8192, "{what}: {size} bytes");
    }
}
