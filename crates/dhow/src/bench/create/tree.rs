//! A tree of small files over the link: as `dhow cp -r` copies it, and one file at a time.

use super::Setting;
use super::site::{At, Site};
use crate::bench::Spread;
use crate::cli::BenchCreate;
use crate::exit::{Failure, Outcome};
use crate::scratch::Scratch;
use bytes::Bytes;
use dhow_client::v4::StableHow;
use dhow_client::{Create, OpenOptions};
use dhow_copy::{Endpoint, Local, Progress, TreeOptions, copy_tree};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Files of a directory of the tree.
const PER_DIR: u32 = 100;
/// Bytes of a file.
const SIZE: usize = 4096;
/// Files that are copied one at a time: it takes long enough.
const SINGLY: u32 = 25;

/// One way to copy.
pub struct Tree {
    way: &'static str,
    files: u64,
    elapsed: Duration,
    calls: u64,
}

impl Tree {
    fn per_second(&self) -> f64 {
        self.files as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    fn calls_per_file(&self) -> f64 {
        self.calls as f64 / self.files.max(1) as f64
    }

    pub fn json(&self, setting: &Setting) -> Value {
        json!({
            "via": "direct",
            "op": "tree",
            "way": self.way,
            "rtt_ms": Spread::json(setting.rtt.as_secs_f64() * 1e3),
            "files": self.files,
            "seconds": Spread::json(self.elapsed.as_secs_f64()),
            "files_per_second": Spread::json(self.per_second()),
            "calls_per_file": Spread::json(self.calls_per_file()),
            "metadata_sync": setting.metadata_sync,
            "filesystem": setting.filesystem,
        })
    }

    pub fn cells(&self) -> Vec<String> {
        vec![
            self.way.into(),
            self.files.to_string(),
            format!("{:.2}", self.elapsed.as_secs_f64()),
            format!("{:.1}", self.per_second()),
            format!("{:.2}", self.calls_per_file()),
        ]
    }
}

/// All ways.
pub fn rows(args: &BenchCreate, site: &Site<'_>) -> Outcome<Vec<Tree>> {
    if args.tree == 0 {
        return Ok(Vec::new());
    }
    ways(args, site, &Scratch::in_or_temp(args.dir.as_deref(), "dhow-bench-tree")?)
}

fn ways(args: &BenchCreate, site: &Site<'_>, local: &Path) -> Outcome<Vec<Tree>> {
    let from = local.join("from");
    for n in 0..args.tree {
        let dir = from.join(format!("d{}", n / PER_DIR));
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join(format!("f{n}")), [n as u8; SIZE])?;
    }
    let root = PathBuf::from(std::ffi::OsString::from(String::from_utf8_lossy(site.root()).into_owned()));
    let name = format!("tree-{}", std::process::id());
    let there = root.join(&name);
    let mut out = Vec::new();
    // A client of its own each time: what an earlier one learned is no help.
    let at = site.client()?;
    out.push(tree(&at, "dhow cp -r, to the server", true, &from, &there)?);
    at.stop();
    let at = site.client()?;
    out.push(tree(&at, "dhow cp -r, from the server", false, &local.join("back"), &there)?);
    out.push(singly(&at, &there, args.tree.min(SINGLY))?);
    site.clean(&at, &name);
    at.stop();
    same(&from, &local.join("back"), args.tree)?;
    Ok(out)
}

fn tree(at: &At<'_>, way: &'static str, up: bool, local: &Path, there: &Path) -> Outcome<Tree> {
    let here: Arc<dyn Endpoint> = Arc::new(Local::new());
    let server: Arc<dyn Endpoint> = at.endpoint.clone();
    let (here, server) = ((&here, local), (&server, there));
    let (from, to) = if up { (here, server) } else { (server, here) };
    let start = Instant::now();
    let report = at.block_on(copy_tree(from, to, &TreeOptions::default(), &Progress::none()))??;
    let elapsed = start.elapsed();
    if let Some(e) = report.errors.into_iter().next() {
        return Err(e.into());
    }
    Ok(Tree { way, files: report.files, elapsed, calls: report.calls.calls })
}

/// As a program does that knows nothing of round trips: open, write, close, then the next.
fn singly(at: &At<'_>, there: &Path, files: u32) -> Outcome<Tree> {
    let fs = at.fs();
    let dir = there.to_string_lossy().into_owned();
    let work = async {
        let dir = fs.stat(&dir).await?.fh;
        let (before, start) = (at.client().counters().snapshot(), Instant::now());
        for n in 0..files {
            let options = OpenOptions::write().create(Create::New, 0o644);
            let file = fs.open((&dir, format!("one{n}")), &options).await?;
            file.write_all_at(0, Bytes::from(vec![n as u8; SIZE]), StableHow::FILE_SYNC).await?;
            file.close().await?;
        }
        let calls = at.client().counters().snapshot().since(&before).calls;
        Ok::<_, dhow_client::Error>((calls, start.elapsed()))
    };
    let (calls, elapsed) = at.block_on(work)?.map_err(Failure::failed)?;
    Ok(Tree { way: "open, write, close, one file at a time", files: files.into(), elapsed, calls })
}

/// What came back is what was sent.
fn same(from: &Path, back: &Path, files: u32) -> Outcome {
    for n in 0..files {
        let name = format!("d{}/f{n}", n / PER_DIR);
        if std::fs::read(from.join(&name))? != std::fs::read(back.join(&name))? {
            return Err(Failure::failed(format!("{name} came back as something else")));
        }
    }
    Ok(())
}
