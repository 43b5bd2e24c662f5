//! The commands against a server of the same binary.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use common::{Server, dhow, fails, json, names, ok, text};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// 9 MiB and a bit, with data at 1..3 and 6..7 MiB.
fn sparse(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0u8; 9 * MIB + 123];
    let file = fs::File::create(path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (start, end) in [(MIB, 3 * MIB), (6 * MIB, 7 * MIB)] {
        for (i, b) in bytes[start..end].iter_mut().enumerate() {
            *b = (i * 31 % 251) as u8 + 1;
        }
        file.write_all_at(&bytes[start..end], start as u64).unwrap();
    }
    bytes
}

#[test]
fn one_file_by_each_way() {
    let server = Server::start();
    let local = tempfile::tempdir().unwrap();
    let from = local.path().join("from");
    let bytes = sparse(&from);
    let from = from.to_str().unwrap();
    // Local to server, with the holes.
    let report = json(["cp", "--json", from, &server.url("")]);
    assert_eq!(report["method"], "readwrite");
    assert_eq!(report["bytes"], bytes.len());
    assert_eq!(report["durable"], true);
    assert_eq!(fs::read(server.dir.join("from")).unwrap(), bytes);
    assert!(fs::metadata(server.dir.join("from")).unwrap().blocks() * 512 < 5 * MIB as u64, "holes were filled");
    // Inside the server: six calls, a COMMIT included where there is one.
    let report = json(["cp", "--json", "--method", "copy", &server.url("from"), &server.url("copy")]);
    assert_eq!(report["method"], "copy");
    assert!(report["calls"].as_u64().unwrap() <= 6, "{report}");
    assert_eq!(report["ops"]["COPY"], 1);
    assert_eq!(report["ops"].get("READ"), None);
    assert_eq!(fs::read(server.dir.join("copy")).unwrap(), bytes);
    assert!(fs::metadata(server.dir.join("copy")).unwrap().blocks() * 512 < 5 * MIB as u64, "holes were filled");
    // By reading and writing, and by whatever is best.
    for method in ["readwrite", "auto"] {
        let to = server.url(method);
        let report = json(["cp", "--json", "--method", method, &server.url("from"), &to]);
        assert!(method == "auto" || report["method"] == "readwrite", "{report}");
        assert_eq!(fs::read(server.dir.join(method)).unwrap(), bytes);
    }
    // Back.
    let back = local.path().join("back");
    let report = json(["cp", "--json", &server.url("copy"), back.to_str().unwrap()]);
    assert_eq!((&report["method"], &report["durable"]), (&"readwrite".into(), &false.into()));
    assert_eq!(fs::read(&back).unwrap(), bytes);
    assert_eq!(names(&server.dir), ["auto", "copy", "from", "readwrite"]);
    assert_eq!(names(local.path()), ["back", "from"]);
}

#[test]
fn one_server_under_two_names_copies_inside() {
    let server = Server::start();
    fs::write(server.dir.join("a"), vec![7; 3 * MIB]).unwrap();
    let port = server.addr.rsplit(':').next().unwrap();
    let to = format!("nfs://localhost:{port}/data/b");
    let report = json(["cp", "--json", "--method", "copy", &server.url("a"), &to]);
    assert_eq!(report["method"], "copy");
    assert_eq!(fs::read(server.dir.join("b")).unwrap(), vec![7; 3 * MIB]);
}

#[test]
fn failures_leave_nothing_and_name_the_file() {
    let server = Server::start();
    fs::write(server.dir.join("a"), vec![7; MIB]).unwrap();
    fs::create_dir(server.dir.join("dir")).unwrap();
    let ro = format!("nfs://{}/ro/b", server.addr);
    let line = fails(1, ["cp", &server.url("a"), &ro]);
    assert_eq!(line, format!("{ro}: read-only filesystem"));
    let line = fails(1, ["cp", &server.url("absent"), &server.url("b")]);
    assert_eq!(line, format!("{}: no such file or directory", server.url("absent")));
    let line = fails(1, ["cp", &server.url("dir"), &server.url("b")]);
    assert_eq!(line, format!("{}: is a directory; copy it with -r", server.url("dir")));
    let line = fails(1, ["cp", &server.url("a"), &server.url("a")]);
    assert!(line.contains("is the same file as"), "{line}");
    let line = fails(1, ["cp", &server.url("a"), &server.url("missing/b")]);
    assert!(line.contains("no such file or directory"), "{line}");
    let line = fails(2, ["cp", &server.url("a"), &server.url("dir"), &server.url("b")]);
    assert!(line.contains("several files are copied into a directory"), "{line}");
    let line = fails(1, ["cp", "--method", "clone", &server.url("a"), "/dev/shm/never"]);
    assert!(line.contains("use --method auto"), "{line}");
    assert_eq!(names(&server.dir), ["a", "dir"]);
    assert_eq!(fs::read(server.dir.join("a")).unwrap(), vec![7; MIB]);
}

#[test]
fn an_interrupt_removes_the_unfinished_file() {
    let server = Server::start();
    fs::write(server.dir.join("target"), b"before").unwrap();
    let mut put =
        dhow(["put", "-", &server.url("target")]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = put.stdin.take().unwrap();
    stdin.write_all(&vec![1; 3 * MIB]).unwrap();
    let limit = Instant::now() + Duration::from_secs(60);
    while names(&server.dir).len() < 2 {
        assert!(Instant::now() < limit, "no temporary file appeared");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(names(&server.dir)[0].starts_with(".target.dhow-"));
    Server::signal(&put, "INT");
    let status = put.wait().unwrap();
    let mut said = String::new();
    put.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((status.code(), said.as_str()), (Some(130), "error: stopped\n"));
    assert_eq!(names(&server.dir), ["target"]);
    assert_eq!(fs::read(server.dir.join("target")).unwrap(), b"before");
}

/// An interrupted removal says so once, and stops.
#[test]
fn an_interrupt_stops_a_removal() {
    let server = Server::start();
    for dir in 0..20 {
        fs::create_dir_all(server.dir.join(format!("big/{dir}"))).unwrap();
        for file in 0..400 {
            fs::write(server.dir.join(format!("big/{dir}/{file}")), "").unwrap();
        }
    }
    let mut rm = dhow(["rm", "-r", &server.url("big"), &server.url("absent")]).stderr(Stdio::piped()).spawn().unwrap();
    let gone = |dir: usize| names(&server.dir.join(format!("big/{dir}"))).len() < 400;
    let limit = Instant::now() + Duration::from_secs(60);
    while !(0..20).any(gone) {
        assert!(Instant::now() < limit, "nothing is removed");
        std::thread::sleep(Duration::from_millis(1));
    }
    Server::signal(&rm, "INT");
    let status = rm.wait().unwrap();
    let mut said = String::new();
    rm.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((status.code(), said.as_str()), (Some(130), "error: stopped\n"));
    assert!(server.dir.join("big").exists());
}

/// Whoever stops reading what a command prints does not stop what it does; output that is lost is a failure.
#[test]
fn output_that_nobody_reads() {
    let server = Server::start();
    let local = tempfile::tempdir().unwrap();
    for i in 0..300 {
        fs::write(local.path().join(format!("f{i}")), vec![7; 100]).unwrap();
    }
    let unheard = |args: &[&str]| {
        let mut child = dhow(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let out = child.wait_with_output().unwrap();
        (out.status.code(), text(&out.stderr))
    };
    let from = format!("{}/.", local.path().display());
    assert_eq!(unheard(&["cp", "-rv", &from, &server.url("to")]), (Some(0), String::new()));
    assert_eq!(names(&server.dir.join("to")).len(), 300);
    assert_eq!(unheard(&["ls", "-lR", &server.url("")]), (Some(0), String::new()));
    fs::write(server.dir.join("big"), vec![7; 4 * MIB]).unwrap();
    assert_eq!(unheard(&["cat", &server.url("big")]), (Some(1), String::new()));
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    for args in [["ls", &server.url("to")], ["cat", &server.url("big")], ["stat", &server.url("big")]] {
        let out = dhow(args).stdout(full()).output().unwrap();
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(said.starts_with("error: standard output: ") && said.lines().count() == 1, "{said}");
    }
}

fn tree(root: &Path) {
    fs::create_dir_all(root.join("sub/deeper")).unwrap();
    for i in 0..200 {
        fs::write(root.join(format!("sub/f{i}")), format!("content {i}").repeat(i)).unwrap();
    }
    sparse(&root.join("sub/deeper/sparse"));
    fs::write(root.join(std::ffi::OsStr::from_bytes(b"odd \xff%name")), b"odd").unwrap();
    symlink("sub/f7", root.join("link")).unwrap();
    fs::hard_link(root.join("sub/f9"), root.join("also9")).unwrap();
    fs::set_permissions(root.join("sub/f3"), fs::Permissions::from_mode(0o4711)).unwrap();
    let old = std::time::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    for name in ["sub/f5", "sub"] {
        fs::File::open(root.join(name)).unwrap().set_modified(old).unwrap();
    }
}

fn assert_same_tree(a: &Path, b: &Path) {
    for name in names(a) {
        // Names that are not UTF-8 come out of `names` changed; they are compared below.
        if name.contains('\u{fffd}') {
            continue;
        }
        let (x, y) = (a.join(&name), b.join(&name));
        let (m, n) = (fs::symlink_metadata(&x).unwrap(), fs::symlink_metadata(&y).unwrap());
        assert_eq!(m.file_type(), n.file_type(), "{name}");
        if m.is_symlink() {
            assert_eq!(fs::read_link(&x).unwrap(), fs::read_link(&y).unwrap(), "{name}");
            continue;
        }
        assert_eq!(m.mode(), n.mode(), "{name}");
        assert_eq!((m.mtime(), m.mtime_nsec()), (n.mtime(), n.mtime_nsec()), "{name}");
        if m.is_dir() {
            assert_same_tree(&x, &y);
        } else {
            assert_eq!(fs::read(&x).unwrap(), fs::read(&y).unwrap(), "{name}");
        }
    }
    assert_eq!(names(a), names(b));
}

#[test]
fn trees_there_across_and_back() {
    let server = Server::start();
    let local = tempfile::tempdir().unwrap();
    let from = local.path().join("from");
    tree(&from);
    let report = json(["cp", "-a", "--json", from.to_str().unwrap(), &server.url("there")]);
    assert_eq!((&report["files"], &report["directories"], &report["failed"]), (&202.into(), &3.into(), &0.into()));
    assert_same_tree(&from, &server.dir.join("there"));
    let ino = |name: &str| fs::metadata(server.dir.join("there").join(name)).unwrap().ino();
    assert_eq!(ino("also9"), ino("sub/f9"));
    let report = json(["cp", "-rp", "--json", &server.url("there"), &server.url("across")]);
    assert_eq!((&report["files"], &report["failed"]), (&203.into(), &0.into()));
    assert_same_tree(&from, &server.dir.join("across"));
    // Into a directory that exists, under the source's name.
    let back = local.path().join("back");
    fs::create_dir(&back).unwrap();
    ok(["cp", "-rpq", "--jobs", "3", &server.url("across"), back.to_str().unwrap()]);
    assert_same_tree(&from, &back.join("across"));
    // And once more over itself: everything is replaced.
    ok(["cp", "-rpq", &server.url("across"), back.to_str().unwrap()]);
    assert_same_tree(&from, &back.join("across"));
}

#[test]
fn one_failure_of_a_tree_does_not_stop_the_others() {
    let server = Server::start();
    let local = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        fs::write(local.path().join(name), name).unwrap();
    }
    fs::create_dir_all(server.dir.join("to/b")).unwrap();
    let out = common::run(["cp", "-r", "--json", &format!("{}/.", local.path().display()), &server.url("to")]);
    assert_eq!(out.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((&report["files"], &report["failed"]), (&2.into(), &1.into()), "{report}");
    assert_eq!(report["errors"][0]["error"], format!("{}: is a directory", server.url("to/b")));
    assert!(text(&out.stderr).contains("is a directory"));
    assert_eq!(names(&server.dir.join("to")), ["a", "b", "c"]);
}

/// Links and special files take the place of files, complete or not at all, and of no directory: NFS would remove an
/// empty one for them.
#[test]
fn links_take_the_place_of_files_alone() {
    let server = Server::start();
    let local = tempfile::tempdir().unwrap();
    let from = local.path().join("from");
    fs::create_dir(&from).unwrap();
    for name in ["dir", "file", "again"] {
        symlink("target", from.join(name)).unwrap();
    }
    let there = server.dir.join("to");
    for to in [there.as_path(), &local.path().join("to")] {
        fs::create_dir_all(to.join("dir")).unwrap();
        fs::write(to.join("file"), "old").unwrap();
        symlink("old", to.join("again")).unwrap();
        let named = if to == there { server.url("to") } else { to.to_str().unwrap().to_owned() };
        let line = fails(1, ["cp", "-r", from.join("dir").to_str().unwrap(), &named]);
        assert_eq!(line, format!("{named}/dir: is a directory"));
        let out = common::run(["cp", "-r", "--json", &format!("{}/.", from.display()), &named]);
        assert_eq!(out.status.code(), Some(1));
        let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!((&report["others"], &report["failed"]), (&2.into(), &1.into()), "{report}");
        assert_eq!(report["errors"][0]["error"], format!("{named}/dir: is a directory"));
        assert!(fs::symlink_metadata(to.join("dir")).unwrap().is_dir());
        for name in ["file", "again"] {
            assert_eq!(fs::read_link(to.join(name)).unwrap(), Path::new("target"));
        }
        assert_eq!(names(to), ["again", "dir", "file"]);
    }
    let line = fails(1, ["cp", "-r", &server.url("to/file"), &server.url("to/file")]);
    assert!(line.contains("is the same file as"), "{line}");
}

/// When the first name of a file cannot be copied, the others are names of a copy all the same, never of what was there.
#[test]
fn hard_links_when_one_name_is_taken() {
    let server = Server::start();
    let local = tempfile::tempdir().unwrap();
    let from = local.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("n0"), "new").unwrap();
    for n in 1..6 {
        fs::hard_link(from.join("n0"), from.join(format!("n{n}"))).unwrap();
    }
    for taken in 0..6 {
        let to = server.dir.join(format!("to{taken}"));
        fs::create_dir_all(to.join(format!("n{taken}"))).unwrap();
        for n in (0..6).filter(|n| *n != taken) {
            fs::write(to.join(format!("n{n}")), "old").unwrap();
        }
        let args = ["cp", "-a", "--json", &format!("{}/.", from.display()), &server.url(&format!("to{taken}"))];
        let out = common::run(args);
        let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!((&report["files"], &report["others"]), (&1.into(), &4.into()), "{report}");
        assert_eq!(report["failed"], 1, "{report}");
        let made: Vec<_> = names(&to).into_iter().filter(|n| *n != format!("n{taken}")).collect();
        assert_eq!(made.len(), 5, "{made:?}");
        let inode = |name: &String| fs::metadata(to.join(name)).unwrap().ino();
        for name in &made {
            assert_eq!(fs::read(to.join(name)).unwrap(), b"new", "{name} of to{taken}");
            assert_eq!(inode(name), inode(&made[0]));
        }
    }
}

/// A directory that is reached by a symbolic link gets the attributes; the link keeps its own.
#[test]
fn attributes_of_a_directory_behind_a_link() {
    let server = Server::start();
    let local = tempfile::tempdir().unwrap();
    let from = local.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::set_permissions(&from, fs::Permissions::from_mode(0o711)).unwrap();
    let old = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::open(&from).unwrap().set_modified(old).unwrap();
    for at in [server.dir.clone(), local.path().to_owned()] {
        fs::create_dir(at.join("real")).unwrap();
        symlink("real", at.join("link")).unwrap();
        let named = if at == server.dir { server.url("link") } else { at.join("link").to_str().unwrap().to_owned() };
        ok(["cp", "-rpq", &format!("{}/.", from.display()), &named]);
        let real = fs::metadata(at.join("real")).unwrap();
        assert_eq!((real.mode() & 0o7777, real.mtime()), (0o711, 1_000_000_000), "{named}");
        assert_ne!(fs::symlink_metadata(at.join("link")).unwrap().mtime(), 1_000_000_000, "{named}");
    }
}

#[test]
fn the_small_commands() {
    let server = Server::start();
    let url = |path: &str| server.url(path);
    let root = format!("nfs://{}/", server.addr);
    assert_eq!(fails(1, ["mkdir", &root]), format!("{root}: already exists"));
    let made = json(["mkdir", "-p", "--json", &url("a/b/c")]);
    assert_eq!(made["made"][0], url("a/b/c"));
    let mut put = dhow(["put", "-m", "640", &url("a/hello")]).stdin(Stdio::piped()).spawn().unwrap();
    put.stdin.take().unwrap().write_all(b"hello, world\n").unwrap();
    assert!(put.wait().unwrap().success());
    assert_eq!(fs::metadata(server.dir.join("a/hello")).unwrap().mode() & 0o7777, 0o640);
    let local = server.dir.join("a/hello");
    let report = json(["put", "--json", local.to_str().unwrap(), &url("a/again")]);
    assert_eq!((&report["bytes"], &report["durable"]), (&13.into(), &true.into()));
    assert_eq!(ok(["cat", &url("a/hello"), &url("a/again")]), "hello, world\nhello, world\n");
    ok(["ln", "-s", "hello", &url("a/soft")]);
    ok(["ln", &url("a/hello"), &url("a/hard")]);
    let line = fails(1, ["ln", &url("absent"), &url("a/never")]);
    assert_eq!(line, format!("{}: no such file or directory", url("absent")));
    ok(["ln", "-sf", "elsewhere", &url("a/soft")]);
    assert_eq!(fs::read_link(server.dir.join("a/soft")).unwrap(), Path::new("elsewhere"));
    let line = fails(1, ["ln", "-s", "x", &url("a/soft")]);
    assert!(line.ends_with("already exists"), "{line}");
    let list = json(["ls", "--json", &url("a")]);
    let listed: Vec<_> = list["entries"].as_array().unwrap().iter().map(|e| e["name"].as_str().unwrap()).collect();
    assert_eq!(listed, ["again", "b", "hard", "hello", "soft"]);
    let long = ok(["ls", "-l", &url("a")]);
    assert!(long.lines().any(|l| l.starts_with("-rw-r-----   2 ") && l.ends_with(" hello")), "{long}");
    assert!(long.contains("soft -> elsewhere"), "{long}");
    let all = ok(["ls", "-R", &url("")]);
    assert!(all.contains(&format!("{}:\n", url("a/b"))), "{all}");
    let stat = json(["stat", "--json", &url("a/hello")]);
    let local = fs::metadata(server.dir.join("a/hello")).unwrap();
    let entry = &stat["entries"][0];
    assert_eq!((&entry["size"], &entry["links"], &entry["mode"]), (&13.into(), &2.into(), &"0640".into()));
    assert_eq!(entry["fileid"], local.ino());
    assert_eq!(entry["mtime"]["seconds"], local.mtime());
    ok(["mv", &url("a/hello"), &url("a/b")]);
    ok(["mv", &url("a/again"), &url("a/renamed")]);
    ok(["mv", "-n", &url("a/renamed"), &url("a/hard")]);
    assert_eq!(names(&server.dir.join("a")), ["b", "hard", "renamed", "soft"]);
    assert_eq!(names(&server.dir.join("a/b")), ["c", "hello"]);
    let line = fails(1, ["rm", &url("a")]);
    assert_eq!(line, format!("{}: is a directory; remove it with -r", url("a")));
    let line = fails(1, ["rm", "-d", &url("a")]);
    assert_eq!(line, format!("{}: directory not empty", url("a")));
    let line = fails(1, ["rm", &url("absent")]);
    assert_eq!(line, format!("{}: no such file or directory", url("absent")));
    ok(["rm", "-f", &url("absent")]);
    ok(["rm", "-rf", &url("a")]);
    assert!(names(&server.dir).is_empty());
}

#[test]
fn links_are_listed_with_where_they_lead() {
    let server = Server::start();
    for i in 0..150 {
        symlink(format!("to-{i:03}"), server.dir.join(format!("link-{i:03}"))).unwrap();
    }
    let long = ok(["ls", "-lr", &server.url("")]);
    let shown: Vec<_> = long.lines().filter_map(|l| l.split_once("link-")).map(|(_, link)| link.to_owned()).collect();
    let right: Vec<_> = (0..150).rev().map(|i| format!("{i:03} -> to-{i:03}")).collect();
    assert_eq!(shown, right);
    let list = json(["ls", "--json", &server.url("")]);
    let entries = list["entries"].as_array().unwrap();
    assert!((0..150).all(|i| entries[i]["target"] == format!("to-{i:03}")), "{list}");
}

#[test]
fn probe_tells_what_works() {
    let server = Server::start();
    let found = json(["probe", "--json", &server.url("")]);
    let minors: Vec<_> = found["minor_versions"].as_array().unwrap().iter().map(|m| m.as_u64().unwrap()).collect();
    assert!(minors.contains(&1) && minors.contains(&2), "{found}");
    for op in ["COPY", "SEEK", "ALLOCATE", "DEALLOCATE"] {
        assert_eq!(found["operations"][op]["state"], "works", "{op}: {found}");
    }
    assert!(found["slots"].as_u64().unwrap() > 0 && found["lease_seconds"].as_u64().unwrap() > 0);
    assert!(names(&server.dir).is_empty(), "the probe left something behind");
    let found = json(["probe", "--json", "--read-only", &server.url("")]);
    assert_eq!(found["operations"]["COPY"]["state"], "offered");
    let text = ok(["probe", &server.url("")]);
    assert!(text.contains("slots granted") && text.contains("COPY"), "{text}");
}

#[test]
fn a_signal_drains_the_server_and_a_restart_finds_the_state() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().to_owned();
    let mut server = Server::start_in(temp, &[]);
    ok(["mkdir", &server.url("d")]);
    Server::signal(&server.child, "TERM");
    assert!(server.child.wait().unwrap().success());
    assert!(path.join("state/state.redb").exists());
    // A second server on the same state directory is refused.
    let again = Server::start();
    let state = format!("--state-dir={}", again.dir.parent().unwrap().join("state").display());
    let args = ["serve", again.dir.to_str().unwrap(), "--listen=127.0.0.1:0", &state];
    let line = fails(1, args);
    assert!(line.contains("is in use by another server"), "{line}");
    // And so is the same port, with the remedy.
    let listen = format!("--listen={}", again.addr);
    let line = fails(1, ["serve", again.dir.to_str().unwrap(), &listen, &format!("{state}-other")]);
    assert!(line.contains("choose another port: --listen 127.0.0.1:12049"), "{line}");
}

#[test]
fn demo_and_bench_measure_and_clean_up() {
    let dir = tempfile::tempdir().unwrap();
    let at = format!("--dir={}", dir.path().display());
    let demo = json(["demo", "--json", "--size", "8M", &at]);
    let rows = demo["rows"].as_array().unwrap();
    assert!(rows.len() >= 2 && rows.iter().all(|r| r["verified"] == true), "{demo}");
    assert!(rows[1]["method"] == "copy" && rows[1]["calls"].as_u64().unwrap() <= 6, "{demo}");
    let bench = json(["bench", "copy", "--json", "--size", "2M", "--runs", "1", &at]);
    let rows = bench["rows"].as_array().unwrap();
    for durable in [false, true] {
        for method in ["readwrite", "copy"] {
            let row = rows.iter().find(|r| r["method"] == method && r["durable"] == durable);
            let row = row.unwrap_or_else(|| panic!("no row {method} {durable}: {bench}"));
            assert_eq!(row["size"], 2 * MIB);
            assert!(row["seconds"].as_f64().unwrap() > 0.0);
            assert!(method != "copy" || row["calls"].as_u64().unwrap() <= 6, "{row}");
        }
    }
    assert!(names(dir.path()).is_empty(), "something was left behind");
}
