//! Data: ends of files, creates, stability, holes, copies; attributes and times.

use super::{BOTH, F, READ, T, how, is_one_of, kind, mode, name};
use bytes::Bytes;
use dhow_vfs::{CopySource, CreateHow, ErrorKind, IoRef, SeekTo, SetAttr, SetTime, Stability, Time, XattrSet};

/// Case B20: count, end of file and data agree.
pub(super) async fn ends_of_files(t: &T) {
    let f = t.file(&t.root, "f").await;
    let r = t.read(f.io(), 0, 10).await;
    assert!(r.data.is_empty() && r.eof, "an empty file");
    t.put(&f, 0, &[7; 100]).await;
    assert_eq!(t.get(&f, 0, 100).await, [7; 100]);
    let mut at = 50;
    loop {
        let r = t.read(f.io(), at, 4096).await;
        at += r.data.len() as u64;
        if r.eof {
            break;
        }
        assert!(!r.data.is_empty());
    }
    assert_eq!(at, 100, "exactly what is there");
    for offset in [100, 101, 1 << 40, (1 << 63) - 1, 1 << 63, u64::MAX] {
        let r = t.read(f.io(), offset, 1).await;
        assert!(r.data.is_empty() && r.eof, "read at {offset}");
    }
    let r = t.read(f.io(), 10, 0).await;
    assert!(r.data.is_empty(), "nothing was asked for");
    let past = t.b.write(&t.cx, f.io(), u64::MAX - 1, Bytes::from_static(b"1234"), Stability::Unstable).await;
    is_one_of(past, &[ErrorKind::FileTooBig, ErrorKind::Invalid]);
    assert_eq!(t.attr(&f.h).await.size, 100);
}

/// Case B11: the verifier tells a retry from another's create, and leaves no trace in the times.
pub(super) async fn exclusive_creates(t: &T) {
    let create = async |n: &str, v: [u8; 8]| {
        t.b.create(&t.cx, &t.root, &name(n), &CreateHow { set: mode(0o640), verifier: Some(v) }).await
    };
    let verifier = *b"\xff\xfe\xfd\xfc\x7f\x01\x02\x03";
    let first = create("f", verifier).await.unwrap();
    assert!(first.fresh);
    let again = create("f", verifier).await.unwrap();
    assert!(!again.fresh, "found again");
    assert_eq!(again.node.handle, first.node.handle);
    assert_eq!(kind(create("f", *b"\xff\xfe\xfd\xfc\x7f\x01\x02\x04").await), ErrorKind::Exists);
    assert_eq!(kind(create("f", *b"\xfe\xfe\xfd\xfc\x7f\x01\x02\x03").await), ErrorKind::Exists);
    assert_eq!(kind(t.create_as(&t.cx, &t.root, "f", 0o640).await), ErrorKind::Exists);
    let w = t.b.write(
        &t.cx,
        IoRef { handle: &first.node.handle, open: Some(&again.open) },
        0,
        "x".into(),
        Stability::Unstable,
    );
    assert_eq!(w.await.unwrap().count, 1, "the open of the retry writes");
    // The times are of now, not the verifier's bytes.
    let other = t.file(&t.root, "g").await;
    let (a, b) = (t.attr(&first.node.handle).await, t.attr(&other.h).await);
    for (x, y) in [(a.atime, b.atime), (a.mtime, b.mtime), (a.ctime, b.ctime)] {
        assert!((x.secs - y.secs).abs() < 60, "{x:?} against {y:?}");
    }
    assert_eq!(a.mode, 0o640);
    assert_eq!(kind(create("g", verifier).await), ErrorKind::Exists, "a file that was not created exclusively");
}

pub(super) async fn stability_and_verifiers(t: &T) {
    let f = t.file(&t.root, "f").await;
    let verifier = t.b.write_verifier();
    for want in [Stability::Unstable, Stability::DataSync, Stability::FileSync] {
        let w = t.b.write(&t.cx, f.io(), 0, Bytes::from_static(b"abc"), want).await.unwrap();
        assert_eq!((w.count, w.verifier), (3, verifier));
        assert!(w.stability >= want, "{:?} for {want:?}", w.stability);
    }
    for (offset, len) in [(0, 0), (0, 3), (1, 1), (1000, 10), (u64::MAX - 5, 0)] {
        assert_eq!(t.b.commit(&t.cx, f.io(), offset, len).await.unwrap().verifier, verifier);
    }
    assert_eq!(t.b.commit(&t.cx, IoRef { handle: &f.h, open: None }, 0, 0).await.unwrap().verifier, verifier);
    assert_eq!(t.b.write_verifier(), verifier);
    let w = t.b.write(&t.cx, f.io(), 1, Bytes::new(), Stability::FileSync).await.unwrap();
    assert_eq!((w.count, t.attr(&f.h).await.size), (0, 3), "a write of nothing");
}

const MIB: u64 = 1 << 20;

/// Case B35: holes read as zeros and are found by SEEK (RFC 7862 15.11).
pub(super) async fn holes(t: &T) {
    let f = t.file(&t.root, "f").await;
    t.put(&f, 3 * MIB, b"end").await;
    let size = 3 * MIB + 3;
    assert_eq!(t.attr(&f.h).await.size, size);
    assert!(t.get(&f, MIB, 4096).await.iter().all(|&b| b == 0));
    if !t.b.caps().sparse {
        return;
    }
    let seek = async |offset, to| t.b.seek(&t.cx, f.io(), offset, to).await;
    let data = seek(0, SeekTo::Data).await.unwrap();
    assert!(!data.eof && data.offset <= 3 * MIB, "{data:?}");
    let hole = seek(0, SeekTo::Hole).await.unwrap();
    assert!(hole.offset == 0 || hole.offset == size, "{hole:?}");
    let hole = seek(3 * MIB + 1, SeekTo::Hole).await.unwrap();
    assert!(!hole.eof && hole.offset == size, "the end counts as a hole: {hole:?}");
    for offset in [size, size + 1, 1 << 62] {
        assert_eq!(kind(seek(offset, SeekTo::Data).await), ErrorKind::Range, "data at {offset}");
        assert_eq!(kind(seek(offset, SeekTo::Hole).await), ErrorKind::Range, "hole at {offset}");
    }
    // A hole at the end: no data any more.
    t.b.setattr(&t.cx, &f.h, Some(&f.open), &SetAttr { size: Some(16 * MIB), ..SetAttr::default() }).await.unwrap();
    let data = seek(8 * MIB, SeekTo::Data).await.unwrap();
    assert!(data.eof || data.offset == 8 * MIB, "{data:?}");

    // RFC 7862 15.4: a range becomes a hole, the size stays, the edges keep their bytes.
    let g = t.file(&t.root, "g").await;
    t.put(&g, 0, &[9; 100_000]).await;
    t.b.deallocate(&t.cx, g.io(), 10_000, 50_000).await.unwrap();
    let now = t.get(&g, 0, 100_000).await;
    assert_eq!(now.len(), 100_000);
    assert!(now[..10_000].iter().chain(&now[60_000..]).all(|&b| b == 9));
    assert!(now[10_000..60_000].iter().all(|&b| b == 0));
    t.b.deallocate(&t.cx, g.io(), 90_000, 1 << 40).await.unwrap();
    assert_eq!(t.attr(&g.h).await.size, 100_000);
    assert!(t.get(&g, 90_000, 10_000).await.iter().all(|&b| b == 0));
}

/// RFC 7862 15.1: the size grows, what is there stays, the rest reads as zeros.
pub(super) async fn allocation(t: &T) {
    if !t.b.caps().sparse {
        return;
    }
    let f = t.file(&t.root, "f").await;
    t.put(&f, 0, b"abc").await;
    t.b.allocate(&t.cx, f.io(), 1, 99_999).await.unwrap();
    let attr = t.attr(&f.h).await;
    assert_eq!(attr.size, 100_000);
    assert!(attr.used >= 90_000, "{} bytes in use", attr.used);
    let now = t.get(&f, 0, 100_000).await;
    assert_eq!(&now[..3], b"abc");
    assert!(now[3..].iter().all(|&b| b == 0));
    t.b.allocate(&t.cx, f.io(), 0, 10).await.unwrap();
    assert_eq!(t.attr(&f.h).await.size, 100_000, "never shrinks");
}

/// A file of data, hole, data.
async fn source(t: &T, n: &str) -> (F, Vec<u8>) {
    let f = t.file(&t.root, n).await;
    let pattern: Vec<u8> = (0..MIB).map(|i| (i % 251) as u8 + 1).collect();
    t.put(&f, 0, &pattern).await;
    t.put(&f, 3 * MIB, &pattern[..777]).await;
    let mut all = pattern.clone();
    all.resize(3 * MIB as usize, 0);
    all.extend_from_slice(&pattern[..777]);
    (f, all)
}

/// Case B35: copied onto other data, holes included, the bytes are equal; old data opposite a hole is gone.
pub(super) async fn copies(t: &T) {
    let (src, bytes) = source(t, "src").await;
    let size = bytes.len() as u64;
    for (i, chunk) in [64 * 1024, u64::MAX].into_iter().enumerate() {
        let dst = t.file(&t.root, &format!("dst{i}")).await;
        t.put(&dst, 0, &vec![0xee; 4 * MIB as usize + 5]).await;
        let mut done = 0;
        loop {
            let from = CopySource { backend: &t.b, cx: &t.cx, io: src.io(), offset: done };
            let n = match t.b.copy_range(&t.cx, from, dst.io(), done, size - done, chunk).await {
                Err(e) if e.kind() == ErrorKind::NotSupported && done == 0 => return,
                n => n.unwrap(),
            };
            assert!(n > 0 && done + n <= size, "{n} bytes after {done}");
            done += n;
            if done == size {
                break;
            }
        }
        let now = t.get(&dst, 0, 5 * MIB as u32).await;
        assert!(now[..bytes.len()] == bytes[..], "the copy differs (chunk {chunk})");
        assert_eq!(now.len() as u64, 4 * MIB + 5, "what lies beyond the range stays");
        assert!(now[bytes.len()..].iter().all(|&b| b == 0xee));
        let from = CopySource { backend: &t.b, cx: &t.cx, io: src.io(), offset: size };
        assert_eq!(t.b.copy_range(&t.cx, from, dst.io(), 0, 10, chunk).await.unwrap(), 0, "0 at the source's end");
    }
    // Odd offsets, and a destination that grows; a hole at the end gives the file its size.
    let dst = t.file(&t.root, "odd").await;
    let (mut done, len) = (0, 2 * MIB);
    while done < len {
        let from = CopySource { backend: &t.b, cx: &t.cx, io: src.io(), offset: 13 + done };
        let n = t.b.copy_range(&t.cx, from, dst.io(), 1001 + done, len - done, MIB).await.unwrap();
        assert!(n > 0);
        done += n;
    }
    assert_eq!(t.attr(&dst.h).await.size, 1001 + len);
    let now = t.get(&dst, 0, 3 * MIB as u32).await;
    assert!(now[..1001].iter().all(|&b| b == 0) && now[1001..] == bytes[13..13 + len as usize]);
}

/// CLONE (RFC 7862 15.13): aligned ranges, atomically, and refused where it cannot be.
pub(super) async fn clones(t: &T) {
    if !t.b.caps().clone {
        return;
    }
    let block = u64::from(t.b.caps().clone_block).max(1);
    let (src, bytes) = source(t, "src").await;
    let size = bytes.len() as u64;
    let clone = async |dst: &F, from, to, len| {
        let from = CopySource { backend: &t.b, cx: &t.cx, io: src.io(), offset: from };
        t.b.clone_range(&t.cx, from, dst.io(), to, len).await
    };
    let dst = t.file(&t.root, "whole").await;
    t.put(&dst, 0, &[0xee; 100_000]).await;
    clone(&dst, 0, 0, 0).await.unwrap();
    assert!(t.get(&dst, 0, 5 * MIB as u32).await == bytes, "0 is to the end");
    // The two are apart again once one is written.
    t.put(&dst, 0, b"other").await;
    assert_eq!(t.get(&src, 0, 5).await, bytes[..5]);

    let part = t.file(&t.root, "part").await;
    t.put(&part, 0, &vec![0xee; 8 * block as usize]).await;
    clone(&part, block, 2 * block, 2 * block).await.unwrap();
    let now = t.get(&part, 0, 9 * block as u32).await;
    let (b, e) = (block as usize, bytes.len());
    assert!(now[2 * b..4 * b] == bytes[b..3 * b] && now[..2 * b].iter().chain(&now[4 * b..]).all(|&x| x == 0xee));
    assert!(e > 0);
    if block > 1 {
        assert_eq!(kind(clone(&part, 1, 0, block).await), ErrorKind::Invalid, "unaligned source");
        assert_eq!(kind(clone(&part, 0, 1, block).await), ErrorKind::Invalid, "unaligned destination");
        assert_eq!(kind(clone(&part, 0, 0, block + 1).await), ErrorKind::Invalid, "unaligned length");
    }
    assert_eq!(kind(clone(&part, 0, 0, (size / block + 2) * block).await), ErrorKind::Invalid, "past the end");
    assert_eq!(kind(clone(&src, 0, block, 2 * block).await), ErrorKind::Invalid, "overlapping in one file");
    clone(&src, 0, 8 * block, block).await.unwrap();
    assert!(t.get(&src, 8 * block, block as u32).await == bytes[..b], "apart in one file");
}

pub(super) async fn sizes(t: &T) {
    let f = t.file(&t.root, "f").await;
    t.put(&f, 0, &[5; 9000]).await;
    let resize = async |size| {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let done = t.b.setattr(&t.cx, &f.h, None, &set).await.unwrap();
        assert_eq!((done.attr.size, done.applied), (size, set));
    };
    resize(4500).await;
    resize(9000).await;
    let now = t.get(&f, 0, 10_000).await;
    assert!(now[..4500].iter().all(|&b| b == 5) && now[4500..].iter().all(|&b| b == 0) && now.len() == 9000);
    resize(0).await;
    assert!(t.get(&f, 0, 10).await.is_empty());
    let huge = SetAttr { size: Some(u64::MAX), ..SetAttr::default() };
    is_one_of(t.b.setattr(&t.cx, &f.h, None, &huge).await, &[ErrorKind::FileTooBig, ErrorKind::Invalid]);
}

/// Case B18: times before 1970 and after 2038, to the nanosecond where the filesystem keeps them.
pub(super) async fn times(t: &T) {
    let f = t.file(&t.root, "f").await;
    let step = t.b.caps().time_delta_nanos.max(1);
    for (secs, nanos) in
        [(2_208_988_800, 123_456_789), (0, 1), (1_700_000_000, 999_999_999), (-14_182_980, 750_000_000), (-1, 0)]
    {
        let time = Time { secs, nanos: nanos / step * step };
        let set = SetAttr { atime: Some(SetTime::To(time)), mtime: Some(SetTime::To(time)), ..SetAttr::default() };
        let before = t.attr(&f.h).await;
        t.b.setattr(&t.cx, &f.h, None, &set).await.unwrap();
        let attr = t.attr(&f.h).await;
        assert_eq!((attr.atime, attr.mtime), (time, time));
        assert!(attr.ctime >= before.ctime && attr.ctime.secs > 1_000_000_000, "ctime is nobody's to set");
        assert_ne!(attr.change, before.change);
    }
    let now = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    t.b.setattr(&t.cx, &f.h, None, &now).await.unwrap();
    let attr = t.attr(&f.h).await;
    assert!(attr.mtime.secs > 1_000_000_000);
    assert_eq!(attr.atime.secs, -1, "one time alone");
}

pub(super) async fn change_attributes(t: &T) {
    let f = t.file(&t.root, "f").await;
    let mut seen = vec![t.attr(&f.h).await.change];
    // Many changes within one tick of a clock: no value twice.
    for i in 0..20 {
        t.put(&f, i, b"x").await;
        seen.push(t.attr(&f.h).await.change);
        t.b.setattr(&t.cx, &f.h, None, &mode(0o600 + (i as u32 % 2) * 0o40)).await.unwrap();
        seen.push(t.attr(&f.h).await.change);
    }
    if t.b.caps().links {
        t.b.link(&t.cx, &f.h, &t.root, &name("g")).await.unwrap();
        seen.push(t.attr(&f.h).await.change);
        t.remove(&t.root, "f").await.unwrap();
        seen.push(t.attr(&f.h).await.change);
    }
    let all = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), all, "a change that left the attribute alone");
    let quiet = t.attr(&f.h).await.change;
    t.get(&f, 0, 10).await;
    assert_eq!(t.attr(&f.h).await.change, quiet, "reading changes nothing");
}

pub(super) async fn open_files_outlive_their_names(t: &T) {
    let f = t.file(&t.root, "f").await;
    t.put(&f, 0, b"still").await;
    t.remove(&t.root, "f").await.unwrap();
    assert_eq!(t.get(&f, 0, 10).await, b"still");
    t.put(&f, 5, b" here").await;
    assert_eq!(t.get(&f, 0, 20).await, b"still here");
    assert_eq!(t.attr(&f.h).await.nlink, 0);
    t.b.close(f.open).await;
    assert_eq!(kind(t.b.getattr(&t.cx, &f.h).await), ErrorKind::Stale);
}

pub(super) async fn opens(t: &T) {
    let f = t.file(&t.root, "f").await;
    t.put(&f, 0, b"abc").await;
    let reader = F { h: f.h.clone(), open: t.b.open(&t.cx, &f.h, &how(READ)).await.unwrap() };
    assert_eq!(t.get(&reader, 0, 3).await, b"abc");
    // OPEN of the same owner adds access, OPEN_DOWNGRADE takes it away.
    let both = F { h: f.h.clone(), open: t.b.reopen(&t.cx, &reader.open, &how(BOTH)).await.unwrap() };
    t.b.close(reader.open).await;
    t.put(&both, 0, b"xyz").await;
    let less = F { h: f.h.clone(), open: t.b.reopen(&t.cx, &both.open, &how(READ)).await.unwrap() };
    t.b.close(both.open).await;
    assert_eq!(t.get(&less, 0, 3).await, b"xyz");
    t.b.close(less.open).await;
    assert_eq!(t.get(&f, 0, 3).await, b"xyz", "other opens go on");
    // Without an open the mode decides; the superuser and the owner may.
    let none = IoRef { handle: &f.h, open: None };
    assert_eq!(&t.read(none, 0, 3).await.data[..], b"xyz");
    t.b.write(&t.cx, none, 0, Bytes::from_static(b"q"), Stability::Unstable).await.unwrap();
    assert_eq!(t.get(&f, 0, 3).await, b"qyz");
}

/// RFC 8276 8.4.
pub(super) async fn extended_attributes(t: &T) {
    if !t.b.caps().xattrs {
        return;
    }
    let f = t.file(&t.root, "f").await;
    let set = async |n: &[u8], v: &[u8], how| t.b.setxattr(&t.cx, &f.h, n, v, how).await;
    let get = async |n: &[u8]| t.b.getxattr(&t.cx, &f.h, n).await;
    assert_eq!(kind(get(b"a").await), ErrorKind::NoXattr);
    assert_eq!(kind(set(b"a", b"1", XattrSet::Replace).await), ErrorKind::NoXattr);
    let before = t.attr(&f.h).await.change;
    let change = set(b"a", b"1", XattrSet::Create).await.unwrap();
    assert_eq!(change.after, t.attr(&f.h).await.change);
    assert_ne!(change.after, before);
    assert_eq!(kind(set(b"a", b"2", XattrSet::Create).await), ErrorKind::Exists);
    set(b"a", b"\x00\xff", XattrSet::Replace).await.unwrap();
    set(b"empty", b"", XattrSet::Either).await.unwrap();
    assert_eq!(&get(b"a").await.unwrap()[..], b"\x00\xff");
    assert!(get(b"empty").await.unwrap().is_empty());
    let mut names = t.b.listxattr(&t.cx, &f.h).await.unwrap();
    names.sort();
    assert_eq!(names, [&b"a"[..], b"empty"], "names without a prefix");
    t.b.removexattr(&t.cx, &f.h, b"a").await.unwrap();
    assert_eq!(kind(t.b.removexattr(&t.cx, &f.h, b"a").await), ErrorKind::NoXattr);
    is_one_of(
        set(&[b'n'; 300], b"", XattrSet::Either).await,
        &[ErrorKind::NameTooLong, ErrorKind::Range, ErrorKind::Invalid],
    );
    let large = vec![1; 70_000];
    is_one_of(set(b"big", &large, XattrSet::Either).await, &[ErrorKind::XattrTooBig, ErrorKind::NoSpace]);
    let d = t.mkdir(&t.root, "d").await;
    t.b.setxattr(&t.cx, &d, b"on-a-dir", b"v", XattrSet::Either).await.unwrap();
    assert_eq!(&t.b.getxattr(&t.cx, &d, b"on-a-dir").await.unwrap()[..], b"v");
}

pub(super) async fn space(t: &T) {
    let s = t.b.statfs(&t.cx, &t.root).await.unwrap();
    assert!(s.avail <= s.free && s.free <= s.total, "{s:?}");
    assert!(s.files_avail <= s.files_free && s.files_free <= s.files_total, "{s:?}");
    let f = t.file(&t.root, "f").await;
    t.put(&f, 0, &[1; 100_000]).await;
    t.b.commit(&t.cx, f.io(), 0, 0).await.unwrap();
    assert!(t.attr(&f.h).await.used >= 4096);
}

/// Attributes of the creating call: applied, and said to be so; the umask as RFC 8275 has it.
pub(super) async fn creation_attributes(t: &T) {
    let time = SetTime::To(Time { secs: 1_000_000_000, nanos: 0 });
    let set = SetAttr { mode: Some(0o640), mtime: Some(time), ..SetAttr::default() };
    let made = t.b.create(&t.cx, &t.root, &name("f"), &CreateHow { set: set.clone(), verifier: None }).await.unwrap();
    assert_eq!(made.applied, set);
    let attr = t.attr(&made.node.handle).await;
    assert_eq!((attr.mode, attr.mtime.secs, attr.size, attr.nlink), (0o640, 1_000_000_000, 0, 1));
    assert_eq!(made.node.attr, attr, "the attributes that the create returned");
    let masked = SetAttr { mode: Some(0o777), umask: Some(0o027), ..SetAttr::default() };
    let d = t.b.make(&t.cx, &t.root, &name("d"), &dhow_vfs::Make::Directory, &masked).await.unwrap();
    assert_eq!(t.attr(&d.node.handle).await.mode & 0o777, 0o750);
    // Set-id bits stay, although a size comes with them: they are set after it.
    let sized = SetAttr { mode: Some(0o4751), size: Some(5000), ..SetAttr::default() };
    let s = t.b.create(&t.cx, &t.root, &name("s"), &CreateHow { set: sized.clone(), verifier: None }).await.unwrap();
    let attr = t.attr(&s.node.handle).await;
    assert_eq!((s.applied, attr.mode, attr.size), (sized, 0o4751, 5000));
    // No mode given: nothing for others than the owner.
    let plain = t.b.create(&t.cx, &t.root, &name("p"), &CreateHow::default()).await.unwrap();
    assert_eq!(t.attr(&plain.node.handle).await.mode & 0o077, 0);
    let masked = SetAttr { mode: Some(0o070), mode_mask: Some(0o070), ..SetAttr::default() };
    t.b.setattr(&t.cx, &made.node.handle, None, &masked).await.unwrap();
    assert_eq!(t.attr(&made.node.handle).await.mode, 0o670, "only the bits of the mask (RFC 8881 6.2.5)");
}
