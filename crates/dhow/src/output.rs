//! What is printed: progress bars, tables, JSON.

use dhow_copy::{Calls, Event, Progress};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value, json};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// What became of standard output.
static OUT: AtomicU8 = AtomicU8::new(HEARD);
const HEARD: u8 = 0;
/// The reader has gone away.
const UNHEARD: u8 = 1;
const BROKEN: u8 = 2;

/// Prints a line on standard output. A reader that has gone away (`dhow ls | head`) is no error, and no reason to leave
/// work half done (`dhow cp -v | head`); other failures are told once, and make the process fail ([`is_broken`]).
pub fn say(line: impl std::fmt::Display) {
    if !is_heard() {
        return;
    }
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{line}") {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => OUT.store(UNHEARD, Ordering::Relaxed),
        Err(e) => {
            OUT.store(BROKEN, Ordering::Relaxed);
            crate::exit::complain(format!("standard output: {e}"));
        }
    }
}

/// Whether there is a point in printing more.
pub fn is_heard() -> bool {
    OUT.load(Ordering::Relaxed) == HEARD
}

/// Whether something could not be printed that somebody wanted.
pub fn is_broken() -> bool {
    OUT.load(Ordering::Relaxed) == BROKEN
}

/// Prints JSON in one line on standard output.
pub fn say_json(value: &Value) {
    say(value);
}

/// A name for people: what is not UTF-8 or not printable is escaped, so that a name cannot play with the terminal.
pub fn printable(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
        }
        for b in chunk.invalid() {
            out.push_str(&format!("\\x{b:02x}"));
        }
    }
    out
}

/// Calls by operation, as JSON.
pub fn ops(calls: &Calls) -> Value {
    Value::Object(calls.ops.iter().map(|(name, n)| ((*name).to_owned(), json!(n))).collect::<Map<_, _>>())
}

/// Seconds as a JSON number with microseconds.
pub fn json_seconds(d: Duration) -> Value {
    json!((d.as_secs_f64() * 1e6).round() / 1e6)
}

/// A bar on a terminal, or nothing.
#[derive(Clone)]
pub struct Bar(Option<ProgressBar>);

impl Bar {
    /// A bar for `bytes`, if `wanted` and standard error is a terminal.
    pub fn new(wanted: bool, bytes: u64) -> Self {
        if !wanted || !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr_with_hz(10));
        let template = "{wide_msg} {binary_bytes}/{binary_total_bytes} [{bar:20}] {binary_bytes_per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self(Some(bar))
    }

    /// Prints a line above the bar.
    pub fn above(&self, line: impl FnOnce()) {
        match &self.0 {
            Some(bar) => bar.suspend(line),
            None => line(),
        }
    }

    /// Removes the bar.
    pub fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }

    fn hear(&self, event: &Event<'_>) {
        let Some(bar) = &self.0 else { return };
        match event {
            Event::Found { bytes, .. } => bar.inc_length(*bytes),
            Event::Started { place, .. } => {
                let name = place.rsplit('/').next().unwrap_or(place);
                bar.set_message(printable(name.as_bytes()));
            }
            Event::Moved(n) if *n >= 0 => bar.inc(n.unsigned_abs()),
            Event::Moved(n) => bar.set_position(bar.position().saturating_sub(n.unsigned_abs())),
            Event::Done { .. } | Event::Failed(_) | Event::Decided { .. } => {}
        }
    }

    /// What moves the bar, tells failures on standard error, and with `verbose` each file.
    pub fn progress(&self, verbose: bool) -> Progress {
        let bar = self.clone();
        Progress::new(move |event| {
            bar.hear(&event);
            match event {
                Event::Failed(e) => bar.above(|| crate::exit::complain(e)),
                Event::Done { place, report } if verbose => bar.above(|| {
                    let size = crate::words::bytes(report.bytes);
                    say(format!("{} ({size}, {})", printable(place.as_bytes()), report.method));
                }),
                _ => {}
            }
        })
    }
}

/// Lines with columns, the first left-aligned and the others right-aligned.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
            if i == 0 {
                line.push_str(&format!("{cell:<width$}"));
            } else {
                line.push_str(&format!("  {cell:>width$}"));
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out.trim_end().to_owned()
}

/// Makes a new directory in `base`, open to this user alone.
///
/// # Errors
/// Those of `mkdir(2)`.
pub fn temporary_dir(base: &Path, name: &str) -> std::io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    loop {
        // Seeded by the system's randomness.
        let random = RandomState::new().build_hasher().finish();
        let path = base.join(format!("{name}-{random:016x}"));
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(std::io::Error::new(e.kind(), format!("{}: {e}", path.display()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_play_with_the_terminal() {
        assert_eq!(printable(b"a\x1b[2Jb\xff\n"), "a\\u{1b}[2Jb\\xff\\n");
        assert_eq!(printable("größe".as_bytes()), "größe");
    }

    #[test]
    fn tables_line_up() {
        let row = |a: &str, b: &str| vec![a.to_owned(), b.to_owned()];
        assert_eq!(table(&[row("method", "calls"), row("copy", "6")]), "method  calls\ncopy        6");
    }
}
