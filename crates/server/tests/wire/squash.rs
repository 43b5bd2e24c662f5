//! Squashing (case B38): whom the server acts as.

use crate::common::{Watched, config, open_to_all, start};
use dhow_proto::v4::attr::{MODE, OWNER, OWNER_GROUP};
use dhow_proto::v4::{ArgOp, Attrs, FileHandle, ResOp, Stateid, Status};
use dhow_server::{ExportConfig, ExportOptions, Squash};
use dhow_testkit::MemFs;
use dhow_testkit::memfs::Options;
use dhow_testkit::wire::{Client, ClientOptions, Wire, op, sys};
use std::net::SocketAddr;
use std::sync::Arc;

async fn serve(fs: &Arc<MemFs>, options: ExportOptions) -> (Watched, SocketAddr) {
    start(config(vec![ExportConfig { path: "/".into(), backend: fs.clone(), options }])).await
}

async fn client(addr: SocketAddr, name: &str, uid: u32, gid: u32, gids: &[u32]) -> Client {
    let wire = Wire::connect(addr).await.unwrap().with_cred(sys(uid, gid, gids));
    Client::over(wire, ClientOptions::named(name)).await
}

async fn owner(c: &mut Client, fh: &FileHandle) -> (String, String) {
    let a = c.attrs(fh, &[OWNER, OWNER_GROUP]).await;
    let text = |b: Option<bytes::Bytes>| String::from_utf8(b.unwrap().to_vec()).unwrap();
    (text(a.owner), text(a.owner_group))
}

/// A directory, made as the superuser of an export that squashes nobody, that only the group may use.
async fn group_dir(addr: SocketAddr, group: u32) -> FileHandle {
    let mut c = client(addr, "admin", 0, 0, &[]).await;
    let root = c.walk("").await;
    let d = c.mkdir(&root, "team").await;
    let attrs = Attrs { mode: Some(0o070), owner_group: Some(group.to_string().into()), ..Attrs::default() };
    c.ok(&[op::put(&d), op::setattr(attrs)]).await;
    d
}

#[tokio::test]
async fn root_squash_keeps_other_groups() {
    let fs = MemFs::new();
    let (_open, addr) = serve(&fs, open_to_all()).await;
    group_dir(addr, 2000).await;
    let (_squashing, addr) =
        serve(&fs, ExportOptions { anon_uid: 4444, anon_gid: 5555, ..ExportOptions::default() }).await;
    let mut c = client(addr, "c", 0, 0, &[0, 2000]).await;
    let root = c.walk("").await;
    let made = c.create(&root, "by-root").await;
    assert_eq!(owner(&mut c, &made.fh).await, ("4444".into(), "5555".into()));
    let team = c.walk("team").await;
    c.create(&team, "by-group-2000").await;
    let chown = op::setattr(Attrs { owner: Some("0".into()), ..Attrs::default() });
    assert_eq!(c.status(&[op::put(&made.fh), chown]).await, Status::PERM);
    // Another user is who they say they are; group 0 in the list is not.
    let mut u = client(addr, "u", 1000, 1000, &[]).await;
    let mine = u.create(&root, "mine").await;
    assert_eq!(owner(&mut u, &mine.fh).await, ("1000".into(), "1000".into()));
    assert_eq!(u.status(&[op::put(&team), op::lookup("by-group-2000")]).await, Status::ACCESS);
    let mut g = client(addr, "g", 1000, 0, &[]).await;
    let by_wheel = g.create(&root, "by-wheel").await;
    assert_eq!(owner(&mut g, &by_wheel.fh).await, ("1000".into(), "5555".into()));
}

#[tokio::test]
async fn no_squash() {
    let fs = MemFs::new();
    let (_running, addr) = serve(&fs, open_to_all()).await;
    let mut c = client(addr, "c", 0, 0, &[]).await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    let chown = Attrs { owner: Some("77".into()), owner_group: Some("88".into()), ..Attrs::default() };
    c.ok(&[op::put(&f.fh), op::setattr(chown)]).await;
    assert_eq!(owner(&mut c, &f.fh).await, ("77".into(), "88".into()));
}

#[tokio::test]
async fn all_squash() {
    let fs = MemFs::new();
    let (_open, addr) = serve(&fs, open_to_all()).await;
    let team = group_dir(addr, 2000).await;
    let all = ExportOptions { squash: Squash::All, anon_uid: 4444, anon_gid: 5555, ..ExportOptions::default() };
    let (_squashing, addr) = serve(&fs, all).await;
    let mut seen = Vec::new();
    for (i, (uid, gid, gids)) in [(0, 0, &[2000][..]), (1000, 1000, &[2000]), (4444, 1, &[])].into_iter().enumerate() {
        let mut c = client(addr, &format!("c{i}"), uid, gid, gids).await;
        let root = c.walk("").await;
        let f = c.create(&root, format!("f{i}")).await;
        seen.push(owner(&mut c, &f.fh).await);
        let t = c.walk("team").await;
        assert_eq!(c.status(&[op::put(&t), op::lookup("x")]).await, Status::ACCESS, "no group of the caller is left");
        // Whoever they all are, they share what is theirs.
        c.ok(&[op::put(&f.fh), op::setattr(Attrs { mode: Some(0o600), ..Attrs::default() })]).await;
        if i > 0 {
            c.ok(&[op::put(&root), op::lookup("f0"), op::getattr(&[MODE])]).await;
        }
    }
    assert!(seen.iter().all(|s| *s == ("4444".into(), "5555".into())), "{seen:?}");
    assert!(!team.0.is_empty());
}

/// A caller without identity is anonymous, whatever the export squashes (AUTH_NONE).
#[tokio::test]
async fn nobody() {
    let fs = MemFs::new();
    let (_running, addr) = serve(&fs, ExportOptions { anon_uid: 4444, anon_gid: 5555, ..open_to_all() }).await;
    let wire = Wire::connect(addr).await.unwrap().with_cred(dhow_rpc::Credential::None);
    let mut c = Client::over(wire, ClientOptions::named("nobody")).await;
    let root = c.walk("").await;
    let f = c.create(&root, "f").await;
    assert_eq!(owner(&mut c, &f.fh).await, ("4444".into(), "5555".into()));
    match c.ok(&[op::put(&root), op::access(0x3f)]).await.pop() {
        Some(ResOp::Access(Ok(ok))) => assert_ne!(ok.access, 0),
        other => panic!("{other:?}"),
    }
}

/// `secure`: only from ports below 1024. Tests do not run on one, so the export is closed to them.
#[tokio::test]
async fn reserved_ports() {
    let fs = MemFs::new();
    let options = ExportOptions { secure: true, ..open_to_all() };
    let (_running, addr) =
        start(config(vec![ExportConfig { path: "/safe".into(), backend: fs.clone(), options }])).await;
    let mut c = client(addr, "c", 0, 0, &[]).await;
    let status = c.status(&[op::root(), op::lookup("safe")]).await;
    assert!(matches!(status, Status::ACCESS | Status::NOENT), "{status:?}");
}

/// A copy between two exports reads as whom the source's export makes of the caller, not as whom the destination's
/// does; likewise when it is the other way round (case B38).
#[tokio::test]
async fn copies_read_under_the_rules_of_their_source() {
    for cloning in [false, true] {
        let fs = MemFs::with(Options { clone: true, ..Options::default() });
        let export = |path: &str, squash| ExportConfig {
            path: path.into(),
            backend: fs.clone(),
            options: ExportOptions { squash, ..ExportOptions::default() },
        };
        let exports = vec![export("/open", Squash::None), export("/root-squashing", Squash::Root)];
        let (_running, addr) = start(config(exports)).await;
        let mut c = client(addr, "c", 0, 0, &[]).await;
        let open = c.walk("open").await;
        let secret = c.create(&open, "secret").await;
        c.write(&secret, 0, b"secret").await;
        c.close(&secret).await;
        c.ok(&[op::put(&secret.fh), op::setattr(Attrs { mode: Some(0o600), ..Attrs::default() })]).await;
        let squashed = c.walk("root-squashing/secret").await;
        let dst = c.create(&open, "dst").await;
        let anon = Stateid::ANONYMOUS;
        let copy = match cloning {
            false => op::copy(anon, dst.stateid, (0, 0), 0, true),
            true => op::clone(anon, dst.stateid, 0, 0, 0),
        };
        let ops = |src: &FileHandle| [op::put(src), ArgOp::SaveFh, op::put(&dst.fh), copy.clone()];
        assert_eq!(c.status(&ops(&squashed)).await, Status::ACCESS, "cloning: {cloning}");
        assert_eq!(fs.content_of("dst").unwrap(), "");
        c.ok(&ops(&secret.fh)).await;
        assert_eq!(fs.content_of("dst").unwrap(), "secret");
    }
}
