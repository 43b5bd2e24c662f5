//! `dhow probe`: what a server offers, found out by asking and, where files can be made, by trying.

use crate::cli::Probe;
use crate::exit::{Failure, Outcome};
use crate::output::{say, say_json, table};
use crate::place::{Place, Places, parse_url};
use crate::words::bytes;
use bytes::Bytes;
use dhow_client::probe::{self, Support};
use dhow_client::v4::ops::{DataContent, ReadPlusArgs, SetxattrOption};
use dhow_client::v4::{ArgOp, Bitmap, OpNum, StableHow, Status};
use dhow_client::{CallOptions, Client, ClientConfig, CopyBegun, CopyOptions, Create, File, Fs, OpenOptions};
use dhow_copy::NfsEndpoint;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How often the round trip is measured.
const PINGS: usize = 20;
/// Bytes of the file that operations are tried on.
const FILE: u32 = 1 << 20;

/// What came of an operation.
#[derive(Clone, Debug, PartialEq)]
enum Found {
    /// It was done, and what was looked at afterwards was right.
    Works(Option<&'static str>),
    /// It is known; nothing was tried.
    Offered,
    /// It is not known, or not offered here.
    Missing,
    /// It failed, or the answer allows no conclusion.
    Failed(String),
}

impl Found {
    fn of(result: Result<(), dhow_client::Error>) -> Self {
        match result {
            Ok(()) => Self::Works(None),
            Err(e) => match e.wire_status() {
                Some(Status::NOTSUPP | Status::OP_ILLEGAL | Status::UNION_NOTSUPP) => Self::Missing,
                Some(status) => Self::Failed(status.to_string()),
                None => Self::Failed(e.to_string()),
            },
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Works(None) => "works".into(),
            Self::Works(Some(how)) => format!("works ({how})"),
            Self::Offered => "offered, not tried".into(),
            Self::Missing => "not offered".into(),
            Self::Failed(why) => format!("fails: {why}"),
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Works(how) => json!({"state": "works", "how": how}),
            Self::Offered => json!({"state": "offered"}),
            Self::Missing => json!({"state": "missing"}),
            Self::Failed(why) => json!({"state": "fails", "why": why}),
        }
    }
}

/// Runs the command.
pub async fn run(args: Probe) -> Outcome {
    let url = parse_url(&args.url)?;
    let config = ClientConfig::for_url(&url).await.map_err(|e| Failure {
        code: crate::exit::Code::Unreachable,
        message: format!("{}: cannot find the address of the server: {e}", url.authority()),
    })?;
    let versions = probe::versions(&config).await.map_err(|e| unreachable(&url.authority(), &e))?;
    if !versions.minors.iter().any(|m| *m == 1 || *m == 2) {
        let words =
            format!("{}: speaks NFSv4 minor versions {:?} only; 1 or 2 is needed", url.authority(), versions.minors);
        return Err(Failure { code: crate::exit::Code::Unreachable, message: words });
    }
    let report = Places::with(async |places| {
        let (place, endpoint) = places.server(&args.url).await?;
        Report::gather(&args, &place, &endpoint, versions).await
    });
    let report = report.await?;
    if args.json {
        say_json(&report.json());
    } else {
        report.print();
    }
    Ok(())
}

fn unreachable(server: &str, e: &dhow_client::Error) -> Failure {
    Failure { code: crate::exit::Code::Unreachable, message: format!("{server}: {e}") }
}

struct Report {
    url: String,
    versions: probe::Versions,
    info: dhow_client::SessionInfo,
    attrs: dhow_client::v4::Attrs,
    pings: Vec<Duration>,
    operations: Vec<(String, Found)>,
    /// Why nothing was written, if nothing was.
    read_only: Option<String>,
}

impl Report {
    async fn gather(args: &Probe, place: &Place, endpoint: &NfsEndpoint, versions: probe::Versions) -> Outcome<Self> {
        let (client, fs) = (endpoint.client(), endpoint.fs());
        let shown = place.shown();
        let at = |e: dhow_client::Error| Failure::failed(format!("{shown}: {e}"));
        let meta = place.endpoint.stat_followed(&place.path).await?;
        if meta.kind != dhow_copy::Kind::Dir {
            return Err(Failure::usage(format!("{shown}: name a directory")));
        }
        let mut pings = Vec::new();
        for _ in 0..PINGS {
            pings.push(client.ping().await.map_err(at)?);
        }
        pings.sort_unstable();
        let info = client.session_info().await.map_err(at)?;
        let path = bytes_of(&place.path);
        let attrs = fs.statfs(&path).await.map_err(at)?;
        let mut operations: Vec<(String, Found)> = Vec::new();
        let mut read_only = args.read_only.then(|| "as asked for".to_owned());
        if info.minor_version >= 2 {
            for (op, support) in probe::operations(client, &path).await.map_err(at)? {
                let found = match support {
                    Support::Yes => Found::Offered,
                    Support::No => Found::Missing,
                    Support::Unclear(status) => Found::Failed(status.to_string()),
                };
                operations.push((op.name().unwrap_or("?").to_owned(), found));
            }
            if read_only.is_none() {
                match tried(place, client, fs).await {
                    Ok(tried) => {
                        for (name, found) in tried {
                            match operations.iter_mut().find(|o| o.0 == name) {
                                Some(known) => known.1 = found,
                                None => operations.push((name.to_owned(), found)),
                            }
                        }
                    }
                    Err(why) => read_only = Some(why),
                }
            }
        }
        Ok(Self { url: shown.clone(), versions, info, attrs, pings, operations, read_only })
    }

    fn round_trip(&self) -> (Duration, Duration) {
        let at = |i: usize| self.pings.get(i).copied().unwrap_or_default();
        (at(0), at(self.pings.len() / 2))
    }

    fn server(&self) -> (String, String, String) {
        let Some(server) = &self.info.server else { return Default::default() };
        let hex = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap_or_else(|_| format!("{b:02x?}"));
        let implementation = server.impl_id.first().map(|i| hex(&i.name)).unwrap_or_default();
        (hex(&server.server_owner.major_id), hex(&server.server_scope), implementation)
    }

    fn json(&self) -> Value {
        let (min, median) = self.round_trip();
        let (owner, scope, implementation) = self.server();
        let operations: serde_json::Map<String, Value> =
            self.operations.iter().map(|(name, found)| (name.clone(), found.json())).collect();
        json!({
            "url": self.url,
            "other_major_versions": self.versions.majors,
            "minor_versions": self.versions.minors,
            "minor_version_used": self.info.minor_version,
            "server_owner": owner,
            "server_scope": scope,
            "implementation": implementation,
            "operations": operations,
            "nothing_written": self.read_only,
            "slots": self.info.slots,
            "max_request_bytes": self.info.max_request_size,
            "max_reply_bytes": self.info.max_response_size,
            "max_operations": self.info.max_operations,
            "lease_seconds": self.info.lease.as_secs(),
            "max_read_bytes": self.attrs.maxread,
            "max_write_bytes": self.attrs.maxwrite,
            "max_file_bytes": self.attrs.maxfilesize,
            "max_name_bytes": self.attrs.maxname,
            "max_links": self.attrs.maxlink,
            "clone_block_bytes": self.attrs.clone_blksize,
            "extended_attributes": self.attrs.xattr_support,
            "space_total_bytes": self.attrs.space_total,
            "space_available_bytes": self.attrs.space_avail,
            "round_trip_seconds_min": min.as_secs_f64(),
            "round_trip_seconds_median": median.as_secs_f64(),
        })
    }

    fn print(&self) {
        let size = |n: Option<u64>| n.map_or_else(|| "unknown".to_owned(), bytes);
        let (min, median) = self.round_trip();
        let (owner, scope, implementation) = self.server();
        let minors: Vec<String> = self.versions.minors.iter().map(|m| format!("4.{m}")).collect();
        let majors: Vec<String> = self.versions.majors.iter().map(ToString::to_string).collect();
        let mut rows = vec![
            ("server", self.url.clone()),
            ("versions", minors.into_iter().chain(majors).collect::<Vec<_>>().join(", ")),
            ("used here", format!("4.{}", self.info.minor_version)),
            ("server owner", owner),
            ("server scope", scope),
        ];
        if !implementation.is_empty() {
            rows.push(("implementation", implementation));
        }
        rows.extend([
            ("round trip", format!("{min:.1?} least, {median:.1?} median")),
            ("slots granted", self.info.slots.to_string()),
            ("largest request", bytes(u64::from(self.info.max_request_size))),
            ("largest reply", bytes(u64::from(self.info.max_response_size))),
            ("operations in a call", self.info.max_operations.to_string()),
            ("lease", format!("{} s", self.info.lease.as_secs())),
            ("read, write", format!("{}, {}", size(self.attrs.maxread), size(self.attrs.maxwrite))),
            ("largest file", size(self.attrs.maxfilesize)),
            ("space", format!("{} available of {}", size(self.attrs.space_avail), size(self.attrs.space_total))),
        ]);
        if let Some(block) = self.attrs.clone_blksize {
            rows.push(("clone alignment", bytes(u64::from(block))));
        }
        for (name, value) in rows {
            say(format!("{name:<21} {value}"));
        }
        if self.operations.is_empty() {
            say("minor version 2 is not offered: no server-side copies");
            return;
        }
        say("");
        let lines: Vec<Vec<String>> =
            self.operations.iter().map(|(n, f)| vec![format!("{n:<14} {}", f.text())]).collect();
        say(table(&lines));
        if let Some(why) = &self.read_only {
            say(format!("(nothing was written: {why})"));
        }
    }
}

fn bytes_of(path: &Path) -> Bytes {
    use std::os::unix::ffi::OsStrExt;
    Bytes::copy_from_slice(path.as_os_str().as_bytes())
}

/// Tries the operations in a directory of their own, which is removed afterwards. `Err`: why nothing could be written.
async fn tried(place: &Place, client: &Client, fs: &Fs) -> Result<Vec<(&'static str, Found)>, String> {
    let dir: PathBuf = place.path.join(format!(".dhow-probe-{}", std::process::id()));
    let endpoint: &Arc<dyn dhow_copy::Endpoint> = &place.endpoint;
    endpoint.make_dir(&dir, 0o700).await.map_err(|e| e.to_string())?;
    let result = in_dir(&dir, client, fs).await;
    let failed = |e: &dhow_copy::Error| crate::exit::warn(e);
    dhow_copy::remove_tree(&**endpoint, &dir, &dhow_copy::Cancel::never(), &failed).await;
    result.map_err(|e| e.to_string())
}

async fn in_dir(dir: &Path, client: &Client, fs: &Fs) -> dhow_client::Result<Vec<(&'static str, Found)>> {
    let make = async |name: &str| {
        let options = OpenOptions::read_write().create(Create::New, 0o600);
        fs.open(bytes_of(&dir.join(name)), &options).await
    };
    let source = make("source").await?;
    // Data, a hole of the same length, data.
    let data = Bytes::from(vec![0x5a; FILE as usize]);
    source.write_all_at(0, data.clone(), StableHow::FILE_SYNC).await?;
    source.write_all_at(u64::from(FILE) * 2, data, StableHow::FILE_SYNC).await?;
    let mut found = Vec::new();
    found.push(("SEEK", seek(&source).await));
    found.push(("READ_PLUS", read_plus(client, &source).await));
    found.push(("IO_ADVISE", Found::of(source.advise(0, 0, Bitmap::of(&[0])).await.map(drop))));
    let target = make("copied").await?;
    found.push(("COPY", copy(&source, &target).await));
    target.close().await?;
    let target = make("cloned").await?;
    found.push(("CLONE", same(source.clone_to(0, &target, 0, 0).await, &target).await));
    target.close().await?;
    let target = make("allocated").await?;
    let length = u64::from(FILE);
    let allocated = target.allocate(0, length).await;
    found.push(("ALLOCATE", Found::of(allocated)));
    let punched = source.deallocate(0, length).await;
    found.push(("DEALLOCATE", Found::of(punched)));
    target.close().await?;
    let place = source.place();
    let set = fs.setxattr(&place, "dhow.probe", Bytes::from_static(b"1"), SetxattrOption::EITHER).await;
    let can_set = set.is_ok();
    found.push(("SETXATTR", Found::of(set)));
    if can_set {
        found.push(("GETXATTR", Found::of(fs.getxattr(&place, "dhow.probe").await.map(drop))));
        found.push(("LISTXATTRS", Found::of(fs.listxattrs(&place).await.map(drop))));
        found.push(("REMOVEXATTR", Found::of(fs.removexattr(&place, "dhow.probe").await)));
    }
    source.close().await?;
    Ok(found)
}

async fn seek(source: &File) -> Found {
    let (one, two) = (u64::from(FILE), u64::from(FILE) * 2);
    let hole = match source.seek(0, DataContent::HOLE).await {
        Ok(found) => found.offset,
        Err(e) => return Found::of(Err(e)),
    };
    match source.seek(one, DataContent::DATA).await {
        Ok(data) if hole == one && data.offset == two => Found::Works(None),
        // Allowed (RFC 7862 15.11.3), and useless: everything is data.
        Ok(_) => Found::Works(Some("sees no holes")),
        Err(e) => Found::of(Err(e)),
    }
}

async fn read_plus(client: &Client, source: &File) -> Found {
    let stateid = match source.stateid() {
        Ok(stateid) => stateid,
        Err(e) => return Found::of(Err(e)),
    };
    let put = ArgOp::PutFh(dhow_client::v4::ops::PutFhArgs { object: source.fh().clone() });
    let read = ArgOp::ReadPlus(ReadPlusArgs { stateid, offset: u64::from(FILE) - 4096, count: 8192 });
    let options = CallOptions { patient: false, ..CallOptions::default() };
    match client.compound(vec![put, read], options).await {
        Ok(res) if res.status.is_ok() => Found::Works(None),
        Ok(res) => Found::of(Err(dhow_client::Error::Status { op: OpNum::READ_PLUS, status: res.status, path: None })),
        Err(e) => Found::of(Err(e)),
    }
}

async fn copy(source: &File, target: &File) -> Found {
    let begun = source.begin_copy(0, target, 0, u64::from(FILE) * 3, &CopyOptions::default()).await;
    match begun {
        Ok(CopyBegun::Done(copied)) => match same(Ok(()), target).await {
            Found::Works(_) if copied.bytes < u64::from(FILE) * 3 => Found::Works(Some("in slices")),
            Found::Works(_) => Found::Works(Some("answered at once")),
            other => other,
        },
        Ok(CopyBegun::Running(running)) => match running.wait(|_| ()).await {
            Ok(_) => match same(Ok(()), target).await {
                Found::Works(_) => Found::Works(Some("asynchronously")),
                other => other,
            },
            Err(e) => Found::of(Err(e)),
        },
        Err(e) => Found::of(Err(e)),
    }
}

/// Whether the first byte of the target is that of the source.
async fn same(result: Result<(), dhow_client::Error>, target: &File) -> Found {
    if result.is_err() {
        return Found::of(result);
    }
    match target.read_at(0, 1).await {
        Ok(read) if read.data.as_ref() == [0x5a] => Found::Works(None),
        Ok(_) => Found::Failed("the data is not there".into()),
        Err(e) => Found::of(Err(e)),
    }
}
