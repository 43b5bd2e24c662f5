//! What the checks of a scenario came to, and which failures are known.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::Server;

/// The lines of `lab/KNOWN_FAILURES`: `SCENARIO@RUN / CHECK -- REASON`.
#[derive(Debug, Default)]
pub struct Known {
    rows: Vec<(String, String)>,
}

impl Known {
    /// Reads the file; it speaks of dhow, so that it is empty for another server.
    ///
    /// # Errors
    /// A file that cannot be read, or a line without a reason.
    pub fn read(file: &Path, server: Server) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let all = Self::parse(&text)?;
        Ok(if server == Server::Knfsd { Self::default() } else { all })
    }

    fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let rows = lines.map(|line| {
            let (check, reason) =
                line.split_once(" -- ").with_context(|| format!("KNOWN_FAILURES: no ' -- REASON' in '{line}'"))?;
            Ok((check.trim().to_owned(), reason.trim().to_owned()))
        });
        Ok(Self { rows: rows.collect::<Result<_>>()? })
    }

    /// The checks listed under a label.
    pub fn checks<'a>(&'a self, label: &'a str) -> impl Iterator<Item = &'a str> {
        self.rows
            .iter()
            .filter_map(move |(name, _)| name.split_once(" / ").filter(|(l, _)| *l == label).map(|(_, c)| c))
    }

    fn reason(&self, label: &str, check: &str) -> Option<&str> {
        let wanted = format!("{label} / {check}");
        self.rows.iter().find(|(name, _)| *name == wanted).map(|(_, reason)| reason.as_str())
    }
}

/// Counts of one run or of many.
#[derive(Debug, Default)]
pub struct Tally {
    passed: usize,
    known: usize,
    skipped: usize,
    /// Checks that failed, or that passed though KNOWN_FAILURES lists them.
    pub failed: Vec<String>,
}

impl Tally {
    /// Takes one line that a scenario wrote after its mark: `ok NAME`, `FAIL NAME: WHY`, `skip NAME: WHY`, `note TEXT`.
    pub fn report(&mut self, known: &Known, label: &str, report: &str) {
        let (kind, text) = report.split_once(' ').unwrap_or((report, ""));
        let (name, why) = text.split_once(": ").unwrap_or((text, ""));
        match kind {
            "ok" => self.pass(known, label, text),
            "FAIL" => self.fail(known, label, name, why),
            "skip" => {
                self.skipped += 1;
                println!("skip      {label} / {name}: {why}");
            }
            _ => println!("{kind:<9} {label}: {text}"),
        }
    }

    fn pass(&mut self, known: &Known, label: &str, text: &str) {
        // The seconds in parentheses are no part of the name.
        let name = text.rsplit_once(" (").map_or(text, |(name, _)| name);
        if let Some(reason) = known.reason(label, name) {
            println!("FAILED    {label} / {name}: passes now; remove it from KNOWN_FAILURES ({reason})");
            self.failed.push(format!("{label} / {name}"));
        } else {
            self.passed += 1;
            println!("ok        {label} / {text}");
        }
    }

    /// Counts a failure, unless it is known.
    pub fn fail(&mut self, known: &Known, label: &str, name: &str, why: &str) {
        if let Some(reason) = known.reason(label, name) {
            self.known += 1;
            println!("known     {label} / {name}: {reason}");
        } else {
            println!("FAILED    {label} / {name}: {why}");
            self.failed.push(format!("{label} / {name}"));
        }
    }

    /// Adds the counts of another.
    pub fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.known += other.known;
        self.skipped += other.skipped;
        self.failed.extend(other.failed.iter().cloned());
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, known, skipped, failed } = self;
        write!(f, "{passed} passed, {} failed, {known} known failures, {skipped} skipped", failed.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_counted_and_known_failures_set_apart() {
        let known = Known::parse("# comment\n\nx@4.2 / b -- not offered\nx@4.2 / c -- nor this\n").unwrap();
        let mut tally = Tally::default();
        for report in ["ok a (0.1 s)", "FAIL b: why", "ok c (1 s)", "FAIL d: why: so", "skip e: no git", "note f"] {
            tally.report(&known, "x@4.2", report);
        }
        assert_eq!(tally.to_string(), "1 passed, 2 failed, 1 known failures, 1 skipped");
        assert_eq!(tally.failed, ["x@4.2 / c", "x@4.2 / d"]);
        assert!(Known::parse("x@4.2 / b\n").is_err());
    }
}
