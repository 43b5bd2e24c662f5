//! READDIR.

use super::{T, name};
use dhow_vfs::{Handle, PageLimit};
use std::collections::{BTreeMap, BTreeSet};

fn limit(entries: usize) -> PageLimit {
    PageLimit { entries, name_bytes: usize::MAX, nodes: false }
}

/// A whole listing in pages; between two pages `between` is called with the names so far.
async fn list(t: &T, dir: &Handle, entries: usize, mut between: impl AsyncFnMut(&[String])) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let (mut cookie, mut verifier) = (0, None);
    loop {
        let page = t.b.readdir(&t.cx, dir, cookie, limit(entries)).await.unwrap();
        assert_eq!(*verifier.get_or_insert(page.verifier), page.verifier, "one verifier for a listing (case B04)");
        assert!(page.entries.len() <= entries, "more entries than asked for");
        assert!(page.eof || !page.entries.is_empty(), "a page without entries that is not the last");
        for e in &page.entries {
            assert!(e.cookie > 2 && e.cookie < 1 << 63, "cookie {} is reserved or too large", e.cookie);
            assert!(e.cookie != cookie, "the cookie does not advance");
            assert!(&e.name[..] != b"." && &e.name[..] != b"..");
            names.push(String::from_utf8(e.name.to_vec()).unwrap());
            cookie = e.cookie;
        }
        if page.eof {
            return names;
        }
        between(&names).await;
    }
}

async fn fill(t: &T, dir: &Handle, count: usize) -> BTreeSet<String> {
    let names: BTreeSet<String> = (0..count).map(|i| format!("file-{i:05}")).collect();
    for n in &names {
        let f = t.file(dir, n).await;
        t.b.close(f.open).await;
    }
    names
}

/// Case B03: the pages together are the directory, with no name twice.
pub(super) async fn pages_make_up_the_directory(t: &T) {
    let d = t.mkdir(&t.root, "d").await;
    assert!(list(t, &d, 10, async |_| {}).await.is_empty(), "an empty directory");
    let made = fill(t, &d, 600).await;
    for entries in [1, 7, 600, 1000] {
        let listed = list(t, &d, entries, async |_| {}).await;
        assert_eq!(listed.len(), made.len(), "pages of {entries}");
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), made);
    }
}

/// Case K28: while names come and go, every name that stays is listed exactly once.
pub(super) async fn cookies_hold_while_the_directory_changes(t: &T) {
    let d = t.mkdir(&t.root, "d").await;
    let made = fill(t, &d, 300).await;
    let keep: BTreeSet<String> = made.iter().filter(|n| !n.ends_with('3')).cloned().collect();
    let mut going: Vec<&String> = made.iter().filter(|n| n.ends_with('3')).collect();
    let mut round = 0;
    let listed = list(t, &d, 11, async |so_far| {
        // Take away a name that is still to come or was listed already, also the last one listed, and add others.
        if let Some(n) = so_far.last().filter(|n| n.ends_with('3')).cloned() {
            going.retain(|g| **g != n);
            t.remove(&d, &n).await.unwrap();
        }
        if let Some(n) = going.pop() {
            t.remove(&d, n).await.unwrap();
        }
        round += 1;
        let f = t.file(&d, &format!("new-{round:05}")).await;
        t.b.close(f.open).await;
    })
    .await;
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for n in &listed {
        *times.entry(n).or_default() += 1;
    }
    for n in &keep {
        assert_eq!(times.get(n.as_str()), Some(&1), "{n} stayed");
    }
    assert!(times.values().all(|&n| n == 1), "a name twice: {times:?}");
}

pub(super) async fn limits_of_pages(t: &T) {
    let d = t.mkdir(&t.root, "d").await;
    fill(t, &d, 20).await;
    let page = t.b.readdir(&t.cx, &d, 0, PageLimit { entries: 100, name_bytes: 40, nodes: false }).await.unwrap();
    assert!(!page.eof && page.entries.len() < 20, "names of 10 bytes, 40 allowed: {}", page.entries.len());
    let page = t.b.readdir(&t.cx, &d, 0, PageLimit { entries: 1, name_bytes: 0, nodes: false }).await.unwrap();
    assert_eq!(page.entries.len(), 1, "at least one entry is returned");
    let page = t.b.readdir(&t.cx, &d, 0, limit(20)).await.unwrap();
    if !page.eof {
        let rest = t.b.readdir(&t.cx, &d, page.entries[19].cookie, limit(20)).await.unwrap();
        assert!(rest.eof && rest.entries.is_empty());
    }
}

/// Case B09: one number per object, the same in every place that shows it; links at least 1.
pub(super) async fn listed_attributes_are_those_of_getattr(t: &T) {
    let d = t.mkdir(&t.root, "d").await;
    let f = t.file(&d, "f").await;
    t.put(&f, 0, b"xyz").await;
    t.mkdir(&d, "sub").await;
    t.make(&d, "link", dhow_vfs::Make::Symlink("gone".into())).await.unwrap();
    let page = t.b.readdir(&t.cx, &d, 0, PageLimit { nodes: true, ..limit(10) }).await.unwrap();
    assert_eq!(page.entries.len(), 3);
    let mut numbers = BTreeSet::from([t.attr(&t.root).await.fileid, t.attr(&d).await.fileid]);
    for e in &page.entries {
        let node = e.node.as_ref().expect("asked for").as_ref().expect("readable");
        assert_eq!(node.attr, t.attr(&node.handle).await);
        assert_eq!(e.fileid, node.attr.mounted_on_fileid);
        assert!(node.attr.nlink >= 1);
        assert!(numbers.insert(node.attr.fileid), "a number twice");
        assert_eq!(t.b.lookup(&t.cx, &d, &name(&e.name)).await.unwrap().handle, node.handle);
    }
}

/// A name that an update replaces stays a name: it is listed once.
pub(super) async fn replaced_names_are_listed_once(t: &T) {
    let d = t.mkdir(&t.root, "d").await;
    let made = fill(t, &d, 50).await;
    let mut round = 0;
    let listed = list(t, &d, 5, async |so_far| {
        round += 1;
        let temporary = format!("temporary-{round}");
        let f = t.file(&t.root, &temporary).await;
        t.b.close(f.open).await;
        // What editors do: a new file over one that was listed already.
        t.rename(&t.root, &temporary, &d, &so_far[0]).await.unwrap();
    })
    .await;
    // A replaced name may be listed anew where the filesystem treats it as one that went and came; others may not.
    let again = &listed[0];
    let others: Vec<&String> = listed.iter().filter(|n| *n != again).collect();
    assert_eq!(others.len(), made.len() - 1);
    assert_eq!(others.into_iter().collect::<BTreeSet<_>>().len(), made.len() - 1);
}
