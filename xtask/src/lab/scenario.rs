//! Scenario scripts and the comments at their head.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::Server;

/// One script of `lab/scenarios`.
#[derive(Debug, PartialEq, Eq)]
pub struct Scenario {
    /// File name without `.sh`.
    pub name: String,
    /// `# title:` one line on what it shows.
    pub title: String,
    /// `# runs:` one guest for each word: `VERSION` or `VERSION-FS`.
    pub runs: Vec<String>,
    /// `# timeout:` seconds after which a guest is killed.
    pub timeout: u32,
    /// `# mem:` the guest's memory.
    pub mem: String,
    /// `# serves: no` where no server under test is wanted (the default is yes).
    pub serves: bool,
    /// `# client: yes` where dhow's client commands are run.
    pub client: bool,
    /// `# idle: yes` where it waits most of the time: it runs beside as many others as the machine has cores.
    pub idle: bool,
    /// `# outside: yes` where the script has a part that runs beside the guest, which holds the server.
    pub outside: bool,
}

/// One guest to boot.
#[derive(Debug)]
pub struct Plan<'a> {
    /// What runs in it.
    pub scenario: &'a Scenario,
    /// One word of `runs`.
    pub run: &'a str,
}

impl Plan<'_> {
    /// `scenario@run`.
    pub fn label(&self) -> String {
        format!("{}@{}", self.scenario.name, self.run)
    }

    /// The NFS version to mount with.
    pub fn version(&self) -> &str {
        self.run.split('-').next().unwrap_or(self.run)
    }

    /// What the served files lie on: `tmpfs`, `dir` (a folder of this machine), `ext4`, `xfs` or `btrfs`.
    pub fn fs(&self) -> &str {
        self.run.split_once('-').map_or("tmpfs", |(_, fs)| fs)
    }

    /// Beside the guest where this machine can mount the file system, else within it.
    pub fn place(&self, wanted: Server) -> Server {
        if wanted == Server::Beside && !mountable(self.fs()) { Server::Inside } else { wanted }
    }
}

/// Whether this machine can make and mount an image of the file system.
fn mountable(fs: &str) -> bool {
    if ["tmpfs", "dir"].contains(&fs) {
        return true;
    }
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    known.lines().any(|line| line.trim() == fs)
        && Command::new("losetup").arg("-f").output().is_ok_and(|o| o.status.success())
        && Command::new(format!("mkfs.{fs}")).arg("-V").output().is_ok_and(|o| o.status.success())
}

/// All scenarios, by name.
///
/// # Errors
/// A script that cannot be read, or whose head says something unknown.
pub fn all(folder: &Path) -> Result<Vec<Scenario>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "sh") {
            let name = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
            let text = fs::read_to_string(&path)?;
            found.push(parse(name, &text).with_context(|| path.display().to_string())?);
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn parse(name: String, text: &str) -> Result<Scenario> {
    let mut head = BTreeMap::new();
    for line in text.lines().skip(1).take_while(|line| line.starts_with('#')) {
        if let Some((key, value)) = line.trim_start_matches("# ").split_once(": ")
            && !key.contains(' ')
        {
            head.insert(key, value.trim());
        }
    }
    let mut take = |key| head.remove(key);
    let title = take("title").context("no '# title:'")?.to_owned();
    let runs: Vec<String> = take("runs").unwrap_or("4.2").split_whitespace().map(str::to_owned).collect();
    let timeout = take("timeout").unwrap_or("120").parse().context("timeout")?;
    let mem = take("mem").unwrap_or("1G").to_owned();
    let serves = take("serves") != Some("no");
    let client = take("client") == Some("yes");
    let idle = take("idle") == Some("yes");
    let outside = take("outside") == Some("yes");
    take("prepares"); // these are for the scripts
    take("lease");
    if let Some(key) = head.keys().find(|key| key.chars().all(|c| c.is_ascii_lowercase())) {
        bail!("'# {key}:' is not known");
    }
    ensure!(!runs.is_empty(), "'# runs:' is empty");
    Ok(Scenario { name, title, runs, timeout, mem, serves, client, idle, outside })
}

/// The runs of the scenarios named (`NAME` or `NAME@RUN`), or all.
///
/// # Errors
/// A name that fits none.
pub fn select<'a>(scenarios: &'a [Scenario], names: &[String]) -> Result<Vec<Plan<'a>>> {
    let every = || scenarios.iter().flat_map(|scenario| scenario.runs.iter().map(move |run| Plan { scenario, run }));
    for name in names {
        ensure!(
            every().any(|plan| plan.scenario.name == *name || plan.label() == *name),
            "there is no scenario '{name}'; `cargo xtask lab --list` shows them"
        );
    }
    Ok(every().filter(|p| names.is_empty() || names.iter().any(|n| *n == p.scenario.name || *n == p.label())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "#!/bin/bash\n# title: a thing\n# runs: 4.1 4.2-btrfs\n# timeout: 60\n# More words: here.\n. x\n# mem: 9G\n";

    #[test]
    fn the_head_of_a_script_is_read() {
        let s = parse("x".to_owned(), TEXT).unwrap();
        assert_eq!((s.title.as_str(), s.timeout, s.mem.as_str(), s.serves), ("a thing", 60, "1G", true));
        assert!(!s.idle && parse("x".to_owned(), "#!/bin/bash\n# title: t\n# idle: yes\n").unwrap().idle);
        assert!(parse("x".to_owned(), "#!/bin/bash\n# title: t\n# tiemout: 3\n").is_err());
        assert!(parse("x".to_owned(), "#!/bin/bash\n").is_err());
    }

    #[test]
    fn names_select_runs() {
        let all = [parse("x".to_owned(), TEXT).unwrap()];
        let labels = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
            select(&all, &names).map(|plans| plans.iter().map(Plan::label).collect::<Vec<_>>())
        };
        assert_eq!(labels(&[]).unwrap(), ["x@4.1", "x@4.2-btrfs"]);
        assert_eq!(labels(&["x@4.1"]).unwrap(), ["x@4.1"]);
        assert!(labels(&["y"]).is_err());
        let plan = Plan { scenario: &all[0], run: "4.2-btrfs" };
        assert_eq!((plan.version(), plan.fs()), ("4.2", "btrfs"));
    }
}
